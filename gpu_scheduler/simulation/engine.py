"""Time, and what executes a plan, in place of a clock and a cluster."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from itertools import count

from gpu_scheduler import budgets, past_use, rests, world
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Gang, Plan, Resize, Running, Snapshot, Stop
from gpu_scheduler.policies.base import policy_of
from gpu_scheduler.simulation.scenario import (
    NodeFailure,
    Outcome,
    Rate,
    RunEnd,
    RunRecord,
    Scenario,
    SimulatedJob,
)

PLANS_AT_ONCE = 1_000
"""More plans than this at one instant mean that the policy stops and starts the same jobs forever."""

SHORTEST_MONTH = timedelta(days=28)

PLAN = 50
"""Units of work of a plan, and one more per node, per waiting and per running job; a unit takes about 6 µs."""

Planner = Callable[[Snapshot], Plan]


def unexplained(snapshot: Snapshot) -> Plan:
    """The plan without explanations."""
    return plan(snapshot, explained=False)


def simulate(scenario: Scenario, planner: Planner = unexplained) -> Outcome:
    """Run the scenario until every job has ended, or none that is left can ever start; until its end if it has one.

    planner: plan(), or a wrapper that measures it. Deterministic. Raises RuntimeError if a policy never comes to rest.
    """
    return _Simulation(scenario, planner).run()


class _Kind(IntEnum):
    """What happens at a time, in the order in which it does at the same time: a job that ends when its node is lost has
    ended."""

    NODE_BACK = 0
    COMPLETED = 1
    SAVED = 2
    RATE = 3
    CHECKPOINT = 4
    ARRIVED = 5
    NOTICE = 6
    NODE_LOST = 7
    LEAVES = 8


@dataclass(slots=True)
class _Progress:
    """A job's work in seconds: kept_s survives whatever happens; saved_at: since when, None: nothing was ever saved."""

    job: SimulatedJob
    kept_s: float = 0.0
    saved_at: datetime | None = None


@dataclass(slots=True, eq=False)
class _Run:
    """A job on its nodes. began_s: the work that it began with. since: when its start or restore was over, or its rate
    last changed; base_s, before_s: the work that was done by then, and the seconds of computing. useful_s: the seconds
    of computing up to its last save. halted_at: when it was ordered to stop; from then on it only saves. saved_end: how
    it has ended once it has saved."""

    progress: _Progress
    running: Running
    began_s: float
    since: datetime
    base_s: float
    rate: Rate
    before_s: float = 0.0
    useful_s: float = 0.0
    halted_at: datetime | None = None
    saved_end: RunEnd = RunEnd.STOPPED

    def computed_s(self, now: datetime) -> float:
        """Seconds of computing until now."""
        return self.before_s + self._at_this_rate_s(now)

    def work_s(self, now: datetime) -> float:
        """Work that is done, saved or not."""
        return self.base_s + self._at_this_rate_s(now) * self.rate.per_s

    def _at_this_rate_s(self, now: datetime) -> float:
        until = now if self.halted_at is None else min(now, self.halted_at)
        return max(0.0, (until - self.since).total_seconds())


@dataclass(slots=True)
class _Budget:
    """The work that plans may use. Half of it can be spent at any time, the rest becomes available in proportion to the
    simulated time: where that is used up, plans come later, and so the fewer of them the more each costs.

    units: in all; None: as many as it takes. latest_s: the longest that a plan was put off.
    """

    units: int | None
    begin: datetime
    span_s: float
    spent: int = 0
    latest_s: float = 0.0

    @classmethod
    def of(cls, scenario: Scenario, begin: datetime) -> _Budget:
        span_s = 0.0 if scenario.until is None else (scenario.until - begin).total_seconds()
        return cls(scenario.work, begin, span_s)

    def spend(self, seen: Snapshot) -> None:
        """What the plan of this snapshot costs."""
        self.spent += PLAN + len(seen.nodes) + len(seen.waiting) + len(seen.running)

    def earliest(self, at: datetime) -> datetime:
        """When a plan can be made that is due at this time."""
        if self.units is None or self.spent <= self.units // 2:
            return at
        after_s = (self.spent - self.units // 2) * self.span_s / (self.units - self.units // 2)
        allowed = self.begin + timedelta(seconds=after_s)
        self.latest_s = max(self.latest_s, (allowed - at).total_seconds())
        return max(at, allowed)


class _Simulation:
    """One simulation while it runs. The world holds what a policy sees; progress and runs what it does not."""

    def __init__(self, scenario: Scenario, planner: Planner) -> None:
        arrivals = [job.arrives for job in scenario.jobs]
        seen = [failure.at - timedelta(seconds=failure.notice_s) for failure in scenario.failures]
        begin = scenario.begin or min([*arrivals, *seen], default=datetime.min.replace(tzinfo=UTC))
        self._planner, self._begin, self._until = planner, begin, scenario.until
        self._rate, self._known = scenario.rate, scenario.known
        self._round = timedelta(seconds=scenario.round_s)
        self._world = Snapshot(
            begin,
            scenario.nodes,
            (),
            (),
            scenario.quotas,
            scenario.policy,
            scenario.tenants,
            projects=scenario.projects,
        )
        self._numbers = count()
        self._events: list[tuple[datetime, _Kind, int, SimulatedJob | NodeFailure | _Run]] = []
        for job in scenario.jobs:
            self._add(job.arrives, _Kind.ARRIVED, job)
            if job.waits_at_most_s is not None:
                self._add(job.arrives + timedelta(seconds=job.waits_at_most_s), _Kind.LEAVES, job)
        for failure in scenario.failures:
            self._add(failure.at, _Kind.NODE_LOST, failure)
            if _has_notice(failure):
                self._add(failure.at - timedelta(seconds=failure.notice_s), _Kind.NOTICE, failure)
        self._progress = {job.gang.job: _Progress(job) for job in scenario.jobs}
        self._runs: dict[str, _Run] = {}
        self._failures: Counter[str] = Counter()  # of each node, those that are not over
        self._notices: defaultdict[str, list[datetime]] = defaultdict(list)  # losses that a notice came of
        self._noticed: list[NodeFailure] = []  # those of which it came now
        self._cordoned = {node.name for node in scenario.nodes if node.cordoned}  # all the time
        self._plan_at: datetime | None = None
        self._records: list[RunRecord] = []
        self._completed: dict[str, datetime] = {}
        self._first_started: dict[str, datetime] = {}
        self._budget = _Budget.of(scenario, begin)
        self._arrived: list[Gang] = []
        self._leaving: set[str] = set()
        self._left: list[str] = []
        self._plans = 0
        self._month: tuple[datetime, float] | None = None
        """Of those that all waited for: since when as much work was done as now, in seconds."""

    def run(self) -> Outcome:
        plans_now = 0
        while (now := self._next()) is not None and (self._until is None or now <= self._until):
            plans_now = 0 if now > self._world.now else plans_now
            self._advance_to(now)
            if self._plan_at == now:
                plans_now += 1
                if plans_now > PLANS_AT_ONCE:
                    name = policy_of(self._world).name
                    raise RuntimeError(f"{name} made {plans_now} plans at {now} and does not come to rest")
                self._plan()
            self._leave_in_time()
            self._let_leave()
        self._cut()
        self._join_queue()
        waiting = tuple(gang.job for gang in self._world.waiting)
        return Outcome(
            self._begin,
            self._world.now,
            tuple(self._records),
            waiting,
            self._plans,
            self._completed,
            self._first_started,
            tuple(self._left),
            self._budget.latest_s,
        )

    def _add(self, at: datetime, kind: _Kind, subject: SimulatedJob | NodeFailure | _Run) -> None:
        heapq.heappush(self._events, (at, kind, next(self._numbers), subject))

    def _next(self) -> datetime | None:
        """The next time at which something happens or a plan is due; None: never."""
        times = [self._events[0][0]] if self._events else []
        return min(times if self._plan_at is None else [*times, self._plan_at], default=None)

    def _advance_to(self, now: datetime) -> None:
        """Let everything happen that is due, and have a plan made if that can change one."""
        quotas, half_life_s = self._world.quotas, policy_of(self._world).half_life_s()
        if half_life_s is not None:
            quotas = past_use.after(quotas, (now - self._world.now).total_seconds(), half_life_s)
        tenants = budgets.after(self._world, now)
        self._world = replace(self._world, now=now, quotas=quotas, tenants=tenants)
        ended: list[str] = []
        changed = False
        while self._events and self._events[0][0] <= now:
            _, kind, _, subject = heapq.heappop(self._events)
            if kind is _Kind.LEAVES:
                assert isinstance(subject, SimulatedJob)
                self._leaving.add(subject.gang.job)
            elif isinstance(subject, SimulatedJob):
                self._arrived.append(subject.gang)
                changed = True
            elif isinstance(subject, NodeFailure):
                ended += self._node_changed(subject, kind)
                changed = True
            elif not self._is_to_come(subject):
                continue
            elif kind is _Kind.CHECKPOINT:
                self._checkpoint(subject)
            elif kind is _Kind.RATE:
                self._change_rate(subject)
            elif kind is _Kind.SAVED or subject.halted_at is None:
                self._keep(subject)
                ended.append(
                    self._end(subject, subject.saved_end if kind is _Kind.SAVED else RunEnd.COMPLETED)
                )
        if ended:
            self._world = world.apply(self._world, ended=ended)
        if ended or changed:
            self._plan_by(now)
        if self._noticed:  # no round is waited for: the node does not wait, either
            self._plan_at = now

    def _join_queue(self) -> None:
        """Let the world see who has come since the last plan: all at once, as a long queue is copied."""
        if self._arrived:
            self._world = replace(self._world, waiting=(*self._world.waiting, *self._arrived))
            self._arrived.clear()

    def _let_leave(self) -> None:
        """Take the jobs out of the queue that have waited for as long as they would and have never started: after the
        plan of this time, so that one that waits for no time at all starts on what is free when it arrives."""
        leaving = {job for job in self._leaving if job not in self._first_started}
        self._leaving.clear()
        if leaving:
            self._join_queue()
            self._left += sorted(leaving)
            waiting = tuple(gang for gang in self._world.waiting if gang.job not in leaving)
            self._world = replace(self._world, waiting=waiting)
            self._plan_by(self._world.now)

    def _cut(self) -> None:
        """Record what still runs when the simulated time is over."""
        if self._until is not None:
            self._world = replace(self._world, now=max(self._world.now, self._until))
        for run in list(self._runs.values()):
            self._keep(run)
            self._end(run, RunEnd.CUT)

    def _plan_by(self, at: datetime) -> None:
        """Have a plan made in the first round that is not before this, and for which there is work left."""
        at = self._budget.earliest(at)
        if self._round:
            at = self._begin - (self._begin - at) // self._round * self._round
        self._plan_at = at if self._plan_at is None else min(at, self._plan_at)

    def _plan(self) -> None:
        self._plan_at = None
        self._join_queue()
        policy = policy_of(self._world)
        limited = any(state.budget for state in self._world.tenants)
        if limited or self._world.waiting or policy.plans_without_queue(self._world.policy_state):
            self._plans += 1
            self._budget.spend(self._world)
            self._learn()
            decided = self._planner(self._world)
            self._world = world.apply(self._world, decided)
            if decided.starts:
                self._start(len(decided.starts))
            if decided.stops or decided.resizes:
                orders: list[Stop | Resize] = [*decided.stops, *decided.resizes]
                self._halt({order.job for order in orders})
        if any(self._is_to_come(subject) for *_, subject in self._events):
            changes = [policy.next_event_at(self._world), budgets.next_event_at(self._world)]
        else:  # a policy may have events forever, such as aging: where nothing else happens, promises and rests end
            changes = [until for until in self._world.promised.values() if until and until > self._world.now]
            changes.append(self._next_month())
        for change in (*changes, rests.next_end(self._world)):
            if change is not None:
                self._plan_by(change)

    def _is_to_come(self, subject: SimulatedJob | NodeFailure | _Run) -> bool:
        """Whether an event of this is one still: a run may have ended in another way."""
        return not isinstance(subject, _Run) or self._runs.get(subject.running.job) is subject

    def _next_month(self) -> datetime | None:
        """When jobs that wait for a budget can start, if nothing else happens; None: a whole month brought none of them
        anything, so no other would."""
        at, done_s = budgets.returns_at(self._world), sum(each.kept_s for each in self._progress.values())
        if at is None:
            return None
        if self._month is None or self._month[1] != done_s:
            self._month = at, done_s
        return at if at - self._month[0] < SHORTEST_MONTH else None

    def _start(self, number: int) -> None:
        """Execute the last starts of the world."""
        known = len(self._world.running) - number
        begun = tuple(self._begun(run) for run in self._world.running[known:])
        self._world = replace(self._world, running=(*self._world.running[:known], *begun))

    def _begun(self, running: Running) -> Running:
        """The run as policies see it, with what is known of the costs of stopping it."""
        now, progress = self._world.now, self._progress[running.job]
        costs = progress.job.costs
        running = replace(
            running,
            last_checkpoint_at=progress.saved_at,
            checkpoint_cost_s=costs.checkpoint_s,
            restart_cost_s=costs.restore_s,
        )
        delay_s = costs.restore_s if running.job in self._first_started else costs.start_s
        computing_from = now + timedelta(seconds=delay_s)
        rate = self._rate(progress.job.gang, running.nodes, progress.kept_s)
        run = _Run(progress, running, progress.kept_s, computing_from, progress.kept_s, rate)
        self._runs[running.job] = run
        self._first_started.setdefault(running.job, now)
        self._add_end(run)
        self._add_checkpoint(run, computing_from)
        return running

    def _add_end(self, run: _Run) -> None:
        """When it completes, or its rate changes before that."""
        work_s = run.progress.job.work_s
        left_s = max(0.0, min(work_s, run.rate.until) - run.base_s) / run.rate.per_s
        kind = _Kind.COMPLETED if work_s <= run.rate.until else _Kind.RATE
        self._add(run.since + timedelta(seconds=left_s), kind, run)

    def _change_rate(self, run: _Run) -> None:
        if run.halted_at is not None:
            return
        now = self._world.now
        run.before_s, run.base_s, run.since = run.computed_s(now), run.rate.until, now
        run.rate = self._rate(run.progress.job.gang, run.running.nodes, run.base_s)
        self._add_end(run)

    def _learn(self) -> None:
        """Let the policy see what is known of the elastic jobs that compute, and of those that wait."""
        known, now = self._known, self._world.now
        if known is None:
            return
        waiting = tuple(
            replace(gang, elastic=known(gang, (), self._progress[gang.job].kept_s)) if gang.elastic else gang
            for gang in self._world.waiting
        )
        running = []
        for each in self._world.running:
            run = self._runs[each.job]
            if each.gang.elastic is not None and run.computed_s(now) > 0:
                profile = known(run.progress.job.gang, each.nodes, run.work_s(now))
                each = replace(each, gang=replace(each.gang, elastic=profile))
            running.append(each)
        self._world = replace(self._world, waiting=waiting, running=tuple(running))

    def _halt(self, jobs: Collection[str]) -> None:
        """Have these jobs save and release their slots, where the order was not void."""
        for running in self._world.running:
            run = self._runs[running.job]
            if running.job in jobs and running.order is not None and run.halted_at is None:
                if isinstance(running.order, Resize) and running.order.leaves and self._noticed:
                    run.saved_end = RunEnd.REVOKED
                self._save(run)

    def _save(self, run: _Run) -> None:
        run.halted_at = self._world.now
        saved_at = self._world.now + timedelta(seconds=run.progress.job.costs.checkpoint_s)
        self._add(saved_at, _Kind.SAVED, run)

    def _keep(self, run: _Run) -> None:
        """All that it has computed until now is saved."""
        run.progress.kept_s = run.work_s(self._world.now)
        run.progress.saved_at = self._world.now
        run.useful_s = run.computed_s(self._world.now)

    def _checkpoint(self, run: _Run) -> None:
        if run.halted_at is not None:
            return
        self._keep(run)
        self._set_running(lambda each: replace(each, last_checkpoint_at=self._world.now), {run.running.job})
        self._add_checkpoint(run, self._world.now)

    def _add_checkpoint(self, run: _Run, after: datetime) -> None:
        every = run.progress.job.costs.checkpoint_every_s
        if every is not None:
            self._add(after + timedelta(seconds=every), _Kind.CHECKPOINT, run)

    def _node_changed(self, failure: NodeFailure, kind: _Kind) -> list[str]:
        """The jobs that ended because the node was lost. They queue again with what they had saved."""
        name = failure.node
        losses = self._notices[name]
        if kind is _Kind.NOTICE:
            losses.append(failure.at)
            self._noticed.append(failure)
        elif kind is _Kind.NODE_LOST:
            self._failures[name] += 1
            if _has_notice(failure):
                losses.remove(failure.at)
        else:
            self._failures[name] -= 1
        up, cordoned = not self._failures[name], name in self._cordoned or bool(losses)
        leaves_at = min(losses, default=None)
        nodes = tuple(
            replace(node, ready=up, cordoned=cordoned, leaves_at=leaves_at) if node.name == name else node
            for node in self._world.nodes
        )
        self._world = replace(self._world, nodes=nodes)
        if kind is not _Kind.NODE_LOST:
            return []
        self._add(self._world.now + timedelta(seconds=failure.down_s), _Kind.NODE_BACK, failure)
        hit = [run for run in self._runs.values() if failure.node in run.running.nodes]
        ended = [self._end(run, RunEnd.NODE_FAILED) for run in hit]
        self._set_running(_queuing_again, ended)
        return ended

    def _leave_in_time(self) -> None:
        """Have those save that can before their node is lost, and that the plan did not order to leave it."""
        for failure in self._noticed:
            left_s = (failure.at - self._world.now).total_seconds()
            leaving = {
                run.running.job: run
                for run in self._runs.values()
                if failure.node in run.running.nodes
                and run.halted_at is None
                and run.progress.job.costs.checkpoint_s <= left_s
            }
            self._set_running(lambda each: replace(each, order=Stop(each.job, "node_leaves")), leaving)
            for run in leaving.values():
                run.saved_end = RunEnd.REVOKED
                self._save(run)
        self._noticed.clear()

    def _set_running(self, change: Callable[[Running], Running], jobs: Collection[str]) -> None:
        running = tuple(change(run) if run.job in jobs else run for run in self._world.running)
        self._world = replace(self._world, running=running)

    def _end(self, run: _Run, end: RunEnd) -> str:
        """Record that the run has released its slots; its job's name."""
        job, now = run.running.job, self._world.now
        del self._runs[job]
        if end is RunEnd.COMPLETED:
            self._completed[job] = now
        self._records.append(
            RunRecord(
                gang=run.running.gang,
                slot_type=run.running.slot_type,
                nodes=run.running.nodes,
                began=run.running.started_at,
                ended=now,
                end=end,
                work_s=run.progress.kept_s - run.began_s,
                useful_s=run.useful_s,
                lost_s=max(0.0, run.computed_s(now) - run.useful_s),
            )
        )
        return job


def _has_notice(failure: NodeFailure) -> bool:
    return failure.notice_s > 0


def _queuing_again(run: Running) -> Running:
    """A run that is lost queues again like one that was stopped."""
    return replace(run, order=run.order or Stop(run.job, "node_lost"))
