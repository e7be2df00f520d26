"""The decision, row by row: what is known on the left, the one next step on the right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.lifecycle.decision import decide, moves_ahead
from jobs.lifecycle.facts import JobObservation
from jobs.states import FINAL, TRANSITIONS, Phase, State
from tests.jobs.lifecycle.observations import (
    CANCEL,
    ENDED_OK,
    EXITED,
    FAILED,
    FAILING,
    FAILS,
    HALT,
    HALTING,
    HUNG,
    KILLED,
    REFUSED,
    RUNNING,
    STORES,
    UNKNOWN,
    P,
    S,
    learner,
    outcome,
    program_ended,
    seen,
)

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


def test_a_decision_depends_on_nothing_but_its_facts() -> None:
    for _, job, expected in TABLE:
        assert decide(replace(job)) == decide(job)
        assert outcome(decide(job)) == expected


AHEAD: list[tuple[str, JobObservation, list[State]]] = [
    ("it downloads", seen(State.DEPLOYING, learner(Phase.DOWNLOADING)), [State.DOWNLOADING]),
    ("it runs", seen(State.DEPLOYING), [State.DOWNLOADING, P]),
    (
        "its deadline is over, and it runs",
        seen(State.DEPLOYING, deploy_left_s=-1.0),
        [State.DOWNLOADING, P],
    ),
    (
        "it has ended",
        seen(State.DEPLOYING, learner(**EXITED, exit_code=0)),
        [State.DOWNLOADING, P, State.STORING],
    ),
    ("it has ended while it ran", seen(P, learner(**EXITED, exit_code=0)), [State.STORING]),
    (
        "one of two has ended",
        seen(State.DEPLOYING, learner(**EXITED, exit_code=0), learner(rank=1)),
        [State.DOWNLOADING, P],
    ),
    (
        "it has delivered",
        seen(State.STORING, learner(Phase.DONE, None, delivered=True), gone=True),
        [State.COMPLETED],
    ),
    ("it has failed", seen(State.DEPLOYING, learner(**EXITED, exit_code=1)), [S]),
    ("it halts", seen(State.DEPLOYING, **HALT), [S]),
    ("it was halted and has ended", seen(S, learner(**EXITED, exit_code=0), **HALTING), [State.STORING]),
]


@pytest.mark.parametrize(("job", "states"), [row[1:] for row in AHEAD], ids=[row[0] for row in AHEAD])
def test_moves_ahead_are_those_that_the_same_observation_leads_to(
    job: JobObservation, states: list[State]
) -> None:
    first = decide(job).move
    assert first is not None
    assert [move.to for move in moves_ahead(job, first)] == states
