"""The scheduler's orders: who wins against the job's owner and its program, cell by cell, and one walk end to end.

docs/job_states.md, "Orders of the scheduler", has the table.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from django.db.models import F

from gpu_scheduler import world as scheduler_world
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Plan, Resize, Snapshot, Stop
from gpu_scheduler.policies.base import Policy
from gpu_scheduler.policies.fair_share import FairShare
from jobs.lifecycle import cycle
from jobs.lifecycle.decision import decide
from jobs.lifecycle.facts import JobObservation, Move, Order, Reason
from jobs.lifecycle.plan_effects import check_orders, write_orders
from jobs.models import Job
from jobs.selectors.snapshot import snapshot
from jobs.states import HOLDS_GPUS, TAKES_ORDERS, Intent, Phase, State, StopReason, display_phase
from tests import factories
from tests.jobs.lifecycle.observations import CANCEL, EXITED, HALT, learner, outcome, seen
from tests.jobs.lifecycle.world import World, job_of, last_move, one_pass, state, used

P, S = State.PROCESSING, State.STOPPING
PROMISE = timedelta(seconds=Policy.promise_s)
STOP = {"order": Order(StopReason.PREEMPTED, generation=1)}
RESIZE = {"order": Order(StopReason.RESCALED, learners=4, generation=1)}
PREEMPTING = {**STOP, "stop_reason": "preempted"}
RESCALING = {**RESIZE, "stop_reason": "rescaled"}
RESUMED = {"intent_gen": 3}
"""Halted and resumed since the order was written."""

CELLS: list[tuple[str, JobObservation, str]] = [
    ("stop order", seen(P, **STOP), "STOPPING preempted"),
    ("stop order before the launch", seen(State.DEPLOYING, launched=False, **STOP), "STOPPING preempted"),
    ("stop order carried out", seen(S, gone=True, **PREEMPTING), "QUEUED"),
    ("resize order", seen(P, **RESIZE), "STOPPING rescaled"),
    ("resize order carried out", seen(S, gone=True, **RESCALING), "QUEUED"),
    # A stop order is pending, and the owner …
    ("stop order, halt: the same save", seen(P, **STOP, **HALT), "STOPPING preempted"),
    ("stop order, halt: it does not queue again", seen(S, gone=True, **PREEMPTING, **HALT), "HALTED"),
    ("stop order, cancel", seen(P, **STOP, **CANCEL), "STOPPING cancel_requested"),
    ("stop order, cancel: a save may end within the grace", seen(S, **PREEMPTING, **CANCEL), "stop"),
    ("stop order, cancel: canceled", seen(S, gone=True, **PREEMPTING, **CANCEL), "CANCELED"),
    ("stop order, resume after an own halt", seen(P, **STOP, **RESUMED), "STOPPING preempted"),
    ("stop order, resume: it queues by itself", seen(S, gone=True, **PREEMPTING, **RESUMED), "QUEUED"),
    # A resize order is pending, and …
    ("resize order, halt", seen(P, **RESIZE, **HALT), "STOPPING halt_requested"),
    ("resize order, halt: halted", seen(S, gone=True, **RESCALING, **HALT), "HALTED"),
    ("resize order, cancel", seen(P, **RESIZE, **CANCEL), "STOPPING cancel_requested"),
    ("resize order, cancel: canceled", seen(S, gone=True, **RESCALING, **CANCEL), "CANCELED"),
    ("resize order, halt and resume: dropped", seen(P, **RESIZE, **RESUMED), "wait"),
    # Any order is pending, and the program ends by itself
    ("stop order, finished", seen(P, learner(**EXITED, exit_code=0), **STOP), "STORING"),
    ("stop order, failed", seen(P, learner(**EXITED, exit_code=1), **STOP), "STOPPING learner_failed"),
    ("stop order, finished while it saves", seen(S, learner(**EXITED, exit_code=0), **PREEMPTING), "STORING"),
    ("resize order, finished", seen(P, learner(**EXITED, exit_code=0), **RESIZE), "STORING"),
    (
        "resize order, finished while it saves",
        seen(S, learner(**EXITED, exit_code=0), **RESCALING),
        "STORING",
    ),
    ("stop order, time limit", seen(P, time_left_s=-1, **STOP), "STOPPING time_limit"),
]


@pytest.mark.parametrize(("job", "expected"), [row[1:] for row in CELLS], ids=[row[0] for row in CELLS])
def test_who_wins(job: JobObservation, expected: str) -> None:
    assert outcome(decide(job)) == expected


def left(job: JobObservation) -> Move:
    move = decide(job).move
    assert move is not None
    return move


def test_a_carried_out_order_costs_no_restart_and_gives_its_reason() -> None:
    for reason in (StopReason.PREEMPTED, StopReason.RECLAIMED, StopReason.MOVED, StopReason.BUDGET_EXHAUSTED):
        order = Order(reason, for_job="3f9k2m7qx4ta")
        begun = left(seen(P, order=order))
        assert (begun.stop_reason, begun.reason.code) == (reason, reason)
        assert begun.reason.numbers == {"for_job": "3f9k2m7qx4ta"}
        ended = left(seen(S, gone=True, stop_reason=reason, order=order))
        assert (ended.to, ended.charged, ended.early_ends, ended.wait_s) == (State.QUEUED, False, 0, 0)
        assert (ended.reason.code, ended.reason.numbers["for_job"]) == (reason, "3f9k2m7qx4ta")
        assert ended.learners is None


def test_a_program_that_fails_while_an_order_stops_it_is_not_charged() -> None:
    failed = learner(**EXITED, exit_code=1)
    ended = left(
        seen(S, failed, gone=True, stop_reason=StopReason.PREEMPTED, order=Order(StopReason.PREEMPTED))
    )
    assert (ended.to, ended.charged) == (State.QUEUED, False)


def test_a_resize_order_sets_the_size_of_the_next_start_unless_it_was_dropped() -> None:
    assert left(seen(S, gone=True, **RESCALING)).learners == 4
    assert left(seen(S, gone=True, **RESCALING, **HALT)).learners is None
    assert left(seen(S, gone=True, **RESCALING, **RESUMED)).learners is None


def test_a_stop_order_that_comes_while_it_is_rescaled_replaces_the_resize() -> None:
    rescaling = seen(S, gone=True, **RESCALING, reason=Reason("rescaled", "Rescaling.", {"learners": 4}))
    ended = left(replace(rescaling, order=Order(StopReason.PREEMPTED, generation=1)))
    assert (ended.to, ended.learners, ended.reason.code) == (State.QUEUED, None, "preempted")
    assert "learners" not in ended.reason.numbers


def test_what_people_read_while_an_order_is_carried_out() -> None:
    phases = {
        (stop_reason, intent): display_phase(S, Intent(intent), stop_reason, 1)
        for stop_reason in ("preempted", "reclaimed", "moved", "rescaled")
        for intent in ("RUN", "HALT", "CANCEL")
    }
    assert {phases[reason, "RUN"] for reason in ("preempted", "reclaimed")} == {"Preempting"}
    assert (phases["moved", "RUN"], phases["rescaled", "RUN"]) == ("Moving", "Rescaling")
    assert {phases[reason, "HALT"] for reason in ("preempted", "reclaimed", "rescaled")} == {"Halting"}
    assert {phases[reason, "CANCEL"] for reason in ("preempted", "reclaimed", "rescaled")} == {"Canceling"}


# What is written


def order_of(job: Job) -> tuple[str, str, int | None, int]:
    row = job_of(job)
    return row.order_reason, row.order_for_job, row.order_learners, row.order_gen


@pytest.mark.django_db
def test_a_newer_generation_replaces_an_order_and_a_stale_one_is_refused() -> None:
    job = factories.job(state=P)
    assert write_orders([Stop(job.pk, "preempted", "a", 1)]) == [job.pk]
    assert write_orders([Stop(job.pk, "preempted", "a", 1)]) == [], "the same order again is not new"
    Job.objects.filter(pk=job.pk).update(intent_gen=3)
    assert write_orders([Stop(job.pk, "reclaimed", "b", 1), Stop(job.pk, "reclaimed", "b", 2)]) == []
    assert order_of(job) == ("preempted", "a", None, 1)
    assert write_orders([Stop(job.pk, "reclaimed", "b", 3)]) == [job.pk]
    assert order_of(job) == ("reclaimed", "b", None, 3)
    assert write_orders([Stop(job.pk, "preempted", "a", 2)]) == []


@pytest.mark.django_db
def test_a_stop_order_replaces_a_resize_order_and_not_the_other_way_round() -> None:
    job = factories.job(state=P)
    assert write_orders([Resize(job.pk, 1, 1)]) == [], "it has that size"
    assert write_orders([Resize(job.pk, 4, 1)]) == [job.pk]
    assert order_of(job) == ("rescaled", "", 4, 1)
    assert write_orders([Stop(job.pk, "preempted", None, 1)]) == [job.pk]
    assert order_of(job) == ("preempted", "", None, 1)
    assert write_orders([Resize(job.pk, 2, 1)]) == []
    Job.objects.filter(pk=job.pk).update(
        state=S, stop_reason="rescaled", order_reason="rescaled", order_learners=4
    )
    assert write_orders([Resize(job.pk, 2, 1)]) == [], "it is being rescaled"
    assert write_orders([Stop(job.pk, "preempted", None, 1)]) == [job.pk]


@pytest.mark.django_db
@pytest.mark.parametrize("at", sorted(set(State) - {State.DEPLOYING, State.DOWNLOADING, P}))
def test_only_a_running_job_takes_an_order(at: State) -> None:
    job = factories.job(state=at, stop_reason="halt_requested" if at == S else "")
    assert write_orders([Stop(job.pk, "preempted", None, 1), Resize(job.pk, 4, 1)]) == []


@pytest.mark.django_db
@pytest.mark.parametrize("intent", [Intent.HALT, Intent.CANCEL])
def test_a_job_that_its_owner_stops_takes_no_order(intent: Intent) -> None:
    job = factories.job(state=P, intent=intent)
    assert write_orders([Stop(job.pk, "preempted", None, 1), Resize(job.pk, 4, 1)]) == []


@pytest.mark.parametrize("reason", ["halt_requested", "time_limit", "rescaled", "no such reason"])
def test_a_stop_needs_a_reason_that_leads_back_to_the_queue(reason: str) -> None:
    with pytest.raises(ValueError, match="not a reason"):
        check_orders([Stop("3f9k2m7qx4ta", reason, None, 1)])


@pytest.mark.django_db
def test_what_the_write_of_an_order_refuses_the_scheduler_refuses_too() -> None:
    """Every state with a running attempt, intent and pending order: ``world.ordered`` and the UPDATE agree."""
    pending: list[tuple[str, int | None, int]] = [
        ("", None, 0),
        ("preempted", None, 1),
        ("preempted", None, 2),
        ("rescaled", 4, 1),
        ("rescaled", 4, 2),
    ]
    states = [(at, "") for at in HOLDS_GPUS - {S}] + [(S, reason) for reason in StopReason]
    for at, stop_reason in states:
        job = factories.job(state=at, stop_reason=stop_reason, learners=2, intent_gen=2)
        decided: list[Stop | Resize] = [Stop(job.pk, "reclaimed", None, generation) for generation in (1, 2)]
        decided += [Resize(job.pk, learners, generation) for learners, generation in ((2, 2), (3, 2), (3, 1))]
        decided += [Resize(job.pk, 2, generation, leaves=("a1",)) for generation in (1, 2)]
        for intent, (reason, learners, generation), order in product(Intent, pending, decided):
            fits = stop_reason == reason or stop_reason == StopReason.RESCALED
            if reason and at not in TAKES_ORDERS and not fits:
                continue  # a move to another stop, or to STORING, clears the order
            fields = {"order_reason": reason, "order_learners": learners, "order_gen": generation}
            Job.objects.filter(pk=job.pk).update(intent=intent, **fields)
            runs = snapshot(nodes=[], now=job.queued_at).running
            run = next(run for run in runs if run.job == job.pk)
            takes = scheduler_world.ordered(run, order) != run
            assert (write_orders([order]) == [job.pk]) == takes, (at, stop_reason, intent, fields, order)


@pytest.mark.django_db
@pytest.mark.parametrize("at", [State.STORING, S])
def test_a_job_on_its_way_out_looks_stopping_to_a_policy(at: State) -> None:
    job = factories.job(state=at, stop_reason="halt_requested" if at == S else "")
    (run,) = snapshot(nodes=[], now=job.queued_at).running
    assert run.stopping


# End to end: a policy that stops and resizes, the database, a cluster in memory


class Orders:
    """A policy for tests: it starts jobs like the real one, and stops or resizes what the test says."""

    def __init__(self) -> None:
        self.for_job: dict[str, str] = {}
        self.sizes: dict[str, int] = {}

    def plan(self, seen: Snapshot) -> Plan:
        waits = {gang.job for gang in seen.waiting}
        free = [run for run in seen.running if not run.stopping and run.order is None]
        return replace(
            plan(seen),
            stops=tuple(
                Stop(run.job, "preempted", self.for_job[run.job], run.generation)
                for run in free
                if self.for_job.get(run.job) in waits and run.job not in self.sizes
            ),
            resizes=tuple(
                Resize(run.job, self.sizes[run.job], run.generation, self.for_job.get(run.job))
                for run in free
                if self.sizes.get(run.job, run.gang.learners.max) != run.gang.learners.max
            ),
        )


def without_plan(job: Job) -> dict[str, object]:
    """The numbers of its reason, which names the plan that decided it, too, and what it may cost."""
    numbers: dict[str, Any] = dict(job.reason_numbers)
    assert set(numbers.pop("plan")) == {"snapshot", "program"}
    assert numbers.pop("expected_loss")["slot_type"] == "cpu"
    return numbers


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch, world: World) -> Orders:
    made = Orders()
    monkeypatch.setattr(cycle, "plan", made.plan)
    world.tenant.quotas.update(limit=F("limit") * 4)
    return made


@pytest.mark.django_db
def test_of_a_plan_with_an_order_that_cannot_be_written_nothing_is_written(
    world: World, policy: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = world.running(slots=4)
    waits = world.submit(slots=4)
    stop = Stop(victim.pk, "time_limit", None, job_of(victim).intent_gen)
    monkeypatch.setattr(cycle, "plan", lambda seen: replace(plan(seen), stops=(stop,)))
    with pytest.raises(ValueError, match="time_limit"):
        one_pass()
    assert state(waits) == State.QUEUED


@pytest.mark.django_db
def test_the_policy_is_asked_for_its_next_event_after_what_the_plan_started(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Snapshot] = []
    monkeypatch.setattr(FairShare, "next_event_at", lambda _, snapshot: seen.append(snapshot))
    job = world.submit()
    cycle.run()
    assert [run.job for run in seen[-1].running] == [job.pk]
    assert seen[-1].waiting == ()


@pytest.mark.django_db
def test_a_preempted_job_saves_queues_in_its_old_place_and_frees_its_slots_for_the_other(
    world: World, policy: Orders
) -> None:
    victim = world.running(learners=2, slots=4)
    queued_at = job_of(victim).queued_at
    earlier = world.submit(slots=4)
    winner = world.submit(learners=2, slots=4, priority="low", priority_rank=0)
    policy.for_job[victim.pk] = winner.pk
    world.settle()
    row = job_of(victim)
    assert (row.state, row.stop_reason, row.intent) == (S, "preempted", Intent.RUN)
    assert display_phase(S, Intent.RUN, row.stop_reason, 1) == "Preempting"
    assert without_plan(row) == {"for_job": winner.pk}
    world.save_and_leave(victim, 40)
    row = job_of(victim)
    assert (row.state, row.restarts_used, row.queued_at) == (State.QUEUED, 0, queued_at)
    assert (row.order_reason, row.order_for_job) == ("", "")
    moved = last_move(victim)
    assert (moved.from_state, moved.to_state, moved.reason) == ("STOPPING", "QUEUED", "preempted")
    closed = victim.attempts.get(n=1)
    assert (closed.held, closed.outcome, closed.freed_for) == (False, "preempted", winner.pk)
    assert state(winner) == State.DEPLOYING, (
        "before an earlier job of a higher class: the slots were freed for it"
    )
    assert state(earlier) == State.QUEUED
    assert used(world.tenant) == 8
    world.report(winner, phase=Phase.PROCESSING)
    world.settle()
    world.exit(winner)
    world.settle()
    world.done(winner)
    world.request(earlier, Intent.CANCEL)
    world.settle()
    assert state(victim) == State.DEPLOYING
    assert victim.attempts.get(n=2).resume_from.step == 40


@pytest.mark.django_db
def test_freed_slots_are_offered_to_the_other_job_for_a_bounded_time(world: World, policy: Orders) -> None:
    victim = world.running(learners=2, slots=4)
    winner = world.submit(learners=3, slots=4)  # it never fits
    policy.for_job[victim.pk] = winner.pk
    world.settle()
    world.save_and_leave(victim, 40)
    freed = victim.attempts.get(n=1).closed_at
    assert freed is not None
    before, after = (
        snapshot(nodes=[], now=freed + PROMISE + timedelta(seconds=seconds)).promised for seconds in (-1, 1)
    )
    assert (set(before), after) == ({winner.pk}, {})


@pytest.mark.django_db
def test_the_promise_runs_from_when_the_last_job_stopped_for_it_has_left(
    world: World, policy: Orders
) -> None:
    first, last = world.running(learners=1, slots=4), world.running(learners=1, slots=4)
    winner = world.submit(learners=2, slots=4)
    policy.for_job = {first.pk: winner.pk, last.pk: winner.pk}
    world.settle()
    world.save_and_leave(first, 40)
    freed = first.attempts.get(n=1).closed_at
    assert freed is not None
    late = freed + PROMISE + timedelta(seconds=1)
    assert snapshot(nodes=[], now=late).promised == {winner.pk: None}, "the other one still saves"
    world.save_and_leave(last, 40)
    freed = last.attempts.get(n=1).closed_at
    assert freed is not None
    assert snapshot(nodes=[], now=freed).promised == {winner.pk: freed + PROMISE}
    assert state(winner) == State.DEPLOYING


@pytest.mark.django_db
def test_a_job_that_leaves_for_another_one_is_promised_no_more_what_was_freed_for_it(
    world: World, policy: Orders
) -> None:
    """Else it would come back before that one, if it is stopped within a minute of its own start."""
    victim = world.running(learners=2, slots=4)
    winner = world.submit(learners=2, slots=4)
    policy.for_job[victim.pk] = winner.pk
    world.settle()
    world.save_and_leave(victim, 40)
    assert state(winner) == State.DEPLOYING
    world.report(winner, phase=Phase.PROCESSING)
    world.settle()
    last = world.submit(learners=3, slots=4)  # it never fits, so its promise stays
    policy.for_job = {winner.pk: last.pk}
    world.settle()
    world.save_and_leave(winner, 40)
    freed = winner.attempts.get(n=1).closed_at
    assert freed is not None
    assert snapshot(nodes=[], now=freed).promised == {last.pk: freed + PROMISE}


@pytest.mark.django_db
def test_the_job_of_another_tenant_is_not_named(world: World, policy: Orders) -> None:
    victim = world.running(learners=2, slots=4)
    other = factories.tenant(quotas={"cpu": 8})
    winner = factories.job(owner=factories.member(other), of=other, slots=4)
    policy.for_job[victim.pk] = winner.pk
    world.settle()
    assert job_of(victim).order_for_job == winner.pk
    world.save_and_leave(victim, 40)
    assert state(winner) == State.DEPLOYING
    assert victim.attempts.get(n=1).freed_for == winner.pk
    shown = [(event.message, str(event.numbers)) for event in victim.events.all()]
    assert not [words for words in shown if winner.pk in "".join(words)]


@pytest.mark.django_db
def test_a_resized_job_starts_again_with_the_new_size(world: World, policy: Orders) -> None:
    job = world.running(learners=2, slots=2)
    world.submit(learners=9)  # something that waits, so that the policy is asked
    policy.sizes[job.pk] = 3
    world.settle()
    assert job_of(job).stop_reason == "rescaled"
    assert without_plan(job_of(job)) == {"learners": 3}
    world.save_and_leave(job, 40)
    assert state(job) == State.DEPLOYING
    assert job_of(job).learners == 3
    began = job.attempts.get(n=2)
    assert (began.learners, len(began.nodes), began.resume_from.step) == (3, 3, 40)
    assert used(world.tenant) == 6
    world.settle()
    assert state(job) == State.DEPLOYING, "it has its size and is left alone"


@pytest.mark.django_db
def test_a_job_that_its_owner_halts_while_it_is_resized_is_promised_nothing(
    world: World, policy: Orders
) -> None:
    """It keeps the others waiting for nothing, and would come before them when it is resumed."""
    job = world.running(learners=2, slots=2)
    world.submit(learners=9)
    policy.sizes[job.pk] = 3
    world.settle()
    assert job_of(job).stop_reason == "rescaled"
    world.request(job, Intent.HALT)
    world.save_and_leave(job, 40)
    assert state(job) == State.HALTED
    closed = job.attempts.get(n=1).closed_at
    assert closed is not None
    assert snapshot(nodes=[], now=closed).promised == {}


@pytest.mark.django_db
@pytest.mark.parametrize("named", [True, False])
def test_a_resized_job_and_who_it_shrinks_for_are_offered_their_slots_first(
    world: World, policy: Orders, named: bool
) -> None:
    job = world.running(learners=2, slots=4)
    earlier = world.submit(learners=2, slots=4)
    winner = world.submit(slots=4)
    policy.sizes[job.pk] = 1
    if named:
        policy.for_job[job.pk] = winner.pk
    world.settle()
    (run,) = snapshot(nodes=[], now=job_of(job).queued_at).running
    assert run.order == Resize(job.pk, 1, run.generation, winner.pk if named else None)
    world.save_and_leave(job, 40)
    closed = job.attempts.get(n=1).closed_at
    assert closed is not None
    promised = dict.fromkeys([job.pk, winner.pk] if named else [job.pk], closed + PROMISE)
    assert snapshot(nodes=[], now=closed).promised == promised
    assert snapshot(nodes=[], now=closed + PROMISE + timedelta(seconds=1)).promised == {}
    assert (state(job), job_of(job).learners) == (State.DEPLOYING, 1)
    assert state(earlier) == State.QUEUED, "it needs both nodes"
    assert state(winner) == State.DEPLOYING


@pytest.mark.django_db
def test_an_owner_who_halts_a_preempted_job_and_resumes_it_keeps_its_place(
    world: World, policy: Orders
) -> None:
    victim = world.running(learners=2, slots=4)
    queued_at = job_of(victim).queued_at
    policy.for_job[victim.pk] = world.submit(learners=2, slots=4).pk
    world.settle()
    world.request(victim, Intent.HALT)
    world.settle()
    row = job_of(victim)
    assert display_phase(State(row.state), Intent(row.intent), row.stop_reason, 1) == "Halting"
    world.request(victim, Intent.RUN)
    world.save_and_leave(victim, 40)
    assert (state(victim), job_of(victim).queued_at) == (State.QUEUED, queued_at)


@pytest.mark.django_db
def test_an_owner_who_halts_a_preempted_job_finds_it_halted_with_a_receipt(
    world: World, policy: Orders
) -> None:
    victim = world.running(learners=2, slots=4)
    policy.for_job[victim.pk] = world.submit(learners=2, slots=4).pk
    world.settle()
    world.request(victim, Intent.HALT)
    world.save_and_leave(victim, 40)
    row = job_of(victim)
    assert (row.state, row.last_halt["step"]) == (State.HALTED, 40)
