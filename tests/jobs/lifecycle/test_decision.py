"""The decision, row by row: what is known on the left, the one next step on the right."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from gpu_scheduler.clusters.base import EndReason, GangReport, LearnerPhase, LearnerReport
from jobs.lifecycle.decision import WAIT_WORKING_S, Act, Decision, Move, decide
from jobs.lifecycle.facts import JobObservation, LearnerObservation, Order, Reason
from jobs.states import (
    BY_ORDER,
    FINAL,
    HOLDS_GPUS,
    RESULTS_NOT_KEPT,
    TRANSITIONS,
    Intent,
    Phase,
    State,
    StopReason,
)
from learner_agent.wire_fields import SETUP_FAILED

RUNNING, ENDED_OK, FAILED, UNKNOWN = (
    LearnerPhase.RUNNING,
    LearnerPhase.SUCCEEDED,
    LearnerPhase.FAILED,
    LearnerPhase.UNKNOWN,
)


def learner(
    phase: Phase = Phase.PROCESSING, shown: LearnerPhase | None = RUNNING, rank: int = 0, **fields: Any
) -> LearnerObservation:
    why, exit_code = fields.pop("why", ""), fields.pop("shown_code", None)
    reason = EndReason(why) if why else None
    report = LearnerReport(rank, "node-a", f"u{rank}", shown, exit_code, reason) if shown else None
    fields.setdefault("silent_s", 1.0)
    return LearnerObservation(rank=rank, node="node-a", phase=phase, report=report, **fields)


def program_ended(one: LearnerObservation) -> LearnerObservation:
    """Its launcher is dead, its shipper at work."""
    assert one.report is not None
    return replace(one, report=replace(one.report, program_ended=True))


def seen(state: State, *learners: LearnerObservation, gone: bool = False, **fields: Any) -> JobObservation:
    """A launched gang of these learners, by default one that runs the program."""
    group = learners or (learner(),)
    reports = tuple(one.report for one in group if one.report is not None)
    gang = None if gone else GangReport("job-x-1", reports)
    fields.setdefault("launched", True)
    fields.setdefault("attempt", 1)
    if stop_reason := fields.get("stop_reason"):
        fields.setdefault("reason", Reason(stop_reason, "What had happened."))
    return JobObservation(id="x", state=state, learners=tuple(group), gang=gang, **fields)


def outcome(decision: Decision) -> str:
    """One word: the state moved to (with its stop reason), the act, or 'wait', or 'settle'."""
    if decision.move is not None:
        stop = f" {decision.move.stop_reason}" if decision.move.stop_reason else ""
        return f"{decision.move.to}{stop}"
    if decision.act is not Act.NONE:
        return decision.act.value
    return "settle" if decision.requeue_after_s is None else "wait"


EXITED = {"phase": Phase.EXITED, "exited": True}
STORES = {"phase": Phase.STORING, "exited": True, "exit_code": 1}
HUNG = {**EXITED, "phase": Phase.STORING, "exit_code": 0, "stalled_s": 1801.0}
REFUSED = {**EXITED, "error_code": RESULTS_NOT_KEPT}
P, S = State.PROCESSING, State.STOPPING
KILLED, FAILS = learner(**EXITED, exit_code=143, exited_s=1.0), "STOPPING learner_failed"
HALT, CANCEL = {"intent": Intent.HALT}, {"intent": Intent.CANCEL}
HALTING = {"stop_reason": "halt_requested", "intent": Intent.HALT, "intent_gen": 2, "grace_s": 60.0}
FAILING = {
    "stop_reason": "learner_failed",
    "reason": Reason("learner_failed", "Learner 0 exited with code 1."),
}

TABLE: list[tuple[str, JobObservation, str]] = [
    # Waiting
    ("queued waits", JobObservation("x", State.QUEUED), "wait"),
    ("queued, halt", JobObservation("x", State.QUEUED, **HALT), "HALTED"),
    ("queued, cancel", JobObservation("x", State.QUEUED, **CANCEL), "CANCELED"),
    ("queued, backing off", JobObservation("x", State.QUEUED, wait_s=20), "wait"),
    ("queued, without versions", JobObservation("x", State.QUEUED, needs_versions=True), "choose"),
    (
        "without versions, cancel",
        JobObservation("x", State.QUEUED, needs_versions=True, **CANCEL),
        "CANCELED",
    ),
    ("halted, without versions", JobObservation("x", State.HALTED, needs_versions=True, **HALT), "settle"),
    ("halted rests", JobObservation("x", State.HALTED, **HALT), "settle"),
    ("halted, resume", JobObservation("x", State.HALTED), "QUEUED"),
    ("halted, cancel", JobObservation("x", State.HALTED, **CANCEL), "CANCELED"),
    *((f"{state} rests", JobObservation("x", state), "settle") for state in sorted(FINAL)),
    # Deploying
    ("not launched", seen(State.DEPLOYING, gone=True, launched=False, observed=False), "launch"),
    (
        "not launched, halt",
        seen(State.DEPLOYING, gone=True, launched=False, **HALT),
        "STOPPING halt_requested",
    ),
    (
        "not launched, cancel",
        seen(State.DEPLOYING, gone=True, launched=False, **CANCEL),
        "STOPPING cancel_requested",
    ),
    ("launched, no heartbeat", seen(State.DEPLOYING, learner(Phase.WAITING, silent_s=None)), "wait"),
    (
        "one of two downloads",
        seen(State.DEPLOYING, learner(Phase.DOWNLOADING), learner(Phase.WAITING, rank=1)),
        "wait",
    ),
    (
        "all download",
        seen(State.DEPLOYING, learner(Phase.DOWNLOADING), learner(Phase.READY, rank=1)),
        "DOWNLOADING",
    ),
    ("one of two is ready", seen(State.DOWNLOADING, learner(), learner(Phase.READY, rank=1)), "wait"),
    ("all process", seen(State.DOWNLOADING, learner(), learner(rank=1)), "PROCESSING"),
    ("quick program ended", seen(State.DEPLOYING, learner(**EXITED, exit_code=0)), "DOWNLOADING"),
    ("gang removed by hand", seen(State.DEPLOYING, gone=True), "STOPPING learner_lost"),
    (
        "inputs are missing",
        seen(State.DOWNLOADING, learner(Phase.DOWNLOADING, error_code="data_error")),
        "STOPPING data_error",
    ),
    (
        "runtime cannot be built",
        seen(State.DEPLOYING, learner(Phase.WAITING, FAILED, why="deploy_failed")),
        "STOPPING deploy_failed",
    ),
    (
        "the node's disk is full before the inputs are there",
        seen(State.DOWNLOADING, learner(Phase.DOWNLOADING, error_code="not_prepared")),
        "STOPPING learner_lost",
    ),
    # Processing
    ("processing", seen(P), "wait"),
    ("processing, halt", seen(P, **HALT), "STOPPING halt_requested"),
    ("processing, cancel", seen(P, **CANCEL), "STOPPING cancel_requested"),
    ("time is up", seen(P, time_left_s=-0.1), "STOPPING time_limit"),
    ("time is up, but the program is over", seen(P, program_ended(learner()), time_left_s=-1), "wait"),
    ("time is not up", seen(P, time_left_s=0.1), "wait"),
    ("exited well", seen(P, learner(**EXITED, exit_code=0)), "STORING"),
    ("exited well, halt came too late", seen(P, learner(**EXITED, exit_code=0), **HALT), "STORING"),
    ("exited well, time is up as well", seen(P, learner(**EXITED, exit_code=0), time_left_s=-1), "STORING"),
    ("one of two exited", seen(P, learner(**EXITED, exit_code=0), learner(rank=1)), "wait"),
    (
        "exited after a halt",
        seen(P, learner(**EXITED, exit_code=0, halted=True), **HALT),
        "STOPPING halt_requested",
    ),
    (
        "exited after a halt that was withdrawn",
        seen(P, learner(**EXITED, exit_code=0, halted=True)),
        "STOPPING halt_requested",
    ),
    (
        "finished mark wins over the halt",
        seen(P, learner(**EXITED, exit_code=0, halted=True, finished_mark=True), **HALT),
        "STORING",
    ),
    (
        "killed by the halt's own SIGTERM",
        seen(P, learner(**EXITED, exit_code=143, halted=True), **HALT),
        "STOPPING halt_requested",
    ),
    ("exited badly", seen(P, learner(**EXITED, exit_code=1)), "STOPPING learner_failed"),
    (
        "the cluster's code wins",
        seen(P, learner(**EXITED, exit_code=0, shown_code=9)),
        "STOPPING learner_failed",
    ),
    (
        "the cluster knows the code, the shipper has not reported yet",
        seen(P, learner(Phase.PROCESSING, RUNNING, shown_code=0)),
        "wait",
    ),
    ("ended, shipper died with it", seen(P, learner(Phase.PROCESSING, ENDED_OK, shown_code=0)), "STORING"),
    (
        "out of memory",
        seen(P, learner(Phase.PROCESSING, FAILED, shown_code=137, why="out_of_memory")),
        "STOPPING learner_failed",
    ),
    ("processes gone without a code", seen(P, learner(Phase.PROCESSING, FAILED)), "STOPPING learner_lost"),
    (
        "evicted",
        seen(P, learner(Phase.PROCESSING, FAILED, why="evicted", shown_code=137)),
        "STOPPING learner_lost",
    ),
    ("killed a moment ago, the cluster does not say why yet", seen(P, KILLED), "wait"),
    (
        "stopped a moment ago by a signal that its program turned into a code of its own",
        seen(P, learner(**EXITED, exit_code=1, exited_s=1.0, halted=True)),
        "wait",
    ),
    (
        "asked to leave a moment ago, it saved, and the cluster does not say why yet",
        seen(P, learner(**EXITED, exit_code=0, exited_s=1.0, halted=True)),
        "wait",
    ),
    (
        "asked to leave, it saved, and the cluster says that it was evicted",
        seen(P, learner(**EXITED, exit_code=0, halted=True, why="evicted", shown_code=0)),
        "STOPPING learner_lost",
    ),
    (
        "exited a moment ago after a halt that was withdrawn",
        seen(P, learner(**EXITED, exit_code=0, exited_s=1.0, halted=True, gen_seen=2)),
        "STOPPING halt_requested",
    ),
    (
        "a code of its own needs no word of the cluster",
        seen(P, learner(**EXITED, exit_code=1, exited_s=1.0)),
        FAILS,
    ),
    ("255 is no signal", seen(P, learner(**EXITED, exit_code=255, exited_s=1.0)), FAILS),
    ("killed, the cluster shows no cause of its own", seen(P, program_ended(KILLED)), FAILS),
    ("killed, and the cluster says nothing for long", seen(P, replace(KILLED, exited_s=11.0)), FAILS),
    (
        "a peer fails with one that was just killed",
        seen(P, learner(rank=1, **EXITED, exit_code=1), KILLED),
        "wait",
    ),
    (
        "killed, and then the cluster says that it was evicted",
        seen(P, learner(**EXITED, exit_code=143, exited_s=2.0, why="evicted", shown_code=143)),
        "STOPPING learner_lost",
    ),
    (
        "its runtime could not be prepared for now",
        seen(State.DEPLOYING, learner(Phase.WAITING, FAILED, why="not_prepared")),
        "STOPPING learner_lost",
    ),
    (
        "node lost by the cluster's report",
        seen(P, learner(Phase.PROCESSING, FAILED, why="node_lost")),
        "STOPPING node_lost",
    ),
    (
        "a node that goes down with grace is no halt",
        seen(P, learner(shown=FAILED, why="node_lost", shown_code=0, exit_code=0, halted=True, **EXITED)),
        "STOPPING node_lost",
    ),
    (
        "a platform that is stopped is neither a halt nor a lost node",
        seen(
            P,
            learner(
                shown=FAILED, why="platform_stopped", shown_code=143, exit_code=143, halted=True, **EXITED
            ),
        ),
        "STOPPING platform_stopped",
    ),
    (
        "it is stopped, the program still saves",
        seen(P, learner(Phase.PROCESSING, why="platform_stopped")),
        "STOPPING platform_stopped",
    ),
    (
        "it is stopped after a halt was requested",
        seen(P, learner(shown=FAILED, why="platform_stopped", exit_code=0, halted=True, **EXITED), **HALT),
        "STOPPING halt_requested",
    ),
    (
        "finished just before the platform was stopped",
        seen(P, learner(shown=RUNNING, why="platform_stopped", exit_code=0, **EXITED)),
        "STORING",
    ),
    ("node silent, learner speaks", seen(P, learner(Phase.PROCESSING, UNKNOWN, silent_s=3)), "wait"),
    (
        "node silent, learner silent",
        seen(P, learner(Phase.PROCESSING, UNKNOWN, silent_s=50)),
        "STOPPING node_lost",
    ),
    ("silence alone", seen(P, learner(silent_s=1e6)), "wait"),
    (
        "its start was refused, its processes are still being ended",
        seen(State.DEPLOYING, learner(Phase.WAITING, why="deploy_failed")),
        "STOPPING deploy_failed",
    ),
    ("killed for its memory, no exit code yet", seen(P, learner(why="out_of_memory")), "wait"),
    # Storing
    ("storing", seen(State.STORING, learner(**EXITED, exit_code=0)), "wait"),
    ("storing, halt", seen(State.STORING, learner(**EXITED, exit_code=0), **HALT), "wait"),
    (
        "storing, cancel",
        seen(State.STORING, learner(**EXITED, exit_code=0), **CANCEL),
        "STOPPING cancel_requested",
    ),
    (
        "stored, gang still there",
        seen(State.STORING, learner(**EXITED, exit_code=0, delivered=True)),
        "remove",
    ),
    (
        "stored, gang gone",
        seen(State.STORING, learner(shown=None, **EXITED, delivered=True), gone=True),
        "COMPLETED",
    ),
    ("results refused, its log still comes", seen(State.STORING, learner(**REFUSED)), "wait"),
    ("results refused, server away", seen(State.STORING, learner(**REFUSED, silent_s=3000)), "wait"),
    ("results refused, silent forever", seen(State.STORING, learner(**REFUSED, silent_s=3601)), "remove"),
    (
        "results refused, the other one still stores",
        seen(State.STORING, learner(**REFUSED, delivered=True), learner(**EXITED, rank=1)),
        "wait",
    ),
    ("results refused, shipper given up", seen(State.STORING, learner(shown=FAILED, **REFUSED)), "remove"),
    ("results refused, log shipped", seen(State.STORING, learner(**REFUSED, delivered=True)), "remove"),
    ("hangs while storing, heartbeats go on", seen(State.STORING, learner(**HUNG)), "remove"),
    ("hangs, then removed", seen(State.STORING, learner(shown=None, **HUNG), gone=True), "FAILED"),
    ("slow, but it advances", seen(State.STORING, learner(**EXITED, stalled_s=1799)), "wait"),
    (
        "one has stored all it can, another one still sends",
        seen(State.STORING, learner(**HUNG), learner(**EXITED, rank=1, stalled_s=5)),
        "wait",
    ),
    (
        "one hangs, the others have delivered",
        seen(State.STORING, learner(**HUNG), learner(**EXITED, rank=1, delivered=True)),
        "remove",
    ),
    ("nothing arrives, for the server was away", seen(State.STORING, learner(**HUNG, silent_s=50)), "wait"),
    ("silence alone loses no results", seen(State.STORING, learner(**EXITED, silent_s=9999)), "wait"),
    ("silent for a day while storing", seen(State.STORING, learner(**EXITED, silent_s=86401)), "remove"),
    (
        "silent for a day, then removed",
        seen(State.STORING, learner(shown=None, **EXITED, silent_s=86401), gone=True),
        "FAILED",
    ),
    (
        "results refused, gone",
        seen(
            State.STORING,
            learner(shown=None, **EXITED, delivered=True, error_code="results_not_kept"),
            gone=True,
        ),
        "FAILED",
    ),
    ("gone before it was stored", seen(State.STORING, learner(shown=None, **EXITED), gone=True), "FAILED"),
    (
        "node lost while storing",
        seen(State.STORING, learner(Phase.STORING, FAILED, why="node_lost")),
        "STOPPING node_lost",
    ),
    (
        "finished, then its node was lost before everything was stored: it does not train again",
        seen(State.STORING, learner(shown=FAILED, why="node_lost", exit_code=0, **EXITED)),
        "remove",
    ),
    (
        "finished, its node shuts down and its shipper still stores",
        seen(State.STORING, learner(why="node_lost", exit_code=0, **EXITED)),
        "wait",
    ),
    (
        "finished, its node does not answer",
        seen(State.STORING, learner(shown=UNKNOWN, silent_s=50, exit_code=0, **EXITED)),
        "wait",
    ),
    (
        "finished, its node has not answered for long",
        seen(State.STORING, learner(shown=UNKNOWN, silent_s=3601, exit_code=0, **EXITED)),
        "remove",
    ),
    # Stopping: ask, then force
    ("asked, it saves", seen(S, stop_s=5, **HALTING), "wait"),
    ("asked, not acknowledged", seen(S, stop_s=11, **HALTING), "stop"),
    ("asked and acknowledged", seen(S, learner(gen_seen=2), stop_s=11, **HALTING), "wait"),
    ("asked and acknowledged, far too long", seen(S, learner(gen_seen=2), stop_s=136, **HALTING), "stop"),
    ("never began", seen(S, learner(Phase.DOWNLOADING), stop_s=0, **HALTING), "stop"),
    ("exited, ships", seen(S, learner(**EXITED, halted=True), stop_s=20, **HALTING), "wait"),
    ("exited, hangs while it ships", seen(S, learner(**HUNG, halted=True), stop_s=400, **HALTING), "remove"),
    (
        "exited, ships for long",
        seen(S, learner(**EXITED, halted=True, silent_s=1), stop_s=9000, **HALTING),
        "wait",
    ),
    (
        "exited, fell silent",
        seen(S, learner(**EXITED, halted=True, silent_s=4000), stop_s=9000, **HALTING),
        "remove",
    ),
    ("all shipped", seen(S, learner(**EXITED, halted=True, delivered=True), stop_s=9, **HALTING), "remove"),
    ("all processes ended", seen(S, learner(shown=FAILED), stop_s=9, **HALTING), "remove"),
    ("gone", seen(S, learner(shown=None), gone=True, **HALTING), "HALTED"),
    (
        "gone, resume requested meanwhile",
        seen(S, learner(shown=None), gone=True, stop_reason="halt_requested"),
        "HALTED",
    ),
    (
        "gone, cancel requested meanwhile",
        seen(S, learner(shown=None), gone=True, stop_reason="halt_requested", **CANCEL),
        "CANCELED",
    ),
    ("finished while halting", seen(S, learner(**EXITED, exit_code=0), **HALTING), "STORING"),
    (
        "finished while canceling",
        seen(S, learner(**EXITED, exit_code=0), stop_reason="cancel_requested", **CANCEL),
        "wait",
    ),
    ("cancel forces at once", seen(S, stop_reason="cancel_requested", **CANCEL), "stop"),
    ("cancel overtakes a halt", seen(S, stop_reason="halt_requested", **CANCEL), "stop"),
    ("cancel gives up waiting", seen(S, stop_s=131, stop_reason="cancel_requested", **CANCEL), "remove"),
    ("failed gang is stopped", seen(S, learner(**EXITED, exit_code=1), learner(rank=1), **FAILING), "stop"),
    ("failed, stores what it left", seen(S, learner(**STORES), stop_s=3000, **FAILING), "wait"),
    ("failed, stores forever", seen(S, learner(**STORES), stop_s=3631, **FAILING), "remove"),
    ("failed, only its log is left", seen(S, learner(**EXITED), stop_s=151, **FAILING), "remove"),
    (
        "failed, one stores and one will not end",
        seen(S, learner(**STORES), learner(rank=1), stop_s=200, **FAILING),
        "stop",
    ),
    (
        "failed and stores, canceled",
        seen(S, learner(**STORES), stop_s=131, stop_reason="learner_failed", **CANCEL),
        "remove",
    ),
    (
        "dead node",
        seen(S, learner(shown=UNKNOWN, silent_s=100), stop_s=21, stop_reason="node_lost"),
        "remove",
    ),
    (
        "its node does not answer for a moment, it saves and speaks",
        seen(S, learner(shown=UNKNOWN, gen_seen=2), stop_s=60, **HALTING),
        "wait",
    ),
    (
        "dead node, not yet",
        seen(S, learner(shown=UNKNOWN, silent_s=100), stop_s=15, stop_reason="node_lost"),
        "stop",
    ),
    # Where STOPPING leads
    ("failed, no budget", seen(S, gone=True, **FAILING), "FAILED"),
    ("failed, budget", seen(S, gone=True, max_restarts=1, **FAILING), "QUEUED"),
    ("failed, budget spent", seen(S, gone=True, max_restarts=1, restarts_used=1, **FAILING), "FAILED"),
    ("failed, halt requested", seen(S, gone=True, max_restarts=1, **FAILING, **HALT), "HALTED"),
    ("lost node is free", seen(S, gone=True, stop_reason="node_lost"), "QUEUED"),
    ("a stop of the platform is free", seen(S, gone=True, stop_reason="platform_stopped"), "QUEUED"),
    ("lost learner is free", seen(S, gone=True, stop_reason="learner_lost"), "QUEUED"),
    ("preempted", seen(S, gone=True, stop_reason="preempted"), "QUEUED"),
    ("time limit", seen(S, gone=True, stop_reason="time_limit"), "FAILED"),
    ("budget of the tenant", seen(S, gone=True, stop_reason="budget_exhausted"), "QUEUED"),
    ("refused image", seen(S, gone=True, stop_reason="image_error"), "FAILED"),
    (
        "no readable checkpoint left",
        seen(S, gone=True, stop_reason="node_lost", corrupt_checkpoints=2),
        "FAILED",
    ),
    (
        "an older checkpoint is left",
        seen(S, gone=True, stop_reason="node_lost", corrupt_checkpoints=2, has_checkpoint=True),
        "QUEUED",
    ),
]


@pytest.mark.parametrize(("job", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_next_step(job: JobObservation, expected: str) -> None:
    assert outcome(decide(job)) == expected


@pytest.mark.parametrize(("job", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_every_move_is_legal_and_says_why(job: JobObservation, expected: str) -> None:
    move = decide(job).move
    if move is None:
        return
    assert move.to in TRANSITIONS[job.state]
    assert (move.stop_reason is not None) == (move.to == State.STOPPING)
    if move.to in FINAL | {State.HALTED, State.QUEUED, State.STOPPING}:
        assert move.reason.code
        if job.reason.message or not job.gang:
            assert move.reason.message.strip().endswith(".")


@pytest.mark.parametrize("intent", list(Intent))
@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("stop_reason", list(StopReason))
def test_a_job_is_never_settled_while_it_holds_slots_or_waits(
    state: State, intent: Intent, stop_reason: StopReason
) -> None:
    job = seen(state, intent=intent, stop_reason=stop_reason)
    decision = decide(job)
    settled = outcome(decision) == "settle"
    assert settled == (state in FINAL or (state == State.HALTED and intent == Intent.HALT))
    if state in HOLDS_GPUS and decision.move is None:
        assert decision.act is not Act.NONE or decision.requeue_after_s is not None


def test_a_program_that_is_over_beyond_its_time_limit_is_not_looked_at_without_a_pause() -> None:
    waits = [
        decide(seen(P, program_ended(learner()), time_left_s=left_s)).requeue_after_s
        for left_s in (None, -1, 0)
    ]
    assert waits == [WAIT_WORKING_S] * 3
    assert decide(seen(P, time_left_s=2.0)).requeue_after_s == 2.0


def test_a_gang_that_starts_is_looked_at_seldom_and_in_time_for_its_deadline() -> None:
    """However many start at the same time, and however long their images take: what they report makes them due."""
    starting = learner(Phase.WAITING, LearnerPhase.PREPARING)
    for state, left_s in product((State.DEPLOYING, State.DOWNLOADING), (None, 600.0)):
        assert decide(seen(state, starting, deploy_left_s=left_s)).requeue_after_s == WAIT_WORKING_S
    assert decide(seen(State.DEPLOYING, starting, deploy_left_s=2.0)).requeue_after_s == 2.0


def test_only_the_programs_own_failure_is_charged() -> None:
    for reason in StopReason:
        move = decide(seen(S, gone=True, stop_reason=reason, max_restarts=3)).move
        assert move is not None
        assert move.charged == (reason == StopReason.LEARNER_FAILED)


def test_a_program_that_ends_its_agents_again_and_again_is_charged_for_it() -> None:
    def move(
        *, failure_class: str = "launcher_lost", losses: int = 3, phase: Phase = P, **fields: Any
    ) -> Move:
        reason = Reason("learner_lost", "The launcher is gone.", {"failure_class": failure_class})
        fields = {"max_restarts": 1, "ran_s": 5.0, "early_ends": 9} | fields
        stopped = {"stop_reason": StopReason.LEARNER_LOST, "reason": reason, "agent_losses": losses}
        moved = decide(seen(S, learner(phase), gone=True, **stopped, **fields)).move
        assert moved is not None
        return moved

    charged = move()
    assert (charged.to, charged.charged, charged.early_ends) == (State.QUEUED, True, 10)
    assert move(failure_class="shipper_failed").charged
    spent = move(restarts_used=1)
    assert (spent.to, spent.reason.code) == (State.FAILED, "learner_lost")
    assert spent.reason.message == "The launcher is gone. Its 1 restart is used up."
    assert move(max_restarts=0).to == State.FAILED
    first = move(losses=2)
    assert (first.to, first.charged, first.agents_lost) == (State.QUEUED, False, True)
    innocent = {"long run": move(ran_s=600.0), "no program": move(phase=Phase.DOWNLOADING)}
    innocent |= {failure_class: move(failure_class=failure_class) for failure_class in ("", "node_lost")}
    for free in innocent.values():
        assert (free.to, free.charged, free.agents_lost) == (State.QUEUED, False, False)
        assert free.wait_s == 300
    assert move(intent=Intent.HALT, max_restarts=0).to == State.HALTED


def test_a_halt_that_met_a_dead_learner_says_so() -> None:
    for code, words in (
        (None, "Halted. The processes of learner 1 on node-a ended without reporting an exit code."),
        (143, "Halted."),
    ):
        dead = learner(shown=None, rank=1, **EXITED, exit_code=code, halted=True)
        move = decide(seen(S, learner(shown=None, **EXITED, exit_code=0), dead, gone=True, **HALTING)).move
        assert move is not None
        assert (move.to, move.reason.message) == (State.HALTED, words)


def test_a_runtime_that_could_not_be_prepared_is_tried_again_free_of_charge_but_not_for_ever() -> None:
    words = "No space is left on node a while preparing the runtime sklearn."
    stopped = {"stop_reason": StopReason.LEARNER_LOST, "reason": Reason("not_prepared", words), "gone": True}
    move = decide(seen(S, early_ends=30, not_prepared=6, **stopped)).move
    assert move is not None
    assert (move.to, move.charged) == (State.QUEUED, False)
    free = "Restarts automatically after 5 min 00 s; doesn't count against max_restarts."
    assert move.reason.message == f"{words} {free}"
    last = decide(seen(S, early_ends=7, not_prepared=7, **stopped)).move
    assert last is not None
    assert (last.to, last.reason.code) == (State.FAILED, "not_prepared")
    assert last.reason.message == f"{words} Tried 8 times in a row."


def test_early_ends_in_a_row_wait_longer_and_longer_whatever_their_cause() -> None:
    def move(reason: StopReason, early_ends: int, **fields: Any) -> Move:
        stopped = {"stop_reason": reason, "early_ends": early_ends, "max_restarts": 30, "gone": True}
        moved = decide(seen(S, **stopped, **fields)).move
        assert moved is not None
        return moved

    for reason in (StopReason.LEARNER_FAILED, StopReason.NODE_LOST, StopReason.LEARNER_LOST):
        waits = [move(reason, before).wait_s for before in range(9)]
        assert waits == [0, 5, 10, 20, 40, 80, 160, 300, 300]
        after_a_good_run = move(reason, 8, ran_s=601.0)
        assert (after_a_good_run.early_ends, after_a_good_run.wait_s) == (1, 0)
    second = move(StopReason.LEARNER_FAILED, 1, restarts_used=1)
    assert second.reason.message == "What had happened. Restart 2 of 30 after 5 s."
    assert second.reason.numbers["wait_s"] == 5
    assert move(StopReason.LEARNER_FAILED, 0).reason.message == "What had happened. Restart 1 of 30."
    for reason in BY_ORDER:
        innocent = move(reason, 3)
        assert (innocent.early_ends, innocent.wait_s) == (0, 0)
    stopped = move(StopReason.PLATFORM_STOPPED, 3)
    assert (stopped.early_ends, stopped.wait_s, stopped.charged) == (3, 0, False)
    assert stopped.reason.code == "platform_stopped"


def test_canceling_beats_every_reason_to_stop() -> None:
    for reason in StopReason:
        assert outcome(decide(seen(S, gone=True, stop_reason=reason, **CANCEL))) == "CANCELED"


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (JobObservation("x", State.QUEUED, **CANCEL), "Canceled while waiting; nothing had started."),
        (
            JobObservation("x", State.QUEUED, attempt=1, **CANCEL),
            "Canceled while waiting in the queue.",
        ),
        (
            JobObservation("x", State.QUEUED, attempt=2, has_checkpoint=True, **CANCEL),
            "Canceled while waiting in the queue; its checkpoints remain.",
        ),
    ],
)
def test_a_cancel_in_the_queue_says_what_had_run(job: JobObservation, words: str) -> None:
    move = decide(job).move
    assert move is not None
    assert (move.to, move.reason.message) == (State.CANCELED, words)


def test_a_silent_learner_is_named_only_while_something_is_due_from_it() -> None:
    finished = learner(**EXITED, exit_code=0, delivered=True, silent_s=60.0)
    healthy = decide(seen(P, finished, learner(rank=1))).note
    assert healthy == Reason("", "")
    silent = decide(seen(P, finished, learner(rank=1, silent_s=50.0))).note
    assert silent is not None
    words = "No heartbeat from learner 1 for 50 s; the cluster still shows its processes."
    assert (silent.code, silent.message) == ("learner_silent", words)


def test_a_halt_that_ends_without_time_left_no_longer_speaks_of_a_store_that_was_away() -> None:
    waited = Reason("store_unavailable", "Halting: what it saved waits.", {"since": "10:00", "kept": 1})
    move = decide(seen(S, gone=True, stop_reason="halt_requested", time_left_s=0.0, reason=waited)).move
    assert move is not None
    assert move.reason == Reason(
        "time_limit", "Halted. Its time limit is used up. Clone it with a larger time_limit.", {"kept": 1}
    )


@pytest.mark.parametrize("saved", [True, False])
def test_checkpoints_are_promised_only_if_there_are_some(saved: bool) -> None:
    start = "; the clone can start from its newest checkpoint" if saved else ""
    hint = f" Clone it with a larger time_limit{start}."
    ends: list[tuple[dict[str, Any], str]] = [
        ({"stop_reason": "time_limit"}, f"Time limit reached.{hint}"),
        (
            {"stop_reason": "node_lost", "time_left_s": 0.0},
            f"What had happened. Its time limit is used up.{hint}",
        ),
        (
            {"stop_reason": "cancel_requested", **CANCEL},
            "Canceled; its checkpoints remain." if saved else "Canceled.",
        ),
    ]
    for fields, words in ends:
        move = decide(seen(S, gone=True, has_checkpoint=saved, **fields)).move
        assert move is not None
        assert move.reason.message == words


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "Its program is asked to save; then it queues again."),
        (HALT, "Its program is asked to save; then it stays halted."),
        ({"launched": False}, "It queues again."),
        ({"launched": False, **HALT}, "It stays halted."),
    ],
)
def test_an_order_says_what_follows_for_this_job(fields: dict[str, Any], words: str) -> None:
    move = decide(seen(State.DEPLOYING, order=Order(StopReason.PREEMPTED), **fields)).move
    assert move is not None
    assert move.reason.message == f"Preempting: another job needs its devices. {words}"


def test_a_decision_depends_on_nothing_but_its_facts() -> None:
    for _, job, expected in TABLE:
        assert decide(replace(job)) == decide(job)
        assert outcome(decide(job)) == expected


def test_a_setup_command_that_failed_is_named_in_the_reason() -> None:
    said = "Setup command 1 of 2 exited with code 3: pip install nothing"
    failed = learner(**STORES | {"exit_code": 3}, error_code=SETUP_FAILED, message=said)
    move = decide(seen(P, failed)).move
    assert move is not None
    assert (move.stop_reason, move.reason.code) == ("learner_failed", "setup_failed")
    assert said in move.reason.message


def test_what_a_program_waits_for_is_shown_while_its_agent_downloads() -> None:
    """On Kubernetes the agent runs before the program's image is there."""
    job = seen(State.DOWNLOADING, learner(Phase.DOWNLOADING, LearnerPhase.PREPARING))
    assert job.gang is not None
    waits = "Learner 0: Cannot pull image a.test/b:1 yet: no such host"
    assert decide(replace(job, gang=replace(job.gang, message=waits))).note == Reason("preparing", waits)
