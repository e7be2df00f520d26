"""Fairness of a small made history: what is stored by hour is what is recomputed and what a plain reckoning gives."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from gpu_scheduler.fairness import Figures, Key, Span, Terms, figures
from gpu_scheduler.model import WaitReason
from jobs import fairness_hours
from jobs.lifecycle import periodic
from jobs.models import FairnessHour, FairnessShare, Job, NodeChange, PlatformStop
from jobs.selectors import fairness as selected
from jobs.selectors.demand import TooMuch, terms_between
from jobs.selectors.fairness import HOUR, Report, fairness, recompute
from tenants.models import Quota, QuotaChange, Tenant
from tests import factories
from tests.jobs.made_history import ended, held, hours_ago, job_of_the_past, waited

pytestmark = pytest.mark.django_db


@dataclass(frozen=True)
class Past:
    """Three hours that are over: the third before, the second, the last. now: when they are read."""

    now: datetime
    vision: Tenant
    nlp: Tenant
    audio: Tenant
    jobs: dict[str, Job]

    def at(self, hours: float) -> datetime:
        """Hours since the first of the three began."""
        return hours_ago(self.now, 2) + timedelta(hours=hours)

    def report(self, **more: Any) -> Report:
        return fairness(self.at(0), self.at(3), self.now, **more)


@pytest.fixture
def past(monkeypatch: pytest.MonkeyPatch) -> Past:
    """vision-lab and nlp-research are in a cohort with 4 CPUs each; audio has 4 of its own.

    Hour 1: nlp uses 6, so borrows 2 while vision is away. Hour 2: vision's job of 4 waits half an hour for them, and
    then has them. Hour 3: nlp's job waits for its own quota alone, and audio's for a node.
    """
    now = timezone.now()
    vision = factories.tenant("vision-lab", quotas={"cpu": 4}, cohort="lab")
    nlp = factories.tenant("nlp-research", quotas={"cpu": 4}, cohort="lab")
    audio = factories.tenant("audio", quotas={"cpu": 4})
    for each in (vision, nlp, audio):
        each.created_at = now - timedelta(days=500)
        each.save(update_fields=["created_at"])
    made = Past(now, vision, nlp, audio, {})
    greedy = job_of_the_past(nlp, 6, made.at(0))
    held(greedy, made.at(0), made.at(1.5))
    own = job_of_the_past(vision, 4, made.at(1))
    waited(own, WaitReason.COHORT_GPUS, made.at(1))
    held(own, made.at(1.5), made.at(2.5))
    large = job_of_the_past(nlp, 9, made.at(2))
    waited(large, WaitReason.EXCEEDS_MAX_QUOTA, made.at(2))
    ended(large, made.at(3))
    unlucky = job_of_the_past(audio, 2, made.at(2))
    waited(unlucky, WaitReason.INSUFFICIENT_CAPACITY, made.at(2))
    ended(unlucky, made.at(2.5))
    monkeypatch.setattr(fairness_hours, "database_now", lambda: now)
    made.jobs.update(greedy=greedy, own=own, large=large, unlucky=unlucky)
    return made


RECKONED = {
    # By hand, in slot-hours. vision-lab is owed 4 from hour 1 to 2.5, and had them from 1.5 on; it lent 2 until 1.5.
    "vision-lab": Figures(guaranteed=6, share=0, received=4, borrowed=0, lent=3, shortfall=2),
    # Its 4 until 1.5, and of what vision-lab lent its 2 in hour 1: from then on, vision-lab asked for them.
    "nlp-research": Figures(guaranteed=6, share=2, received=9, borrowed=3, lent=0, shortfall=0),
    "audio": Figures(guaranteed=1, share=0, received=0, borrowed=0, lent=0, shortfall=1),
}
FIELDS = ("guaranteed", "share", "received", "borrowed", "lent", "shortfall")


def slot_hours(report: Report) -> dict[str, list[float]]:
    return {
        line.tenant: [round(getattr(line.figures, name) / 3600, 6) for name in FIELDS]
        for line in report.lines
    }


EXPECTED = {tenant: [getattr(found, name) for name in FIELDS] for tenant, found in RECKONED.items()}
JAIN = (2 / 3 + 1 + 0) ** 2 / (3 * (4 / 9 + 1))


def store() -> None:
    while fairness_hours.record({})["more"]:
        pass


def test_stored_hours_recomputed_hours_and_a_reckoning_by_hand_agree(past: Past) -> None:
    store()
    for report in (past.report(), recompute(past.at(0), past.at(3), past.now)):
        assert slot_hours(report) == EXPECTED
        assert report.jain == {"cpu": pytest.approx(JAIN)}
        assert (report.start, report.end, report.unknown) == (past.at(0), past.at(3), ())


def test_opportunistic_jobs_are_owed_nothing_and_receive_nothing(past: Past) -> None:
    """Nor do they borrow or make others lend: what they hold is another job's whenever one wants it."""
    beyond = job_of_the_past(past.audio, 8, past.at(0), opportunistic=True)
    waited(beyond, WaitReason.NODE_CPUS, past.at(0))
    held(beyond, past.at(0.5), past.at(1))
    stopping = job_of_the_past(past.vision, 4, past.at(2.5))
    waited(stopping, WaitReason.IDLE_LEAVING, past.at(2.5))
    ended(stopping, past.at(3))
    store()
    owed = EXPECTED | {"vision-lab": [8, 0, 4, 0, 3, 4]}
    assert slot_hours(past.report()) == owed, "who waits until they have left is owed what it waits for"


def test_it_stays_when_the_jobs_are_purged(past: Past) -> None:
    store()
    Job.objects.update(deleted_at=timezone.now())
    for job in past.jobs.values():
        periodic.purge(job.pk)
    assert slot_hours(past.report()) == EXPECTED


def test_one_tenant_sees_its_own_lines_and_no_index(past: Past) -> None:
    store()
    report = past.report(tenant=past.vision)
    assert slot_hours(report) == {"vision-lab": EXPECTED["vision-lab"]}
    assert report.jain == {}


def test_for_one_tenant_only_its_cohort_is_computed(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    store()
    # The last hour alone: in the first minutes of an hour, more of the past would be older than what is computed.
    FairnessHour.objects.filter(at__gte=past.at(2)).delete()
    read = []

    def noted(held: list[Span], waiting: list[Span], terms: list[Terms]) -> dict[Key, Figures]:
        read.extend([*held, *waiting, *(quota for each in terms for quota in each.quotas)])
        return figures(held, waiting, terms)

    monkeypatch.setattr(selected, "figures", noted)
    assert slot_hours(past.report(tenant=past.vision)) == {"vision-lab": EXPECTED["vision-lab"]}
    assert {each.tenant for each in read} == {"vision-lab", "nlp-research"}


def test_before_there_are_facts_it_is_unknown(past: Past) -> None:
    assert past.report().unknown == ((past.at(0), past.at(3)),)
    assert past.report().lines == ()
    store()
    early = fairness(past.at(-30), past.at(3), past.now)
    (span,) = early.unknown
    assert span == (past.at(-30), FairnessHour.objects.earliest("at").at)
    assert slot_hours(early) == EXPECTED


def test_what_was_before_a_tenant_or_the_first_of_all_is_not_unknown(past: Past) -> None:
    past.vision.created_at = past.at(1.5)
    past.vision.save(update_fields=["created_at"])
    assert past.report(tenant=past.vision).unknown == ((past.at(1), past.at(3)),)
    assert past.report().unknown == ((past.at(0), past.at(3)),)
    Tenant.objects.update(created_at=past.at(2))
    assert past.report().unknown == ((past.at(2), past.at(3)),)


def test_an_hour_is_stored_once_and_only_when_it_is_over(past: Past) -> None:
    store()
    count = FairnessHour.objects.count()
    assert count == 24
    assert FairnessHour.objects.latest("at").at == past.at(2)
    assert FairnessShare.objects.count() == 6
    store()
    assert FairnessHour.objects.count() == count
    assert fairness_hours.record({}) == {"hours": 0, "more": False, "failures": 0, "skipped": ""}


def test_hours_that_were_missed_follow(past: Past) -> None:
    store()
    FairnessHour.objects.filter(at__gte=past.at(2)).delete()
    assert past.report().unknown == ()  # computed for the reader
    store()
    assert FairnessHour.objects.count() == 24
    assert slot_hours(past.report()) == EXPECTED


def test_an_hour_that_cannot_be_read_in_time_stays_unknown_and_the_next_ones_are_stored(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    store()
    FairnessHour.objects.filter(at__gte=past.at(1)).delete()
    compute = selected.recomputed_between

    def too_much(edges: Sequence[datetime], tenant: str | None = None) -> list[dict[Key, Figures]]:
        if edges[0] <= past.at(1) < edges[-1]:
            raise TooMuch
        return compute(edges, tenant)

    monkeypatch.setattr(selected, "recomputed_between", too_much)
    assert past.report().unknown == ((past.at(1), past.at(3)),)
    result: dict[str, Any] = {}
    for failures in range(1, fairness_hours.TRIES):
        result = fairness_hours.record(result)
        assert (result["failures"], result["hours"], result["more"]) == (failures, 0, False)
    result = fairness_hours.record(result)
    assert (result["failures"], result["hours"], result["more"]) == (0, 1, False)
    assert past.report().unknown == ((past.at(1), past.at(2)),)
    assert fairness_hours.record(result)["hours"] == 0


def test_the_newest_time_is_computed_for_the_reader(past: Past) -> None:
    store()
    live = job_of_the_past(past.vision, 3, past.at(3))
    held(live, past.at(3), None)
    report = fairness(past.at(3), past.now, past.now, past.vision)
    (line,) = report.lines
    lasted = (past.now - past.at(3)).total_seconds()
    assert line.figures.received == pytest.approx(3 * lasted, abs=30)
    assert report.unknown == ()


def test_no_tenant_is_owed_anything_while_the_platform_is_stopped(past: Past) -> None:
    PlatformStop.objects.create(began_at=past.at(1), ended_at=past.at(1.25))
    store()
    assert slot_hours(past.report())["vision-lab"] == [5, 0, 4, 0, 3, 1]


def test_limits_and_cohorts_are_those_of_the_time(past: Past) -> None:
    """Since then, vision-lab has left the cohort and got more."""
    Quota.objects.filter(tenant=past.vision).update(limit=16)
    Tenant.objects.filter(pk=past.vision.pk).update(cohort="")
    change = {"tenant": past.vision, "reason": "r", "change_set": uuid.uuid4(), "at": past.at(2.75)}
    QuotaChange.objects.create(gpu_type="cpu", old_limit=4, new_limit=16, **change)
    QuotaChange.objects.create(gpu_type="", old_limit=0, new_limit=0, terms={"cohort": ["lab", ""]}, **change)
    store()
    assert slot_hours(past.report()) == EXPECTED
    before, after = terms_between(past.at(2), past.at(3))
    assert (before.since, before.until, after.until) == (past.at(2), past.at(2.75), past.at(3))
    limits = [
        {(q.limit, q.cohort) for q in each.quotas if q.tenant == "vision-lab"} for each in (before, after)
    ]
    assert limits == [{(4, "lab")}, {(16, "")}]


def test_what_is_older_than_it_is_kept_goes(past: Past) -> None:
    old = past.at(0) - fairness_hours.KEPT - 2 * HOUR
    FairnessHour.objects.create(at=old)
    for name, at in (("node-a", old - HOUR), ("node-a", old), ("gone", old)):
        state = NodeChange.State.GONE if name == "gone" else NodeChange.State.READY
        NodeChange.objects.create(name=name, at=at, slot_type="cpu", slots=8, state=state)
    FairnessHour.objects.create(at=past.at(1))
    store()
    assert not FairnessHour.objects.filter(at=old).exists()
    assert list(NodeChange.objects.values_list("name", "at")) == [("node-a", old)]


def command(past: Past, *more: str) -> str:
    out = StringIO()
    call_command(
        "fairness", "--from", past.at(0).isoformat(), "--to", past.at(3).isoformat(), *more, stdout=out
    )
    return out.getvalue()


def test_the_command_prints_what_is_stored(past: Past) -> None:
    store()
    printed = command(past)
    for tenant, (guaranteed, share, received, borrowed, lent, shortfall) in EXPECTED.items():
        row = [guaranteed, share, guaranteed + share, received, borrowed, lent, shortfall]
        (line,) = (line for line in printed.splitlines() if f" {tenant} " in line)
        assert line.split() == ["cpu", tenant, *(f"{hours:.3f}" for hours in row)]
    assert f"Jain's index, cpu: {JAIN:.3f}" in printed
    assert printed.endswith("The same as stored.\n")


def test_the_command_names_what_differs_since_a_purge_and_what_is_not_stored(past: Past) -> None:
    assert f"Not stored: {past.at(0):%Y-%m-%d %H:%M} to" in command(past)
    store()
    job = past.jobs["own"]
    Job.objects.filter(pk=job.pk).update(deleted_at=timezone.now())
    periodic.purge(job.pk)
    assert "Differs: cpu vision-lab received: stored 4.000, recomputed 0.000\n" in command(past)


def test_the_command_refuses_a_time_that_is_none(past: Past) -> None:
    with pytest.raises(CommandError, match=r"'yesterday' is no time such as 2026-11-25"):
        call_command("fairness", "--from", "yesterday")
    with pytest.raises(CommandError, match=r"--from must be before --to"):
        call_command("fairness", "--from", "2026-11-25", "--to", "2026-11-24")
