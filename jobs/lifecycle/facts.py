"""What is known of one job at one moment, as frozen values: all that a decision depends on.

Seconds are counted by the database's clock; None means that it never happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.clusters.base import ENDED, GangReport, LearnerPhase, LearnerReport, gang_name
from jobs.states import Intent, Phase, State, StopReason

PREPARING = "preparing"
"""The reason's code while a node has something to do before it can start the learners, such as installing packages."""
PHASE_ORDER = {phase: order for order, phase in enumerate(Phase)}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why: a code, a sentence its owner can act on, and the numbers behind it."""

    code: str
    message: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LearnerObservation:
    """One rank of the live attempt: what it reported of itself, and what the cluster shows of it."""

    rank: int
    node: str = ""
    phase: Phase = Phase.WAITING
    exited: bool = False
    exit_code: int | None = None
    halted: bool = False
    finished_mark: bool = False
    done: bool = False
    error_code: str = ""
    message: str = ""
    gen_seen: int = 0
    silent_s: float | None = None
    shown: str = ""
    """What the cluster last said of it before its gang was removed."""
    report: LearnerReport | None = None

    @property
    def ended(self) -> bool:
        """The cluster shows that none of its processes is left."""
        return self.report is not None and self.report.phase in ENDED

    @property
    def unknown(self) -> bool:
        return self.report is not None and self.report.phase is LearnerPhase.UNKNOWN

    @property
    def over(self) -> bool:
        """The cluster shows that its program has ended or died, although something may still be shipped."""
        return self.report is not None and (self.ended or self.report.over)

    @property
    def code(self) -> int | None:
        """The program's exit code once it is certain: the cluster's report has precedence over the learner's.

        While the shipper lives, the learner's report is awaited: only that says whether a halt reached the program.
        """
        if not (self.exited or self.ended):
            return None
        shown = self.report.exit_code if self.report else None
        return shown if shown is not None else self.exit_code

    @property
    def finished(self) -> bool:
        """It ended well and by itself: its own mark wins over a halt that reached it."""
        return self.code == 0 and (self.finished_mark or not self.halted)

    def reached(self, phase: Phase) -> bool:
        return PHASE_ORDER[self.phase] >= PHASE_ORDER[phase]


@dataclass(frozen=True, slots=True)
class Order:
    """What the scheduler ordered for a running job: to stop for this reason, or to run with so many learners.

    for_job: the job that needs the slots, or "" if it belongs to another tenant. generation: the job's intent_gen when
    the order was decided.
    """

    reason: StopReason
    for_job: str = ""
    learners: int | None = None
    generation: int = 1

    @property
    def numbers(self) -> dict[str, object]:
        """What people read of it."""
        shown: dict[str, object] = {"for_job": self.for_job, "learners": self.learners}
        return {name: value for name, value in shown.items() if value}


@dataclass(frozen=True, slots=True)
class JobObservation:
    """One job. gang is None when the cluster answered that there is none; looked is False if it was not asked."""

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
    looked: bool = True
    grace_s: float = 60
    max_restarts: int = 0
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
    def all_done(self) -> bool:
        return all(learner.done for learner in self.learners)

    @property
    def all_finished(self) -> bool:
        return bool(self.learners) and all(learner.finished for learner in self.learners)

    @property
    def all_quiet(self) -> bool:
        """Nothing more will come from any learner."""
        return not self.unquiet

    @property
    def unquiet(self) -> list[LearnerObservation]:
        """Learners that have not shipped everything yet and of which some process is left."""
        return [learner for learner in self.learners if not (learner.done or learner.ended)]
