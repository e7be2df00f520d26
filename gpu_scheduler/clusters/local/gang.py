"""One gang of this machine: its record on disk, its learners, and what drivers see of it."""

from __future__ import annotations

from gpu_scheduler.clusters.base import GangReport, LearnerPhase
from gpu_scheduler.clusters.local.context import DaemonContext
from gpu_scheduler.clusters.local.learner import LocalLearner
from gpu_scheduler.clusters.local.store import GangRecord


class LocalGang:
    """One gang: its record and its learners."""

    def __init__(self, context: DaemonContext, record: GangRecord) -> None:
        self.record = record
        self.learners = [LocalLearner(context, record, learner) for learner in record.learners]
        self.message = ""
        self.unsaved = False
        self.deliver_by = 0.0
        """When a daemon that goes waits for its learners no longer (boot clock)."""
        self._shown: tuple[object, ...] = ()
        self.last_error = ""
        """The error that prevents this machine from managing the gang now; retried until it is gone."""

    @property
    def name(self) -> str:
        return self.record.launch.name

    @property
    def preparing(self) -> bool:
        return any(learner.record.phase is LearnerPhase.PREPARING for learner in self.learners)

    @property
    def ended(self) -> bool:
        return all(learner.ended for learner in self.learners)

    def report(self) -> GangReport:
        learners = tuple(learner.report() for learner in self.learners)
        message = f"Error on the node, retrying: {self.last_error}" if self.last_error else self.message
        return GangReport(
            self.name, learners, self.record.stop_at is not None, message, tuple(self.record.lock)
        )

    def has_new_report(self) -> bool:
        """True if what ``report`` shows has changed since the last call."""
        learners = tuple(learner.shown() for learner in self.learners)
        now = (learners, self.record.stop_at is None, self.last_error or self.message, len(self.record.lock))
        before, self._shown = self._shown, now
        return before != now

    def request_stop(self, now: float, grace_s: float) -> bool:
        """Record a stop; a second one can only shorten the grace. True if that changes anything."""
        kill_at = now + grace_s
        if self.record.kill_at is not None and self.record.kill_at <= kill_at:
            return False
        self.record.stop_at = now if self.record.stop_at is None else self.record.stop_at
        self.record.kill_at = kill_at
        return True
