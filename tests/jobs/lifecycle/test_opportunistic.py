"""Opportunistic jobs through the lifecycle: beyond every quota, stopped with a save for others, back by themselves."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from gpu_scheduler import rests
from gpu_scheduler.model import timestamp
from jobs import failpoints, invariants
from jobs.lifecycle import cycle, forecasting
from jobs.models import Attempt, Job, PeriodicTask
from jobs.selectors.decisions import Verdict, check_newest
from jobs.selectors.queue import estimate_view
from jobs.selectors.snapshot import database_now, snapshot
from jobs.selectors.suggestions import suggestions_for
from jobs.selectors.usage import quotas_of
from jobs.selectors.validation import of_valid
from jobs.selectors.what_if import preview
from jobs.serialization import rfc3339
from jobs.services.intents import job_halt, job_resume
from jobs.spec import parse
from jobs.states import EventCode, Phase, State, StopReason
from tenants.models import Project, ProjectShare, Quota, Tenant, User
from tests import factories
from tests.jobs.lifecycle.test_limits import admits
from tests.jobs.lifecycle.world import World, job_of, last_move, state, used

pytestmark = pytest.mark.django_db


@pytest.fixture
def bob(world: World) -> User:
    """Of another tenant, which may use half of the cluster; alice's may use a quarter."""
    Quota.objects.filter(tenant=world.tenant).update(limit=2)
    return factories.member(factories.tenant(quotas={"cpu": 4}), "bob")


def of_bob(bob: User, **fields: object) -> Job:
    return factories.job(owner=bob, of=bob.memberships.get().tenant, **fields)


def jobs_used(world: World) -> int:
    return Tenant.objects.get(pk=world.tenant.pk).jobs_used


def started_because(job: Job) -> str:
    why: str = job.events.filter(code=EventCode.PLACED).latest("n").numbers["why"]
    return why


def complete(world: World, job: Job) -> None:
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    world.exit(job)
    world.settle()
    world.done(job)
    world.settle()
    assert state(job) == State.COMPLETED


def test_it_runs_beyond_the_quota_leaves_with_its_work_saved_and_comes_back_by_itself(
    world: World, bob: User
) -> None:
    idle = world.running(learners=2, slots=4, opportunistic=True)
    assert started_because(idle) == "opportunistic"
    assert (used(world.tenant), jobs_used(world)) == (0, 0), (
        "all of the cluster, and nothing of its quota of 2"
    )
    assert invariants.violations() == []

    others = of_bob(bob, slots=4)
    world.settle()
    row = job_of(others)
    assert (row.state, row.reason_code) == (State.QUEUED, "IDLE_LEAVING")
    assert row.reason_message == (
        "Starts as soon as an opportunistic job has saved and left the 4 CPUs that it starts on."
    )
    row = job_of(idle)
    assert (row.state, row.stop_reason) == (State.STOPPING, StopReason.PREEMPTED)
    (leaving,) = snapshot(nodes=(), now=database_now()).running
    assert leaving.stopping_since == row.stop_at
    assert row.stop_at is not None
    assert "for_job" not in row.reason_numbers, "another tenant's job is not named"
    assert row.reason_numbers["expected_loss"]["slot_type"] == "cpu"
    world.save_and_leave(idle, 40)

    moved = last_move(idle)
    assert (moved.to_state, moved.reason, moved.numbers["lost"]) == ("QUEUED", "preempted", 0)
    closed = idle.attempts.get(n=1)
    assert (closed.held, closed.opportunistic, closed.freed_for) == (False, True, others.pk)
    assert (state(others), started_because(others)) == (State.DEPLOYING, "nominated")
    row = job_of(idle)
    assert (row.state, row.reason_code, row.reason_numbers["free"]) == (State.QUEUED, "NOT_IDLE", 4)
    assert row.reason_message == "Runs on idle devices only: 4 of 8 CPUs are idle; this job needs 8."
    assert (used(world.tenant), used(others.tenant), jobs_used(world)) == (0, 4, 0)
    assert invariants.violations() == []

    complete(world, others)
    assert state(idle) == State.DEPLOYING
    again = idle.attempts.get(n=2)
    assert again.resume_from is not None
    assert again.resume_from.step == 40
    complete(world, idle)
    assert (used(world.tenant), jobs_used(world)) == (0, 0)
    assert invariants.violations() == []


def test_a_job_of_its_own_tenant_and_user_makes_it_leave_too(world: World, bob: User) -> None:
    """And neither the user's limits nor the tenant's limit of live jobs count it."""
    Quota.objects.filter(tenant=world.tenant).update(user_limit=8)
    Tenant.objects.filter(pk=world.tenant.pk).update(jobs_limit=1, user_jobs_limit=1)
    idle = world.running(learners=2, slots=4, opportunistic=True)
    own = world.submit(slots=2)
    world.settle()
    assert state(idle) == State.STOPPING
    assert job_of(idle).reason_numbers["for_job"] == own.pk
    world.save_and_leave(idle, 10)
    assert state(own) == State.DEPLOYING
    assert job_of(idle).reason_code == "USER_GPUS", "it would be one more of its user's"
    assert invariants.violations() == []


def test_one_that_left_twice_within_an_hour_says_when_it_starts_again(
    world: World, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = world.running(learners=2, slots=4, opportunistic=True)
    for step in (10, 20):
        others = of_bob(bob, slots=4)
        world.settle()
        world.save_and_leave(idle, step)
        complete(world, others)
        if step == 10:
            assert state(idle) == State.DEPLOYING, "at once after the first stop"
            world.report(idle, phase=Phase.PROCESSING)
            world.settle()
    row, left_at = job_of(idle), idle.attempts.get(n=2).closed_at
    assert left_at is not None
    until = left_at + timedelta(minutes=1)
    assert (row.state, row.reason_code) == (State.QUEUED, "IDLE_BACKOFF")
    assert row.reason_numbers["rests_until"] == timestamp(until)
    assert f"no earlier than {until:%Y-%m-%d %H:%M:%S} UTC" in row.reason_message
    next_pass = PeriodicTask.objects.get(name=PeriodicTask.CYCLE).next_at
    assert next_pass is not None
    assert next_pass <= until
    assert suggestions_for(row) == [], "it waits for nothing that a change would save it"
    forecasting.update_estimates({})
    estimate = estimate_view(job_of(idle), database_now())
    assert estimate is not None
    assert estimate["from"] == rfc3339(until)
    assert estimate["message"] == "Based on the time until which it stays away; assumes no new jobs."

    for early, expected in ((timedelta(seconds=1), State.QUEUED), (timedelta(), State.DEPLOYING)):
        monkeypatch.setattr(cycle, "database_now", lambda at=until - early: at)
        world.elapse(70)  # until the next pass
        world.settle()
        assert state(idle) == expected
    assert invariants.violations() == []
    assert {each.verdict for each in check_newest(100)} == {Verdict.SAME}


def test_halts_by_its_owner_keep_it_away_from_nothing(world: World) -> None:
    idle = world.running(slots=2, opportunistic=True)
    for _ in range(3):
        job_halt(user=world.alice, job_id=idle.pk)
        world.settle()
        world.exit(idle, halted=True)
        world.done(idle)
        world.settle()
        assert state(idle) == State.HALTED
        job_resume(user=world.alice, job_id=idle.pk)
        world.settle()
        assert state(idle) == State.DEPLOYING
        world.report(idle, phase=Phase.PROCESSING)
        world.settle()


def test_only_stops_for_other_jobs_soon_after_a_start_keep_it_away(world: World) -> None:
    idle, now = world.submit(slots=2, opportunistic=True), database_now()

    def ended(n: int, ago: int, outcome: str, ran: int | None = 5, **changes: object) -> None:
        """ago: minutes; ran: minutes of computing, None: its program had not begun."""
        at = now - timedelta(minutes=ago)
        began = None if ran is None else at - timedelta(minutes=ran)
        fields = {"freed_for": "x", "opportunistic": True} | changes
        Attempt.objects.create(
            job=idle, tenant=world.tenant, n=n, cluster="memory", slot_type="cpu", slots=2, learners=1,
            nodes=["node-a"], held=False, opened_at=at - timedelta(minutes=30), processing_at=began, closed_at=at,
            outcome=outcome, **fields,
        )  # fmt: skip

    ended(1, 91, "preempted")
    ended(2, 50, "preempted")
    ended(3, 40, "preempted", ran=10)
    ended(4, 30, "node_lost")
    ended(5, 29, "halt_requested")
    ended(6, 28, "moved")
    ended(7, 27, "budget_exhausted", freed_for="")
    ended(8, 26, "preempted", opportunistic=False)
    ended(9, 25, "preempted", ran=None)
    assert snapshot(nodes=(), now=now).yielded == {
        idle.pk: (now - timedelta(minutes=50), now - timedelta(minutes=25))
    }
    Job.objects.filter(pk=idle.pk).update(opportunistic=False)
    assert snapshot(nodes=(), now=now).yielded == {}


def test_of_one_that_runs_it_is_known_how_often_it_left_and_whether_its_program_began(
    world: World, bob: User
) -> None:
    idle = world.running(learners=2, slots=4, opportunistic=True)
    others = of_bob(bob, slots=4)
    world.settle()
    world.save_and_leave(idle, 10)
    complete(world, others)
    assert state(idle) == State.DEPLOYING
    seen = snapshot(nodes=(), now=database_now())
    assert seen.yielded == {idle.pk: (idle.attempts.get(n=1).closed_at,)}
    assert [run.computes_after for run in seen.running] == [seen.now]
    world.report(idle, phase=Phase.PROCESSING)
    world.settle()
    seen = snapshot(nodes=(), now=database_now())
    assert [run.computes_after for run in seen.running] == [None]


def test_for_a_job_that_the_platform_cannot_start_it_leaves_ever_more_rarely(
    world: World, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two tries the job waits for runs to leave, which must not begin its back-off again."""
    monkeypatch.setattr(rests, "FREE", 99)  # its own back-off is for another test
    idle = world.running(learners=2, slots=4, opportunistic=True)
    broken = of_bob(bob, slots=4)

    def fail(name: str) -> None:
        if name == "admit.after_rows" and state(broken) == State.DEPLOYING:
            raise ValueError(name)

    failpoints.arm(fail)
    for failures, wait_s in enumerate((30, 60, 120), 1):
        world.settle()
        assert (state(idle), job_of(broken).reason_code) == (State.STOPPING, "IDLE_LEAVING")
        world.save_and_leave(idle, 10 * failures)
        row = job_of(broken)
        assert (row.reason_code, row.reason_numbers) == (
            "START_FAILED",
            {"failures": failures, "retry_s": wait_s},
        )
        world.elapse(5)  # until the next pass
        world.settle()
        assert state(idle) == State.DEPLOYING, "it is back"
        world.report(idle, phase=Phase.PROCESSING)
        world.settle()
        world.elapse(wait_s - 15)
        world.report(idle, phase=Phase.PROCESSING)
        world.settle()
        assert state(idle) == State.PROCESSING, "not before the back-off ends"
        world.elapse(11)
    failpoints.arm(None)
    world.settle()
    world.save_and_leave(idle, 40)
    assert state(broken) == State.DEPLOYING


def test_what_is_refused_at_the_last_moment(world: World) -> None:
    Quota.objects.filter(tenant=world.tenant).update(limit=0)
    idle = [world.submit(slots=2, opportunistic=True) for _ in range(6)]
    assert not admits(world.submit(slots=2))
    assert admits(idle[0]), "a quota of 0 is enough"
    Quota.objects.update(user_limit=3)
    assert not admits(idle[1])
    Quota.objects.update(user_limit=None, gang_limit=1)
    assert not admits(idle[1])
    Quota.objects.update(gang_limit=None)
    Tenant.objects.update(max_time_s=60)
    assert not admits(idle[1])
    Tenant.objects.update(max_time_s=None, state=Tenant.State.SUSPENDED)
    assert not admits(idle[1])
    Tenant.objects.update(state=Tenant.State.ACTIVE)
    Quota.objects.all().delete()
    assert not admits(idle[1])
    assert invariants.violations() == []


def test_a_limit_that_was_lowered_keeps_none_from_starting(world: World) -> None:
    world.running(slots=4)
    Quota.objects.update(limit=1)
    Tenant.objects.update(jobs_limit=0)
    assert admits(world.submit(slots=2, opportunistic=True))
    assert not admits(world.submit(slots=1))
    assert (used(world.tenant), jobs_used(world)) == (4, 1)


def test_others_are_not_counted_against_it_nor_it_against_others_in_limits(world: World) -> None:
    project = Project.objects.create(tenant=world.tenant, slug="vision")
    ProjectShare.objects.create(project=project, gpu_type="cpu", limit=2)
    Quota.objects.update(user_limit=4)
    assert admits(world.submit(slots=4, opportunistic=True, project="vision"))
    assert admits(world.submit(slots=2, project="vision"))
    assert not admits(world.submit(slots=1, project="vision"))
    assert admits(world.submit(slots=2)), "its user's limit counts what is not opportunistic"
    assert not admits(world.submit(slots=1, opportunistic=True))
    assert invariants.violations() == []


def test_quota_pages_show_neither_its_use_nor_its_wait(world: World, bob: User) -> None:
    world.running(learners=2, slots=4, opportunistic=True)
    world.submit(slots=4, opportunistic=True)
    world.settle()
    (shown,) = quotas_of(world.tenant)
    assert (shown.used, shown.waiting) == (0, 0)


def test_a_process_of_the_version_before_cannot_return_what_was_never_taken(world: World) -> None:
    idle = world.running(slots=2, opportunistic=True)
    with pytest.raises(IntegrityError, match="took nothing of a quota"), transaction.atomic():
        Attempt.objects.filter(job=idle).update(held=False, closed_at=Now(), outcome="QUEUED")
    assert Attempt.objects.get(job=idle).held


def test_what_a_process_of_the_version_before_started_counts_as_any_other(world: World, bob: User) -> None:
    """It does not write the column of the attempt."""
    Quota.objects.exclude(tenant=world.tenant).update(limit=8)
    idle = world.submit(slots=2)
    world.settle()
    Job.objects.filter(pk=idle.pk).update(opportunistic=True)
    other = of_bob(bob, learners=2, slots=4)
    world.settle()
    assert state(idle) == State.DEPLOYING, "it holds slots of its quota, so it is not stopped for another job"
    assert (used(world.tenant), job_of(other).reason_code) == (2, "INSUFFICIENT_CAPACITY")
    complete(world, idle)
    assert used(world.tenant) == 0
    assert invariants.violations() == []


def test_what_was_decided_with_them_is_decided_again(world: World, bob: User) -> None:
    idle = world.running(learners=2, slots=4, opportunistic=True)
    of_bob(bob, slots=4)
    world.settle()
    world.save_and_leave(idle, 10)
    found = list(check_newest(100))
    assert [each.verdict for each in found] == [Verdict.SAME] * 3, "its start, its stop, the other's start"
    assert [bool(each.decided["stops"]) for each in found] == [False, True, False]


def test_a_dry_run_says_that_it_would_start_and_takes_no_quota(world: World) -> None:
    world.running(slots=4)
    Quota.objects.update(limit=4)
    text = factories.spec(resources={"learners": 1, "cpus": 4}) | {"opportunistic": True}
    foreseen = preview(world.tenant, parse(text), "alice")
    assert (foreseen.starts, foreseen.nodes) == (True, ("node-b",))
    checks = {line["name"]: line for line in of_valid(world.tenant, parse(text), foreseen, warnings=0)}
    assert checks["quota"]["message"] == "cpu: opportunistic, so it takes nothing of the 4"
    beyond = preview(world.tenant, parse(text | {"opportunistic": False}), "alice")
    assert (beyond.starts, beyond.code) == (False, "QUOTA_GPUS")


def test_it_is_offered_to_a_job_that_waits_for_quota_if_that_would_start_it_at_once(world: World) -> None:
    world.running(slots=4)
    Quota.objects.update(limit=6)
    waits = world.submit(slots=4)
    world.settle()
    way = next(way for way in suggestions_for(job_of(waits)) if way.kind == "opportunistic")
    assert (way.value, way.changes) == ("true", {"opportunistic": True})
    Job.objects.filter(pk=waits.pk).update(grace_s=301)
    assert "opportunistic" not in {way.kind for way in suggestions_for(job_of(waits))}, "it may save too long"
    Job.objects.filter(pk=waits.pk).update(grace_s=300)
    Job.objects.filter(pk=world.submit(slots=4, opportunistic=True).pk).update(priority_rank=2)
    world.settle()
    assert "opportunistic" not in {way.kind for way in suggestions_for(job_of(waits))}, "now another has it"
