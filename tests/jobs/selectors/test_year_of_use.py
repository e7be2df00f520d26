"""What is read does not grow with the history: counted in pages of the database, so no clock decides."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.selectors import heads
from jobs.selectors.usage import By, by_user, live_jobs, usage_by_day_and_user, usage_of
from tests import factories
from tests.reads import history, pages_read

pytestmark = pytest.mark.django_db
JOBS = 10_000


def test_usage_of_the_last_day_reads_the_last_day() -> None:
    """Each job of the day costs its attempt, two events, its row and its owner; the history costs nothing."""
    tenant = factories.tenant()
    history(tenant, JOBS)
    end = timezone.now()

    def last_day() -> None:
        (used,) = usage_of(tenant, start=end - timedelta(hours=23.5), end=end, by=By.USER)
        assert (round(used.used), round(used.waited)) == (23 * 60, 23 * 10)

    last_day()
    assert pages_read(last_day) < 1_000


def test_where_a_page_begins_reads_one_row_of_the_history() -> None:
    """Every page of a tenant asks for it, and its live channel each second."""
    tenant = factories.tenant()
    newest = history(tenant, JOBS).events.order_by("-id").values_list("id", flat=True)[0]
    factories.job(of=factories.tenant())
    assert heads.of_jobs(tenant.slug) > newest  # copies of the history came after it
    assert pages_read(lambda: heads.of_jobs(tenant.slug)) < 20


def test_counting_live_jobs_reads_no_ended_ones() -> None:
    tenant = factories.tenant()
    history(tenant, JOBS)
    factories.job(of=tenant)
    assert live_jobs(tenant) == 1
    assert pages_read(lambda: live_jobs(tenant)) < 20


def test_days_and_people_of_usage_add_up_to_the_people() -> None:
    tenant = factories.tenant()
    history(tenant, 300)
    span = {"start": timezone.now() - timedelta(days=9, hours=3.5), "end": timezone.now()}
    of_days = by_user(usage_by_day_and_user(tenant, **span))
    of_people = usage_of(tenant, **span, by=By.USER)
    assert [(row.key, row.gpu_type) for row in of_days] == [(row.key, row.gpu_type) for row in of_people]
    for day, person in zip(of_days, of_people, strict=True):
        assert (day.used, day.waited, day.lost) == pytest.approx(
            (person.used, person.waited, person.lost), abs=0.1
        )
