"""What tenants held in the stored hours, as the scheduler's snapshot has it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from gpu_scheduler.policies.history import HALF_LIFE_S
from jobs.models import FairnessHour, FairnessShare
from jobs.selectors import past_use
from jobs.selectors.fairness import hour_of
from jobs.selectors.past_use import with_the_past
from jobs.selectors.snapshot import database_now, quota_uses, snapshot
from tenants.models import Tenant
from tests import factories

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def nothing_summed_before(db: None) -> Iterator[None]:
    """Each test has a past of its own, with the same newest hour, and none that another test's worker stored late."""
    FairnessHour.objects.all().delete()
    past_use._weighed.cache_clear()
    yield
    past_use._weighed.cache_clear()


def held(tenant: Tenant, slots: float, hours_ago: int) -> None:
    """In one hour of the past, which is stored then."""
    at = hour_of(timezone.now()) - hours_ago * HOUR
    hour, _ = FairnessHour.objects.get_or_create(at=at)
    figures = dict.fromkeys(("guaranteed", "share", "borrowed", "lent", "shortfall"), 0.0)
    FairnessShare.objects.create(hour=hour, tenant=tenant, slot_type="a100", received=slots * 3600, **figures)


def recent_use() -> dict[str, float]:
    return {quota.tenant: quota.used_recently for quota in snapshot(nodes=(), now=database_now()).quotas}


def test_with_history_a_quota_says_what_was_used_recently(settings: Settings) -> None:
    settings.LUTHIER_SCHEDULER_POLICY = "fair_share_history"
    week = round(HALF_LIFE_S / 3600)
    red, green = (factories.tenant(name, quotas={"a100": 8}) for name in ("red", "green"))
    for hours_ago in range(1, week + 1):
        held(red, 4, hours_ago)
    held(green, 8, week)
    held(green, 8, 5 * week)
    found = recent_use()
    assert found["red"] == pytest.approx(2, rel=0.02), "half of what it would be if it had always been so"
    assert found["green"] == pytest.approx(8 * 0.5 * 0.6931 / week, rel=0.02), "what is long ago is not read"


def test_the_hours_are_summed_once_until_another_one_is_stored(
    settings: Settings, django_assert_num_queries: Any
) -> None:
    settings.LUTHIER_SCHEDULER_POLICY = "fair_share_history"
    red = factories.tenant("red", quotas={"a100": 8})
    held(red, 4, 2)
    before = recent_use()["red"]
    quotas = quota_uses()
    with django_assert_num_queries(1):
        with_the_past(quotas, timezone.now(), HALF_LIFE_S)
    held(red, 4, 1)
    assert recent_use()["red"] == pytest.approx(2 * before, rel=0.01)


def test_without_it_the_past_is_not_read(settings: Settings) -> None:
    settings.LUTHIER_SCHEDULER_POLICY = "fair_share"
    held(factories.tenant("red", quotas={"a100": 8}), 4, 1)
    assert recent_use() == {"red": 0.0}
