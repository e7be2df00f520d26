"""Failure classification: what counts as a failure of a gang, and who caused it. Silence alone never counts.

The cluster's report (exit codes, lost nodes) has precedence over the learner's, which a program could forge.
"""

from __future__ import annotations

from gpu_scheduler.clusters.base import CAUSES, Cause, EndReason
from jobs.lifecycle.facts import JobObservation, LearnerObservation, Reason
from jobs.states import FATAL_ERRORS, Intent, StopReason

NODE_SILENT_S = 45.0
"""A node that does not answer is lost only if its learner has been silent for so long, too."""

SIGNALS = {
    130: "was interrupted (SIGINT)",
    134: "aborted (SIGABRT)",
    137: "was killed (often out of memory)",
    139: "crashed (SIGSEGV)",
    143: "was terminated (SIGTERM)",
}
"""What happened to a program, by exit code 128 + signal."""


def failure(job: JobObservation) -> tuple[StopReason, Reason] | None:
    """The first failure that is certain, or None. A gang ends as soon as one of its learners failed."""
    if job.gang is None and job.looked:
        return StopReason.LEARNER_LOST, Reason(
            "learner_lost",
            "The cluster no longer shows the job's learners; they were removed outside the platform.",
        )
    for learner in job.learners:
        if found := _of_learner(learner):
            return found
    return None


def halt_reached(job: JobObservation) -> bool:
    """A learner ended after a halt had reached it, without the mark that it was finished.

    A node that shuts down sends its learners the same signal; without a requested halt, that is a lost node.
    """
    return any(
        learner.code is not None and learner.halted and not learner.finished_mark
        for learner in job.learners
        if job.intent == Intent.HALT
        or learner.report is None
        or learner.report.reason is not EndReason.NODE_LOST
    )


def node_lost(learner: LearnerObservation) -> Reason | None:
    """The cluster says that the node is lost, or the node does not answer and its learner is silent, too."""
    numbers = {"learner": learner.rank, "node": learner.node}
    if learner.report is not None and learner.report.reason is EndReason.NODE_LOST:
        return Reason(
            "node_lost", f"Node {learner.node} was lost with learner {learner.rank} on it.", numbers
        )
    if learner.unknown and (learner.silent_s is None or learner.silent_s > NODE_SILENT_S):
        words = f"Node {learner.node} is not responding and learner {learner.rank} is silent."
        return Reason("node_lost", words, numbers)
    return None


def _of_learner(learner: LearnerObservation) -> tuple[StopReason, Reason] | None:
    numbers = {"learner": learner.rank, "node": learner.node}
    report = learner.report
    if learner.error_code in FATAL_ERRORS:
        reason = FATAL_ERRORS[learner.error_code]
        return reason, Reason(learner.error_code, f"Learner {learner.rank}: {learner.message}", numbers)
    end = report.reason if report is not None else None
    cause = CAUSES[end] if end is not None else None
    if end is not None and cause is Cause.REQUEST:
        return StopReason(end.value), Reason(end.value, _end_message(learner, end), numbers)
    if not learner.finished and (lost := node_lost(learner)):
        return StopReason.NODE_LOST, lost
    if end is not None and cause is Cause.CLUSTER and not learner.finished:
        return StopReason.LEARNER_LOST, Reason(end.value, _end_message(learner, end), numbers)
    if learner.code:
        return StopReason.LEARNER_FAILED, _exit_reason(learner, numbers)
    if learner.ended and learner.code is None:
        return StopReason.LEARNER_LOST, Reason(
            "learner_lost",
            f"The processes of learner {learner.rank} on {learner.node} ended without reporting an exit code."
            + (f" {report.message}" if report and report.message else ""),
            numbers | {"failure_class": report.reason if report else ""},
        )
    return None


def _end_message(learner: LearnerObservation, end: EndReason) -> str:
    said = learner.report.message if learner.report is not None else ""
    match end:
        case EndReason.EVICTED:
            return f"Node {learner.node} evicted learner {learner.rank}: {said}"
        case EndReason.PREEMPTED_BY_CLUSTER:
            return f"The cluster preempted learner {learner.rank} on node {learner.node}: {said}"
        case EndReason.NOT_PREPARED:
            return said
    return f"Learner {learner.rank}: {said}"


def _exit_reason(learner: LearnerObservation, numbers: dict[str, object]) -> Reason:
    code = learner.code
    numbers = {**numbers, "exit_code": code}
    if learner.report is not None and learner.report.reason is EndReason.OUT_OF_MEMORY:
        numbers |= dict(learner.report.numbers)
        said = learner.report.message or "Killed (out of memory)."
        words = f"Learner {learner.rank}: {said} Request more memory."
        return Reason(EndReason.OUT_OF_MEMORY.value, words, numbers)
    signal = SIGNALS.get(code or 0)
    words = f"{signal}, exit code {code}" if signal else f"exited with code {code}"
    return Reason(
        "learner_failed", f"Learner {learner.rank} on {learner.node} {words}. See the log.", numbers
    )
