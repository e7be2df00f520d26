"""What is known of one job at one moment, as frozen values, and which failure it shows: all that a decision depends on.

Seconds are counted by the database's clock; None means that it never happened. The cluster's report (exit codes, lost
nodes) has precedence over the learner's, which a program could forge; silence alone is never a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpu_scheduler.clusters.base import (
    CAUSES,
    ENDED,
    SHIPPER_REFUSALS,
    Cause,
    EndReason,
    GangReport,
    LearnerPhase,
    LearnerReport,
    gang_name,
)
from jobs.states import PHASE_ORDER, SILENT_S, Intent, Phase, State, StopReason
from learner_agent.wire_fields import SETUP_FAILED

PREPARING = "preparing"
"""The reason's code while a node has something to do before it can start the learners, such as installing packages."""
BEING_STARTED = "Its learners are being started."
NODE_SILENT = "node_silent"
"""The reason's code while a node does not answer and an agent there has not reported yet. Its number ``since``: when
that began, RFC 3339."""
CLUSTER_UNAVAILABLE = "cluster_unavailable"
"""The reason's code while the attempt's own cluster cannot be reached with the settings of this installation."""
STORE_UNAVAILABLE = "store_unavailable"
"""The reason's code while results, or what a halt saved, wait for the store of files."""
UNEXPLAINED_S = 10.0
"""The cluster has this long, from a program's end by a signal, to say whether it was the cluster's own doing."""
SIGNALED = range(129, 193)
"""Exit codes that are 128 + a signal; 255 is what `sys.exit(-1)` leaves."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why: a code, a sentence its owner can act on, and the numbers behind it."""

    code: str
    message: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Move:
    """Take the job to another state. stop_reason is given with STOPPING. charged: the restart counts against
    max_restarts. early_ends: attempts in a row that ended early, with this one. wait_s: how long the next one waits, in
    seconds. agents_lost: its agents died soon after the program began."""

    to: State
    reason: Reason
    stop_reason: StopReason | None = None
    charged: bool = False
    early_ends: int = 0
    wait_s: float = 0
    agents_lost: bool = False
    learners: int | None = None
    """The size of later attempts, where it changes."""
    avoid: tuple[str, ...] = ()
    """Nodes that failed the gang: for a while, learners go there only if they fit on no others."""


@dataclass(frozen=True, slots=True)
class LearnerObservation:
    """One rank of the live attempt: what it reported of itself, and what the cluster shows of it."""

    rank: int
    node: str = ""
    phase: Phase = Phase.WAITING
    exited: bool = False
    """Its agent reported that the program has ended."""
    exited_s: float | None = None
    """Seconds since then."""
    exit_code: int | None = None
    halted: bool = False
    finished_mark: bool = False
    delivered: bool = False
    """Its agent has sent everything, and the server has stored it."""
    error_code: str = ""
    message: str = ""
    gen_seen: int = 0
    silent_s: float | None = None
    stalled_s: float | None = None
    """Seconds since something that it sent was last stored or acknowledged, since its program ended, or since the
    store of files was last away."""
    unanswered_s: float | None = None
    """While the gang starts, of an agent that has never reported: seconds since its node was first seen not to answer;
    0 as long as it was not."""
    cluster_message: str = ""
    """What the cluster last reported of it before its gang was removed."""
    report: LearnerReport | None = None

    @property
    def processes_ended(self) -> bool:
        """The cluster shows that none of its processes is left, program or agent."""
        return self.report is not None and self.report.phase in ENDED

    @property
    def end_shown(self) -> bool:
        """The cluster shows that it ended, or why it is being ended: of a program killed for its memory, the agent's
        exit code often arrives while the cluster still shows the launcher."""
        return self.processes_ended or (self.report is not None and self.report.reason is not None)

    @property
    def unknown(self) -> bool:
        return self.report is not None and self.report.phase is LearnerPhase.UNKNOWN

    @property
    def unreachable(self) -> bool:
        """Its node does not answer, and its agent is silent, too: a node alone may miss its heartbeats for a moment."""
        silent_s = self.unanswered_s if self.silent_s is None else self.silent_s
        return self.unknown and (silent_s is None or silent_s > SILENT_S)

    @property
    def program_ended(self) -> bool:
        """The cluster shows that its program has ended or died; its agent may still be sending."""
        return self.report is not None and (self.processes_ended or self.report.program_ended)

    @property
    def code(self) -> int | None:
        """The program's exit code once it is certain: the cluster's report has precedence over the learner's.

        While the shipper lives, the learner's report is awaited: only that says whether a halt reached the program.
        """
        if not (self.exited or self.processes_ended):
            return None
        shown = self.report.exit_code if self.report else None
        return shown if shown is not None else self.exit_code

    @property
    def succeeded(self) -> bool:
        """Its program ended by itself and without an error: its own mark wins over a halt that reached it."""
        return self.code == 0 and (self.finished_mark or not self.halted)

    @property
    def unexplained(self) -> bool:
        """A signal ended its program that no request explains, and the cluster does not show the end yet.

        An evicted program's exit arrives before its pod's: decided by the code alone it would cost a restart, or pass
        for a halt without a request.
        """
        if self.exited_s is None or self.exited_s > UNEXPLAINED_S or self.program_ended or self.gen_seen:
            return False
        return not self.succeeded and (self.halted or self.code in SIGNALED)

    def reached(self, phase: Phase) -> bool:
        return PHASE_ORDER[self.phase] >= PHASE_ORDER[phase]


LEAVES = "leaves"
"""In the numbers of a resize's events, and beside the plan that a job's row names for its order: those nodes."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the scheduler ordered for a running job: to stop for this reason, or to run with this number of learners.

    for_job: the job that needs the slots; "" if it belongs to another tenant or the order is for no job. generation:
    the job's intent_gen when the order was decided. plan: recording.Source.numbers of the plan that decided it; None
    if an earlier version did. loss: what was at stake, as gpu_scheduler.losses.Loss; None: not known, as of such a
    version. leaves: of a resize, the nodes that take no more learners, if it is because of these.
    """

    reason: StopReason
    for_job: str = ""
    learners: int | None = None
    generation: int = 1
    plan: Mapping[str, str] | None = None
    loss: Mapping[str, Any] | None = None
    leaves: tuple[str, ...] = ()

    @property
    def numbers(self) -> dict[str, object]:
        """What people read of it."""
        shown: dict[str, object] = {
            "for_job": self.for_job,
            "learners": self.learners,
            "plan": self.plan,
            "expected_loss": self.loss,
            LEAVES: list(self.leaves),
        }
        return {name: value for name, value in shown.items() if value}


@dataclass(frozen=True, slots=True)
class JobObservation:
    """One job. gang is None when the cluster answered that there is none; observed is False if it was not asked."""

    id: str
    state: State
    intent: Intent = Intent.RUN
    intent_gen: int = 1
    stop_reason: str = ""
    stop_s: float = 0
    """Seconds since STOPPING began."""
    reason: Reason = Reason("", "")
    order: Order | None = None
    """What the scheduler ordered last, whether it is still in force or not."""
    attempt: int = 0
    launched: bool = False
    learners: tuple[LearnerObservation, ...] = ()
    gang: GangReport | None = None
    observed: bool = True
    observed_at: datetime | None = None
    """By the database's clock."""
    grace_s: float = 60
    max_restarts: int = 0
    worked_with: int | None = None
    """Of an elastic job whose attempt made no step: with how many learners it did before, if these are fewer."""
    restarts_used: int = 0
    early_ends: int = 0
    """Attempts in a row that ended early, without this one."""
    not_prepared: int = 0
    """Attempts in a row that a node could not prepare, without this one; counted where it matters."""
    agent_losses: int = 0
    """Attempts in a row whose agents died soon after their program began, without this one."""
    ran_s: float = 0
    """Seconds since the live attempt's program began."""
    time_left_s: float | None = None
    wait_s: float = 0
    """Seconds until a restart that backs off may start."""
    needs_versions: bool = False
    """It requires packages, and no versions of them were chosen yet."""
    deploy_left_s: float | None = None
    """Seconds until its gang must be complete. None: its cluster sets no deadline."""
    stall_limit_s: float = 1800.0
    """For how long an upload may make no progress."""
    store_problem: str = ""
    """What is wrong with the store of files, as a sentence; empty if nothing is, or where it does not matter."""
    store_since: str = ""
    """When that began, RFC 3339."""
    has_checkpoint: bool = False
    corrupt_checkpoints: int = 0

    @property
    def pending_order(self) -> Order | None:
        """The order that is still in force: a stop until it is carried out, a resize until the intent changes."""
        if self.order is None or self.order.reason != StopReason.RESCALED:
            return self.order
        unchanged = self.intent == Intent.RUN and self.intent_gen == self.order.generation
        return self.order if unchanged else None

    @property
    def stop_order(self) -> Order | None:
        return None if self.order is None or self.order.reason == StopReason.RESCALED else self.order

    @property
    def gang_name(self) -> str:
        return gang_name(self.id, self.attempt)

    @property
    def all_delivered(self) -> bool:
        return all(learner.delivered for learner in self.learners)

    @property
    def all_succeeded(self) -> bool:
        return bool(self.learners) and all(learner.succeeded for learner in self.learners)

    @property
    def none_active(self) -> bool:
        """Nothing more will come from any learner."""
        return not self.active

    @property
    def active(self) -> list[LearnerObservation]:
        """Learners that have not shipped everything yet and of which some process is left."""
        return [learner for learner in self.learners if not (learner.delivered or learner.processes_ended)]


def failure(job: JobObservation) -> tuple[StopReason, Reason] | None:
    """The first failure that is certain, or None. A gang ends as soon as one of its learners failed."""
    if job.gang is None and job.observed:
        return StopReason.LEARNER_LOST, Reason(
            "learner_lost",
            "The cluster no longer shows the job's learners, and the platform did not remove them.",
        )
    found = next(filter(None, map(_of_learner, job.learners)), None)
    # Peers of an evicted learner fail with codes of their own.
    own_fault = found is not None and found[0] is StopReason.LEARNER_FAILED
    return None if own_fault and any(learner.unexplained for learner in job.learners) else found


CLUSTER_BUSY = "cluster_busy"
"""The reason's code while the cluster asks to wait. Its number ``node``: only this gang must wait; the node that cannot
take it, or "" if none is at fault."""

CLUSTER_QUOTA = "cluster_quota"
"""The reason's code of a stop, and of the wait after it, because a quota of the cluster did not let the gang start."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Why a gang is not complete in time. nodes: those that failed it."""

    reason: Reason
    nodes: tuple[str, ...]


def incomplete(job: JobObservation) -> Incomplete | None:
    """What a gang lacks whose deadline is over; None: nothing, or it still has time. A cluster that does not answer at
    all is no fault of the gang's."""
    if job.deploy_left_s is None or job.deploy_left_s > 0:
        return None
    if not job.launched:
        node = job.reason.numbers.get("node") if job.reason.code == CLUSTER_BUSY else None
        if node is None:
            return None
        return Incomplete(_late(job.reason.message, {"node": node}), (node,) if node else ())
    missing = [learner for learner in job.learners if _is_missing(learner)]
    if not missing:
        return None
    missing.sort(key=_starts_late)
    first = missing[0]
    numbers = {"learner": first.rank, "node": first.node, "missing": len(missing)}
    words = f"Learner {first.rank} on {first.node} is not complete: {_lacks(first)}"
    nodes = dict.fromkeys(each.node for each in missing if _starts_late(each) == _starts_late(first))
    return Incomplete(_late(words, numbers), tuple(nodes))


def _is_missing(learner: LearnerObservation) -> bool:
    """A pod's shipper starts before the program's image is there, so its report alone completes nothing."""
    shown = learner.report.phase if learner.report else None
    return shown is LearnerPhase.PREPARING or not learner.reached(Phase.DOWNLOADING)


def _late(words: str, numbers: dict[str, Any]) -> Reason:
    text = f"Its learners did not start in time, so its devices are released. {words.rstrip('.')}."
    return Reason(StopReason.DEPLOY_TIMEOUT.value, text, numbers)


def _starts_late(learner: LearnerObservation) -> int:
    """0 for a learner of which the cluster says what it waits for; those that run come last."""
    if learner.unknown:
        return 0
    if learner.report is None or learner.report.phase is not LearnerPhase.PREPARING:
        return 2
    return 0 if learner.report.message else 1


def _lacks(learner: LearnerObservation) -> str:
    if learner.unknown:
        return f"node {learner.node} is not responding"
    match _starts_late(learner):
        case 0:
            assert learner.report is not None
            return learner.report.message
        case 1:
            return (
                "the cluster has not started its containers and does not say why (often an image or a volume)"
            )
    return "it runs, but its agent has not reported"


def halt_reached(job: JobObservation) -> bool:
    """A learner ended after a halt had reached it, without the mark that it was finished.

    The cluster sends its learners the same signal when it evicts them or shuts down; without a requested halt, that is
    no halt.
    """
    return any(
        learner.code is not None and learner.halted and not learner.finished_mark
        for learner in job.learners
        if job.intent == Intent.HALT or not (learner.unexplained or _ended_by_cluster(learner))
    )


def _ended_by_cluster(learner: LearnerObservation) -> bool:
    reason = learner.report.reason if learner.report else None
    return reason is not None and CAUSES[reason] is Cause.CLUSTER


def node_lost(learner: LearnerObservation) -> Reason | None:
    """The cluster says that the node is lost, or the node does not answer and its learner is silent, too."""
    numbers = {"learner": learner.rank, "node": learner.node}
    if learner.report is not None and learner.report.reason is EndReason.NODE_LOST:
        words = f"Node {learner.node} was shut down or lost with learner {learner.rank} on it."
        return Reason("node_lost", words, numbers)
    if learner.unreachable:
        words = f"Node {learner.node} is not responding and learner {learner.rank} is silent."
        return Reason("node_lost", words, numbers)
    return None


def _of_learner(learner: LearnerObservation) -> tuple[StopReason, Reason] | None:
    numbers = {"learner": learner.rank, "node": learner.node}
    report = learner.report
    end, message = _end(learner)
    cause = CAUSES[end] if end is not None else None
    if end is not None and cause is Cause.REQUEST:
        return StopReason(end.value), Reason(end.value, message, numbers | _said_at(report))
    if end is EndReason.PLATFORM_STOPPED and not learner.succeeded:
        return StopReason.PLATFORM_STOPPED, Reason(end.value, "The platform was stopped.", numbers)
    if not learner.succeeded and (lost := node_lost(learner)):
        return StopReason.NODE_LOST, lost
    if end is not None and cause is Cause.CLUSTER and not learner.succeeded:
        return StopReason.LEARNER_LOST, Reason(end.value, message, numbers | _said_at(report))
    if learner.code:
        return StopReason.LEARNER_FAILED, _exit_reason(learner, numbers)
    if learner.processes_ended and learner.code is None:
        return StopReason.LEARNER_LOST, Reason(
            "learner_lost",
            ended_without_code(learner) + (f" {report.message}" if report and report.message else ""),
            numbers | {"failure_class": report.reason if report else ""},
        )
    return None


def _said_at(report: LearnerReport | None) -> dict[str, object]:
    """The line of the learner's log that says why its preparation failed, if there is one."""
    return {"line": report.numbers["line"]} if report and report.output and "line" in report.numbers else {}


def ended_without_code(learner: LearnerObservation) -> str:
    """A sentence about a learner whose launcher is gone and left no exit code."""
    return f"The processes of learner {learner.rank} on {learner.node} ended without reporting an exit code."


def _end(learner: LearnerObservation) -> tuple[EndReason | None, str]:
    """How the learner ended and a sentence about it. None: nothing but its program's exit code says so."""
    if learner.error_code in SHIPPER_REFUSALS:
        return EndReason(learner.error_code), f"Learner {learner.rank} on {learner.node}: {learner.message}"
    if learner.report is None:
        return None, ""
    end, said = learner.report.reason, learner.report.message
    match end:
        case EndReason.EVICTED:
            return end, f"Node {learner.node} evicted learner {learner.rank}: {said}"
        case EndReason.PREEMPTED_BY_CLUSTER:
            return end, f"The cluster preempted learner {learner.rank} on node {learner.node}: {said}"
        case EndReason.NOT_PREPARED:
            return end, said
    return end, f"Learner {learner.rank}: {said}"


def _exit_reason(learner: LearnerObservation, numbers: dict[str, object]) -> Reason:
    code = learner.code
    numbers = {**numbers, "exit_code": code}
    if learner.report is not None and learner.report.reason is EndReason.OUT_OF_MEMORY:
        numbers |= dict(learner.report.numbers)
        said = learner.report.message or "Killed (out of memory)."
        words = f"Learner {learner.rank}: {said} Request more memory."
        return Reason(EndReason.OUT_OF_MEMORY.value, words, numbers)
    if learner.error_code == SETUP_FAILED:
        return Reason(SETUP_FAILED, setup_failure(learner.rank, learner.node, learner.message), numbers)
    words = f"Learner {learner.rank} on {learner.node} exited with code {code}."
    return Reason("learner_failed", words, numbers)


def setup_failure(rank: int, node: str, message: str) -> str:
    """A sentence about a setup command that failed. message: the learner's own, which names the command."""
    return f"Learner {rank} on {node}: {message}. See the log."
