"""What an admission rule is: its test, and everything that people read about it.

A rule is one ``Check`` object. The plan runs its test; REST, pages, events and forecasts read the rest of it from the
catalog (``gpu_scheduler.checks``), so nothing about a rule is written down a second time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from gpu_scheduler.model import CPU_TYPE, Gang, WaitReason
from gpu_scheduler.placement import Pool
from gpu_scheduler.quota import Account, JobCount


class Actor(StrEnum):
    """Who ends the wait: time alone (WAIT), an administrator (ASK), or the owner, who changes the job (FIX)."""

    WAIT = "wait"
    ASK = "ask"
    FIX = "fix"


class Holder(StrEnum):
    """Where the obstacle is: in the tenant's own limits, or on the cluster's nodes."""

    TENANT = "tenant"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Meter:
    """What a page draws: used of limit, and what this job adds. In units of the check; limit None: no limit."""

    used: int
    limit: int | None
    asked: int


@dataclass(slots=True, eq=False)
class Candidate:
    """A gang that asks for slots of one type, with the state of what it competes for.

    asked: slots over all learners. pool: None if no node has this type.
    """

    gang: Gang
    slot_type: str
    asked: int
    pool: Pool | None
    account: Account
    jobs: JobCount
    now: datetime

    def numbers(self) -> dict[str, Any]:
        """The facts behind every check, as plain JSON. Counts are slots unless the name says otherwise."""
        gang, account, pool = self.gang, self.account, self.pool
        found: dict[str, Any] = {
            "slot_type": self.slot_type,
            "learners": gang.learners.min,
            "slots": gang.slots,
            "asked": self.asked,
            "limit": account.limit,
            "used": account.used,
            "jobs_limit": self.jobs.limit,
            "jobs_used": self.jobs.used,
        }
        if pool is not None:
            found |= {
                "free": pool.free.total,
                "total": pool.total,
                "reserved": pool.reserved_free(),
                "largest_block": pool.free.largest,
                "largest_node": pool.largest_node,
                "learners_fitting": pool.free.capacity(gang.slots),
                "nodes_down": pool.nodes_down,
            }
        return found


@dataclass(slots=True, eq=False)
class Finding:
    """The check that a gang fails on one type. holder: see ``Holder``; None if time alone changes nothing."""

    check: Check
    on: Candidate
    holder: Holder | None
    _numbers: dict[str, Any] | None = field(default=None, init=False)

    @property
    def numbers(self) -> dict[str, Any]:
        """Those of the candidate when this was first read."""
        if self._numbers is None:
            self._numbers = self.on.numbers()
        return self._numbers


class Check(ABC):
    """One admission rule.

    code: the reason that a job shows when it fails here. key: the name in lists of checks. title: what is checked, as
    a heading. claim: what holds when the check passes. label: the reason in a few words. queues: whether a job that
    fails here keeps a queue position. holder: where the obstacle usually is. private: names of numbers that
    people outside the tenant must not see; they read ``redacted`` instead of the sentence, unless it is empty.
    """

    code: ClassVar[WaitReason]
    key: ClassVar[str]
    title: ClassVar[str]
    claim: ClassVar[str]
    label: ClassVar[str]
    actor: ClassVar[Actor] = Actor.WAIT
    queues: ClassVar[bool] = True
    holder: ClassVar[Holder]
    private: ClassVar[frozenset[str]] = frozenset()
    redacted: ClassVar[str] = ""

    @abstractmethod
    def test(self, on: Candidate) -> Finding | None:
        """None if the gang passes. Must not change anything; runs for every waiting job in every plan."""

    @abstractmethod
    def sentence(self, finding: Finding) -> str:
        """One sentence for the job's owner: what is missing, with the numbers. Names no other tenant and no job."""

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        """What to draw, from a candidate's numbers; None if this check counts nothing."""
        return None

    def meter_text(self, *, used: int, limit: int, asked: int) -> str:
        """The meter in words."""
        return f"{used} of {limit} in use, this job adds {asked}"


def unit(slot_type: str, count: int) -> str:
    """The words for this many slots of a type: "CPUs", "a100 GPUs"; "GPUs" for any type."""
    kind = "CPU" if slot_type == CPU_TYPE else f"{slot_type} GPU".strip()
    return kind if count == 1 else f"{kind}s"


def shape(gang: Gang) -> str:
    """A gang's size: "4", or "2 × 4" if it has several learners."""
    return str(gang.slots) if gang.learners.min == 1 else f"{gang.learners.min} × {gang.slots}"
