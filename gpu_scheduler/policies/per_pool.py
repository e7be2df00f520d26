"""Another policy for the gangs of some slot types. Gangs that accept any GPU type follow the default."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar

from gpu_scheduler.checks import Check, Finding
from gpu_scheduler.draft import Draft
from gpu_scheduler.model import Gang, Growth, Resize, Snapshot, Stop
from gpu_scheduler.policies.base import Policy, PolicyState, Round, Window

EVERYTHING_ELSE = ""


@dataclass(frozen=True)
class PerPool(Policy):
    """default, and the policies that replace it by slot type.

    PolicyState: slot type ("" for all others) -> its policy's state.
    """

    name: ClassVar[str] = "per_pool"
    default: Policy
    pools: Mapping[str, Policy]

    def begin(self, draft: Draft) -> PerPoolRound:
        return PerPoolRound(self, draft)

    def key(self, slot_type: str | None) -> str:
        """Which of the policies orders gangs of this type."""
        return slot_type if slot_type is not None and slot_type in self.pools else EVERYTHING_ELSE

    def policies(self) -> dict[str, Policy]:
        """The replacing policies first: each owns its pool."""
        return {**self.pools, EVERYTHING_ELSE: self.default}

    def next_event_at(self, snapshot: Snapshot) -> datetime | None:
        changes = [
            policy.next_event_at(
                replace(snapshot, policy=policy, policy_state=_state_of(snapshot.policy_state, key))
            )
            for key, policy in self.policies().items()
        ]
        return min((at for at in changes if at is not None), default=None)

    def plans_without_queue(self, state: PolicyState) -> bool:
        return any(
            policy.plans_without_queue(_state_of(state, key)) for key, policy in self.policies().items()
        )

    def half_life_s(self) -> float | None:
        """The longest: all read the same past."""
        found = (policy.half_life_s() for policy in self.policies().values())
        return max((each for each in found if each is not None), default=None)

    def window(self, state: PolicyState) -> Window:
        """The default's order, with the first jobs of all."""
        windows = [policy.window(_state_of(state, key)) for key, policy in self.policies().items()]
        return replace(windows[-1], first=frozenset().union(*(window.first for window in windows)))

    def checks_for(self, slot_type: str) -> tuple[Check, ...]:
        return self.policies()[self.key(slot_type)].checks_for(slot_type)

    def state_refused(self, before: PolicyState, after: PolicyState, refused: Collection[str]) -> PolicyState:
        return {
            key: policy.state_refused(_state_of(before, key), _state_of(after, key), refused)
            for key, policy in self.policies().items()
        }

    def dump(self, state: PolicyState) -> dict[str, Any]:
        return {key: policy.dump(_state_of(state, key)) for key, policy in self.policies().items()}

    def load(self, stored: Mapping[str, Any]) -> PolicyState:
        return {key: policy.load(_state_of(stored, key)) for key, policy in self.policies().items()}


class PerPoolRound(Round):
    """One plan by several policies, each for its gangs."""

    def __init__(self, policy: PerPool, draft: Draft) -> None:
        waiting: defaultdict[str, list[Gang]] = defaultdict(list)
        for gang in draft.waiting:
            waiting[policy.key(gang.slot_type)].append(gang)
        self._key = policy.key
        self._of = {run.job: policy.key(run.gang.slot_type) for run in draft.snapshot.running}
        self._rounds = {
            key: each.begin(draft.limited_to(waiting[key], _state_of(draft.state, key)))
            for key, each in policy.policies().items()
        }

    def queue(self) -> Iterator[Gang]:
        for each in self._rounds.values():
            yield from each.queue()

    def wait(self, gang: Gang, finding: Finding) -> None:
        self._rounds[self._key(gang.slot_type)].wait(gang, finding)

    def size(self, gang: Gang) -> int:
        return self._rounds[self._key(gang.slot_type)].size(gang)

    def orders(self, waits: Iterable[tuple[Gang, Finding]]) -> tuple[Sequence[Stop], Sequence[Resize]]:
        stops: list[Stop] = []
        resizes: list[Resize] = []
        own: defaultdict[str, list[tuple[Gang, Finding]]] = defaultdict(list)
        for gang, finding in waits:
            own[self._key(gang.slot_type)].append((gang, finding))
        for key, each in self._rounds.items():
            more_stops, more_resizes = each.orders(own[key])
            stops += more_stops
            resizes += [resize for resize in more_resizes if self._of[resize.job] == key]
        stopped = {stop.job for stop in stops}
        return stops, [resize for resize in resizes if resize.job not in stopped]

    def state(self) -> PolicyState:
        return {key: each.state() for key, each in self._rounds.items()}

    def state_delayed(self, delayed: Iterable[tuple[Gang, str]]) -> PolicyState:
        own: defaultdict[str, list[tuple[Gang, str]]] = defaultdict(list)
        for gang, slot_type in delayed:
            own[self._key(gang.slot_type)].append((gang, slot_type))
        return {key: each.state_delayed(own[key]) for key, each in self._rounds.items()}

    def notes(self) -> Mapping[str, Mapping[str, Any]]:
        return {job: note for each in self._rounds.values() for job, note in each.notes().items()}

    def growths(self) -> Sequence[Growth]:
        found = ((key, growth) for key, each in self._rounds.items() for growth in each.growths())
        return [growth for key, growth in found if self._of[growth.job] == key]

    def remarks(self) -> Mapping[str, str]:
        return {job: remark for each in self._rounds.values() for job, remark in each.remarks().items()}


def _state_of(state: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = state.get(key, {})
    return found
