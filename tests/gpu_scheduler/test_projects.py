"""Projects of a tenant: whose turn it is, who waits for a limit, and what does not change without them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler import world as worlds_of
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Explanation, Plan, Priority, Project, ProjectShare, Snapshot, WaitReason
from gpu_scheduler.policies.fair_share import OF_USER
from gpu_scheduler.policies.fifo import Fifo, FifoBackfill
from tests.gpu_scheduler.worlds import NOON, TYPES, gang, next_snapshot, nodes, running, snapshot, worlds


def project(name: str, guarantee: int = 0, limit: int | None = None, weight: int = 1) -> Project:
    """One of tenant red."""
    return Project("red", name, weight, (ProjectShare("a100", guarantee, limit),))


def why(made: Plan, job: str) -> Explanation:
    return next(wait for wait in made.waits if wait.job == job)


def started(made: Plan) -> list[str]:
    return [start.job for start in made.starts]


def test_a_project_below_its_guarantee_comes_first() -> None:
    world = snapshot(
        nodes(a1=8),
        [gang("j1", 1, 2, project="speech"), gang("j2", 1, 2, project="vision")],
        [running("r", "a1", slots=6, project="vision")],
        limits={"red": 8},
    )
    divided = replace(world, projects=(project("vision", 8), project("speech")))
    assert started(plan(world)) == ["j1"]
    assert started(plan(divided)) == ["j2"]
    beyond = replace(world, projects=(project("vision", 6), project("speech")))
    assert started(plan(beyond)) == ["j1"]


def test_a_job_that_is_too_large_hides_none_behind_it_from_the_guarantee() -> None:
    world = snapshot(
        nodes(a1=2),
        [
            gang("j1", 1, 4, project="vision"),
            gang("j2", project="vision"),
            gang("j3", 1, 2, project="speech"),
        ],
        [running("r", "a1", slots=1, project="vision")],
        limits={"red": 8},
    )
    divided = replace(world, projects=(project("vision", 3), project("speech")))
    assert started(plan(divided)) == ["j2"]
    assert [wait.code for wait in plan(divided).waits if wait.job == "j1"] == [WaitReason.NO_MATCHING_POOL]


def test_beyond_guarantees_the_least_use_by_weight_comes_first_after_every_start() -> None:
    waiting = [gang(f"j{n}", project="vision" if n < 6 else "speech") for n in range(12)]
    world = snapshot(nodes(a1=6), waiting, limits={"red": 6})
    even = plan(replace(world, projects=(project("vision"), project("speech"))))
    assert started(even) == ["j0", "j6", "j1", "j7", "j2", "j8"]
    uneven = plan(replace(world, projects=(project("vision", weight=2), project("speech"))))
    assert Counter(job in {"j0", "j1", "j2", "j3"} for job in started(uneven)) == {True: 4, False: 2}


def test_jobs_of_no_project_have_their_turns_as_one_more() -> None:
    waiting = [gang(f"j{n}") for n in range(6)] + [gang(f"j{n}", project="vision") for n in range(6, 9)]
    made = plan(replace(snapshot(nodes(a1=4), waiting, limits={"red": 4}), projects=(project("vision"),)))
    assert started(made) == ["j0", "j6", "j1", "j7"]


def test_a_higher_class_of_another_project_goes_first() -> None:
    waiting = [gang("j1", project="vision"), gang("j2", project="speech", priority=Priority.HIGH)]
    world = replace(snapshot(nodes(a1=1), waiting), projects=(project("vision", 1), project("speech")))
    assert started(plan(world)) == ["j2"]


def test_a_project_at_its_limit_waits_and_holds_back_no_other() -> None:
    world = snapshot(
        nodes(a1=16),
        [gang("j1", 1, 3, project="vision"), gang("j2", 1, 8, project="speech")],
        [running("r", "a1", slots=6, project="vision")],
        policy_state={"j1": NOON - timedelta(hours=3)},
        limits={"red": 16},
        projects=(project("vision", 4, 8), project("speech")),
    )
    made = plan(world)
    assert started(made) == ["j2"]
    wait = why(made, "j1")
    assert wait.code is WaitReason.PROJECT_GPUS
    assert wait.message == (
        "Waiting for a job of its project to end: project vision uses 6 of 8 a100 GPUs that it can have, this job needs"
        " 3."
    )
    shown = ("project", "holder", "project_used", "project_limit", "project_guarantee", "asked")
    assert [wait.numbers[name] for name in shown] == ["vision", "vision", 6, 8, 4, 3]
    meter = next(row for row in wait.details["checks"] if row["check"] == "project_quota")
    assert (meter["ok"], meter["used"], meter["limit"], meter["asked"]) == (False, 6, 8, 3)
    for policy in (Fifo(), FifoBackfill()):
        assert started(plan(replace(world, policy=policy, policy_state={}))) == ["j2"]


def test_a_large_job_is_not_starved_by_its_own_projects_small_ones() -> None:
    world = snapshot(
        nodes(a1=32),
        [
            gang("j1", 1, 6, project="vision"),
            gang("j2", 1, 2, project="vision"),
            gang("j3", 1, 2, project="speech"),
        ],
        [running("r", "a1", slots=4, project="vision")],
        policy_state={f"{OF_USER}j1": NOON - timedelta(seconds=301)},
        projects=(project("vision", 0, 8), project("speech")),
    )
    made = plan(world)
    assert started(made) == ["j3"]
    assert why(made, "j2").message == (
        "Waiting its turn: project vision uses 4 of 8 a100 GPUs that it can have, and 6 are reserved for job j1 ahead"
        " in the queue; this job needs 2."
    )
    assert why(made, "j2").numbers["holder"] == "j1"
    fresh = plan(replace(world, policy_state={}))
    assert set(started(fresh)) == {"j2", "j3"}
    assert set(fresh.policy_state) == {f"{OF_USER}j1"}


def test_a_job_larger_than_its_projects_limit_has_no_place_in_the_queue() -> None:
    world = snapshot(nodes(a1=16), [gang("j1", 2, 4, project="vision")], projects=(project("vision", 0, 7),))
    wait = why(plan(world), "j1")
    assert (wait.code, "position" in wait.numbers) == (WaitReason.EXCEEDS_PROJECT_LIMIT, False)
    assert "this job needs 8 a100 GPUs, the project can have 7 at once" in wait.message


def test_no_run_is_stopped_for_an_urgent_job_of_a_project_at_its_limit() -> None:
    world = snapshot(
        nodes(a1=8),
        [gang("j1", 1, 4, project="vision", priority=Priority.URGENT)],
        [
            running("r1", "a1", slots=4, project="vision", priority=0),
            running("r2", "a1", slots=4, project="speech", priority=0),
        ],
    )
    assert len(plan(world).stops) == 1
    assert plan(replace(world, projects=(project("vision", 0, 4),))).stops == ()
    # Of two, the project's limit has room for one.
    two = replace(
        world,
        waiting=(*world.waiting, gang("j2", 1, 4, project="vision", priority=Priority.URGENT)),
        running=(running("r1", "a1", slots=4, priority=0), running("r2", "a1", slots=4, priority=0)),
    )
    assert len(plan(two).stops) == 2
    assert len(plan(replace(two, projects=(project("vision", 0, 4),))).stops) == 1


def test_a_project_that_is_gone_limits_nothing() -> None:
    world = snapshot(nodes(a1=8), [gang("j1", project="old")], projects=(project("vision", 0, 1),))
    assert started(plan(world)) == ["j1"]


def everything_in(world: Snapshot, name: str) -> Snapshot:
    """The same world, all of it in one project of each tenant."""
    return replace(
        world,
        waiting=tuple(replace(each, project=name) for each in world.waiting),
        running=tuple(replace(run, gang=replace(run.gang, project=name)) for run in world.running),
    )


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_without_projects_and_with_one_that_has_everything_the_plan_is_the_same(world: Snapshot) -> None:
    before = plan(world)
    assert plan(everything_in(world, "vision")) == before
    shares: dict[str, list[ProjectShare]] = {}
    for quota in world.quotas:
        shares.setdefault(quota.tenant, []).append(ProjectShare(quota.slot_type, quota.limit, quota.limit))
    whole = tuple(Project(tenant, "vision", 1, tuple(of)) for tenant, of in shares.items())
    assert plan(replace(everything_in(world, "vision"), projects=whole)) == before
    assert plan(replace(world, projects=whole)) == before


@st.composite
def divided_worlds(draw: st.DrawFn) -> Snapshot:
    world = draw(worlds())
    names = ("vision", "speech", "", "old")
    waiting = tuple(replace(each, project=draw(st.sampled_from(names))) for each in world.waiting)
    runs = tuple(
        replace(run, gang=replace(run.gang, project=draw(st.sampled_from(names)))) for run in world.running
    )
    shares = st.builds(
        ProjectShare, st.sampled_from(TYPES), st.integers(0, 6), st.none() | st.integers(0, 12)
    )
    projects = tuple(
        Project(
            tenant,
            name,
            draw(st.integers(1, 3)),
            tuple(draw(st.lists(shares, max_size=3, unique_by=lambda share: share.slot_type))),
        )
        for tenant in ("red", "green")
        for name in ("vision", "speech")
        if draw(st.booleans())
    )
    return replace(world, waiting=waiting, running=runs, projects=projects)


def held(world: Snapshot, plan_: Plan) -> Counter[tuple[str, str, str]]:
    after = worlds_of.apply(world, plan_)
    found: Counter[tuple[str, str, str]] = Counter()
    for run in after.running:
        found[run.tenant, run.gang.project, run.slot_type] += run.slots * len(run.nodes)
    return found


@settings(max_examples=150, deadline=None)
@given(divided_worlds())
def test_no_plan_exceeds_a_projects_limit_and_every_reason_is_true(world: Snapshot) -> None:
    made = plan(world)
    before, after = held(world, Plan()), held(world, made)
    limits = {
        (each.tenant, each.name, share.slot_type): share.limit
        for each in world.projects
        for share in each.shares
        if share.limit is not None
    }
    for key, limit in limits.items():
        assert after[key] <= max(limit, before[key])
    jobs = {each.job: each for each in world.waiting}
    assert {wait.job for wait in made.waits} | {start.job for start in made.starts} == jobs.keys()
    for wait in made.waits:
        job, numbers = jobs[wait.job], wait.numbers
        if wait.code is WaitReason.PROJECT_GPUS:
            key = (job.tenant, job.project, numbers["slot_type"])
            assert numbers["project_used"] == after[key]
            assert numbers["project_limit"] == limits[key]
            assert after[key] + numbers["project_reserved"] + job.asked > limits[key]
        elif wait.code is WaitReason.EXCEEDS_PROJECT_LIMIT:
            assert job.asked > limits[job.tenant, job.project, numbers["slot_type"]]


@settings(max_examples=60, deadline=None)
@given(divided_worlds(), st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_the_snapshots_parts(
    world: Snapshot, chance: Random
) -> None:
    parts = {name: list(getattr(world, name)) for name in ("waiting", "running", "projects")}
    for part in parts.values():
        chance.shuffle(part)
    assert plan(replace(world, **{name: tuple(part) for name, part in parts.items()})) == plan(world)


def test_a_project_gets_its_guarantee_back_as_the_others_runs_end() -> None:
    """The tenant's quota is full of one project's jobs, of which more always wait."""
    flood = [gang(f"j{n}", project="speech") for n in range(1, 9)]
    runs = [running(f"r{n}", "a1", project="speech") for n in range(4)]
    world = snapshot(
        nodes(a1=8),
        [*flood, gang("j9", 1, 2, project="vision")],
        runs,
        limits={"red": 4},
        projects=(project("vision", 2), project("speech")),
    )
    assert started(plan(world)) == []
    world = next_snapshot(world, plan(world), after_s=301)
    one_left = next_snapshot(world, plan(world), after_s=1, ended=["r0"])
    assert started(plan(one_left)) == []  # its slot is kept for the project that is below its guarantee
    two_left = next_snapshot(one_left, plan(one_left), after_s=1, ended=["r1"])
    assert started(plan(two_left)) == ["j9"]
