"""forecast(snapshot, runs) -> when each waiting job would start if nothing else came: plan() run forward.

Time is moved from one end of a run to the next; at each, the same plan() that starts jobs decides. Where the length of
a run is only known as a distribution, the world is run forward several times, each with lengths chosen by a hash of the
job's name: without a clock and random numbers, so the same snapshot gives the same forecast. Work is counted in units,
not in time.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from gpu_scheduler import budgets, rests, world
from gpu_scheduler.checks import NOT_QUEUED
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import CPU_TYPE, Gang, Running, Snapshot, Stop, TenantState, WaitReason
from gpu_scheduler.policies.base import policy_of

SIMULATIONS = 20
"""Simulations per forecast when run lengths are uncertain: p50 and p90 are the 10th and 18th of their starts."""
MIN_SIMULATIONS = 4
"""Each simulation may use 1/MIN_SIMULATIONS of the work budget, so that at least this many fit."""
WORK = 200_000
"""Units of work for one forecast; a unit takes about 3 µs. A plan costs PLAN units and one more per node, per waiting
and per running job. For gangs with a topology, it costs one more per node for each of their levels, and IN_DOMAIN for
each of their starts."""
REQUEST_WORK = 20_000
"""Units for a forecast within a request: tens of milliseconds."""
FORECAST_JOBS = 300
"""Waiting jobs that a forecast covers; jobs further back get "too many jobs ahead"."""
PLAN = 50
IN_DOMAIN = 20
EXACT_PLANS = 64
"""After this many plans, a simulation advances in steps of STEP_FRACTION instead of event by event."""
RESIZE_LOOKS = 2
"""So many plans of a simulation see an elastic run before it needs none of its own: the policy looks for another size
of each every minute, which would use up all work. Other plans go on to resize it."""
SAVE_S = 60.0
"""Seconds until a job that is stopped by order has saved, if that was never measured."""
STEP_FRACTION = 0.02
"""The step as a fraction of the time simulated so far, and so the largest relative error of a distant start."""


class Basis(StrEnum):
    """How the length of a run is known, the best source first."""

    PROGRESS = "progress"
    HISTORY = "history"


class WhyNone(StrEnum):
    """Why there is no estimate."""

    CANNOT_START = "cannot_start"
    BUDGET = "budget"  # it may still wait when its tenant's is used up
    UNKNOWN_END = "unknown_end"
    TOO_FAR = "too_far"


@dataclass(frozen=True, slots=True)
class RunTime:
    """How long a job runs on, from now or from its start: equally likely seconds; empty: not known."""

    seconds: tuple[float, ...] = ()
    basis: Basis | None = None


@dataclass(frozen=True, slots=True)
class StartForecast:
    """When a job starts: as likely before `p50` as after it, nine times out of ten before `p90`.

    Both are None where there is no estimate, and why_none says why. basis: the sources of the ends it waits for.
    """

    p50: datetime | None = None
    p90: datetime | None = None
    basis: tuple[Basis, ...] = ()
    why_none: WhyNone | None = None


def forecast(
    snapshot: Snapshot,
    runs: Mapping[str, RunTime],
    *,
    of: Collection[str] | None = None,
    until: datetime | None = None,
    work: int = WORK,
    reasons: bool = True,
) -> dict[str, StartForecast]:
    """A StartForecast for every waiting job, or for those named by `of`.

    runs: what is known of running and waiting jobs' lengths; not read for what starts at once. until: later
    starts do not matter (TOO_FAR). reasons False: only TOO_FAR is distinguished from other reasons, which saves a plan.
    """
    wanted = frozenset(gang.job for gang in snapshot.waiting if of is None or gang.job in of)
    if not wanted:
        return {}
    begin = _only_what_matters(snapshot)
    simulations: list[_Simulation] = []
    several = until is None or until > snapshot.now  # what starts at once waits for no run's end
    while not simulations or (
        several
        and simulations[0].sampled
        and len(simulations) < SIMULATIONS
        and sum(simulation.spent for simulation in simulations) < work
    ):
        simulations.append(_Simulation(begin, runs, wanted, len(simulations), work // MIN_SIMULATIONS, until))
        simulations[-1].run()
    return {job: _estimate(job, simulations, reasons) for job in wanted}


def _estimate(job: str, simulations: list[_Simulation], reasons: bool) -> StartForecast:
    never = datetime.max.replace(tzinfo=simulations[0].now.tzinfo)
    starts = sorted(
        simulation.started.get(job, never) for simulation in simulations
    )  # never, where it is held
    p50, p90 = (starts[max(0, math.ceil(share * len(starts)) - 1)] for share in (0.5, 0.9))
    if p90 == never:
        without = next(simulation for simulation in simulations if job not in simulation.started)
        return StartForecast(why_none=without.why_not(job, exactly=reasons))
    sources = {basis for simulation in simulations for basis in simulation.behind.get(job, ())}
    return StartForecast(p50, p90, tuple(basis for basis in Basis if basis in sources))


def _only_what_matters(snapshot: Snapshot) -> Snapshot:
    """Without the nodes that no waiting job could take."""
    asked = {gang.slot_type for gang in snapshot.waiting}
    return replace(
        snapshot,
        nodes=tuple(
            node
            for node in snapshot.nodes
            if node.slot_type in asked or (None in asked and node.slot_type != CPU_TYPE)
        ),
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """A run in a simulation. end None: it has no known end."""

    running: Running
    end: datetime | None
    basis: Basis | None


@dataclass(slots=True)
class _Ended:
    """What has ended so far, by slot type and by tenant: whose start may be owed to it."""

    by_type: dict[str, set[Basis]] = field(default_factory=dict)
    by_tenant: dict[str, set[Basis]] = field(default_factory=dict)

    def add(self, run: _Run) -> None:
        if run.basis is not None:
            self.by_type.setdefault(run.running.slot_type, set()).add(run.basis)
            self.by_tenant.setdefault(run.running.tenant, set()).add(run.basis)

    def behind(self, slot_type: str, tenant: str) -> frozenset[Basis]:
        return frozenset(self.by_type.get(slot_type, set()) | self.by_tenant.get(tenant, set()))


class _Simulation:
    """The world run forward once. started: job -> when it starts; held: those that a budget keeps until the next month,
    whose start then is not known; sampled: some length was one of several."""

    def __init__(
        self,
        begin: Snapshot,
        runs: Mapping[str, RunTime],
        wanted: frozenset[str],
        number: int,
        work: int,
        until: datetime | None,
    ) -> None:
        self.world, self.now, self.spent, self.sampled = begin, begin.now, 0, False
        self.started: dict[str, datetime] = {}
        self.held: set[str] = set()
        self.behind: dict[str, frozenset[Basis]] = {}
        self._lengths, self._wanted, self._number, self._work, self._until = runs, wanted, number, work, until
        self._begin, self._plans, self._ended, self._cut = begin.now, 0, _Ended(), False
        self._left: dict[
            str, tuple[float, float]
        ] = {}  # seconds times learners, and the seconds of a restart
        self._looks: Counter[str] = Counter()
        self._runs = {run.job: self._with_end(run) for run in begin.running}
        self._follow_orders(begin.running, decided_here=False)

    def run(self) -> None:
        """Plan, start, and advance to the next event, until every wanted job has started."""
        while True:
            self._plan()
            if self._wanted <= self.started.keys() | self.held:
                return
            if self._until is not None and self._until <= self.now:
                self._cut = True
                return
            event_at = self._next_event()
            if event_at is None:
                return
            if self.spent >= self._work or (self._until is not None and event_at > self._until):
                self._cut = True
                return
            self._advance_to(event_at)

    def why_not(self, job: str, *, exactly: bool) -> WhyNone:
        """Why a job did not start in this simulation. Distinguishing the reasons takes an explained plan."""
        gang = next((gang for gang in self.world.waiting if gang.job == job), None)
        if job in self.held or (gang is not None and self._cut and budgets.holds_back(self.world, gang)):
            return WhyNone.BUDGET
        if self._cut:
            return WhyNone.TOO_FAR
        if not exactly:
            return WhyNone.UNKNOWN_END
        assert gang is not None
        code = next(wait.code for wait in plan(self.world).waits if wait.job == job)
        if code is WaitReason.BUDGET_EXHAUSTED:
            return WhyNone.BUDGET
        awaits_unknown_end = any(
            run.end is None and _may_hold_up(run.running, gang) for run in self._runs.values()
        )
        return WhyNone.UNKNOWN_END if awaits_unknown_end and code not in NOT_QUEUED else WhyNone.CANNOT_START

    def _plan(self) -> None:
        self._plans += 1
        self.spent += PLAN + len(self.world.nodes) + len(self.world.waiting) + len(self.world.running)
        close = {gang.job: gang.topology.level for gang in self.world.waiting if gang.topology is not None}
        self.spent += len(self.world.nodes) * len(set(close.values()))
        self._looks.update(run.job for run in self.world.running if run.gang.elastic is not None)
        decided = plan(self.world, explained=False)
        self.spent += IN_DOMAIN * sum(start.job in close for start in decided.starts)
        self.world = world.apply(self.world, decided)
        if decided.starts:
            self._follow_starts(self.world.running[-len(decided.starts) :])
        if decided.stops or decided.resizes:
            before = {job for job, run in self._runs.items() if run.running.order is not None}
            self._follow_orders(run for run in self.world.running if run.job not in before)

    def _follow_starts(self, starts: Iterable[Running]) -> None:
        for run in starts:
            self._runs[run.job] = self._with_end(run)
            if run.job not in self.held:
                self.started.setdefault(run.job, self.now)
            self.behind.setdefault(run.job, self._ended.behind(run.slot_type, run.tenant))

    def _follow_orders(self, runs: Iterable[Running], *, decided_here: bool = True) -> None:
        """A run with an order ends once its checkpoint is saved; what is left of it runs after its next start.
        If that is not known, no start that waits for its second end is estimated. Nor is one that waits until a budget
        ends a run of which no end is known: how much is used until then is as little known."""
        for run in runs:
            if run.order is None or not run.requeues:
                continue
            known = self._runs[run.job]
            of_budget = isinstance(run.order, Stop) and run.order.reason == budgets.EXHAUSTED
            if decided_here and of_budget and known.end is None:
                continue
            if known.end is not None:
                left_s = (known.end - self.now).total_seconds()
                self._left[run.job] = left_s * len(run.nodes), run.restart_cost_s or 0.0
            save_s = SAVE_S if run.checkpoint_cost_s is None else run.checkpoint_cost_s
            saved = self.now + timedelta(seconds=save_s)
            if known.end is None or saved < known.end:
                self._runs[run.job] = _Run(run, saved, None)

    def _with_end(self, run: Running) -> _Run:
        known = self._lengths.get(run.job, RunTime())
        if not known.seconds:
            return _Run(run, None, None)
        left = self._left.get(run.job)
        if left is None:
            factors = _factors(run)
            self.sampled = self.sampled or len(set(known.seconds)) > 1 or len(factors) > 1
            seconds = known.seconds[_sample(run.job, self._number, len(known.seconds))]
            seconds *= factors[_in_turn(f"{run.job}/size", self._number, len(factors))]
        else:
            seconds = left[0] / len(run.nodes) + left[1]
        end = self.now + timedelta(seconds=max(0.0, seconds))
        if run.ends_by is not None:
            end = max(self.now, min(end, run.ends_by))
        return _Run(run, end, known.basis)

    def _next_event(self) -> datetime | None:
        """The next end of a run, or before it the next time at which the policy can decide otherwise."""
        event_at = min((run.end for run in self._runs.values() if run.end is not None), default=None)
        away_until = rests.next_end(self.world)
        if event_at is None:
            # A policy may have events forever, such as aging. Where nothing ends, only promises and rests do.
            ends = [*self.world.promised.values(), away_until]
            return min((until for until in ends if until is not None and until > self.now), default=None)
        if self._plans > EXACT_PLANS:
            return max(event_at, self.now + (self.now - self._begin) * STEP_FRACTION)
        change = policy_of(self.world).next_event_at(self._without_resizes())
        used_up = budgets.next_event_at(self.world)
        return min(at for at in (event_at, change, away_until, used_up) if at is not None)

    def _without_resizes(self) -> Snapshot:
        """The world in which elastic runs that plans have seen keep their sizes."""
        seen = [self._looks[run.job] >= RESIZE_LOOKS for run in self.world.running]
        if not any(seen):
            return self.world
        running = tuple(
            replace(run, gang=replace(run.gang, elastic=None)) if often else run
            for run, often in zip(self.world.running, seen, strict=True)
        )
        return replace(self.world, running=running)

    def _advance_to(self, event_at: datetime) -> None:
        tenants = budgets.after(self.world, event_at)
        if tenants is not self.world.tenants:
            self._hold(tenants)
        self.now = event_at
        over = [run for run in self._runs.values() if run.end is not None and run.end <= event_at]
        for run in over:
            self._ended.add(run)
            del self._runs[run.running.job]
        ended = [run.running.job for run in over]
        self.world = world.apply(replace(self.world, now=event_at, tenants=tenants), ended=ended)

    def _hold(self, tenants: Iterable[TenantState]) -> None:
        """Note which jobs a budget still holds when its month ends."""
        before = {state.tenant: state.month_ends for state in self.world.tenants}
        turned = {state.tenant for state in tenants if state.month_ends != before[state.tenant]}
        waiting = (gang for gang in self.world.waiting if gang.tenant in turned) if turned else ()
        self.held |= {
            gang.job for gang in waiting if budgets.holds_back(self.world, gang)
        } - self.started.keys()


def _factors(run: Running) -> tuple[float, ...]:
    """What an elastic run's length is a multiple of, three cases equally likely: it may soon have twice its learners or
    half of them, as far as it can, and its speed is at best in proportion. Never one case alone: it is not certain."""
    gang, now = run.gang, len(run.nodes)
    if gang.elastic is None or gang.learners.is_fixed:
        return (1.0,)
    fastest = now / max(now, min(gang.learners.max, 2 * now))
    slowest = now / min(now, max(gang.learners.min, now / 2))
    return (fastest, 1.0, slowest) if slowest > 1.0 else (fastest, (fastest + 1.0) / 2, 1.0)


def _may_hold_up(run: Running, gang: Gang) -> bool:
    """Whether the run holds slots of a type that the gang takes, or of its tenant's limits."""
    takes_type = run.slot_type != CPU_TYPE if gang.slot_type is None else run.slot_type == gang.slot_type
    return takes_type or run.tenant == gang.tenant


def _sample(job: str, simulation: int, count: int) -> int:
    """A number below count, evenly spread over jobs and simulations, and the same every time."""
    digest = hashlib.blake2b(f"{job}/{simulation}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) * count >> 64


def _in_turn(job: str, simulation: int, count: int) -> int:
    """A number below count, each once in so many simulations, in an order that is the job's own."""
    return (simulation + _sample(job, simulation // count, count)) % count


EARLIER_S, EARLIER_FRACTION = 30.0, 0.1
"""A start counts as earlier only by at least these seconds and this fraction of the wait; less is noise."""


def suggest(
    snapshot: Snapshot,
    runs: Mapping[str, RunTime],
    job: str,
    variants: Mapping[str, Gang],
    *,
    until: datetime | None = None,
    work: int = WORK,
) -> dict[str, StartForecast]:
    """Those of the variants that start earlier in place of the job than the job itself, each with its start.

    A variant is a new job: its queued_at gives its queue position, its name must be its own.
    """
    each = work // (len(variants) + 1)
    own = forecast(snapshot, runs, of=[job], until=until, work=each, reasons=False)[job]
    found = {}
    for name, gang in variants.items():
        changed = world.replace_waiting(snapshot, job, gang)
        known = runs if job not in runs else {**runs, gang.job: runs[job]}
        started = forecast(changed, known, of=[gang.job], until=own.p90 or until, work=each, reasons=False)[
            gang.job
        ]
        if _is_earlier(started, own, snapshot.now):
            found[name] = started
    return found


def _is_earlier(new: StartForecast, old: StartForecast, now: datetime) -> bool:
    if new.p50 is None or new.p90 is None:
        return False
    if old.why_none is WhyNone.TOO_FAR:
        return new.p90 == now  # how far ahead the old one was followed is not known
    if old.p50 is None or old.p90 is None:
        return True
    least = max(EARLIER_S, EARLIER_FRACTION * (old.p50 - now).total_seconds())
    return new.p50 <= old.p50 - timedelta(seconds=least) and new.p90 <= old.p90
