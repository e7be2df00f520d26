"""What retention rules say: the kinds of data, a rule, and the syntax of the installation's defaults. Pure.

A rule of days removes what is older, one of bytes the oldest of what is too much. None of both: kept forever.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

MAX_DAYS = 36_500
MAX_BYTES = 2**53 - 1
"""Above that, not every reader of JSON has whole numbers."""
LEAST_DAYS_OF_AUDIT = 30
"""The traces of what was just done cannot be removed."""
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
DAYS = re.compile(r"([0-9]{1,6})d", re.ASCII)
SIZE = re.compile(rf"([0-9]{{1,18}})({'|'.join(UNITS)})?", re.ASCII)


class Kind(StrEnum):
    """A kind of data that can be removed by itself. SESSIONS have no tenant: only the installation has a rule."""

    LOGS = "logs"
    METRICS = "metrics"
    CHECKPOINTS = "checkpoints"
    RESULTS = "results"
    EVENTS = "events"
    AUDIT = "audit"
    SESSIONS = "sessions"


OF_JOBS = (Kind.LOGS, Kind.METRICS, Kind.CHECKPOINTS, Kind.RESULTS, Kind.EVENTS)
OF_TENANTS = (*OF_JOBS, Kind.AUDIT)
BY_AGE_ALONE = (Kind.AUDIT, Kind.SESSIONS)


@dataclass(frozen=True, slots=True)
class Rule:
    """days: what is older goes; bytes: the oldest of what is above goes. None: no such limit."""

    days: int | None = None
    bytes: int | None = None

    @property
    def keeps_all(self) -> bool:
        return self.days is None and self.bytes is None


FOREVER = Rule()
Rules = Mapping[Kind, Rule]


def wrong_rule(kind: Kind, rule: Rule) -> dict[str, str]:
    """What is wrong with a rule: a sentence for "days" and for "bytes"."""
    least = LEAST_DAYS_OF_AUDIT if kind is Kind.AUDIT else 1
    wrong = {}
    if rule.days is not None and not least <= rule.days <= MAX_DAYS:
        wrong["days"] = f"must be {least} to {MAX_DAYS}"
    if rule.bytes is not None and kind in BY_AGE_ALONE:
        wrong["bytes"] = f"must be left out: the {kind} are removed by age alone"
    elif rule.bytes is not None and not 1 <= rule.bytes <= MAX_BYTES:
        wrong["bytes"] = f"must be 1 to {MAX_BYTES}"
    return wrong


def read_rules(text: str) -> dict[Kind, Rule]:
    """The defaults from a text such as `logs:90d, checkpoints:30d:500Gi`: a kind, then days, a size or both.

    Raises ValueError with all that is wrong.
    """
    rules: dict[Kind, Rule] = {}
    wrong = []
    for entry in (part.strip() for part in text.split(",")):
        name, *limits = entry.split(":")
        if name not in set(Kind):
            wrong.append(f"{entry!r} names no kind of data: {', '.join(Kind)}")
            continue
        kind = Kind(name)
        rule = _read_limits(limits)
        if rule is None:
            wrong.append(f"{entry!r} must have days such as 90d, a size such as 500Gi, or both")
        elif kind in rules:
            wrong.append(f"{kind} is named twice")
        else:
            wrong += [f"{entry!r}: {field} {problem}" for field, problem in wrong_rule(kind, rule).items()]
            rules[kind] = rule
    if wrong:
        raise ValueError("; ".join(wrong))
    return rules


def read_size(text: str) -> int | None:
    """Bytes of a size such as 500Gi or 1048576; None if it is none."""
    found = SIZE.fullmatch(text)
    return int(found[1]) * UNITS.get(found[2] or "", 1) if found else None


def _read_limits(limits: list[str]) -> Rule | None:
    days = [int(found[1]) for one in limits if (found := DAYS.fullmatch(one))]
    sizes = [size for one in limits if (size := read_size(one)) is not None]
    if not limits or len(days) > 1 or len(sizes) > 1 or len(days) + len(sizes) != len(limits):
        return None
    return Rule(days[0] if days else None, sizes[0] if sizes else None)
