"""What tenants are entitled to: the rule on small cases, and over time as a plain computation second by second."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.fairness import Figures, Span, Terms, at_once, figures, jain
from gpu_scheduler.model import QuotaUse

START = datetime(2026, 11, 25, tzinfo=UTC)


def quota(tenant: str, limit: int, used: int = 0, cohort: str = "lab", **terms: int | None) -> QuotaUse:
    return QuotaUse(tenant, "a100", limit, used, cohort, **terms)  # type: ignore[arg-type]


def rates(*quotas: QuotaUse, **waiting: int) -> dict[str, Figures]:
    return at_once(quotas, {each.tenant: waiting.get(each.tenant, 0) for each in quotas})


def test_without_demand_no_tenant_is_entitled_to_anything() -> None:
    assert rates(quota("a", 4), quota("b", 4)) == {"a": Figures(), "b": Figures()}


def test_demand_up_to_the_limit_is_guaranteed_and_what_is_missing_is_a_shortfall() -> None:
    found = rates(quota("a", 4, used=1, cohort=""), a=9)
    assert found["a"] == Figures(guaranteed=4, received=1, shortfall=3)


def test_what_others_do_not_use_is_shared_by_weight() -> None:
    found = rates(quota("a", 6), quota("b", 0, weight=2), quota("c", 0, weight=1), b=9, c=9)
    assert (found["b"].share, found["c"].share) == (4, 2)


def test_what_one_does_not_want_goes_to_the_others() -> None:
    found = rates(quota("a", 6), quota("b", 0, weight=2), quota("c", 0), b=1, c=9)
    assert (found["b"].share, found["c"].share) == (1, 5)


def test_shares_keep_to_the_lending_and_borrowing_limits() -> None:
    found = rates(quota("a", 6, lending_limit=3), quota("b", 0, borrowing_limit=1), quota("c", 0), b=9, c=9)
    assert (found["b"].share, found["c"].share) == (1, 2)


def test_a_tenant_in_no_cohort_is_owed_nothing_beyond_its_limit() -> None:
    assert rates(quota("a", 2, used=2, cohort=""), a=5)["a"].entitled == 2


def test_a_lender_that_waits_for_its_own_slots_has_the_shortfall() -> None:
    found = rates(quota("a", 4), quota("b", 4, used=8), a=4)
    assert found["a"] == Figures(guaranteed=4, lent=4, shortfall=4)
    assert found["b"] == Figures(guaranteed=4, received=8, borrowed=4)


def test_what_no_limit_covers_is_received_and_not_borrowed() -> None:
    assert rates(quota("a", 2, used=5, cohort=""))["a"] == Figures(guaranteed=2, received=5)


def test_jain_compares_the_part_that_each_received() -> None:
    full, none = Figures(guaranteed=10, received=10), Figures(guaranteed=1, shortfall=1)
    assert jain([full, Figures(guaranteed=1, received=1)]) == 1
    assert jain([full, none]) == 0.5
    assert jain([full, Figures()]) == 1  # without demand it does not count
    assert jain([]) is None
    assert jain([none]) is None


def test_what_is_received_later_makes_up_for_nothing() -> None:
    hour = timedelta(hours=1)
    held = [Span("a", "a100", 4, START + hour, START + 2 * hour)]
    waiting = [Span("a", "a100", 4, START, START + hour)]
    terms = [Terms(START, START + 2 * hour, (quota("a", 4),))]
    found = figures(held, waiting, terms)["a", "a100"]
    assert found == Figures(guaranteed=8 * 3600, received=4 * 3600, shortfall=4 * 3600)
    assert found.satisfied == 0.5


def test_a_change_costs_only_those_whose_figures_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large cohort, most tenants' figures are not touched by one tenant's jobs."""
    summed: list[Figures] = []
    plus = Figures.plus
    monkeypatch.setattr(Figures, "plus", lambda self, *more: (summed.append(self), plus(self, *more))[1])
    at = [START + timedelta(minutes=n) for n in range(31)]
    held = [Span("busy", "a100", 1 + n % 2, at[n], at[n + 1]) for n in range(30)]
    held += [Span(f"t{n}", "a100", 1, at[0], at[30]) for n in range(50)]
    terms = [Terms(at[0], at[30], (quota("busy", 4), *(quota(f"t{n}", 1) for n in range(50))))]
    assert figures(held, [], terms)["t7", "a100"] == Figures(guaranteed=1800, received=1800)
    assert len(summed) < 300


SPANS = st.lists(
    st.builds(
        lambda tenant, slots, since, lasts: Span(
            tenant, "a100", slots, START + timedelta(seconds=since), START + timedelta(seconds=since + lasts)
        ),
        st.sampled_from("abc"),
        st.integers(1, 4),
        st.integers(-5, 20),
        st.integers(0, 15),
    ),
    max_size=6,
)
QUOTAS = st.tuples(
    *(
        st.builds(
            QuotaUse,
            st.just(tenant),
            st.just("a100"),
            st.integers(0, 6),
            st.just(0),
            st.sampled_from(["", "lab"]),
            st.none() | st.integers(0, 4),
            st.none() | st.integers(0, 4),
            st.integers(1, 3),
        )
        for tenant in "abc"
    )
)


@settings(max_examples=60, deadline=None)
@given(held=SPANS, waiting=SPANS, before=QUOTAS, after=QUOTAS, change=st.integers(1, 19))
def test_over_time_it_is_the_sum_of_all_seconds(
    held: list[Span],
    waiting: list[Span],
    before: tuple[QuotaUse, ...],
    after: tuple[QuotaUse, ...],
    change: int,
) -> None:
    at = [START + timedelta(seconds=n) for n in range(21)]
    found = figures(held, waiting, [Terms(at[0], at[change], before), Terms(at[change], at[20], after)])
    for tenant in "abc":
        seconds = [
            plainly(tenant, now, held, waiting, before if now < at[change] else after) for now in at[:20]
        ]
        expected = [sum(column) for column in zip(*seconds, strict=True)]
        got = found.get((tenant, "a100"), Figures())
        numbers = [got.guaranteed, got.share, got.received, got.borrowed, got.shortfall]
        assert numbers == pytest.approx(expected, abs=1e-6)
    assert sum(each.borrowed for each in found.values()) == pytest.approx(
        sum(each.lent for each in found.values())
    )


def plainly(
    tenant: str, now: datetime, held: list[Span], waiting: list[Span], quotas: tuple[QuotaUse, ...]
) -> tuple[float, float, float, float, float]:
    """Guaranteed, share, received, borrowed and missing at one moment. Shares are poured out in tiny steps."""

    def level(who: str, spans: list[Span]) -> int:
        return sum(span.slots for span in spans if span.tenant == who and span.since <= now < span.until)

    own = {each.tenant: each for each in quotas}
    used = {who: level(who, held) for who in own}
    demand = {who: used[who] + level(who, waiting) for who in own}
    guaranteed = {who: min(own[who].limit, demand[who]) for who in own}
    mates = [who for who in own if own[who].cohort and own[who].cohort == own[tenant].cohort]
    wanted, lendable, idle = {}, 0, 0
    for who in mates:
        beyond = demand[who] - guaranteed[who]
        most = own[who].borrowing_limit
        wanted[who] = beyond if most is None else min(beyond, most)
        lending = own[who].limit if own[who].lending_limit is None else own[who].lending_limit
        lendable += min(lending, own[who].limit - guaranteed[who])
        idle += min(lending, max(0, own[who].limit - used[who]))
    share = 0.0
    if tenant in mates:
        # The level, in slots per weight, up to which all are filled: found by halving.
        low, high = 0.0, float(sum(wanted.values()))
        for _ in range(60):
            middle = (low + high) / 2
            poured = sum(min(wanted[who], middle * own[who].weight) for who in mates)
            low, high = (middle, high) if poured <= lendable else (low, middle)
        share = min(wanted[tenant], high * own[tenant].weight)
    over = {who: max(0, used[who] - own[who].limit) for who in mates}
    borrowed = 0
    for who in sorted(mates):  # one after the other takes what is idle
        if who == tenant:
            borrowed = min(over[who], idle)
        idle -= min(over[who], idle)
    missing = max(0.0, guaranteed[tenant] + share - used[tenant])
    return guaranteed[tenant], share, used[tenant], borrowed, missing
