"""What to do next about one job, given its observation. Pure: no clock, no row, no cluster.

``decide`` returns at most one move or one act on the cluster, and when the job is due again. It is called again after
each, so that a job goes as far as it can. The tables in tests/jobs/lifecycle/test_decision.py are its specification.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from gpu_scheduler.clusters.base import EndReason
from gpu_scheduler.model import timestamp
from jobs.humanize import duration
from jobs.lifecycle import stopping
from jobs.lifecycle.facts import (
    BEING_STARTED,
    CLUSTER_UNAVAILABLE,
    NODE_SILENT,
    PREPARING,
    STORE_UNAVAILABLE,
    JobObservation,
    LearnerObservation,
    Move,
    Order,
    Reason,
    failure,
    halt_reached,
    incomplete,
    node_lost,
)
from jobs.states import FINAL, RESULTS_NOT_KEPT, SILENT_S, Intent, Phase, State, StopReason

WAIT_MOVING_S = 1.0
WAIT_WORKING_S = 5.0
"""Of a launched gang: what its cluster and its agents report makes the job due at once."""
UNAVAILABLE_S = 60.0  # between two attempts to reach a cluster that is not configured
WAIT_QUEUED_S = 600.0  # waiting jobs are the scheduling cycle's business


class Act(StrEnum):
    """One effect on the cluster. Each may happen twice."""

    NONE = "none"
    CHOOSE = "choose"
    LAUNCH = "launch"
    STOP = "stop"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Decision:
    """A move, or an act, or neither. The job is due again after requeue_after_s seconds; None: when its intent changes.

    note: what people should read meanwhile. cut_off: what its history gets before the act. wants_cycle: the scheduling
    cycle must run.
    """

    move: Move | None = None
    act: Act = Act.NONE
    grace_s: float = 0
    requeue_after_s: float | None = None
    note: Reason | None = None
    cut_off: Reason | None = None
    wants_cycle: bool = False


def decide(job: JobObservation) -> Decision:
    """The one next step for this job."""
    match job.state:
        case State.QUEUED:
            return _queued(job)
        case State.HALTED:
            return _halted(job)
        case State.STORING:
            return _storing(job)
        case State.STOPPING:
            return _stopping(job)
        case _ if job.state in FINAL:
            return Decision()
    return _deployed(job)


def decide_without_cluster(job: JobObservation, *, cluster: str, error: str, now: datetime) -> Decision:
    """The next step for a job whose attempt runs on a cluster that this installation's settings do not reach.

    Nothing is known of its learners, so the job stays as it is and says so. Only a cancel ends it, without the
    cluster's confirmation, once the reason has said so for UNAVAILABLE_S: wrong settings may be there for a moment.
    """
    said_before = job.reason.code == CLUSTER_UNAVAILABLE
    since = (
        str(job.reason.numbers["since"]) if said_before and "since" in job.reason.numbers else timestamp(now)
    )
    numbers = {"cluster": cluster, "since": since}
    left_s = UNAVAILABLE_S - (now - datetime.fromisoformat(since)).total_seconds()
    if job.intent == Intent.CANCEL and said_before and left_s <= 0:
        if job.state != State.STOPPING:
            stopping_reason = Reason(
                CLUSTER_UNAVAILABLE, "Canceling without the cluster's confirmation.", numbers
            )
            return _stop(StopReason.CANCEL_REQUESTED, stopping_reason)
        words = (
            f"Canceled without confirmation from the cluster {cluster!r}, which cannot be reached: its learners may"
            f" still run there{stopping.checkpoints_remain(job)}."
        )
        return Decision(move=Move(State.CANCELED, Reason("cancel_requested", words, numbers)))
    note = Reason(
        CLUSTER_UNAVAILABLE,
        f"Attempt {job.attempt} runs on the cluster {cluster!r}, which cannot be reached: {error.rstrip('.')}. Its"
        f" learners may still run there.{_WITHOUT_CLUSTER[job.intent]}",
        numbers,
    )
    waits_s = max(1.0, left_s) if job.intent == Intent.CANCEL else UNAVAILABLE_S
    return Decision(requeue_after_s=waits_s, note=note)


_CANCEL_HERE = "a cancel ends it here, without confirmation that they have ended."
_WITHOUT_CLUSTER = {
    Intent.RUN: f" The job continues once the cluster is configured again; {_CANCEL_HERE}",
    Intent.HALT: f" The halt completes once the cluster is configured again; {_CANCEL_HERE}",
    Intent.CANCEL: (
        f" If the cluster stays unavailable, the job is canceled here after {UNAVAILABLE_S:.0f} s, without confirmation"
        " that they have ended."
    ),
}


def _queued(job: JobObservation) -> Decision:
    if job.intent == Intent.CANCEL:
        return _to(State.CANCELED, "cancel_requested", _canceled_while_it_waited(job))
    if job.intent == Intent.HALT:
        return _to(State.HALTED, "halt_requested", "Halted while waiting; it held no devices.")
    act = Act.CHOOSE if job.needs_versions else Act.NONE
    if job.wait_s > 0:
        return Decision(act=act, requeue_after_s=min(job.wait_s, WAIT_QUEUED_S))
    return Decision(act=act, requeue_after_s=WAIT_QUEUED_S, wants_cycle=True)


def _canceled_while_it_waited(job: JobObservation) -> str:
    if not job.attempt:
        return "Canceled while waiting; nothing had started."
    return f"Canceled while waiting in the queue{stopping.checkpoints_remain(job)}."


def _halted(job: JobObservation) -> Decision:
    if job.intent == Intent.CANCEL:
        words = f"Canceled while halted{stopping.checkpoints_remain(job)}."
        return _to(State.CANCELED, "cancel_requested", words)
    if job.intent == Intent.RUN:
        return _to(State.QUEUED, "resume_requested", "Resumed; waits for the next scheduling cycle.")
    return Decision()


_CANCELING = Reason("cancel_requested", "Canceling: its learners are stopped.")
_HALTING = Reason("halt_requested", "Halting: its learners are asked to save, then release their devices.")


def _deployed(job: JobObservation) -> Decision:
    """DEPLOYING, DOWNLOADING and PROCESSING: the gang is being launched or works."""
    if job.intent == Intent.CANCEL:
        return _stop(StopReason.CANCEL_REQUESTED, _CANCELING)
    if not job.launched:
        if job.intent == Intent.HALT:
            return _halt(job, "Halting before it was deployed.")
        if job.pending_order is not None:
            return _carry_out(job.pending_order, job)
        if late := incomplete(job):
            return _stop(StopReason.DEPLOY_TIMEOUT, late.reason, avoid=late.nodes)
        # Its cluster has accepted it then, and shows no more than that: what changes afterwards is reported.
        return Decision(act=Act.LAUNCH, requeue_after_s=WAIT_WORKING_S, note=_working_note(job))
    if job.all_succeeded:
        return Decision(move=_forward(job))
    if halt_reached(job):
        return _halt(job, "Halting: the halt had already reached the program.")
    if found := failure(job):
        return _stop(*found, avoid=_failed_nodes(job, found[1]))
    if job.intent == Intent.HALT:
        return _halt(job, _HALTING.message)
    if (
        job.time_left_s is not None
        and job.time_left_s <= 0
        and not all(one.program_ended for one in job.learners)
    ):
        return _stop(
            StopReason.TIME_LIMIT,
            Reason("time_limit", "Time limit reached: its program is asked to save, then it ends as failed."),
        )
    if job.pending_order is not None:
        return _carry_out(job.pending_order, job)
    next_phase = _NEXT_PHASE.get(job.state)
    if next_phase is not None and all(learner.reached(next_phase) for learner in job.learners):
        return Decision(move=_forward(job))
    if late := incomplete(job):
        return _stop(StopReason.DEPLOY_TIMEOUT, late.reason, avoid=late.nodes)
    return Decision(requeue_after_s=_wait_s(job), note=_working_note(job))


def _failed_nodes(job: JobObservation, reason: Reason) -> tuple[str, ...]:
    """A node that could not prepare its learner, for example because the kubelet had no room for it, or that was lost
    meanwhile: one that comes back may go again."""
    failed = job.state != State.PROCESSING and reason.code in (EndReason.NOT_PREPARED, EndReason.NODE_LOST)
    return (str(reason.numbers["node"]),) if failed else ()


_NEXT_PHASE = {State.DEPLOYING: Phase.DOWNLOADING, State.DOWNLOADING: Phase.PROCESSING}
"""The phase of its learners that takes a job on; PROCESSING ends with their exit codes instead."""
_FORWARD = {
    State.DEPLOYING: Move(
        State.DOWNLOADING, Reason("downloading", "All learners are fetching code and data.")
    ),
    State.DOWNLOADING: Move(State.PROCESSING, Reason("", "All learners are running the program.")),
    State.PROCESSING: Move(
        State.STORING, Reason("storing", "Finished successfully; its output is being stored.")
    ),
}


def _forward(job: JobObservation) -> Move:
    return _FORWARD[job.state]


def moves_ahead(job: JobObservation, first: Move) -> tuple[Move, ...]:
    """`first`, and what would be decided after it from the same observation: a job that was looked at late has often
    come through several states. Only steps of one that goes as it should, up to STORING: what comes after that needs
    the cluster."""
    moves = [first]
    while moves[-1] == _FORWARD.get(job.state):
        job = replace(job, state=moves[-1].to, reason=moves[-1].reason)
        following = _FORWARD.get(job.state)
        if following is None or decide(job).move != following:
            break
        moves.append(following)
    return tuple(moves)


def _storing(job: JobObservation) -> Decision:
    if job.intent == Intent.CANCEL:
        return _stop(
            StopReason.CANCEL_REQUESTED, Reason("cancel_requested", "Canceled while its results were stored.")
        )
    for learner in job.learners:
        # What has finished must not train again, whatever becomes of its files.
        unfinished = learner.processes_ended and not (learner.delivered or learner.succeeded)
        if unfinished and (reason := node_lost(learner)):
            return _stop(StopReason.NODE_LOST, reason)
    unkept = next((learner for learner in job.learners if learner.error_code == RESULTS_NOT_KEPT), None)
    if job.gang is not None:
        # A shipper that lost results still sends the rest of the log; it is awaited unless it has been silent for long,
        # and so is a node that does not answer.
        hopeless = unkept is not None or all(learner.unknown for learner in job.active)
        lost = stopping.cannot_deliver(job) or (hopeless and stopping.fell_silent(job))
        removable = job.none_active or lost or stopping.stopped_storing(job)
        return (
            Decision(act=Act.REMOVE, requeue_after_s=WAIT_MOVING_S)
            if removable
            else Decision(requeue_after_s=WAIT_MOVING_S, note=_storing_note(job))
        )
    if job.all_delivered and not unkept:
        return _to(State.COMPLETED, "completed", "Finished successfully; its output is stored.")
    if unkept:
        return _not_stored(unkept, unkept.message)
    missing = next(learner for learner in job.learners if not learner.delivered)
    if (missing.silent_s or 0) > stopping.DELIVERY_S:
        return _not_stored(missing, "it has not reported for a day")
    if (missing.stalled_s or 0) > job.stall_limit_s:
        why = (
            f"nothing of them arrived for {duration(missing.stalled_s or 0)}, although its agent was running"
        )
        return _not_stored(missing, why)
    return _not_stored(
        missing, missing.cluster_message or "its processes ended before everything was uploaded"
    )


def _storing_note(job: JobObservation) -> Reason | None:
    if job.store_problem:
        words = f"Finished successfully; its output waits. {job.store_problem}"
        return Reason(STORE_UNAVAILABLE, words, {"since": job.store_since})
    return _FORWARD[State.PROCESSING].reason if job.reason.code == STORE_UNAVAILABLE else None


def _not_stored(learner: LearnerObservation, why: str) -> Decision:
    message = f"The results of learner {learner.rank} could not be stored: {why.rstrip('.')}."
    return _to(State.FAILED, "results_not_stored", message)


def _stopping(job: JobObservation) -> Decision:
    if job.all_succeeded and stopping.is_graceful(job) and (job.gang is not None or job.all_delivered):
        return Decision(move=_FORWARD[State.PROCESSING])  # finishing wins over halting
    if job.gang is None:
        return Decision(move=stopping.ending(job))
    step = stopping.next_step(job)
    waits = Decision(requeue_after_s=WAIT_MOVING_S, note=_stopping_note(job))
    if step.remove:
        return replace(waits, act=Act.REMOVE, cut_off=stopping.cut_off(job))
    if step.stop_grace_s is not None:
        return replace(waits, act=Act.STOP, grace_s=step.stop_grace_s)
    return waits


def _stopping_note(job: JobObservation) -> Reason | None:
    """A halt's files wait for the store. Once that responds, or the cluster can be reached again, the reason must no
    longer say otherwise. Other stops keep the reason that they will end with."""
    waits = job.store_problem and all(learner.exited for learner in job.learners) and not job.all_delivered
    if waits and job.stop_reason == StopReason.HALT_REQUESTED and job.intent != Intent.CANCEL:
        words = f"Halting: its program has ended; what it saved waits. {job.store_problem}"
        return Reason(STORE_UNAVAILABLE, words, {"since": job.store_since})
    if job.reason.code not in (CLUSTER_UNAVAILABLE, STORE_UNAVAILABLE):
        return None
    return _CANCELING if job.intent == Intent.CANCEL else _HALTING


def _node_silent(job: JobObservation) -> Reason | None:
    """Of the first node that does not answer and whose agent has not reported yet; the one that was said stays."""
    waiting = [learner for learner in job.active if learner.unknown and learner.unanswered_s is not None]
    if not waiting or job.observed_at is None:
        return None
    first = max(waiting, key=lambda learner: learner.unanswered_s or 0)
    # Read back, it is rounded down to a millisecond; to the nearest one, it stays.
    since = job.observed_at - timedelta(seconds=first.unanswered_s or 0) + timedelta(microseconds=500)
    words = (
        f"Node {first.node} is not responding, and learner {first.rank} has not reported yet. The job starts elsewhere"
        f" if that lasts {SILENT_S:.0f} s."
    )
    return Reason(NODE_SILENT, words, {"learner": first.rank, "node": first.node, "since": timestamp(since)})


def _working_note(job: JobObservation) -> Reason:
    if found := _node_silent(job):
        return found
    silent = [learner for learner in job.active if (learner.silent_s or 0) > SILENT_S]
    if silent:
        first = silent[0]
        return Reason(
            "learner_silent",
            f"No heartbeat from learner {first.rank} for {first.silent_s:.0f} s;"
            " the cluster still shows its processes.",
        )
    # A pod's program may not have its image yet while its agent downloads the code.
    if job.state in (State.DEPLOYING, State.DOWNLOADING) and job.gang and job.gang.message:
        return Reason(PREPARING, job.gang.message)
    if job.state == State.DEPLOYING:
        return Reason("deploying", BEING_STARTED)
    if job.state != State.DOWNLOADING:
        return Reason("", "")
    if job.gang and job.gang.message:  # of a learner whose shipper works while its image cannot be pulled
        return Reason(PREPARING, job.gang.message)
    return _FORWARD[State.DEPLOYING].reason


def _wait_s(job: JobObservation) -> float:
    if any(learner.unexplained for learner in job.learners):
        return WAIT_MOVING_S
    left = job.time_left_s if job.state == State.PROCESSING else job.deploy_left_s
    if (
        left is None or left <= 0
    ):  # its program has ended, or all its learners have started: its agent reports
        return WAIT_WORKING_S
    return max(0.1, min(WAIT_WORKING_S, left))


def _to(state: State, code: str, message: str) -> Decision:
    return Decision(move=Move(state, Reason(code, message)))


def _halt(job: JobObservation, message: str) -> Decision:
    """Stop for the requested halt. A pending stop order saves just the same, and its reason decides what a resume that
    comes meanwhile leads to: the job queues again by itself, in its old place."""
    if job.stop_order is not None:
        return _carry_out(job.stop_order, job)
    return _stop(StopReason.HALT_REQUESTED, Reason("halt_requested", message))


def _carry_out(order: Order, job: JobObservation) -> Decision:
    return _stop(order.reason, Reason(order.reason.value, stopping.ordered(order, job), order.numbers))


def _stop(stop_reason: StopReason, reason: Reason, *, avoid: tuple[str, ...] = ()) -> Decision:
    return Decision(move=Move(State.STOPPING, reason, stop_reason, avoid=avoid))
