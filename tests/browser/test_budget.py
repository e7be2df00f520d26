"""A GPU-hour budget by eye: what the month has used, where that leads, and what a new job can add."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.axe import in_both_themes
from tests.browser.layout import misfits
from tests.platform import Platform

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]
USED = """
from datetime import timedelta
from django.utils import timezone
from jobs.models import UsageDay
from tenants.models import Tenant, User
tenant, owner, today = Tenant.objects.get(slug="nlp-research"), User.objects.get(username="bob"), timezone.now().date()
UsageDay.objects.filter(tenant=tenant, slot_type="a100").delete()
UsageDay.objects.bulk_create(
    UsageDay(tenant=tenant, owner=owner, day=today.replace(day=day), slot_type="a100", waited=0, lost=0,
             used=(day % 7 + 1) * 30_000)
    for day in range(1, today.day + 1)
)
"""


@pytest.fixture
def budget(platform: Platform) -> Iterator[None]:
    """Of 400 GPU-hours a month for nlp-research, which has used some on most days of the month."""
    admin = platform.client("admin")

    def limit(hours: int | None) -> None:
        terms = {"budget_gpu_hours": hours, "budget_is_hard": False, "reason": "A test"}
        answer = admin.call("PATCH", "/tenants/nlp-research", terms)
        assert answer.status == 200, answer

    platform.manage("shell", "-c", USED)
    limit(400)
    yield
    limit(None)


def test_the_chart_of_a_budget(budget: None, open_as: Open, picture: Callable[..., None]) -> None:
    page = open_as("bob", "/t/nlp-research/usage")
    card = page.locator("#budget")
    expect(card).to_contain_text(re.compile("Projection"))
    chart = card.get_by_role("img", name=re.compile("GPU-hours used since the month began"))
    plot, line = chart.bounding_box(), card.locator("path.line").first.bounding_box()
    assert plot
    assert line
    stroke = 6
    assert line["x"] == pytest.approx(plot["x"], abs=stroke)
    assert line["x"] + line["width"] <= plot["x"] + plot["width"] + stroke
    card.get_by_text("Show as table").click()
    expect(card.get_by_role("row")).not_to_have_count(1)
    assert in_both_themes(page, picture, "budget") == []
    page.set_viewport_size({"width": 390, "height": 844})
    card.scroll_into_view_if_needed()
    picture(page, "budget-phone")
    assert misfits(page) == []
