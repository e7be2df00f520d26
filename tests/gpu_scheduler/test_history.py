"""fair_share_history: what a tenant held recently counts in whose turn it is, and fades."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from gpu_scheduler import past_use
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import QuotaUse
from gpu_scheduler.policies.base import Policy
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.policies.history import HALF_LIFE_S, FairShareHistory
from gpu_scheduler.policies.per_pool import PerPool
from gpu_scheduler.simulation import Scenario, SimulatedJob, simulate
from tests.gpu_scheduler.worlds import NOON, gang, nodes, snapshot

LIMIT = 10


def started(*recently: QuotaUse, policy: Policy) -> list[str]:
    """The jobs that start on four slots, in their order; red's have come first."""
    waiting = [
        gang(f"{tenant}-{number}", tenant=tenant, queued_at=NOON + timedelta(seconds=number + offset))
        for tenant, offset in (("red", 0), ("green", 100))
        for number in range(4)
    ]
    seen = replace(
        snapshot(nodes(a=4), waiting), quotas=recently, policy=policy, now=NOON + timedelta(hours=1)
    )
    return [start.job for start in plan(seen).starts]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (FairShare(), ["red-0", "green-0", "red-1", "green-1"]),
        (FairShareHistory(), ["green-0", "green-1", "red-0", "green-2"]),
    ],
)
def test_the_tenant_that_held_less_recently_comes_first_until_it_holds_as_much(
    policy: Policy, expected: Sequence[str]
) -> None:
    red = QuotaUse("red", "a100", LIMIT, 0, used_recently=1.5)
    assert started(red, QuotaUse("green", "a100", LIMIT, 0), policy=policy) == expected


def test_the_larger_quota_has_the_larger_share_of_the_past() -> None:
    red, green = (
        QuotaUse("red", "a100", 80, 0, used_recently=8),
        QuotaUse("green", "a100", LIMIT, 0, used_recently=4),
    )
    assert started(red, green, policy=FairShareHistory())[0] == "red-0", "8 of 80 are less than 4 of 10"


def test_what_was_held_of_a_type_without_a_quota_now_counts_nothing_on_another() -> None:
    given_up = QuotaUse("red", "h200", 0, 0, used_recently=8)
    others = QuotaUse("red", "a100", LIMIT, 0), QuotaUse("green", "a100", LIMIT, 0, used_recently=1)
    assert started(given_up, *others, policy=FairShareHistory())[0] == "red-0"


def test_what_is_held_fades_by_half_in_a_half_life_and_does_not_depend_on_how_often_it_is_looked_at() -> None:
    held, empty = QuotaUse("red", "a100", 8, 6), QuotaUse("red", "a100", 8, 0, used_recently=4)
    assert past_use.after([empty], HALF_LIFE_S, HALF_LIFE_S)[0].used_recently == pytest.approx(2)
    assert past_use.after([held], 100 * HALF_LIFE_S, HALF_LIFE_S)[0].used_recently == pytest.approx(6)
    often = [held]
    for _ in range(1000):
        often = list(past_use.after(often, HALF_LIFE_S / 1000, HALF_LIFE_S))
    assert often[0].used_recently == pytest.approx(
        past_use.after([held], HALF_LIFE_S, HALF_LIFE_S)[0].used_recently
    )


def test_a_slot_that_was_held_forever_has_a_mean_of_one() -> None:
    hours = sum(3600 * 0.5 ** (hour * 3600 / HALF_LIFE_S) for hour in range(100_000))
    assert past_use.mean_slots(hours, HALF_LIFE_S) == pytest.approx(1, rel=0.01)


def test_for_a_single_slot_type_the_past_is_read_too() -> None:
    assert PerPool(FairShare(), {"a100": FairShareHistory()}).half_life_s() == HALF_LIFE_S
    assert PerPool(FairShare(), {"a100": FairShare()}).half_life_s() is None


DAY_S = 86_400.0


def workload() -> Iterator[SimulatedJob]:
    """Red has the slot for a week; then both want more than there is, ten minutes at a time."""
    yield SimulatedJob(gang("week", 1, 1, tenant="red", queued_at=NOON), 7 * DAY_S)
    for tenant in ("red", "green"):
        for number in range(150):
            arrives = NOON + timedelta(seconds=7 * DAY_S + number)
            yield SimulatedJob(gang(f"{tenant}{number}", 1, 1, tenant=tenant, queued_at=arrives), 600)


def received(policy: Policy) -> dict[str, float]:
    """Slot-seconds of each tenant in the day after that week."""
    quotas = tuple(QuotaUse(tenant, "a100", 1, 0) for tenant in ("red", "green"))
    until = NOON + timedelta(seconds=8 * DAY_S)
    outcome = simulate(
        Scenario(nodes(a=1), tuple(workload()), policy=policy, quotas=quotas, until=until, begin=NOON)
    )
    found = dict.fromkeys(("red", "green"), 0.0)
    for record in outcome.runs:
        if record.gang.job != "week":
            found[record.gang.tenant] += (record.ended - record.began).total_seconds()
    return found


def test_after_a_week_of_one_tenant_the_other_has_most_of_a_day() -> None:
    equal, over_time = received(FairShare()), received(FairShareHistory())
    assert equal["green"] == pytest.approx(equal["red"], rel=0.1)
    assert over_time["green"] > 2.5 * over_time["red"] > 0, over_time
