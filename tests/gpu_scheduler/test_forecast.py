"""The forecast against the world itself: plan() second by second, with run times that are known or drawn."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.cycle import plan
from gpu_scheduler.forecast import Basis, RunTime, StartForecast, WhyNone, forecast, suggest
from gpu_scheduler.model import Plan, Profile, Range, Resize, Resources, Running, Snapshot, TenantState
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.world import replace_waiting
from tests.gpu_scheduler.worlds import NOON, gang, next_snapshot, nodes, running, snapshot, worlds

LONGEST_S = 15
SOME = settings(max_examples=60, deadline=None)


def known(seconds: float, basis: Basis = Basis.HISTORY) -> RunTime:
    return RunTime((float(seconds),), basis)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def lived(world: Snapshot, lengths: dict[str, int]) -> dict[str, datetime]:
    """The starts if the scheduler looks every second and every run ends when it must, by next_snapshot."""
    ends = {run.job: at(lengths[run.job]) for run in world.running}
    ends |= {run.job: min(ends[run.job], run.ends_by) for run in world.running if run.ends_by is not None}
    at_most = {job.job: job.runs_at_most_s for job in world.waiting}
    starts: dict[str, datetime] = {}
    for _ in range(LONGEST_S * (len(lengths) + 2) + 60):
        over = [run.job for run in world.running if ends[run.job] <= world.now]
        nothing = Plan(policy_state=world.policy_state)
        world = next_snapshot(world, nothing, after_s=0, ended=over)
        decided = plan(world)
        for start in decided.starts:
            starts[start.job] = world.now
            limit = at_most[start.job]
            length = lengths[start.job] if limit is None else min(lengths[start.job], limit)
            ends[start.job] = world.now + timedelta(seconds=length)
        world = next_snapshot(world, decided, after_s=1)
    return starts


@st.composite
def worlds_with_lengths(draw: st.DrawFn) -> tuple[Snapshot, dict[str, int]]:
    """A world whose counts of use are those of its runs, and how long each of its jobs runs; none is stopped.

    Who starts runs for a second at least: a world that is looked at each second sees no end before its next look.
    """
    world = replace(draw(worlds()), policy=FairShare(starvation_timeout_s=7, aging_s=20, lease_s=9e9))
    on = {run.job: draw(st.integers(0, LONGEST_S)) for run in world.running}
    return world, on | {job.job: draw(st.integers(1, LONGEST_S)) for job in world.waiting}


@SOME
@given(worlds_with_lengths())
def test_with_known_run_times_the_forecast_is_what_happens(made: tuple[Snapshot, dict[str, int]]) -> None:
    world, lengths = made
    estimates = forecast(world, {job: known(length) for job, length in lengths.items()})
    assert {job: one.p50 for job, one in estimates.items() if one.p50} == lived(world, lengths)
    assert all(one.p50 == one.p90 for one in estimates.values())
    assert {one.why_none for one in estimates.values() if one.p50 is None} <= {WhyNone.CANNOT_START}


@SOME
@given(worlds(), st.data())
def test_no_estimate_precedes_now_and_the_same_snapshot_says_the_same(
    world: Snapshot, data: st.DataObject
) -> None:
    names = [job.job for job in (*world.running, *world.waiting)]
    lengths = st.lists(st.floats(-50, 5000), max_size=6).map(tuple)
    runs = {name: RunTime(data.draw(lengths), Basis.HISTORY) for name in names}
    estimates = forecast(world, runs)
    for one in estimates.values():
        assert (one.why_none is None) == (one.p50 is not None) == (one.p90 is not None)
        if one.p50 and one.p90:
            assert world.now <= one.p50 <= one.p90
    chance = random.Random(3)
    mixed = replace(
        world,
        **{
            part: tuple(chance.sample(getattr(world, part), len(getattr(world, part))))
            for part in ("nodes", "waiting", "running", "quotas")
        },
    )
    assert forecast(mixed, runs) == estimates


@pytest.mark.parametrize(
    ("slots", "starts"),
    [((8, 8, 8), (100, 200, 300)), ((8, 4, 4), (100, 200, 200)), ((4, 8, 4), (100, 200, 100))],
    ids=["one by one", "two beside each other", "a small one overtakes the large one once"],
)
def test_starts_follow_by_counting(slots: tuple[int, ...], starts: tuple[int, ...]) -> None:
    """One node of eight that is taken for 100 s; every job runs 100 s."""
    jobs = [gang(f"j{i}", 1, size) for i, size in enumerate(slots)]
    estimates = forecast(
        snapshot(nodes(a1=8), jobs, [running("r1", "a1", slots=8)]),
        {job: known(100, Basis.PROGRESS) for job in ("r1", "j0", "j1", "j2")},
    )
    assert [estimates[f"j{i}"].p50 for i in range(3)] == [at(start) for start in starts]
    assert estimates["j0"] == StartForecast(at(100), at(100), (Basis.PROGRESS,))


FULL = snapshot(nodes(a1=8), [gang("j1", 1, 8)], [running("r1", "a1", slots=8)])


def test_a_distribution_gives_a_range_and_names_its_source() -> None:
    estimate = forecast(FULL, {"r1": RunTime(tuple(float(s) for s in range(1, 1001)), Basis.HISTORY)})["j1"]
    assert estimate.p50
    assert estimate.p90
    assert at(200) < estimate.p50 < at(800) < estimate.p90
    assert estimate.basis == (Basis.HISTORY,)


def test_what_can_start_at_once_starts_now_and_waits_for_nothing() -> None:
    assert forecast(replace(FULL, running=()), {})["j1"] == StartForecast(NOON, NOON)


def test_without_a_known_end_there_is_no_estimate() -> None:
    assert forecast(FULL, {})["j1"] == StartForecast(why_none=WhyNone.UNKNOWN_END)


def test_the_unknown_end_of_a_job_that_holds_nothing_it_needs_is_not_the_reason() -> None:
    other = running("c", "c1", tenant="blue", slot_type="cpu")
    down = replace(nodes(a1=1)[0], ready=False)
    world = snapshot((down, *nodes(c1=1)), [gang("j1")], [other])
    assert forecast(world, {})["j1"] == StartForecast(why_none=WhyNone.CANNOT_START)


def test_the_end_of_a_promise_is_followed_where_no_run_has_a_known_end() -> None:
    """a1 is promised to j1, which needs a2, too; once the promise is over, j2 starts there."""
    waiting = [gang("j1", 2, 8, tenant="green"), gang("j2", 1, 8)]
    world = snapshot(nodes(a1=8, a2=8), waiting, [running("r1", "a2", slots=8)], promised={"j1": at(60)})
    found = forecast(world, {})
    assert (found["j2"].p50, found["j2"].p90) == (at(60), at(60))
    assert found["j1"].why_none is WhyNone.UNKNOWN_END


def elastic(run: Running, most: int, least: int = 1) -> Running:
    return replace(run, gang=replace(run.gang, learners=Range(least, most), elastic=Profile()))


@pytest.mark.parametrize(
    ("least", "most", "p50_s", "p90_s"),
    [(1, 4, 1000, 2000), (2, 64, 750, 1000), (1, 2, 1000, 2000), (2, 3, 1000 * 5 / 6, 1000)],
    ids=["both ways", "it can only grow", "it can only shrink", "it can grow by one"],
)
def test_a_start_after_an_elastic_run_is_a_range(least: int, most: int, p50_s: float, p90_s: float) -> None:
    """It has two learners and may soon have twice or half as many, so it ends sooner or later."""
    busy = [elastic(running("r1", "a1", "a2", slots=8), most, least)]
    world = snapshot(nodes(a1=8, a2=8), [gang("j1", 2, 8)], busy, policy=FairShare(lease_s=9e9))
    estimate = forecast(world, {"r1": known(1000, Basis.PROGRESS)})["j1"]
    assert estimate.p50 is not None is not estimate.p90
    assert (estimate.p50 - NOON).total_seconds() == pytest.approx(p50_s)
    assert (estimate.p90, estimate.basis) == (at(p90_s), (Basis.PROGRESS,))
    fixed = replace(world, running=(running("r1", "a1", "a2", slots=8),))
    assert forecast(fixed, {"r1": known(1000, Basis.PROGRESS)})["j1"].p90 == at(1000)


def test_an_elastic_run_uses_up_no_work_by_looks_for_other_sizes() -> None:
    """r2 ends in ten hours; r1 would be looked at 600 times until then."""
    busy = [elastic(running("r1", "a1", slots=8), 2), running("r2", "a2", slots=8)]
    world = snapshot(nodes(a1=8, a2=8), [gang("j1", 1, 8)], busy, policy=FairShare(aging_s=0))
    for work in (600, 200_000):
        estimate = forecast(world, {"r2": known(36_000)}, work=4 * work)["j1"]
        assert (estimate.p50, estimate.p90) == (at(36_000), at(36_000))


def test_a_fresh_elastic_run_shrinks_for_a_job_that_waits_as_soon_as_it_may() -> None:
    fresh = replace(elastic(running("r1", "a1", "a2", slots=8), 2), started_at=NOON, checkpoint_cost_s=5)
    world = snapshot(nodes(a1=8, a2=8), [gang("j1", 1, 8)], [fresh, running("r2", "a3", slots=1)])
    world = replace(world, nodes=nodes(a1=8, a2=8, a3=1))
    estimate = forecast(world, {"r2": known(36_000)})["j1"]
    assert (estimate.p50, estimate.p90) == (at(25), at(25)), "its lease, and its save"


def test_what_is_left_of_a_run_is_done_faster_by_more_learners() -> None:
    """r1 halts with two learners and 1,000 s left, and goes on with one, after a restart of 10 s: j2 waits for it."""
    order = replace(
        elastic(running("r1", "a1", "a2", slots=8), 2),
        order=Resize("r1", 1), checkpoint_cost_s=5, restart_cost_s=10,
    )  # fmt: skip
    late = gang("j2", 2, 8, queued_at=NOON, priority=0)
    world = snapshot(
        nodes(a1=8, a2=8), [late], [order], policy=FairShare(starvation_timeout_s=9e9, aging_s=0)
    )
    estimate = forecast(world, {"r1": known(1000, Basis.PROGRESS)})["j2"]
    assert estimate.p90
    assert (estimate.p90 - NOON).total_seconds() == pytest.approx(5 + 10 + 2 * 2000)


def test_a_forecast_knows_what_changes_when_an_end_comes_in_sight() -> None:
    """j1's reservation is of a2, which lacks the least, until the end of r1 is a day away: then j2 fits there."""
    busy = [
        running("r1", "a1", slots=6, ends_by=at(86_400 + 100)),
        running("r2", "a2", slots=1),
        running("r3", "a3", slots=1),
    ]
    waiting = [gang("j1", 1, 8), gang("j2", 1, 4, tenant="blue")]
    state = {"j1": NOON - timedelta(minutes=10)}
    world = snapshot(nodes(a1=8, a2=8, a3=1), waiting, busy, policy_state=state)
    assert forecast(world, {"r3": known(500)})["j2"].p50 == at(100)


def test_a_job_that_waiting_does_not_help_has_no_estimate() -> None:
    world = replace(FULL, waiting=(gang("j1", 1, 9),))
    assert forecast(world, {"r1": known(5)})["j1"] == StartForecast(why_none=WhyNone.CANNOT_START)


def test_work_is_bounded_by_units_and_a_far_start_is_said_to_be_far() -> None:
    estimate = forecast(FULL, {"r1": known(100)}, work=1)["j1"]
    assert estimate == StartForecast(why_none=WhyNone.TOO_FAR)
    assert forecast(FULL, {"r1": known(100)}, until=at(99))["j1"] == estimate
    assert forecast(FULL, {"r1": known(100)}, until=at(100))["j1"].p50 == at(100)


def test_a_job_that_replaces_another_is_queued_at_its_own_time() -> None:
    world = snapshot(nodes(a1=8), [gang("j1", 1, 8), gang("j2", 1, 8)], [running("r1", "a1", slots=8)])
    late = replace(gang("j1", 1, 8), queued_at=NOON)
    runs = {job: known(10) for job in ("r1", "j1", "j2")}
    assert forecast(world, runs)["j1"].p50 == at(10)
    assert forecast(replace_waiting(world, "j1", late), runs)["j1"].p50 == at(20)


@SOME
@given(worlds_with_lengths(), st.data())
def test_ways_offered_start_earlier_in_the_world_that_follows(
    made: tuple[Snapshot, dict[str, int]], data: st.DataObject
) -> None:
    """Whatever is offered replace_waiting of a job starts, when lived through, before the job itself would have."""
    world, lengths = made
    lengths = {job: 40 * length for job, length in lengths.items()}
    world = replace(
        world,
        policy=FairShare(starvation_timeout_s=300, aging_s=0),
        running=tuple(replace(run, ends_by=None) for run in world.running),
        waiting=tuple(replace(job, runs_at_most_s=None) for job in world.waiting),
    )
    if not world.waiting:
        return
    job = data.draw(st.sampled_from(world.waiting))
    clone = replace(job, job="new", queued_at=NOON)
    variants = {
        "smaller": clone.resized(learners=1),
        "thinner": clone.resized(slots=1),
        "elsewhere": replace(clone, slot_type="h200", resources=Resources(clone.slots)),
        "urgent": replace(clone, priority=3),
        "the same": clone,
    }
    runs = {name: known(length) for name, length in lengths.items()}
    found = suggest(world, runs, job.job, variants)
    own = forecast(world, runs)[job.job].p50
    for name, one in found.items():
        starts = forecast(replace_waiting(world, job.job, variants[name]), runs | {"new": runs[job.job]})[
            "new"
        ]
        assert starts.p50 == one.p50
        assert own is None or starts.p50 <= own - timedelta(seconds=30)


def test_only_what_is_truly_sooner_is_offered() -> None:
    busy = [running("r1", "a1", slots=4), running("r2", "a2", slots=8)]
    world = snapshot(nodes(a1=8, a2=8, h1=8), [gang("j1", 2, 8)], busy)
    runs = {"r1": known(100), "r2": known(500)}
    clone = gang("new", 2, 8, queued_at=NOON)
    variants = {
        "half": clone.resized(learners=1),
        "quarter": clone.resized(learners=1, slots=4),
        "same": clone,
        "too large elsewhere": replace(clone, slot_type="h200"),
    }
    found = suggest(world, runs, "j1", variants)
    assert {name: one.p50 for name, one in found.items()} == {"half": at(100), "quarter": at(0)}


def test_a_job_of_unknown_start_is_offered_what_has_a_known_one() -> None:
    world = snapshot(nodes(a1=8), [gang("j1", 1, 8)], [running("r1", "a1", slots=4)])
    small = {"small": gang("new", 1, 4, queued_at=NOON)}
    assert suggest(world, {}, "j1", small)["small"].p50 == NOON


@pytest.mark.parametrize("until", [NOON, None])
def test_each_variant_is_tried_with_one_plan_where_no_end_is_known(
    until: datetime | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request waits for the answer, which does not include why a variant fails: no plan is explained."""
    made: list[bool] = []

    def counted(world: Snapshot, *, explained: bool = True) -> Plan:
        made.append(explained)
        return plan(world, explained=explained)

    monkeypatch.setattr("gpu_scheduler.forecast.plan", counted)
    world = snapshot(nodes(a1=8), [gang("j1", 1, 8)], [running("r1", "a1", slots=4)])
    small = gang("new", 1, 4, queued_at=NOON)
    found = suggest(world, {}, "j1", {"small": small, "large": small.resized(slots=8)}, until=until)
    assert found == {"small": StartForecast(NOON, NOON)}
    assert made == [False, False, False]


def budget(hours: float, *, tenant: str = "red", turns_s: float = 30 * 86_400) -> TenantState:
    """So many GPU-hours are left of a month that ends after this time."""
    return TenantState(tenant, budget_gpu_hours=100, used_gpu_s=(100 - hours) * 3600, month_ends=at(turns_s))


HELD = StartForecast(why_none=WhyNone.BUDGET)


def test_a_job_that_a_budget_will_hold_is_promised_no_start() -> None:
    """Eight GPUs for two hours are 16 GPU-hours; what is left ends before, or lasts for the next job, too."""
    ends = {"r1": known(7200), "j1": known(100)}
    assert forecast(replace(FULL, tenants=(budget(20),)), ends)["j1"].p50 == at(7200)
    assert forecast(replace(FULL, tenants=(budget(10),)), ends)["j1"] == HELD
    assert forecast(replace(FULL, tenants=(budget(16.1),)), ends)["j1"] == HELD, "not for a minute of it"
    soft = replace(budget(10), budget_is_hard=False)
    assert forecast(replace(FULL, tenants=(soft,)), ends)["j1"].p50 == at(7200)
    assert forecast(replace(FULL, tenants=(budget(10, tenant="green"),)), ends)["j1"].p50 == at(7200)


def test_a_job_that_a_budget_holds_now_has_no_start_in_the_next_month() -> None:
    """How many jobs start when it begins is not known."""
    ends = {"r1": known(7200), "j1": known(100)}
    turns = replace(FULL, tenants=(budget(-1, turns_s=3600),))
    assert forecast(turns, ends)["j1"] == HELD
    late = replace(FULL, tenants=(budget(9, turns_s=5000),))
    assert forecast(late, ends)["j1"] == HELD, "used up after 4050 s"
    early = replace(FULL, tenants=(budget(9, turns_s=4000),))
    assert forecast(early, ends)["j1"].p50 == at(7200), "the next month's lasts"
    other = running("c1", "c1", slot_type="cpu")
    beside = replace(late, nodes=(*late.nodes, *nodes(c1=1)), running=(*late.running, other))
    assert forecast(beside, ends | {"c1": known(9000)})["j1"] == HELD, "followed beyond the turn"
    cut = forecast(late, ends, until=at(4500))["j1"]
    assert cut == HELD


def test_others_are_expected_behind_the_jobs_that_start_with_the_next_month() -> None:
    held, other = gang("j1", 1, 8, priority=2), gang("g1", 1, 8, tenant="green", priority=0)
    busy = replace(FULL.running[0], gang=replace(FULL.running[0].gang, tenant="green"))
    world = snapshot(nodes(a1=8), [held, other], [busy], tenants=(budget(-1, turns_s=3600),))
    found = forecast(world, {"r1": known(4000), "j1": known(500), "g1": known(100)})
    assert (found["j1"], found["g1"].p50) == (HELD, at(4500))


def test_what_a_budget_ends_makes_room_for_others() -> None:
    ends = {"r1": known(7200), "g1": known(100)}
    waits, limits = gang("g1", 1, 8, tenant="green"), {"red": 8, "green": 8}
    world = snapshot(nodes(a1=8), [waits], FULL.running, limits=limits, tenants=(budget(10),))
    saving = replace(world, running=(replace(FULL.running[0], checkpoint_cost_s=5.0),))
    assert forecast(saving, ends)["g1"].p50 == at(4500 + 5), "10 GPU-hours of eight GPUs are 4500 s"
    other = running("c1", "c1", slot_type="cpu", tenant="green")  # looks ahead follow ends
    beside = replace(saving, nodes=(*saving.nodes, *nodes(c1=1)), running=(*saving.running, other))
    assert forecast(beside, {"c1": known(7200), "g1": known(100)})["g1"].why_none is WhyNone.UNKNOWN_END, (
        "how much is used until then is not known, either"
    )


def test_jobs_that_use_no_budget_are_foreseen_as_before() -> None:
    held = replace(running("r1", "c1", slot_type="cpu"), ends_by=None)
    world = snapshot(nodes(c1=1, a1=1), [gang("j1", slot_type="cpu"), gang("j2")], [held])
    found = forecast(replace(world, tenants=(budget(-1),)), {"r1": known(60)})
    assert (found["j1"].p50, found["j2"]) == (at(60), HELD)


def test_a_budget_that_may_last_gives_a_time_only_if_it_lasts_nine_times_out_of_ten() -> None:
    """j1 starts when r1 ends; what is left of the budget, 12.3 GPU-hours, lasts for 5500 s of it."""
    often = {"r1": RunTime((1000.0,) * 199 + (7000.0,), Basis.HISTORY), "j1": known(100)}
    seldom = {"r1": RunTime((1000.0,) * 4 + (7000.0,) * 16, Basis.HISTORY), "j1": known(100)}
    world = replace(FULL, tenants=(budget(12.3),))
    assert forecast(world, often)["j1"].p50 == at(1000)
    assert forecast(world, seldom)["j1"] == HELD
