"""A GPU-hour budget through the lifecycle: what runs is stopped with a save when it is used up, and comes back by
itself when it is raised or the month is over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from gpu_scheduler.forecast import Basis, RunTime
from gpu_scheduler.model import Node, timestamp
from jobs import clusters, invariants, usage_days
from jobs.lifecycle import cycle, forecasting
from jobs.models import Attempt, Job, UsageDay, UsageDue
from jobs.selectors import budgets
from jobs.selectors.monitoring import FACTS, VALUES
from jobs.selectors.queue import BUDGET_AHEAD, estimate_view
from jobs.selectors.redaction import redact, redact_job, redacted_events, redacted_job
from jobs.selectors.serializers import JobSerializer
from jobs.selectors.snapshot import needs_plan, tenant_states
from jobs.selectors.suggestions import suggestions_for
from jobs.selectors.validation import of_valid
from jobs.selectors.what_if import preview
from jobs.spec import parse
from jobs.states import EventCode, State, StopReason
from tenants.models import Tenant
from tests import factories
from tests.jobs.lifecycle.world import ChoosingCluster, World, job_of, last_move, one_pass, state

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(db: None) -> Iterator[World]:
    """Eight GPUs, and CPUs."""
    made = World(
        lambda clock: ChoosingCluster(
            [Node.with_slots("gpu-a", "a100", 8), Node.with_slots("cpu-a", "cpu", 4)], clock=clock
        )
    )
    factories.quota(made.tenant, "a100", 8)
    clusters.use(made.cluster)
    try:
        yield made
    finally:
        clusters.use(None)


@pytest.fixture
def month(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[datetime]]:
    """The present month's begin and end, whatever the day: changed in place, the month turns."""
    midnight = datetime.combine(timezone.now().date(), datetime.min.time(), UTC)
    found = [midnight - timedelta(days=20), midnight + timedelta(days=10)]
    monkeypatch.setattr(budgets, "month_of", lambda now: (found[0], found[1]))
    return found


GPU = {"slots": 4, "gpus": 4, "gpu_type": "a100"}


def limit(world: World, hours: float | None, *, hard: bool = True) -> None:
    Tenant.objects.filter(pk=world.tenant.pk).update(budget_gpu_hours=hours, budget_is_hard=hard)


def used(world: World) -> float:
    """GPU-hours of the month."""
    world.tenant.refresh_from_db()
    found = budgets.budget_of(world.tenant)
    assert found is not None
    return found.used_gpu_hours


def keeps_running(world: World, hours: float) -> None:
    """Its node is in contact all the time."""
    world.elapse(hours * 3600)
    Attempt.objects.filter(held=True).update(known_at=timezone.now())


def exhausted(world: World) -> Job:
    """A job of four GPUs that was stopped after an hour, with a budget of three hours."""
    limit(world, 3)
    job = world.running(**GPU)
    keeps_running(world, 0.5)
    world.settle()
    assert state(job) == State.PROCESSING
    assert used(world) == pytest.approx(2, abs=0.05)
    keeps_running(world, 0.5)
    assert needs_plan(), "although no job waits"
    one_pass()
    world.settle()
    assert (state(job), job_of(job).stop_reason) == (State.STOPPING, StopReason.BUDGET_EXHAUSTED)
    world.save_and_leave(job, 40)
    return job


def resumes(world: World, job: Job) -> None:
    one_pass()
    world.settle()
    assert state(job) == State.DEPLOYING
    again = job.attempts.get(n=2)
    assert again.resume_from is not None
    assert again.resume_from.step == 40
    assert invariants.violations() == []


def test_it_is_stopped_with_its_work_saved_and_starts_again_when_the_budget_is_raised(
    world: World, month: list[datetime]
) -> None:
    job = exhausted(world)
    moved = last_move(job)
    assert (moved.to_state, moved.reason, moved.numbers["lost"]) == ("QUEUED", "budget_exhausted", 0)
    (stopping,) = job.events.filter(to_state="STOPPING")
    assert stopping.message.startswith("Stopping to start again later.")
    assert "budget" not in redact(stopping.reason, stopping.message, stopping.numbers)[0].lower()
    (read,) = redacted_events(job.owner, job, [stopping])
    assert read.message.endswith("Its tenant's GPU-hour budget was used up."), "its members read why"
    row = job_of(job)
    assert row.reason_code == "BUDGET_EXHAUSTED"
    assert row.reason_numbers["month_ends"] == timestamp(month[1])
    assert row.restarts_used == 0
    for _ in range(3):
        one_pass()
        world.settle()
    assert (state(job), job.attempts.count()) == (State.QUEUED, 1)
    assert invariants.violations() == []
    limit(world, 30)
    resumes(world, job)


def test_it_starts_again_when_the_month_turns(
    world: World, month: list[datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = exhausted(world)
    midnight = month[1]
    asked: list[datetime | None] = []
    with monkeypatch.context() as spied:
        spied.setattr(cycle, "_plan_again_at", asked.append)
        one_pass()
    assert [at for at in asked if at is not None] == [midnight], "a pass is due then"
    month[:] = [timezone.now(), midnight + timedelta(days=30)]
    assert used(world) == 0
    resumes(world, job)


def test_the_next_pass_is_due_when_the_budget_will_be_used_up(
    world: World, month: list[datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[datetime | None] = []
    monkeypatch.setattr(cycle, "_plan_again_at", asked.append)
    limit(world, 4)
    world.running(**GPU)
    asked.clear()
    one_pass()
    (due,) = [at for at in asked if at is not None]
    assert due - timezone.now() == pytest.approx(timedelta(hours=1), abs=timedelta(minutes=1))


def test_a_soft_budget_warns_only(world: World, month: list[datetime]) -> None:
    limit(world, 1, hard=False)
    job = world.running(**GPU)
    keeps_running(world, 1)
    one_pass()
    world.settle()
    assert state(job) == State.PROCESSING
    found = budgets.budget_of(Tenant.objects.get(pk=world.tenant.pk))
    assert found is not None
    assert (found.warns, found.is_used_up, found.is_hard) == (True, True, False)


def test_cpu_jobs_and_opportunistic_ones_neither_count_nor_are_held(
    world: World, month: list[datetime]
) -> None:
    limit(world, 0)
    jobs = [world.running(slots=2), world.running(opportunistic=True, **GPU)]
    held = world.submit(**GPU)
    keeps_running(world, 5)
    one_pass()
    world.settle()
    assert [state(job) for job in jobs] == [State.PROCESSING] * 2
    assert job_of(held).reason_code == "BUDGET_EXHAUSTED"
    assert used(world) == 0
    for job in jobs:
        world.exit(job)
        world.settle()
        world.done(job)
        world.settle()
    roll_up()
    assert sum(day.used for day in UsageDay.objects.filter(slot_type="a100")) == pytest.approx(
        20 * 3600, abs=60
    )
    assert used(world) == pytest.approx(0, abs=1e-6)


def roll_up() -> None:
    UsageDue.objects.update(at=timezone.now() - timedelta(hours=1))
    usage_days.roll_up({})


def test_what_is_rolled_up_counts_once_and_what_is_late_or_of_another_month_never_twice(
    world: World, month: list[datetime]
) -> None:
    limit(world, 100)
    job = world.running(**GPU)
    keeps_running(world, 2)
    before = used(world)
    assert before == pytest.approx(8, abs=0.05)
    world.exit(job)
    world.settle()
    world.done(job)
    world.settle()
    ended = used(world)
    assert ended == pytest.approx(before, abs=0.05)
    roll_up()
    assert not UsageDue.objects.filter(holds=True).exists()
    assert used(world) == pytest.approx(ended, abs=1e-6)
    Job.objects.filter(pk=job.pk).update(deleted_at=timezone.now())
    assert used(world) == pytest.approx(ended, abs=1e-6), "a deleted job gives nothing back"
    day = UsageDay.objects.get(slot_type="a100", used__gt=3600 * 4)
    UsageDay.objects.filter(pk=day.pk).update(day=month[0].date() - timedelta(days=1))
    assert used(world) < ended
    UsageDay.objects.filter(pk=day.pk).update(day=month[1].date() - timedelta(days=1))
    assert used(world) == pytest.approx(ended, abs=1e-6), "of a day that the clock, set back, has not reached"


def test_a_clock_that_was_set_back_gives_nothing_back(world: World, month: list[datetime]) -> None:
    limit(world, 100)
    world.running(**GPU)
    keeps_running(world, 1)
    Attempt.objects.update(known_at=timezone.now() + timedelta(hours=1))
    assert used(world) == pytest.approx(8, abs=0.05)


def test_a_cluster_without_budgets_pays_nothing(
    world: World, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    states = tenant_states()
    with django_assert_num_queries(0):
        assert budgets.with_use(states, timezone.now()) == states
        assert budgets.budgets_of([world.tenant]) == {}
    limit(world, 5)
    for n in range(3):
        Tenant.objects.create(slug=f"t{n}", name="", budget_gpu_hours=n)
    states = tenant_states()
    with django_assert_num_queries(1):
        assert len([one for one in budgets.with_use(states, timezone.now()) if one.budget is not None]) == 4


def test_a_month_is_a_calendar_month_in_utc() -> None:
    east = datetime(2026, 12, 1, 3, tzinfo=ZoneInfo("Asia/Tokyo"))
    assert budgets.month_of(east) == (datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))
    assert budgets.month_of(datetime(2027, 12, 31, 23, 59, tzinfo=UTC))[1].date() == date(2028, 1, 1)


def test_what_the_month_will_use_is_said_after_a_day_of_it() -> None:
    start = datetime(2026, 11, 1, tzinfo=UTC)

    def after(hours: float, used_hours: float) -> budgets.Budget:
        end = datetime(2026, 12, 1, tzinfo=UTC)
        return budgets.Budget(100, used_hours, True, start, end, start + timedelta(hours=hours))

    assert after(23, 5).projected_gpu_hours is None
    assert after(23, 5).runs_out_at is None
    assert after(72, 20).projected_gpu_hours == pytest.approx(200)
    assert after(72, 20).runs_out_at == start + timedelta(days=15)
    assert after(72, 5).runs_out_at is None
    assert (after(72, 79.9).warns, after(72, 80).warns, after(72, 100).is_used_up) == (False, True, True)


def test_metrics_say_what_is_used(world: World) -> None:
    limit(world, 12.5)
    found = {}
    with connection.cursor() as cursor:
        for fact in FACTS:
            if "budget" in fact.name:
                cursor.execute(fact.sql, VALUES)
                found[fact.name] = cursor.fetchall()
    assert found == {
        "luthier_budget_gpu_hours": [(world.tenant.slug, 12.5)],
        "luthier_budget_used_gpu_hours": [(world.tenant.slug, 0.0)],
    }
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {budgets.THIS_MONTH[0]}, {budgets.THIS_MONTH[1]}")
        assert cursor.fetchone() == budgets.month_of(timezone.now())


def test_it_is_not_stopped_while_its_results_are_stored(world: World, month: list[datetime]) -> None:
    limit(world, 3)
    job = world.running(**GPU)
    world.exit(job)
    world.settle()
    assert state(job) == State.STORING
    keeps_running(world, 1)
    one_pass()
    world.settle()
    assert state(job) == State.STORING
    assert job_of(job).order_reason == ""
    assert not job.events.filter(code=EventCode.MOVED, to_state="STOPPING").exists()


def test_a_dry_run_says_what_is_used_and_what_the_job_can_add(world: World, month: list[datetime]) -> None:
    def checks(**more: object) -> dict[str, str]:
        text = factories.spec(resources={"learners": 2, "gpus": 2, "gpu_type": "a100"}) | more
        world.tenant.refresh_from_db()
        foreseen = preview(world.tenant, parse(text), "alice")
        lines = of_valid(world.tenant, parse(text), foreseen, warnings=0)
        return {line["name"]: line["result"] + ": " + line["message"] for line in lines}

    assert "budget" not in checks()
    limit(world, 1000)
    world.running(**GPU)
    keeps_running(world, 1)
    used = f"passed: 4 of 1,000 GPU-hours of {month[0]:%B} used; "
    limited = checks(time_limit="90m")["budget"]
    assert (
        limited
        == f"{used}within its time limit this job can use 6 more, besides starts and saves. The budget is hard"
    )
    elastic = checks(
        time_limit="90m", resources={"learners": {"min": 1, "max": 4}, "gpus": 2, "gpu_type": "a100"}
    )
    assert "can use 12 more" in elastic["budget"], "with all its learners"
    assert checks()["budget"].startswith(
        f"{used}this job has no time limit, so what it will use is not known."
    )
    assert "budget" not in checks(opportunistic=True)
    limit(world, 3, hard=False)
    assert " of 3 GPU-hours of " in checks()["budget"]
    assert checks()["budget"].endswith("soft: it only warns")
    limit(world, 3)
    assert checks()["budget"].startswith("waits: The tenant's GPU-hour budget is used up: 4")
    assert {checks()[name].split(":")[0] for name in ("quota", "gang")} == {"skipped"}
    foreseen = preview(
        world.tenant, parse(factories.spec(resources={"gpus": 2, "gpu_type": "a100"})), "alice"
    )
    assert foreseen.estimate["message"] == not_before(month[1])


def not_before(turns: datetime) -> str:
    return (
        f"Not before {turns:%Y-%m-%d} 00:00 UTC, when the GPU-hour budget of the next month begins, unless a platform"
        " admin raises this month's; how long after that is not known."
    )


def test_the_estimate_of_a_held_job_says_until_when_it_is_held_at_least(
    world: World, month: list[datetime]
) -> None:
    held = exhausted(world)
    one_pass()

    def estimate(now: datetime | None = None) -> str:
        assert job_of(held).reason_code == "BUDGET_EXHAUSTED"
        found = estimate_view(job_of(held), now or timezone.now())
        assert found is not None
        assert (found["from"], found["to"]) == (None, None)
        return str(found["message"])

    assert estimate() == not_before(month[1])
    unknown = "When it starts depends on the tenant's GPU-hour budget."
    assert estimate(month[1]) == unknown, "until a pass has seen the new month"
    limit(world, 0)
    one_pass()
    assert estimate() == "Only a platform admin who raises the tenant's GPU-hour budget lets it start."


def test_the_estimate_of_a_job_that_will_be_held_says_so_before_it_is(
    world: World, month: list[datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job has half of the GPUs for ten hours, 40 GPU-hours: the budget may end before."""
    other = world.running(**GPU)
    waits = world.submit(slots=8, gpus=8, gpu_type="a100")
    one_pass()
    ends = {other.pk: RunTime((36_000.0,), Basis.PROGRESS), waits.pk: RunTime((60.0,), Basis.HISTORY)}
    monkeypatch.setattr(forecasting, "run_times", lambda seen: ends)

    def estimate() -> dict[str, Any]:
        forecasting.update_estimates({})
        assert job_of(waits).reason_code in ("INSUFFICIENT_CAPACITY", "QUOTA_GPUS")
        found = estimate_view(Job.objects.select_related("estimate").get(pk=waits.pk), timezone.now())
        assert found is not None
        return found

    assert estimate()["from"] is not None, "no budget"
    limit(world, 39)
    assert (estimate()["from"], estimate()["message"]) == (None, BUDGET_AHEAD)
    limit(world, 41)
    assert estimate()["from"] is not None, "it lasts"


def test_a_guest_reads_no_date_of_a_budget(world: World, month: list[datetime]) -> None:
    held = exhausted(world)
    one_pass()
    guest = factories.user()
    unknown = "When it starts depends on the tenant's GPU-hour budget."
    found = estimate_view(redacted_job(guest, job_of(held)), timezone.now())
    assert found is not None
    assert found["message"] == unknown
    shown = redact_job(JobSerializer.render(job_of(held)))
    assert shown["estimate"]["message"] == unknown
    assert month[1].strftime("%Y-%m-%d") not in json.dumps(shown, default=str)


def test_what_is_suggested_for_a_held_job_passes_its_budget(world: World, month: list[datetime]) -> None:
    held = exhausted(world)
    one_pass()
    assert [each.kind for each in suggestions_for(job_of(held))] == ["opportunistic"]
    limit(world, None)
    one_pass()
    assert state(held) == State.DEPLOYING
