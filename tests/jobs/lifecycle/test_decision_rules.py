"""Rules of the decision that hold for many rows: who is charged, how long a wait is, what a reason says."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from gpu_scheduler.clusters.base import LearnerPhase
from jobs.lifecycle.decision import WAIT_WORKING_S, Act, decide
from jobs.lifecycle.facts import JobObservation, Move, Order, Reason
from jobs.states import BY_ORDER, FINAL, HOLDS_GPUS, Intent, Phase, State, StopReason
from learner_agent.wire_fields import SETUP_FAILED
from tests.jobs.lifecycle.observations import (
    CANCEL,
    EXITED,
    HALT,
    HALTING,
    STORES,
    P,
    S,
    learner,
    outcome,
    program_ended,
    seen,
)


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
