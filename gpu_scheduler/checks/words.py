"""Words and numbers that the sentences of several rules share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpu_scheduler.model import Gang, unit
from gpu_scheduler.placement import Shortage
from gpu_scheduler.rooms import CPUS, MEMORY

NAMES = {CPUS: "cpus", MEMORY: "memory_mib"}


def numbers_of(resource: int, short: Shortage) -> dict[str, Any]:
    """need: per learner; have: the most that a learner can have on one node; in CPUs, or in MiB."""
    per = 1000 if resource == CPUS else 1
    return {
        "resource": NAMES[resource],
        "need": short.need / per,
        "have": short.have / per,
    }


def devices(gang: Gang, slot_type: str) -> str:
    return f"{gang.slots} {unit(slot_type, gang.slots)}"


def down(numbers: Mapping[str, Any]) -> str:
    """The end of a sentence about nodes, if some are down."""
    count = numbers["nodes_down"]
    return f"; {count} {'node is' if count == 1 else 'nodes are'} down" if count else ""


def are(count: int) -> str:
    return "is" if count == 1 else "are"


def amount(resource: int, count: int) -> str:
    """So much of a resource (its place in a Room) beside the slots: "1.5 CPUs", "64 GiB of memory"."""
    if resource == CPUS:
        return f"{count / 1000:g} CPU{'' if count == 1000 else 's'}"
    return f"{count / 1024:.4g} GiB of memory" if count >= 1024 else f"{count} MiB of memory"


def shape(gang: Gang) -> str:
    """A gang's size: "4", or "2 × 4" if it has several learners."""
    return str(gang.slots) if gang.learners.min == 1 else f"{gang.learners.min} × {gang.slots}"


def duration(seconds: float) -> str:
    """As a spec writes it, in the largest unit that is whole: "90s", "12h", "2d"."""
    whole = round(seconds)
    for unit_s, letter in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if whole and whole % unit_s == 0:
            return f"{whole // unit_s}{letter}"
    return f"{whole}s"


def hours(count: float) -> str:
    """Hours of a budget, as they were set: "0.5", "1,250"."""
    return f"{count:,.3f}".rstrip("0").rstrip(".")


def hours_used(used: float, of: float) -> str:
    """What is used of a budget in tenths of an hour, so rounded that it reaches the budget only if that is used up, and
    is 0 only if nothing is."""
    tenths = round(used * 10, 6)
    whole = math.ceil(tenths) if used >= of else math.floor(tenths)
    return "less than 0.1" if used > 0 and not whole else hours(whole / 10)
