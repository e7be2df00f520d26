"""`manage.py what_if --replay`: the platform's own past under other limits, and how far the replay can be trusted."""

from __future__ import annotations

import json
import random
import uuid
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from gpu_scheduler.model import Gang, PlacementStrategy, QuotaUse, Range, Resources, WaitReason
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.simulation import Scenario, SimulatedJob, simulate
from jobs.models import Attempt, ClusterNode, Job, JobEvent, UsageDay
from jobs.selectors import replay as replays
from jobs.selectors.nodes import scheduler_nodes
from jobs.selectors.snapshot import projects
from jobs.services.intents import job_halt, job_resume
from jobs.states import EventCode, Phase, State
from tenants.models import Project, ProjectChange, ProjectShare, Quota, Tenant
from tests import factories
from tests.jobs.lifecycle.world import two_nodes
from tests.jobs.made_history import held, job_of_the_past, waited

pytestmark = pytest.mark.django_db
BEGIN = timezone.now().replace(microsecond=0) - timedelta(days=1)


@pytest.fixture
def tenants() -> tuple[Tenant, Tenant]:
    """Two tenants with four slots each, on one node of four."""
    ClusterNode.objects.create(name="node-a", slot_type="cpu", slots=4, ready=True)
    return factories.tenant("red", quotas={"cpu": 4}), factories.tenant("green", quotas={"cpu": 4})


def ran(of: Tenant, slots: int, *minutes: float, **fields: Any) -> Job:
    """A job that was submitted, started and ended so many minutes after BEGIN."""
    submitted, since, until = (BEGIN + timedelta(minutes=each) for each in minutes)
    job = job_of_the_past(of, slots, submitted, **fields)
    held(job, since, until)
    return job


def answer(*arguments: str) -> dict[str, Any]:
    out = StringIO()
    call_command("what_if", "--replay", "2", "--json", *arguments, stdout=out)
    return dict(json.loads(out.getvalue()))


def lines(*arguments: str) -> list[str]:
    out = StringIO()
    call_command("what_if", "--replay", "2", *arguments, stdout=out)
    return out.getvalue().splitlines()


def divide(of: Tenant, **shares: tuple[int, int | None]) -> None:
    """Projects by name, each with its guarantee and its limit of CPUs."""
    for name, (guarantee, limit) in shares.items():
        project = Project.objects.create(tenant=of, slug=name)
        ProjectShare.objects.create(project=project, gpu_type="cpu", guarantee=guarantee, limit=limit)


@pytest.mark.parametrize("divided", [False, True], ids=["whole", "projects"])
def test_the_same_limits_and_policy_give_the_same_starts(
    tenants: tuple[Tenant, Tenant], divided: bool
) -> None:
    """A past that the policy made out of a random workload: each replayed start is at the second of the real one."""
    drawn = random.Random(7)
    if divided:
        divide(tenants[0], vision=(2, 2), speech=(0, 3))
        divide(tenants[1], vision=(1, None))
    asked = {}
    for number in range(40):
        of, slots = drawn.choice(tenants), drawn.randint(1, 4)
        at = BEGIN + timedelta(seconds=drawn.randint(0, 20_000))
        job = job_of_the_past(of, slots, at, priority_rank=drawn.randint(0, 2))
        if divided:
            job.project = ("vision", "speech", "")[number % 3 if slots < 3 else 2]
            job.save()
        # One after the other: jobs of one instant are ordered by their ids, and those of a replay are others.
        gang = Gang(
            job.pk, of.slug, Range.fixed(1), Resources.of_slots("cpu", slots, memory_mib=1024), "cpu",
            PlacementStrategy.PACK, job.priority_rank, at + timedelta(milliseconds=number), project=job.project,
        )  # fmt: skip
        Job.objects.filter(pk=job.pk).update(created_at=gang.queued_at, queued_at=gang.queued_at)
        asked[job.pk] = SimulatedJob(gang, drawn.randint(60, 3_000))
    quotas = tuple(QuotaUse(of.slug, "cpu", 4, 0) for of in tenants)
    nodes = tuple(scheduler_nodes())
    past = simulate(
        Scenario(nodes, tuple(asked.values()), quotas, FairShare(), round_s=0, projects=projects())
    )
    for pk, at in past.first_started.items():
        held(Job.objects.get(pk=pk), at, past.completed[pk])
    seen = answer()
    assert (seen["stays"], seen["same_starts"]) == (40, 1.0)
    assert seen["off_s"] == pytest.approx(0, abs=0.01)
    for tenant in seen["tenants"]:
        assert tenant["wait_s"] == pytest.approx(tenant["replayed_wait_s"], abs=0.01)
        assert tenant["wait_s"] > 60, "it is a past with waits"
        assert tenant["changed_wait_s"] == tenant["replayed_wait_s"]


def test_a_changed_limit_shows_who_gains_and_who_loses(tenants: tuple[Tenant, Tenant]) -> None:
    red, green = tenants
    ran(red, 2, 0, 0, 60)
    ran(red, 2, 1, 1, 61)
    ran(green, 2, 2, 60, 90)
    limited = answer("--limit", "red:cpu=2")
    one, other = limited["tenants"]
    assert (one["tenant"], one["wait_s"], one["replayed_wait_s"], one["changed_wait_s"]) == (
        "green",
        pytest.approx(58 * 60),
        pytest.approx(58 * 60),
        pytest.approx(0),
    )
    assert (other["tenant"], other["replayed_wait_s"], other["changed_wait_s"]) == (
        "red",
        pytest.approx(0),
        pytest.approx(59 * 60 / 2),
    )
    assert Quota.objects.get(tenant=red).limit == 4, "nothing changed"
    shown = lines("--limit", "red:cpu=2")
    assert shown[0] == (
        "3 runs were asked for. As the limits are now, 100% of them start within 60 s of when they did; half are off"
        " by 0 s or less."
    )
    assert [line.split() for line in shown[-2:]] == [
        ["green", "1", "1", "58", "min", "58", "min", "0", "s", "0,", "0", "58", "min", "sooner"],
        ["red", "2", "2", "0", "s", "0", "s", "29", "min", "0,", "0", "29", "min", "later"],
    ]


def test_other_shares_of_projects_are_tried_and_the_unchanged_replay_keeps_to_those_of_now(
    tenants: tuple[Tenant, Tenant],
) -> None:
    red, _ = tenants
    divide(red, vision=(0, 2))
    ran(red, 2, 0, 0, 60, project="vision")
    ran(red, 2, 1, 60, 90, project="vision")
    ran(red, 2, 2, 2, 10)
    seen = answer()
    assert (seen["same_starts"], seen["limit_changes"]) == (1.0, 0)
    ran(red, 4, 100, 100, 110)  # in no project: as many as the tenant can have

    def changed_wait_s(*arguments: str) -> float:
        (its,) = answer(*arguments)["tenants"]
        assert its["replayed_wait_s"] == pytest.approx(59 * 60 / 4)
        return float(its["changed_wait_s"])

    assert changed_wait_s("--project-limit", "red/vision:cpu=none") == pytest.approx(29 * 60 / 4)
    assert changed_wait_s("--project-limit", "red/vision:cpu=4", "--guarantee", "red/vision:cpu=1") == (
        pytest.approx(29 * 60 / 4)
    )
    assert ProjectShare.objects.get().limit == 2, "nothing changed"
    ProjectChange.objects.create(
        tenant=red, project="vision", gpu_type="cpu", terms={"limit": [4, 2]}, reason="r", change_set=uuid.uuid4(),
        actor=factories.user("manager"),
    )  # fmt: skip
    assert "Not taken into account: 1 change of limits, and nodes that were others then." in lines()


def test_another_policy_is_tried(tenants: tuple[Tenant, Tenant]) -> None:
    """The second job overtook one that did not fit; in strict order it would not have."""
    red, green = tenants
    ran(red, 3, 0, 0, 60)
    ran(red, 4, 1, 60, 70)
    ran(green, 1, 2, 2, 10)
    seen = answer("--limit", "red:cpu=8", "--policy", "fifo")
    waits = {each["tenant"]: each["changed_wait_s"] for each in seen["tenants"]}
    assert waits["green"] == pytest.approx(68 * 60)


def test_what_ran_before_the_time_is_there_and_what_ended_before_it_is_not(
    tenants: tuple[Tenant, Tenant],
) -> None:
    red, green = tenants
    ran(red, 1, -2_000, -2_000, 20)
    ran(green, 4, -1_900, 20, 30)  # waits since before the time, for what is placed before it
    ran(red, 4, -3_000, -3_000, -2_500)
    ran(red, 1, 25, 30, 40)
    seen = answer()
    assert seen["stays"] == 1
    assert seen["tenants"][0]["replayed_wait_s"] == pytest.approx(5 * 60)


def test_a_resume_is_asked_for_again_and_a_stop_by_the_platform_is_not(
    tenants: tuple[Tenant, Tenant],
) -> None:
    red, _ = tenants
    job = ran(red, 1, 0, 0, 10)
    stopped = BEGIN + timedelta(hours=4)
    for state, at in ((State.STOPPING, 0), (State.HALTED, 30)):
        moved(job, state, State.QUEUED, stopped + timedelta(minutes=at))
        held(job, stopped + timedelta(minutes=at + 5), stopped + timedelta(minutes=at + 15))
    assert answer()["stays"] == 2
    assert answer()["tenants"][0]["wait_s"] == pytest.approx(2.5 * 60), (
        "at once, and 5 minutes after the resume"
    )


def moved(job: Job, before: State, after: State, at: datetime) -> None:
    n = JobEvent.objects.filter(job=job).count() + 1
    JobEvent.objects.create(
        job=job, tenant=job.tenant, n=n, at=at, code=EventCode.MOVED, from_state=before, to_state=after,
        source="lifecycle",
    )  # fmt: skip


def test_jobs_of_the_platform_itself_are_replayed() -> None:
    """Submitted, placed, halted, resumed and placed again by services and lifecycle."""
    with two_nodes() as world:
        ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=4, ready=True)
        job = world.running()
        job_halt(user=world.alice, job_id=job.pk)
        world.settle()
        world.exit(job, halted=True)
        world.done(job)
        world.settle()
        job.refresh_from_db()
        assert job.state == State.HALTED
        job_resume(user=world.alice, job_id=job.pk)
        world.settle()
        world.report(job, phase=Phase.PROCESSING)
        world.settle()
        world.exit(job)
        world.done(job)
        world.settle()
        job.refresh_from_db()
        assert (job.state, job.attempt) == (State.COMPLETED, 2)
        seen = answer()
    assert (seen["stays"], seen["same_starts"], seen["never_started"]) == (2, 1.0, 0)


def test_what_a_replay_does_not_know_is_said(tenants: tuple[Tenant, Tenant]) -> None:
    red, _ = tenants
    assert lines() == ["Nothing was submitted or resumed and started in this time."]
    ran(red, 1, 0, 0, 10)
    waited(job_of_the_past(red, 4, BEGIN), WaitReason.INSUFFICIENT_CAPACITY, BEGIN)
    assert "Not taken into account: 1 job that never started, and nodes that were others then." in lines()
    (never,) = answer("--limit", "red:cpu=0")["tenants"]
    assert (never["not_started"], never["replayed_not_started"], never["compared"]) == (1, 0, 0)
    assert (never["wait_s"], never["changed_wait_s"], never["changed_total_s"]) == (None, None, None)
    assert lines("--limit", "red:cpu=0")[-1].split() == [
        "red",
        "1",
        "0",
        "–",
        "–",
        "–",
        "0,",
        "1",
        "none",
        "in",
        "both",
    ]


def test_what_still_runs_has_not_ended_and_runs_on_wherever_it_is_put(tenants: tuple[Tenant, Tenant]) -> None:
    """Without green's job red's first starts an hour earlier, which does not make it end, or green's last start."""
    red, green = tenants
    ran(green, 4, 0, 0, 60)
    held(job_of_the_past(red, 4, BEGIN + timedelta(minutes=1)), BEGIN + timedelta(minutes=60), None)
    seen = answer("--limit", "green:cpu=0")
    assert (seen["stays"], seen["still_running"]) == (2, 1)
    its = seen["tenants"][1]
    assert (its["tenant"], its["compared"], its["changed_wait_s"]) == ("red", 1, pytest.approx(0))
    assert (its["ended"], its["still_running"], its["changed_total_s"]) == (0, 1, None)
    shown = lines("--limit", "green:cpu=0")
    assert (
        shown[1]
        == "1 of them still runs: when it would end is not known, so it counts as started, not as ended."
    )
    assert shown[-1].endswith("none in both")


def test_what_was_stopped_and_waits_to_run_on_has_not_ended(tenants: tuple[Tenant, Tenant]) -> None:
    red, green = tenants
    job = job_of_the_past(red, 4, BEGIN)
    Attempt.objects.create(
        job=job, tenant=red, n=1, cluster="memory", slot_type="cpu", slots=4, learners=1, nodes=["node-a"],
        opened_at=BEGIN, closed_at=BEGIN + timedelta(hours=1), held=False, outcome=State.QUEUED,
    )  # fmt: skip
    ran(green, 4, 1, 60, 70)
    seen = answer()
    assert seen["still_running"] == 1
    assert [(each["ended"], each["not_started"]) for each in seen["tenants"]] == [(0, 1), (0, 0)]
    Job.objects.filter(pk=job.pk).update(state=State.HALTED)
    assert [each["ended"] for each in answer()["tenants"]] == [1, 1]


def test_what_waits_when_the_time_begins_keeps_its_turn(tenants: tuple[Tenant, Tenant]) -> None:
    """Two wait then for the slots of a third, the one that was made first for less time; the newcomer comes last."""
    red, _ = tenants
    ran(red, 4, -3_000, -3_000, 10)
    ran(red, 2, -1_900, 20, 60)
    ran(red, 4, -2_000, 10, 20)
    ran(red, 2, 5, 20, 30)
    (its,) = answer()["tenants"]
    assert (its["stays"], its["replayed_wait_s"]) == (1, pytest.approx(15 * 60))


def test_the_waits_of_a_row_are_of_the_same_runs_and_what_is_left_out_is_said(
    tenants: tuple[Tenant, Tenant],
) -> None:
    red, green = tenants
    ran(green, 4, 0, 0, 30)
    ran(red, 4, 1, 30, 60)
    ran(red, 2, 61, 61, 70)
    its = answer("--limit", "red:cpu=2")["tenants"][1]
    assert (its["stays"], its["compared"], its["not_started"], its["replayed_not_started"]) == (2, 1, 1, 0)
    assert [its[f"{name}wait_s"] for name in ("", "replayed_", "changed_")] == [pytest.approx(0)] * 3


def test_too_many_plans_are_put_off_and_that_is_said(
    tenants: tuple[Tenant, Tenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    for minute in range(20):
        ran(tenants[0], 1, minute, minute, minute + 1)
    assert answer()["plans_late_s"] == 0
    monkeypatch.setattr(replays, "WORK", 500)
    assert answer()["plans_late_s"] > 60
    assert any(
        line.startswith("There was too much for a plan at each change: starts can be ") for line in lines()
    )


def test_progress_is_shown_as_a_part_of_the_simulated_time(tenants: tuple[Tenant, Tenant]) -> None:
    for hour in range(24):
        ran(tenants[0], 1, 60 * hour, 60 * hour, 60 * hour + 1)
    err = StringIO()
    call_command("what_if", "--replay", "2", "--policy", "fifo", stdout=StringIO(), stderr=err)
    shown = [int(line.partition(" %")[0]) for line in err.getvalue().splitlines()]
    assert shown == sorted(set(shown))
    assert (len(shown) > 5, shown[-1]) == (True, 100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replay", "0"], "'0' is not a number of days from 0 to 366, e.g. 7"),
        (["--replay", "soon"], "'soon' is not a number of days"),
        (
            ["--replay", "1", "--policy", "best"],
            '--policy: "best" is not a scheduling policy; known: fair_share',
        ),
        (["--policy", "fifo"], "--policy: is for --replay DAYS."),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError) as raised:
        call_command("what_if", *arguments)
    assert message in str(raised.value)


def test_more_than_is_replayed_at_once_is_refused(
    tenants: tuple[Tenant, Tenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(tenants[0], 1, 0, 0, 10)
    ran(tenants[0], 1, 0, 0, 10)
    monkeypatch.setattr(replays, "MOST", 1)
    with pytest.raises(CommandError, match=r"--replay: more than .* attempts; try fewer days"):
        answer()


def test_a_replay_in_which_nothing_starts_is_said_to_be_one(tenants: tuple[Tenant, Tenant]) -> None:
    red, _ = tenants
    ran(red, 1, 0, 0, 10)
    Quota.objects.filter(tenant=red).update(limit=0)
    assert lines()[0] == (
        "1 run was asked for. As the limits are now, 0% of them start within 60 s of when they did."
    )


def test_a_replay_stops_at_the_end_of_a_budget_from_what_was_used_before(
    tenants: tuple[Tenant, Tenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    red, _ = tenants
    ClusterNode.objects.create(name="node-g", slot_type="a100", slots=4, ready=True)
    Quota.objects.create(tenant=red, gpu_type="a100", limit=4)
    first = datetime.combine((BEGIN - timedelta(days=6)).date(), datetime.min.time(), UTC)
    monkeypatch.setattr(replays, "month_of", lambda at: (first, first + timedelta(days=30)))
    for minutes in ((0, 0, 60), (70, 70, 100)):  # four GPU-hours, and two
        job = ran(red, 4, *minutes, gpus=4, gpu_type="a100")

    def ended(hours: float | None, *, hard: bool = True) -> tuple[int, int]:
        Tenant.objects.filter(pk=red.pk).update(budget_gpu_hours=hours, budget_is_hard=hard)
        seen = answer()
        assert seen["same_starts"] == 1.0
        return seen["budgets"], seen["tenants"][0]["ended"]

    assert [ended(hours) for hours in (None, 6.5, 5.5)] == [(0, 2), (1, 2), (1, 1)]
    assert ended(5.5, hard=False) == (0, 2), "it holds no job"
    UsageDay.objects.create(
        tenant=red, slot_type="a100", day=first.date(), owner=job.owner, used=2 * 3600, waited=0, lost=0
    )
    assert ended(6.5) == (1, 1)
