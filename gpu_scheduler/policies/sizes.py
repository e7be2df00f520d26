"""What each size of a running elastic gang is worth, and which of them may change it now."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_scheduler.elastic.allocation import Candidate
from gpu_scheduler.elastic.utility import proportional, sizes, speed
from gpu_scheduler.losses import unsaved_s, unsaved_since
from gpu_scheduler.model import Gang, GrowthReason, Running, Snapshot
from gpu_scheduler.placement import Pool
from gpu_scheduler.policies.ahead import Ahead
from gpu_scheduler.policies.growths import Growths, Note
from gpu_scheduler.policies.orders import Orders

EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Resizes:
    """When a gang is resized. Times are in seconds.

    every_s: how often free slots are divided, and how long a run is left alone after its start. pays_back_s: a change
    must gain more work within this time than it costs. cost_s: what a halt and a start cost where that was never
    measured. settle: a run is left alone for so many times what a halt and a start cost: else one that restarts slowly
    would do nothing but that. at_once, at_least: the part of a type's elastic runs that are divided at the same time,
    and how many may be in any case: so many checkpoints are stored at once. power: of fairness between gangs, at most
    0: `goodput_pf` is 0, and `goodput_p` anything below (gpu_scheduler.elastic.utility).
    """

    every_s: float = 60
    pays_back_s: float = 600
    cost_s: float = 30
    settle: float = 2
    at_once: float = 0.1
    at_least: int = 8
    power: float = 0.0

    def __post_init__(self) -> None:
        if not self.power <= 0:
            raise ValueError(f"power must be at most 0, not {self.power}")

    def next_at(self, snapshot: Snapshot, lease_s: float) -> datetime | None:
        """When elastic runs are looked at next: all at once, at full multiples of every_s; while jobs wait, also when
        the first of them can shrink."""
        runs = [run for run in snapshot.running if is_elastic(run)]
        if not runs:
            return None
        every = timedelta(seconds=self.every_s)
        found = [EPOCH + ((snapshot.now - EPOCH) // every + 1) * every]
        if snapshot.waiting:
            leases = (run.started_at + timedelta(seconds=max(lease_s, self.settles_s(run))) for run in runs)
            found += [at for at in leases if at > snapshot.now]
        return min(found)

    def settles_s(self, run: Running) -> float:
        """How long after its start it is left alone, as far as its costs were measured."""
        return self.settle * ((run.checkpoint_cost_s or 0.0) + (run.restart_cost_s or 0.0))

    def cost_of(self, run: Running, now: datetime) -> float:
        """Seconds without progress if this run is resized, with those whose work may be lost."""
        return self._restart_s(run) + (0.0 if run.saves_when_asked else unsaved_s(run, now))

    def costs(self, run: Running) -> dict[str, Any]:
        """What that is made of, as numbers that stay the same while time passes: seconds of a halt and a start, and
        since when its work would be lost."""
        found: dict[str, Any] = {"cost_s": self._restart_s(run)}
        return found if run.saves_when_asked else found | {"unsaved_since": unsaved_since(run)}

    def _restart_s(self, run: Running) -> float:
        if run.checkpoint_cost_s is None and run.restart_cost_s is None:
            return self.cost_s
        return (run.checkpoint_cost_s or 0.0) + (run.restart_cost_s or 0.0)


class Sizes:
    """The elastic runs of one plan by type, and the options of each."""

    def __init__(self, orders: Orders, rules: Resizes, lease_s: float) -> None:
        self._orders, self._draft, self._rules = orders, orders.draft, rules
        self._lease_s, self._now = lease_s, orders.now
        self.growths = Growths()
        self._of_type: defaultdict[str, list[Running]] = defaultdict(list)
        self._sharing: Counter[tuple[str, str]] = Counter()
        self._barred: dict[str, GrowthReason | None] = {}
        self._options: dict[tuple[str, int, int], Candidate] = {}
        for run in sorted(self._draft.snapshot.running, key=lambda run: run.job):
            if is_elastic(run):
                self._of_type[run.slot_type].append(run)
                self._sharing[run.tenant, run.slot_type] += 1

    @property
    def any_runs(self) -> bool:
        return bool(self._of_type)

    @property
    def types(self) -> list[str]:
        """Those on which elastic gangs run."""
        return sorted(self._of_type)

    def of(self, slot_type: str) -> Sequence[Running]:
        """The elastic runs of a type."""
        return self._of_type.get(slot_type, ())

    def can_shrink(self, pool: Pool) -> list[Running]:
        """The runs of a type that may give up learners now."""
        return [
            run for run in self._changeable(pool, self._lease_s) if len(run.nodes) > run.gang.learners.min
        ]

    def can_change(self, pool: Pool) -> list[Running]:
        """Those that have run for long enough to be divided again with the others."""
        return self._changeable(pool, self._rules.every_s, self.growths)

    def is_settled(self, run: Running, lease_s: float) -> bool:
        """Whether it started long enough ago to be resized, and no more is lost by that than the time in which a change
        would have to pay."""
        return self._unsettled(run, lease_s) is None

    def _unsettled(self, run: Running, lease_s: float) -> Note | None:
        """What keeps it from that."""
        lease_s = max(lease_s, self._rules.settles_s(run))
        if not self._orders.past(run, lease_s):
            return GrowthReason.SETTLING, {"until": run.started_at + timedelta(seconds=lease_s)}
        if self._rules.cost_of(run, self._now) > self._rules.pays_back_s:
            return GrowthReason.COSTS, self._rules.costs(run) | {"pays_back_s": self._rules.pays_back_s}
        return None

    def _changeable(self, pool: Pool, lease_s: float, growths: Growths | None = None) -> list[Running]:
        """growths: where it is noted why the others are not."""
        free_to_go = self._orders.free_to_go[pool.slot_type]
        aged = []
        for run in self.of(pool.slot_type):
            if run.job not in free_to_go:
                continue
            if (why := self._unsettled(run, lease_s)) is None:
                aged.append(run)
            elif growths is not None:
                growths.note(run.job, why[0], **why[1])
        unknown = [run for run in aged if run.job not in self._barred]
        if unknown:
            ahead = Ahead(self._draft, pool)
            self._barred |= {run.job: ahead.barred(run) for run in unknown}
        if growths is not None:
            for run in aged:
                if (barred := self._barred[run.job]) is not None:
                    growths.note(run.job, barred)
        return [run for run in aged if self._barred[run.job] is None]

    def candidate(self, pool: Pool, run: Running, most: int, in_reach: int) -> Candidate:
        """Its options of at most so many learners. in_reach: a size that is compared, too."""
        in_reach = min(most, max(in_reach, run.gang.learners.min))
        key = (run.job, most, in_reach)
        found = self._options.get(key)
        if found is None:
            found = self._options[key] = self._candidate(pool, run, most, in_reach)
        return found

    def _candidate(self, pool: Pool, run: Running, most: int, in_reach: int) -> Candidate:
        gang, now = run.gang, len(run.nodes)
        least = min(gang.learners.min, now)
        choices = self._nodes_for(pool, run, sizes(least, most, pool.per_node(gang), now, in_reach))
        age = (self._now - run.started_at).total_seconds()
        kept = max(age, 1.0) / (max(age, 1.0) + self._rules.cost_of(run, self._now))
        weight = self.weight(gang, run.slot_type)
        options = proportional(gang, choices, now=now, kept=kept, weight=weight, power=self._rules.power)
        return Candidate(run.job, options, gang.tenant)

    def new_candidate(self, pool: Pool, gang: Gang, most: int, starting: int) -> Candidate:
        """The options of one that is to start, as one of so many of its tenant."""
        per_node = pool.per_node(gang)
        choices = {n: -(-n // per_node) for n in sizes(gang.learners.min, most, per_node)}
        weight = self.weight(gang, pool.slot_type, starting)
        options = proportional(gang, choices, now=0, kept=1.0, weight=weight, power=self._rules.power)
        return Candidate(gang.job, options, gang.tenant)

    def weight(self, gang: Gang, slot_type: str, starting: int = 0) -> float:
        """That of its tenant, doubled by each class, and shared by the tenant's elastic gangs: a tenant gets no more by
        having many."""
        sharing = max(1, self._sharing[gang.tenant, slot_type] + starting)
        return (
            self._draft.ledger.account(gang.tenant, slot_type).weight * 2.0 ** (gang.priority - 1) / sharing
        )

    def compared(self, pool: Pool, run: Running, learners: int) -> tuple[float, float]:
        """Its useful speed now, and with so many learners, more than it has."""
        before, after = (
            speed(run.gang, size, nodes)
            for size, nodes in self._nodes_for(pool, run, (len(run.nodes), learners)).items()
        )
        return before, after

    def pays(self, pool: Pool, run: Running, learners: int) -> bool:
        """Whether a larger size gains more than the change costs."""
        if learners <= len(run.nodes):
            return True
        before, after = self.compared(pool, run, learners)
        return (after - before) * self._rules.pays_back_s > self._rules.cost_of(run, self._now) * before

    @staticmethod
    def _nodes_for(pool: Pool, run: Running, choices: Iterable[int]) -> Mapping[int, int]:
        """By number of learners, on how many nodes they would be; those that it has are where they are."""
        return pool.nodes_for(run, choices) | {len(run.nodes): len(set(run.nodes))}


def is_elastic(run: Running) -> bool:
    """Whether it can run in more than one size."""
    return run.gang.elastic is not None and run.gang.learners.max > run.gang.learners.min
