"""The chart of a GPU-hour budget: what is used day by day, and where that leads."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

import pytest

from jobs.selectors.budgets import Budget
from portal.pages.burn import burn

START, END = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)


def budget(used: float, *, of: float = 100, days: float = 3) -> Budget:
    return Budget(of, used, True, START, END, START + timedelta(days=days))


def places(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.-]+) ([\d.-]+)", path)]


def test_the_line_goes_from_day_to_day_and_ends_now_with_what_the_budget_counts() -> None:
    days = {date(2026, 11, 1): 10.0, date(2026, 11, 2): 0.0, date(2026, 11, 3): 4.0}
    found = burn(budget(15, days=2.5), days)
    assert found is not None
    assert [(row.day.day, row.used, row.total) for row in found.rows] == [(1, 10, 10), (2, 0, 10), (3, 5, 15)]
    assert (found.ticks, found.limit) == (("200", "100", "0"), "50.00"), "as high as the projection of 180"
    assert places(found.line) == [(0, 100), (3.33, 95), (6.67, 95), (8.33, 92.5)]
    assert found.now == "8.33"
    assert places(found.ahead) == [(8.33, 92.5), (100, 10)]


def test_what_leads_out_of_the_plot_is_cut_off_there() -> None:
    found = burn(budget(90, days=1), {date(2026, 11, 1): 90.0})
    assert found is not None
    assert found.ticks[0] == "200"
    assert places(found.ahead)[-1] == pytest.approx((7.41, 0)), "200 of 2,700 in a month"


def test_nothing_is_foreseen_before_a_day_is_over() -> None:
    found = burn(budget(30, days=0.5), {date(2026, 11, 1): 30.0})
    assert found is not None
    assert (found.ahead, len(found.rows)) == ("", 1)


def test_days_never_have_more_than_the_budget_counts() -> None:
    """Both are read one after the other, and what ran may count a moment later in one of them."""
    found = burn(budget(12), {date(2026, 11, day): 5.0 for day in (1, 2, 3)})
    assert found is not None
    assert [row.total for row in found.rows] == [5, 10, 12, 12]


@pytest.mark.parametrize("made", [budget(0), budget(3, of=0)])
def test_there_is_no_chart_of_nothing(made: Budget) -> None:
    assert burn(made, {}) is None
