"""What is read does not grow with the history: counted in pages of the database, so no clock decides."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.selectors.usage import By, usage_of
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
