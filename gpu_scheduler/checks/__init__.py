"""The catalog of admission rules: each one a ``Check`` with its test, words, meter and what outsiders must not see.

Readers outside the scheduler (REST, pages, events) use:

* ``CHECKS``: the rules in the order in which a job is tested, ``OPPORTUNISTIC_CHECKS``: those of an opportunistic one;
* ``RULES``: every rule of either;
* ``check_of(code)``: the rule behind a job's reason code, None for a reason that no rule gives, such as NOT_EVALUATED;
* ``check_named(key)``: the rule behind an entry of ``listed``;
* ``PRIVATE``: names of all numbers that people outside the tenant must not see;
* ``NOT_QUEUED``: codes with which a job has no queue position.

To add a rule: write a ``Check`` in the module of its subject, list it in ``rules``, and add its code to
``model.WaitReason``. Nothing else.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from gpu_scheduler.checks.base import Check, Finding, Meter, Remedy, Scope
from gpu_scheduler.checks.rules import CHECKS, OPPORTUNISTIC_CHECKS
from gpu_scheduler.draft import Supply
from gpu_scheduler.model import Gang

__all__ = [
    "CHECKS",
    "NOT_QUEUED",
    "OPPORTUNISTIC_CHECKS",
    "PRIVATE",
    "RULES",
    "Check",
    "Finding",
    "Meter",
    "Remedy",
    "Scope",
    "Supply",
    "check_named",
    "check_of",
    "listed",
]

_OF_OTHERS = {check.code for check in CHECKS}
RULES = (*CHECKS, *(check for check in OPPORTUNISTIC_CHECKS if check.code not in _OF_OTHERS))
_BY_CODE: dict[str, Check] = {check.code.value: check for check in RULES}
_BY_KEY: dict[str, Check] = {check.key: check for check in RULES}
PRIVATE: frozenset[str] = frozenset().union(*(check.private for check in RULES))
NOT_QUEUED = frozenset(check.code for check in RULES if not check.queues)


def check_of(code: str) -> Check | None:
    """The rule that gives this reason code."""
    return _BY_CODE.get(code)


def check_named(key: str) -> Check | None:
    """The rule with this key."""
    return _BY_KEY.get(key)


def listed(finding: Finding, gang: Gang, checks: tuple[Check, ...] = CHECKS) -> list[dict[str, Any]]:
    """Every check that applies, in order, as plain JSON: ok is True, False for the one that fails, None for those not
    reached. gang: whose list it is; the finding may be that of one alike. Not to be changed: lists share what is the
    same for many jobs."""
    ok: bool | None = True
    found = []
    supply, numbers = finding.supply, finding.numbers
    for check in checks:
        fails = check is finding.check
        if not fails and not (check.applies(supply) and check.concerns(gang)):
            continue
        own = check.numbers(gang, supply)
        meter = check.meter(numbers | own if own else numbers)
        if fails or meter is not None:
            found.append(
                _row(check, False if fails else ok, finding.sentence if fails else check.claim, meter)
            )
        else:
            found.append(_row_without_meter(check, ok))
        if fails:
            ok = None
    return found


def _row(check: Check, ok: bool | None, text: str, meter: Meter | None) -> dict[str, Any]:
    return {
        "check": check.key,
        "ok": ok,
        "used": meter.used if meter else None,
        "limit": meter.limit if meter else None,
        "asked": meter.asked if meter else None,
        "text": text,
    }


@cache
def _row_without_meter(check: Check, ok: bool | None) -> dict[str, Any]:
    return _row(check, ok, check.claim, None)
