"""A gang that is not complete in time releases its slots with the missing learner's reason, and is placed elsewhere."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from gpu_scheduler.clusters.base import ClusterBusy, GangBlocked, GangReport, LearnerPhase, LearnerReport
from jobs.lifecycle.decision import Act, decide
from jobs.lifecycle.facts import (
    CLUSTER_BUSY,
    NODE_SILENT,
    PREPARING,
    JobObservation,
    LearnerObservation,
    Reason,
)
from jobs.models import ClusterNode, Job, Runtime
from jobs.selectors.nodes import scheduler_nodes
from jobs.states import EventCode, Intent, Phase, State, StopReason
from tenants.models import Tenant
from tests.jobs.lifecycle.world import LOOK_S, World, gang, is_rfc3339, job_of, state


def waiting(rank: int, message: str = "", shown: LearnerPhase = LearnerPhase.PREPARING) -> LearnerObservation:
    """A learner on node-<rank> whose agent has not reported yet."""
    node = f"node-{rank}"
    return LearnerObservation(
        rank, node, report=LearnerReport(rank, node, f"u{rank}", shown, message=message)
    )


def deploying(*learners: LearnerObservation, left_s: float | None = -1, **fields: Any) -> JobObservation:
    reports = tuple(one.report for one in learners if one.report is not None)
    fields = {
        "launched": True,
        "attempt": 1,
        "state": State.DEPLOYING,
        "gang": GangReport("job-x-1", reports),
        **fields,
    }
    return JobObservation(id="x", learners=learners, deploy_left_s=left_s, **fields)


def test_a_late_gang_stops_with_the_reason_of_the_learner_of_which_the_cluster_says_one() -> None:
    pull = 'Cannot pull image example.org/a:1 yet: "i/o timeout"'
    job = deploying(waiting(0), waiting(1, shown=LearnerPhase.RUNNING), waiting(2, pull))
    move = decide(job).move
    assert move is not None
    assert (move.to, move.stop_reason, move.avoid) == (State.STOPPING, StopReason.DEPLOY_TIMEOUT, ("node-2",))
    assert move.reason.code == "deploy_timeout"
    assert f"Learner 2 on node-2 is not complete: {pull}" in move.reason.message
    assert move.reason.numbers == {"learner": 2, "node": "node-2", "missing": 3}


@pytest.mark.parametrize(
    ("learner", "said"),
    [
        (waiting(1), "has not started its containers and does not say why"),
        (waiting(1, shown=LearnerPhase.RUNNING), "it runs, but its agent has not reported"),
    ],
)
def test_a_late_learner_of_which_the_cluster_says_nothing_is_not_explained_by_a_guess(
    learner: LearnerObservation, said: str
) -> None:
    move = decide(deploying(learner)).move
    assert move is not None
    assert said in move.reason.message


def test_a_gang_with_time_left_or_without_a_deadline_or_complete_goes_on() -> None:
    assert decide(deploying(waiting(0), left_s=5)).move is None
    assert decide(deploying(waiting(0), left_s=None)).move is None
    ready = LearnerObservation(0, "node-0", Phase.DOWNLOADING, report=waiting(0).report)
    forward = decide(deploying(ready)).move
    assert forward is not None
    assert forward.to == State.DOWNLOADING


def test_a_gang_that_cannot_be_launched_in_time_stops_only_if_the_cluster_answers() -> None:
    blocked = Reason(CLUSTER_BUSY, "Waiting for the cluster: Node node-a cannot take it.", {"node": "node-a"})
    move = decide(deploying(launched=False, reason=blocked)).move
    assert move is not None
    assert (move.stop_reason, move.avoid) == (StopReason.DEPLOY_TIMEOUT, ("node-a",))
    away = Reason(CLUSTER_BUSY, "Waiting for the cluster: it does not answer.")
    assert decide(deploying(launched=False, reason=away)).act is Act.LAUNCH


def test_a_learner_whose_shipper_works_is_not_complete_while_its_image_cannot_be_pulled() -> None:
    """A pod's sidecar starts first, and takes the job to DOWNLOADING."""
    pull = "Cannot pull image example.org/a:1 yet: no answer"
    stuck = replace(waiting(0, pull), phase=Phase.READY)
    works = replace(waiting(1, shown=LearnerPhase.RUNNING), phase=Phase.DOWNLOADING)
    gang = GangReport("job-x-1", (), message=f"Learner 0: {pull}")
    early = decide(deploying(stuck, works, left_s=5, state=State.DOWNLOADING, gang=gang))
    assert early.note == Reason(PREPARING, f"Learner 0: {pull}")
    move = decide(deploying(stuck, works, state=State.DOWNLOADING, gang=gang)).move
    assert move is not None
    assert (move.stop_reason, move.avoid) == (StopReason.DEPLOY_TIMEOUT, ("node-0",))
    downloads = decide(deploying(works, state=State.DOWNLOADING))
    assert downloads.move is None, "a long download is no failure to start"


def test_a_halt_wins_over_the_deadline() -> None:
    move = decide(deploying(waiting(0), intent=Intent.HALT)).move
    assert move is not None
    assert move.stop_reason == StopReason.HALT_REQUESTED


def deployed(world: World) -> Job:
    """A job on node-a whose learner never starts."""
    world.cluster.starts_in_s = 10_000
    job = world.submit()
    world.settle()
    assert job.attempts.get().nodes == ["node-a"]
    return job


def test_a_late_job_releases_its_slots_and_starts_on_another_node(world: World) -> None:
    job = deployed(world)
    world.elapse(550)
    world.settle()
    assert state(job) == State.DEPLOYING
    world.elapse(60)
    world.settle()  # is asked to stop
    world.elapse(60)
    world.settle()  # is removed, and placed again at once
    first, second = job.attempts.order_by("n")
    assert (first.held, first.outcome) == (False, "deploy_timeout")
    assert "Learner 0 on node-a is not complete" in first.message
    assert second.nodes == ["node-b"]
    assert job_of(job).restarts_used == 0
    marked = ClusterNode.objects.get(name="node-a")
    assert marked.avoid_until is not None
    assert marked.avoid_until > timezone.now() + timedelta(minutes=20)
    assert "Learner 0 on node-a" in marked.avoid_reason
    assert gang(job) in world.cluster.listing()
    world.cluster.starts_in_s = 0
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    assert state(job) == State.PROCESSING
    assert not job.events.filter(code=EventCode.LEARNER_RESTARTED).exists(), "it runs for the first time"


def test_a_node_that_returns_in_time_keeps_the_gang_whose_image_it_pulls(world: World) -> None:
    job = deployed(world)
    world.elapse(100)
    world.cluster.node_down("node-a")
    for _ in range(3):
        world.elapse(13)
        world.settle()
        shown = job_of(job)
        assert (shown.state, shown.reason_code) == (State.DEPLOYING, NODE_SILENT)
    assert is_rfc3339(shown.reason_numbers["since"])
    assert shown.reason_message.startswith(
        "Node node-a is not responding, and learner 0 has not reported yet."
    )
    world.cluster.node_up("node-a")
    world.elapse(LOOK_S)
    world.settle()
    assert job_of(job).reason_code != NODE_SILENT
    world.elapse(20)
    world.cluster.node_down("node-a")
    world.elapse(LOOK_S)
    world.settle()
    world.elapse(30)
    world.settle()
    assert state(job) == State.DEPLOYING, "each silence counts on its own"
    world.cluster.node_up("node-a")
    world.cluster.starts_in_s = 0
    world.settle()
    shown = job_of(job)
    assert (shown.attempt, shown.restarts_used, shown.early_ends) == (1, 0, 0)
    assert not ClusterNode.objects.exclude(avoid_until=None).exists()


def test_a_node_that_stays_away_while_it_pulls_the_image_is_avoided_and_costs_no_restart(
    world: World,
) -> None:
    job = deployed(world)
    world.cluster.node_down("node-a")
    world.elapse(LOOK_S)
    world.settle()
    world.elapse(50)
    world.settle()
    assert (state(job), job_of(job).stop_reason) == (State.STOPPING, StopReason.NODE_LOST)
    world.elapse(30)
    world.settle()
    first, second = job.attempts.order_by("n")
    assert (first.outcome, second.nodes, job_of(job).restarts_used) == ("node_lost", ["node-b"], 0)
    marked = ClusterNode.objects.get(name="node-a")
    assert marked.avoid_until is not None
    assert marked.avoid_reason == "Node node-a is not responding and learner 0 is silent."


def test_a_deadline_that_ends_while_the_node_does_not_answer_blames_the_node(world: World) -> None:
    job = deployed(world)
    world.elapse(590)
    world.settle()
    world.cluster.node_down("node-a")
    world.elapse(2)
    world.settle()
    world.elapse(20)
    world.settle()
    first = job.attempts.get(n=1)
    assert job_of(job).stop_reason == StopReason.DEPLOY_TIMEOUT
    assert "Learner 0 on node-a is not complete: node node-a is not responding." in job_of(job).reason_message
    assert ClusterNode.objects.exclude(avoid_until=None).get().name == "node-a"
    world.elapse(60)
    world.settle()
    first.refresh_from_db()
    assert (first.outcome, job_of(job).restarts_used) == ("deploy_timeout", 0)


def test_a_silent_node_is_awaited_while_the_agent_there_sets_the_program_up(world: World) -> None:
    job = world.submit()
    world.settle()
    world.report(job, phase=Phase.DOWNLOADING)
    world.cluster.node_down(job.attempts.get().nodes[0])
    for _ in range(4):
        world.elapse(30)
        world.report(job, phase=Phase.DOWNLOADING)
        world.settle()
    assert (state(job), job_of(job).attempt) == (State.DOWNLOADING, 1)


def test_a_job_that_fits_on_avoided_nodes_only_starts_there(world: World) -> None:
    job = deployed(world)
    later = timezone.now() + timedelta(hours=1)
    for node in scheduler_nodes():
        ClusterNode.objects.filter(name=node.name).update(avoid_until=later)
    other = world.submit()
    world.settle()
    assert {state(job), state(other)} == {State.DEPLOYING}


def test_a_node_that_cannot_take_the_gang_is_avoided_and_a_silent_cluster_is_waited_for(world: World) -> None:
    world.cluster.fail_next("launch", ClusterBusy("no answer"), times=1)
    world.cluster.fail_next("launch", GangBlocked("Node node-a cannot take it.", node="node-a"), times=1000)
    job = world.submit()
    world.settle()
    assert "no answer" in job_of(job).reason_message
    world.elapse(700)
    world.tick()  # a deadline during an outage stops nothing: it tries again
    assert (state(job), job_of(job).reason_numbers) == (State.DEPLOYING, {"node": "node-a"})
    world.elapse(5)
    world.tick()
    assert job.attempts.get(n=1).outcome == "deploy_timeout"
    assert ClusterNode.objects.exclude(avoid_until=None).get().name == "node-a"


def test_the_nodes_row_keeps_the_mark_while_the_cluster_reports_changes(world: World) -> None:
    later = timezone.now() + timedelta(hours=1)
    world.settle()
    ClusterNode.objects.filter(name="node-a").update(avoid_until=later, avoid_reason="It failed.")
    world.cluster.node_down("node-a")
    world.submit()
    world.settle()
    row = ClusterNode.objects.get(name="node-a")
    assert (row.ready, row.avoid_until, row.avoid_reason) == (False, later, "It failed.")


def test_a_framework_with_an_image_of_its_own_runs_that_image_where_images_run(world: World) -> None:
    Runtime.objects.create(slug="sklearn", title="scikit-learn", image="example.org/sklearn:2")
    Tenant.objects.update(image_patterns=["example.org/sklearn"])
    job = world.submit()
    world.settle()
    spec = world.cluster.launched(gang(job))
    assert (spec.image, spec.runtime) == ("example.org/sklearn:2", None)
    Runtime.objects.update(image="")
    other = world.submit()
    world.settle()
    spec = world.cluster.launched(gang(other))
    assert (spec.image, spec.runtime) == (None, "sklearn")
