"""What is read does not grow with the history: tests that share a long one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from jobs.models import Job
from jobs.selectors import heads
from jobs.selectors import jobs as jobs_selectors
from jobs.selectors.jobs import job_list, job_listing
from jobs.selectors.usage import By, live_jobs, usage_of
from jobs.states import State
from tenants import search
from tests import factories
from tests.reads import history, pages_read, roll_up_usage, vacuum

pytestmark = pytest.mark.django_db
JOBS = 10_000


@pytest.fixture(scope="module")
def newest(django_db_setup: None, django_db_blocker: Any) -> Iterator[Job]:
    """The newest job of the history. To make one takes seconds; each test undoes what it changed."""
    with django_db_blocker.unblock():
        with transaction.atomic():
            yield history(factories.tenant(), JOBS)
            transaction.set_rollback(True)
        vacuum()


def test_usage_reads_the_days_that_it_has_in_part_and_sums(newest: Job) -> None:
    """Each job of such a day costs its attempt, two events, its row and its owner; the history costs nothing."""
    tenant = newest.tenant
    roll_up_usage()
    end = timezone.now()

    def last_day() -> None:
        (used,) = usage_of(tenant, start=end - timedelta(hours=23.5), end=end, by=By.USER)
        assert (round(used.used), round(used.waited)) == (23 * 60, 23 * 10)

    last_day()
    assert pages_read(last_day) < 1_000
    noon = (end - timedelta(days=200)).replace(hour=12, minute=0, second=0, microsecond=0)

    def since_noon() -> None:
        (used,) = usage_of(tenant, start=noon, end=end, by=By.USER)
        assert round(used.used / 60) == pytest.approx((end - noon) / timedelta(hours=1), abs=2)

    since_noon()
    assert pages_read(since_noon) < 1_000


def test_a_list_of_all_tenants_reads_a_page(newest: Job) -> None:
    admin = factories.user(is_superuser=True)

    def first_page(order: str, states: list[State]) -> None:
        assert len(job_list(user=admin, order=order, states=states)[:51]) == 51

    read = {
        (order, *states): pages_read(partial(first_page, order, states))
        for order in ("name", "-name", "state", "priority")
        for states in ([], [State.COMPLETED])
    }
    assert max(read.values()) < 100, read


def test_where_a_page_begins_reads_one_row_of_the_history(newest: Job) -> None:
    """Every page of a tenant asks for it, and its live channel each second."""
    tenant = newest.tenant
    newest_event = newest.events.order_by("-id").values_list("id", flat=True)[0]
    factories.job(of=factories.tenant())
    assert heads.of_jobs(tenant.slug) > newest_event  # copies of the history came after it
    assert pages_read(lambda: heads.of_jobs(tenant.slug)) < 20


def test_counting_live_jobs_reads_no_ended_ones(newest: Job) -> None:
    tenant = newest.tenant
    factories.job(of=tenant)
    assert live_jobs(tenant) == 1
    assert pages_read(lambda: live_jobs(tenant)) < 20


def test_jobs_of_a_gpu_type_are_found_without_reading_the_others(newest: Job) -> None:
    tenant = newest.tenant
    wants = factories.job(of=tenant, owner=factories.member(tenant), gpus=1, gpu_type="a100")
    found: list[str] = []

    def rare() -> None:
        rows = job_list(user=wants.owner, tenant=tenant.slug, gpu_type="a100")
        found[:] = rows.values_list("pk", flat=True)[:50]

    rare()
    assert found == [wants.pk]
    assert pages_read(rare) < 100


def test_a_search_by_the_begin_of_an_id_reads_no_other_jobs(
    newest: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = newest.tenant
    sought = factories.job(of=tenant, owner=factories.member(tenant), name="needle")
    found: list[str] = []

    def look_for(q: str) -> None:
        rows = job_list(user=sought.owner, tenant=tenant.slug, q=q)
        found[:] = rows.values_list("pk", flat=True)[:50]

    for q in (sought.pk, sought.pk[:8], sought.pk[:8].upper(), "needle", "eedl"):
        look_for(q)
        assert found == [sought.pk], q
    look_for(sought.pk[1:9])
    assert found == []
    monkeypatch.setattr(search, "NEWEST", 20)  # the newest jobs, which say whether the index is needed
    read = {q: pages_read(partial(look_for, q)) for q in (sought.pk[:8], "needle")}
    assert max(read.values()) < 120, (
        read
    )  # among them the index's pending entries, about 16 pages for each look at it


def test_counting_what_a_search_finds_does_not_grow_with_the_history(
    newest: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant, user = newest.tenant, newest.owner
    listing = job_listing(user=user, tenant=tenant.slug, q="run-9")
    monkeypatch.setattr(jobs_selectors, "COMPARED", JOBS + 1)
    assert listing.count(JOBS) == (
        sum(f"run-{n % 977}".startswith("run-9") for n in range(1, JOBS + 1)),
        False,
    )
    assert listing.count(100) == (100, True)
    everything = pages_read(lambda: listing.count(JOBS))
    monkeypatch.setattr(jobs_selectors, "COMPARED", 1_000)
    count, more = listing.count(JOBS)
    assert (50 < count < 1_000, more) == (True, True)
    assert pages_read(lambda: listing.count(JOBS)) < everything / 5
