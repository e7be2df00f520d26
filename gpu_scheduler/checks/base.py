"""What an admission rule is: its test, and everything that people read about it.

A rule is one ``Check`` object. The plan runs its test; REST, pages, events and forecasts read the rest of it from the
catalog (``gpu_scheduler.checks``), so nothing about a rule is written down a second time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from gpu_scheduler.draft import Supply
from gpu_scheduler.model import Gang, WaitReason


class Remedy(StrEnum):
    """What ends the wait: time alone (WAIT), an administrator (ASK), or the owner, who changes the job (FIX).

    REST calls it ``actor``.
    """

    WAIT = "wait"
    ASK = "ask"
    FIX = "fix"


class Scope(StrEnum):
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
class Finding:
    """The check that a gang fails, with what it could get of the type. scope: None if time alone changes nothing."""

    check: Check
    gang: Gang
    supply: Supply
    scope: Scope | None
    _numbers: dict[str, Any] | None = field(default=None, init=False)
    _sentence: str | None = field(default=None, init=False)

    @property
    def numbers(self) -> dict[str, Any]:
        """As they were when this was first read."""
        if self._numbers is None:
            gang, supply, check = self.gang, self.supply, self.check
            self._numbers = supply.numbers(gang)
            self._numbers |= check.numbers(gang, supply)
            self._numbers |= check.shortage_numbers(gang, supply)
        return self._numbers

    @property
    def sentence(self) -> str:
        """As it was when this was first read."""
        if self._sentence is None:
            self._sentence = self.check.sentence(self)
        return self._sentence


class Check(ABC):
    """One admission rule.

    code: the reason that a job shows when it fails here. key: the name in lists of checks. title: what is checked, as a
    heading. claim: what holds when the check passes. label: the reason in a few words. queues: whether a job that fails
    here keeps a queue position. own: what is missing is of the user's or the project's own limit, so nothing of the
    tenant's is reserved for the job; of_project: of the project's. of_owner: its test, its numbers and its sentence are
    about the job's own user or project. remedy: what ends the wait. scope: where the obstacle usually is. private:
    names of numbers that people outside the tenant must not see; they read ``redacted`` instead of the sentence, unless
    it is empty. reads: the Gang's fields that the test depends on, besides tenant,
    slot_type, slots, asked, learners and runs_at_most_s: a plan tests gangs that are equal in all of them once.
    """

    code: ClassVar[WaitReason]
    key: ClassVar[str]
    title: ClassVar[str]
    claim: ClassVar[str]
    label: ClassVar[str]
    remedy: ClassVar[Remedy] = Remedy.WAIT
    queues: ClassVar[bool] = True
    own: ClassVar[bool] = False
    of_project: ClassVar[bool] = False
    of_owner: ClassVar[bool] = False
    scope: ClassVar[Scope]
    private: ClassVar[frozenset[str]] = frozenset()
    redacted: ClassVar[str] = ""
    reads: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        """None if the gang passes. Must not change anything; runs for every waiting job in every plan."""

    def applies(self, supply: Supply) -> bool:
        """False if nothing is known of the supply's nodes that this check could compare: then it is neither tested nor
        listed as passed. The same in the whole plan."""
        return True

    def concerns(self, gang: Gang) -> bool:
        """False if the gang asks for nothing that this check compares: then it passes, and is not listed."""
        return True

    @abstractmethod
    def sentence(self, finding: Finding) -> str:
        """One sentence for the job's owner: what is missing, with the numbers. Names no other tenant, and jobs of
        the gang's own tenant only."""

    def numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        """Numbers of this rule's own, in addition to those of the supply; plain JSON. Read for its meter, too."""
        return {}

    def shortage_numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        """More of them, for a job that fails this check: they may take longer to find."""
        return {}

    def nearness(self, finding: Finding) -> int:
        """Of several types on which a gang of any type fails this check, the one with the most is explained."""
        return 0

    def remedy_for(self, numbers: Mapping[str, Any]) -> Remedy:
        """What ends the wait of a job with these numbers of a finding, some of which may be redacted."""
        return self.remedy

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        """What to draw, from a finding's numbers; None if this check counts nothing."""
        return None

    def meter_text(self, *, used: int, limit: int, asked: int) -> str:
        """The meter in words."""
        return f"{used} of {limit} in use, this job adds {asked}"
