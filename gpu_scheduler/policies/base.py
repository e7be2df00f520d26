"""What a policy is: the one object that knows who is offered slots first, what is reserved, and what is stopped for it.

The cycle, the forecast and the snapshot's queries ask the policy and know none of it themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from gpu_scheduler.checks import CHECKS, Check, Finding
from gpu_scheduler.draft import Draft
from gpu_scheduler.model import Gang, Growth, Resize, Snapshot, Stop
from gpu_scheduler.places import IN_SIGHT, LEAVES_WITHIN, is_in_sight

PolicyState = Mapping[str, Any]
"""What a policy carries from plan to plan. Only the policy itself reads it."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which waiting jobs a plan must evaluate if it cannot evaluate all: a bound that SQL can execute.

    Jobs named by ``first`` come first. The others are sorted by ``levels``, then each queue (jobs that are equal in the
    fields of ``queue``, sorted by ``order``) contributes its first job, its second, and so on. All but ``first`` are
    names of Gang's fields; "-" before a name sorts descending.
    """

    first: frozenset[str] = frozenset()
    levels: tuple[str, ...] = ()
    queue: tuple[str, ...] = ("tenant",)
    order: tuple[str, ...] = ("queued_at", "job")


class Round(ABC):
    """A policy's part in one plan."""

    @abstractmethod
    def queue(self) -> Iterator[Gang]:
        """Yield every gang of the draft's ``waiting`` once, in the order in which slots are offered.

        The cycle starts a gang in the draft, or calls ``wait`` for it, before it asks for the next one.
        """

    @abstractmethod
    def wait(self, gang: Gang, finding: Finding) -> None:
        """This gang cannot start now. Reserve for it in the draft what later ones must not take."""

    def size(self, gang: Gang) -> int:
        """With how many learners a gang that can start should do so, or with as many as fit. Its target by default."""
        return gang.target or gang.learners.min

    def orders(self, waits: Iterable[tuple[Gang, Finding]]) -> tuple[Sequence[Stop], Sequence[Resize]]:
        """Which running jobs to stop or resize, after all waiting ones were offered slots. None by default.

        waits: every gang that cannot start, with the check that it failed when it was offered slots.
        """
        return (), ()

    @abstractmethod
    def state(self) -> PolicyState:
        """What it wants to find in the next snapshot. Asked for last."""

    def state_delayed(self, delayed: Iterable[tuple[Gang, str]]) -> PolicyState:
        """The same if these gangs, which were started in the draft on these types, have to wait until opportunistic
        jobs have left their slots. A policy that carries anything over keeps what it keeps of a waiting gang, and its
        place."""
        return self.state()

    def notes(self) -> Mapping[str, Mapping[str, Any]]:
        """By job, numbers that the explanation of its wait shows in addition; plain JSON."""
        return {}

    def growths(self) -> Sequence[Growth]:
        """Why elastic runs get no more learners, after ``orders``. None by default: a policy that resizes nothing."""
        return ()

    def remarks(self) -> Mapping[str, str]:
        """By job, a sentence that follows the reason of its wait. Names no tenant and no job."""
        return {}


class Policy(ABC):
    """A scheduling policy. Instances are immutable; ``name`` selects it in the settings."""

    name: ClassVar[str]
    checks: ClassVar[tuple[Check, ...]] = CHECKS
    promise_s: ClassVar[float] = 60.0
    """Seconds for which slots freed for a job are offered to it first, from when the last run stopped for it left."""

    @abstractmethod
    def begin(self, draft: Draft) -> Round:
        """Its part in the plan that this draft is for."""

    @abstractmethod
    def next_event_at(self, snapshot: Snapshot) -> datetime | None:
        """When its decisions can next change without a start, an end or a new job; None: never.

        Later than the snapshot's now. The next cycle, and the forecast's next plan, is made then at the latest.
        """

    def plans_without_queue(self, state: PolicyState) -> bool:
        """Whether a plan can change anything while no job waits: the state, or running jobs. A policy that stops or
        resizes jobs for other reasons than a waiting one returns True; then every cycle makes a plan."""
        return bool(state)

    def half_life_s(self) -> float | None:
        """In seconds: what a tenant held that long ago counts half in QuotaUse.used_recently. None: not at all."""
        return None

    @abstractmethod
    def window(self, state: PolicyState) -> Window:
        """Which waiting jobs come first if a plan cannot evaluate all."""

    def checks_for(self, slot_type: str) -> tuple[Check, ...]:
        """The checks that a gang must pass to start on this type, in order."""
        return self.checks

    def state_refused(self, before: PolicyState, after: PolicyState, refused: Collection[str]) -> PolicyState:
        """What it wants to find after a plan, where these jobs of its starts did not begin: after is what it asked for
        as they would. A policy that carries anything over keeps what it knew of them before."""
        return after

    def dump(self, state: PolicyState) -> dict[str, Any]:
        """The state as plain JSON, to be stored until the next plan."""
        return dict(state)

    def load(self, stored: Mapping[str, Any]) -> PolicyState:
        """The state out of what ``dump`` made; empty is the state before the first plan."""
        return stored


def reservations_move_at(snapshot: Snapshot) -> list[datetime]:
    """When ends of runs are near enough to count, or a run that was stopped counts as one that may never leave: then
    what is reserved for a waiting job can move to other nodes."""
    if not snapshot.waiting:
        return []
    left = (run.stopping_since for run in snapshot.running if run.stopping_since is not None)
    stuck = [at for since in left if (at := since + LEAVES_WITHIN) > snapshot.now]
    far = (run.ends_by for run in snapshot.running if run.ends_by is not None)
    return stuck + [end - IN_SIGHT for end in far if not is_in_sight(end, snapshot.now)]


def policy_of(snapshot: Snapshot) -> Policy:
    """The snapshot's policy, with its full type."""
    assert isinstance(snapshot.policy, Policy)
    return snapshot.policy
