"""Elastic gangs that leave nodes which take no more learners: with as many learners as find a place elsewhere or stay.

Such a node was cordoned to be drained, or is to be taken away. A gang of which one learner is evicted ends as a whole,
and then waits for its turn; one that was resized before keeps what it holds on its other nodes, and its place but for
urgent jobs. One whose fewest learners find no place is left alone: it trains until its node is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpu_scheduler import cordoned
from gpu_scheduler.model import Resize, Running
from gpu_scheduler.placement import Pool
from gpu_scheduler.policies.ahead import Ahead
from gpu_scheduler.policies.orders import Orders
from gpu_scheduler.policies.sizes import Resizes, Sizes


class Departing:
    """The gangs that leave in one plan, once all others were offered slots."""

    def __init__(self, orders: Orders, sizes: Sizes, rules: Resizes) -> None:
        self._orders, self._draft, self._sizes, self._rules = orders, orders.draft, sizes, rules

    def orders(self) -> None:
        """Order those of the highest class first."""
        if not self._sizes.any_runs or not (names := cordoned.names(self._draft.snapshot.nodes)):
            return
        pools = [self._draft.pools[each] for each in self._sizes.types if each in self._draft.pools]
        unkept = self._draft.awaited_urgently()
        for pool in pools:
            if runs := sorted(self._leaving(pool, names, pool.slot_type not in unkept), key=cordoned.first):
                self._order(runs, Ahead(self._draft, pool), names)

    def _order(self, runs: Iterable[Running], ahead: Ahead, names: frozenset[str]) -> None:
        for run in runs:
            if (gang := ahead.off(run)) is not None:
                leaves = tuple(sorted(names.intersection(run.nodes)))
                self._orders.order(run, Resize(run.job, gang.learners.min, run.generation, leaves=leaves))

    def _leaving(self, pool: Pool, names: frozenset[str], is_kept: bool) -> Iterator[Running]:
        free_to_go, up = self._orders.free_to_go[pool.slot_type], pool.unreserved.of
        for run in self._sizes.of(pool.slot_type):
            on = names.intersection(run.nodes)
            is_up = all(name in on or name in up for name in run.nodes)
            if on and is_up and run.job in free_to_go and self._should_save(run, on, is_kept):
                yield run

    def _should_save(self, run: Running, on: frozenset[str], is_kept: bool) -> bool:
        """Where a time is known: it can save before that. Else what it needs elsewhere is kept, and it is as for any
        resize: a node may be cordoned for a moment only, as with too little disk, and so may the one to which the run
        goes."""
        now = self._orders.now
        ends = [node.leaves_at for node in self._draft.snapshot.nodes if node.leaves_at and node.name in on]
        if not ends:
            return is_kept and self._sizes.is_settled(run, self._rules.every_s)
        return (min(ends) - now).total_seconds() >= (run.checkpoint_cost_s or 0.0)
