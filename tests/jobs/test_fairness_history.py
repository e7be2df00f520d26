"""Fairness by interval of a period: the sums of a report, divided, where unknown is not zero."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gpu_scheduler.fairness import NONE, Figures
from jobs.models import FairnessHour, PlatformStop
from jobs.selectors.fairness import HOUR, Report, fairness
from jobs.selectors.fairness_history import MOST_INTERVALS, NAMED, History
from tests import factories
from tests.jobs.made_history import held, job_of_the_past
from tests.jobs.test_fairness import Past, past, store

__all__ = ["past"]
pytestmark = pytest.mark.django_db

DAY = 24 * HOUR


def report(start: datetime, end: datetime, now: datetime) -> tuple[Report, History]:
    found = fairness(start, end, now, by_interval=True)
    assert found.history is not None
    return found, found.history


def slot_hours(history: History, tenant: str, name: str) -> list[float | None]:
    (course,) = (each for each in history.courses if each.tenant == tenant)
    return [None if found is None else round(getattr(found, name) / 3600, 6) for found in course.figures]


def test_intervals_divide_the_figures_of_the_report(past: Past) -> None:
    store()
    _, found = report(past.at(0), past.at(3), past.now)
    assert found.width == HOUR
    assert [each.since for each in found.intervals] == [past.at(0), past.at(1), past.at(2)]
    assert [each.unknown_s for each in found.intervals] == [0, 0, 0]
    assert slot_hours(found, "vision-lab", "entitled") == [0, 4, 2]
    assert slot_hours(found, "vision-lab", "received") == [0, 2, 2]
    assert slot_hours(found, "vision-lab", "shortfall") == [0, 2, 0]
    assert slot_hours(found, "nlp-research", "received") == [6, 3, 0]
    assert found.unknown == ()


def test_one_tenant_gets_its_own_course_alone(past: Past) -> None:
    store()
    found = fairness(past.at(0), past.now, past.now, past.vision, by_interval=True).history
    assert found is not None
    assert {course.tenant for course in found.courses} == {"vision-lab"}


def test_hours_that_are_not_stored_yet_count_in_their_intervals(past: Past) -> None:
    store()
    # The last hour alone: in the first minutes of an hour, more of the past would be older than what is computed.
    FairnessHour.objects.filter(at__gte=past.at(2)).delete()
    whole, found = report(past.at(0), past.at(3), past.now)
    assert whole.unknown == ()
    assert slot_hours(found, "vision-lab", "received") == [0, 2, 2]


def test_an_interval_without_a_record_is_unknown_not_zero(past: Past) -> None:
    store()
    FairnessHour.objects.filter(at__in=[past.at(1)]).delete()
    _, found = report(past.at(0), past.at(3), past.now)
    assert slot_hours(found, "vision-lab", "received") == [0, None, 2]
    assert found.unknown == ((past.at(1), past.at(2)),)
    assert [each.is_known for each in found.intervals] == [True, False, True]


def test_an_interval_of_a_stopped_platform_is_unknown_and_one_in_part_says_how_much(past: Past) -> None:
    PlatformStop.objects.create(began_at=past.at(0.5), ended_at=past.at(2))
    store()
    _, found = report(past.at(0), past.at(3), past.now)
    assert slot_hours(found, "nlp-research", "received") == [6, None, 0]
    assert [(each.unknown_s, each.recorded_s) for each in found.intervals] == [
        (1800, 3600), (3600, 3600), (0, 3600),
    ]  # fmt: skip
    assert found.unknown == ((past.at(0.5), past.at(2)),)


YEAR = """
INSERT INTO jobs_fairnesshour (at) SELECT generate_series(%(start)s, %(end)s, interval '1 hour') ON CONFLICT DO NOTHING;
INSERT INTO jobs_fairnessshare
  (hour_id, tenant_id, slot_type, guaranteed, share, received, borrowed, lent, shortfall)
SELECT at, tenant.id, 'a100', 3600, 0, 3600 - 10 * tenant.rank, 0, 0, 10 * tenant.rank
FROM jobs_fairnesshour CROSS JOIN unnest(%(tenants)s::bigint[]) WITH ORDINALITY AS tenant(id, rank)
"""


def stored(past: Past, days: int, tenants: int) -> datetime:
    """So many days of figures: an entitlement of 1 in each hour; the last tenants were short of the most."""
    start = past.at(0) - days * DAY
    ids = [factories.tenant(f"t{n:02}").pk for n in range(tenants)]
    with connection.cursor() as cursor:
        cursor.execute(YEAR, {"start": start, "end": past.at(-1), "tenants": ids})
    return start


@pytest.mark.parametrize(("days", "width"), [(2, HOUR), (7, 6 * HOUR), (30, DAY), (90, 7 * DAY)])
def test_a_longer_period_has_longer_intervals_and_no_more_of_them(
    past: Past, days: int, width: timedelta
) -> None:
    start = stored(past, days, NAMED + 2)
    whole, found = report(start, past.at(0), past.now)
    assert found.width == width
    assert days * DAY / width <= len(found.intervals) <= MOST_INTERVALS
    assert [course.tenant for course in found.courses] == [*(f"t{n:02}" for n in range(2, NAMED + 2)), ""]
    assert [course.tenants for course in found.courses] == [1] * NAMED + [2]
    (first, last), total = (found.intervals[0], found.intervals[-1]), NONE
    assert (first.since, last.until) == (start, past.at(0))
    for course in found.courses:
        for figures in course.figures:
            assert figures is not None
            total = total.plus(figures)
    expected = NONE
    for line in whole.lines:
        expected = expected.plus(line.figures)
    assert same(total, expected)


def same(one: Figures, other: Figures) -> bool:
    return [one.entitled, one.received, one.shortfall] == pytest.approx(
        [other.entitled, other.received, other.shortfall]
    )


def test_the_longest_period_is_bounded_too(past: Past) -> None:
    _, found = report(past.now - 400 * DAY, past.now, past.now)
    assert len(found.intervals) <= MOST_INTERVALS
    assert not any(each.is_known for each in found.intervals[:-1])


def test_more_tenants_and_hours_take_no_more_queries(past: Past) -> None:
    def queries(start: datetime) -> int:
        with CaptureQueriesContext(connection) as made:
            report(start, past.now, past.now)
        return len(made)

    store()
    before = queries(past.at(0))
    start = stored(past, 30, 12)
    held(job_of_the_past(past.vision, 2, past.at(3)), past.at(3), None)
    assert queries(start) == before
