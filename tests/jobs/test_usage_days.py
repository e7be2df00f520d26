"""Usage as rolled up by day is what it was row by row, whatever is rolled up already; and it outlives the jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs import retention, usage_days
from jobs.lifecycle import periodic
from jobs.models import Attempt, Checkpoint, Job, JobEvent, PlatformStop, UsageDay, UsageDue
from jobs.selectors.usage import By, first_waits, usage_by_day_and_user, usage_of
from jobs.selectors.usage_sql import LOSSES
from jobs.serialization import rfc3339
from jobs.states import EventCode, State
from tenants.models import Tenant, User
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api
from tests.reads import history, pages_read, roll_up_usage

pytestmark = pytest.mark.django_db

DAYS = 6
Sums = dict[tuple[str, str], list[float]]


def database_now() -> datetime:
    """The time of the transaction, which is what live attempts and waits count to."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        return cursor.fetchone()[0]


def settle() -> None:
    """Let what has ended be old enough to be rolled up, and roll it up."""
    UsageDue.objects.update(at=timezone.now() - timedelta(hours=1))
    while usage_days.roll_up({})["more"]:
        pass


@dataclass
class Turn:
    """A wait of a job, in minutes, and what came after it: nothing yet, an end, or an attempt."""

    waits: int
    runs: int
    saved: int | None
    outcome: str
    starts: bool


@dataclass
class Life:
    """A job's turns from so many minutes before now, on slots of a type."""

    ago: int
    turns: list[Turn]
    slots: int
    gpus: bool
    owner: int


TURNS = st.builds(
    Turn,
    waits=st.integers(0, 900),
    runs=st.integers(0, 3000),
    saved=st.none() | st.integers(0, 3000),
    outcome=st.sampled_from(["FAILED", "node_lost", "preempted", "HALTED", "COMPLETED"]),
    starts=st.booleans(),
)
LIVES = st.builds(
    Life,
    ago=st.integers(0, DAYS * 1440),
    turns=st.lists(TURNS, min_size=1, max_size=3),
    slots=st.integers(1, 3),
    gpus=st.booleans(),
    owner=st.integers(0, 1),
)


@dataclass
class Expected:
    """The plain computation: spans of slots with their owner and type."""

    parts: list[tuple[str, str, int, datetime, datetime, datetime | None, bool]] = field(default_factory=list)

    def sums(self, start: datetime, end: datetime, by: By) -> Sums:
        found: Sums = {}
        for owner, kind, size, a, b, lost_from, holds in self.parts:
            for day in (start.date() + timedelta(days=n) for n in range(-1, (end - start).days + 3)):
                midnight = datetime.combine(day, time.min, UTC)
                lo, hi = max(a, start, midnight), min(b, end, midnight + timedelta(days=1))
                if lo >= hi:
                    continue
                key = {By.USER: owner, By.GPU_TYPE: kind, By.DAY: day.isoformat()}[by]
                total = found.setdefault((key, kind), [0.0, 0.0, 0.0])
                total[0 if holds else 1] += size * (hi - lo).total_seconds()
                if lost_from is not None:
                    total[2] += size * max(0.0, (hi - max(lo, lost_from)).total_seconds())
        return found


def live(life: Life, tenant: Tenant, owner: User, now: datetime, expected: Expected) -> Job:
    """Write the rows that this life would have left until now."""
    kind = "a100" if life.gpus else "cpu"
    at = now - timedelta(minutes=life.ago)
    job = factories.job(
        of=tenant, owner=owner, slots=life.slots, gpus=life.slots if life.gpus else 0,
        gpu_type=kind if life.gpus else "", created_at=at,
    )  # fmt: skip
    n = 0

    def event(origin: str, target: str) -> None:
        nonlocal n
        n += 1
        JobEvent.objects.create(
            job=job, tenant=tenant, n=n + 1, at=at, code=EventCode.MOVED, from_state=origin, to_state=target, source="x"
        )  # fmt: skip

    event("", "QUEUED")
    for attempt, turn in enumerate(life.turns, 1):
        queued, at = at, at + timedelta(minutes=turn.waits)
        if at >= now:  # it still waits
            expected.parts.append((owner.username, kind, life.slots, queued, now, None, False))
            return job
        expected.parts.append((owner.username, kind, life.slots, queued, at, None, False))
        event("QUEUED", "DEPLOYING" if turn.starts else "CANCELED")
        if not turn.starts:
            Job.objects.filter(pk=job.pk).update(state=State.CANCELED)
            return job
        opened, at = at, at + timedelta(minutes=turn.runs)
        over = at < now
        Attempt.objects.create(
            job=job, tenant=tenant, n=attempt, cluster="memory", slot_type=kind, slots=life.slots, learners=1,
            nodes=["node-a"], opened_at=opened, held=not over, closed_at=at if over else None,
            outcome=turn.outcome if over else "",
        )  # fmt: skip
        lost_from = opened if over and turn.outcome in LOSSES else None
        saved = None if turn.saved is None else opened + timedelta(minutes=turn.saved)
        if saved is not None and saved <= at:
            Checkpoint.objects.create(
                job=job, tenant=tenant, n=attempt, attempt=attempt, step=attempt, committed_at=saved,
                state=Checkpoint.State.COMMITTED,
            )  # fmt: skip
            lost_from = saved if lost_from else None
        expected.parts.append((owner.username, kind, life.slots, opened, min(at, now), lost_from, True))
        if not over:
            Job.objects.filter(pk=job.pk).update(state=State.DEPLOYING)
            return job
        event("STOPPING", "QUEUED")
    expected.parts.append((owner.username, kind, life.slots, at, now, None, False))
    return job


def answer(tenant: Tenant, start: datetime, end: datetime, by: By) -> Sums:
    rows = usage_of(tenant, start=start, end=end, by=by)
    return {(row.key, row.gpu_type): [row.used, row.waited, row.lost] for row in rows}


def approximately(sums: Sums) -> dict[tuple[str, str], Any]:
    return {key: pytest.approx(values, abs=0.1) for key, values in sums.items() if any(values)}


MINUTES = st.integers(-1440, DAYS * 1440 + 1440)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lives=st.lists(LIVES, max_size=6),
    rolled=st.lists(st.booleans(), min_size=6, max_size=6),
    span=st.tuples(MINUTES, MINUTES, st.sampled_from(["none", "start", "both", "now"])),
)
def test_any_history_counts_the_same_rolled_up_or_not(
    lives: list[Life], rolled: list[bool], span: tuple[int, int, str]
) -> None:
    with transaction.atomic():  # a failure leaves the next example a transaction
        agree(lives, rolled, span)


def agree(lives: list[Life], rolled: list[bool], span: tuple[int, int, str]) -> None:
    tenant, now, expected = factories.tenant(), database_now(), Expected()
    owners = [factories.member(tenant), factories.member(tenant)]
    jobs = [live(life, tenant, owners[life.owner], now, expected) for life in lives]
    first, last, whole = min(span[:2]), max(span[:2]) + 1, span[2]
    start, end = now - timedelta(minutes=last), now - timedelta(minutes=first)
    if whole in ("start", "both"):
        start = start.replace(hour=0, minute=0, second=0, microsecond=0)
    if whole == "both":
        end = end.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    if whole == "now":
        start, end = min(start, now - timedelta(days=1)), now

    def check() -> None:
        for by in By:
            assert answer(tenant, start, end, by) == approximately(expected.sums(start, end, by)), by

    check()
    for job, is_rolled in zip(jobs, rolled, strict=False):
        if is_rolled:
            usage_days.roll_up_job(job.pk)
    check()
    settle()
    check()
    usage_days.roll_up({})  # again, which changes nothing
    check()
    assert not UsageDue.objects.filter(tenant=tenant).exists()


def yesterday(hour: int) -> datetime:
    now = timezone.now().astimezone(UTC)
    return now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1) + timedelta(hours=hour)


def over_midnight(tenant: Tenant) -> Job:
    """It waited for an hour the day before yesterday, and ran from 22 h until 3 h."""
    expected = Expected()
    owner = factories.member(tenant, "alice")
    turn = Turn(waits=60, runs=300, saved=None, outcome="COMPLETED", starts=True)
    now = yesterday(24) + timedelta(minutes=1)
    ago = int((now - yesterday(-3)).total_seconds() // 60)
    job = live(Life(ago, [turn], slots=2, gpus=False, owner=0), tenant, owner, now, expected)
    Job.objects.filter(pk=job.pk).update(state=State.CANCELED)
    return job


def test_an_attempt_over_midnight_belongs_to_two_days() -> None:
    tenant = factories.tenant()
    over_midnight(tenant)
    settle()
    days = list(UsageDay.objects.order_by("day").values_list("day", "used", "waited"))
    assert days == [
        (yesterday(-24).date(), pytest.approx(2 * 2 * 3600), pytest.approx(2 * 3600)),
        (yesterday(0).date(), pytest.approx(2 * 3 * 3600), 0),
    ]


def test_usage_and_waits_stay_when_the_jobs_are_purged() -> None:
    tenant = factories.tenant()
    job = over_midnight(tenant)
    span = {"start": yesterday(-48), "end": timezone.now()}
    before, waited = answer(tenant, **span, by=By.DAY), first_waits(tenant, **span)
    assert waited.by_user == {"alice": (3600, 3600)}
    Job.objects.filter(pk=job.pk).update(deleted_at=timezone.now())
    periodic.purge(job.pk)  # before the task has counted it
    assert not Attempt.objects.filter(job=job.pk).exists()
    assert answer(tenant, **span, by=By.DAY) == before
    assert first_waits(tenant, **span) == waited


def as_opportunistic(job: Job) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # past the guard of closed attempts
        cursor.execute("UPDATE jobs_attempt SET opportunistic = true WHERE job_id = %s", [job.pk])
        cursor.execute("SET LOCAL session_replication_role = origin")


def test_what_opportunistic_jobs_used_stays_apart_when_they_are_purged() -> None:
    tenant = factories.tenant()
    job = over_midnight(tenant)
    span = {"start": yesterday(-48), "end": timezone.now(), "by": By.DAY}
    assert [(row.used > 0, row.opportunistic) for row in usage_of(tenant, **span)] == [(True, 0)] * 2
    as_opportunistic(job)
    Job.objects.filter(pk=job.pk).update(deleted_at=timezone.now())
    for purge in (lambda job: None, periodic.purge):
        purge(job.pk)
        found = [(row.used, row.opportunistic) for row in usage_of(tenant, **span)]
        assert found == [(pytest.approx(hours * 2 * 3600),) * 2 for hours in (2, 3)]


def test_usage_stays_when_retention_removes_the_events_of_its_waits() -> None:
    tenant = factories.tenant()
    job = over_midnight(tenant)
    span = {"start": yesterday(-48), "end": timezone.now()}
    before = answer(tenant, **span, by=By.DAY)
    retention.REMOVERS[retention.Kind.EVENTS](job.pk)
    assert not job.events.filter(from_state="QUEUED").exists()
    assert answer(tenant, **span, by=By.DAY) == before


@pytest.mark.parametrize(("reason", "stays"), [("preempted", True), ("halt_requested", False)])
def test_retention_leaves_when_a_job_was_asked_to_save(reason: str, stays: bool) -> None:
    """Parts of days are counted from rows again, and a save after that moment lost nothing."""
    job = over_midnight(factories.tenant())
    stop = JobEvent.objects.create(
        job=job, tenant=job.tenant, n=50, code=EventCode.MOVED, from_state="PROCESSING", to_state="STOPPING",
        reason=reason, attempt=1, source="lifecycle",
    )  # fmt: skip
    JobEvent.objects.create(job=job, tenant=job.tenant, n=51, code=EventCode.MOVED, source="lifecycle")
    retention.REMOVERS[retention.Kind.EVENTS](job.pk)
    assert JobEvent.objects.filter(pk=stop.pk).exists() == stays


def test_what_ended_just_now_is_not_rolled_up_but_counts() -> None:
    """A checkpoint that is being committed would change what was lost."""
    tenant = factories.tenant()
    over_midnight(tenant)
    assert usage_days.roll_up({}) == {"parts": 0, "more": False}
    assert not UsageDay.objects.exists()
    assert sum(used for used, _, _ in answer(tenant, yesterday(-48), timezone.now(), By.USER).values())


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_clock_that_jumps_leaves_nothing_out_and_counts_nothing_twice(hours: int) -> None:
    """Ends that the database wrote by another time than the last roll-up's."""
    tenant = factories.tenant()
    settle()
    job = over_midnight(tenant)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # past the guard of closed attempts
        cursor.execute(
            "UPDATE jobs_attempt SET opened_at = opened_at + make_interval(hours => %s),"
            " closed_at = closed_at + make_interval(hours => %s) WHERE job_id = %s",
            [hours, hours, job.pk],
        )
        cursor.execute("SET LOCAL session_replication_role = origin")
    expected = answer(tenant, yesterday(-48), timezone.now(), By.DAY)
    settle()
    settle()
    assert answer(tenant, yesterday(-48), timezone.now(), By.DAY) == expected


def test_time_of_a_stopped_platform_is_no_wait(people: People) -> None:
    """Of 10 s in the queue the platform was stopped for 6: read row by row, as rolled up, and by REST."""
    newest = history(people.vision, 1)
    job = Job.objects.exclude(pk=newest.pk).get()
    began = job.created_at + timedelta(seconds=2)
    PlatformStop.objects.create(began_at=began, ended_at=began + timedelta(seconds=6))

    def waits(start: datetime) -> tuple[float, tuple[float, float] | None]:
        (used,) = usage_of(people.vision, start=start, end=timezone.now(), by=By.GPU_TYPE)
        return used.waited, first_waits(people.vision, start=start, end=timezone.now()).whole

    assert waits(job.created_at) == (4, (4, 4))
    roll_up_usage()
    assert waits(job.created_at - timedelta(days=2)) == (4, (4, 4))
    alice = Api(people.alice)
    assert alice.get(f"/tenants/{people.vision.slug}/usage").json()["platform_stopped_s"] == 6
    (stop,) = alice.get(f"/jobs/{job.pk}/events").json()["platform_stops"]
    assert stop == {"from": rfc3339(began), "to": rfc3339(began + timedelta(seconds=6))}


@pytest.mark.parametrize("rolled_up", [False, True])
def test_what_an_opportunistic_job_waited_is_no_wait_of_its_tenant(rolled_up: bool) -> None:
    tenant = factories.tenant()
    job = over_midnight(tenant)
    as_opportunistic(job)
    if rolled_up:
        settle()
    found = first_waits(tenant, start=yesterday(-48), end=timezone.now())
    assert (found.whole, found.by_user, found.by_resource) == (None, {}, {})


def test_a_month_reads_days_in_place_of_jobs() -> None:
    tenant = factories.tenant()
    history(tenant, 10_000, apart="4 minutes")  # of 28 days
    end = timezone.now()
    start = (end - timedelta(days=30)).replace(hour=0, minute=0, second=0, microsecond=0)

    def month() -> None:
        (used,) = usage_of(tenant, start=start, end=end, by=By.USER)
        assert (round(used.used), round(used.waited)) == (600_000, 100_000)
        assert len(usage_by_day_and_user(tenant, start=start, end=end)) in (28, 29)
        assert first_waits(tenant, start=start, end=end).whole == pytest.approx((10, 10))

    roll_up_usage()
    month()
    # Days that are not over are read by their jobs: the later the test runs in the day, the more of them there are.
    assert pages_read(month) < 300, "the rows of the jobs alone have more than 1,000 pages"
