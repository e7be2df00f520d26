"""What is known of a job, in few words: the left side of the tables of decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpu_scheduler.clusters.base import EndReason, GangReport, LearnerPhase, LearnerReport
from jobs.lifecycle.decision import Act, Decision
from jobs.lifecycle.facts import JobObservation, LearnerObservation, Reason
from jobs.states import RESULTS_NOT_KEPT, Intent, Phase, State

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
