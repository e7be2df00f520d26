"""Jobs and everything seen of them. PostgreSQL is the only place where a fact lives.

Three writers, three places: services write Job.intent, ingest writes what learners report (Learner, Progress,
LogChunk, MetricPoint, MetricRollup, Checkpoint, ResultFile), lifecycle alone writes Job.state, attempts and quota use.
"""

from jobs.models.attempt import Attempt, JobEvent, Learner
from jobs.models.blobs import Blob, Promise, Upload
from jobs.models.choices import event_choices, intent_choices, phase_choices, state_choices
from jobs.models.decisions import DecidedPlan
from jobs.models.dismissal import Dismissal
from jobs.models.fairness import FairnessHour, FairnessShare, NodeChange
from jobs.models.installation import (
    SCHEDULER,
    WORKER_ALIVE,
    WORKER_SILENT_S,
    ClusterNode,
    IdempotentResponse,
    PeriodicTask,
    PlatformStop,
    Runtime,
    SchedulerState,
    SchedulingLease,
    Worker,
)
from jobs.models.job import JOB_TERMS, Estimate, Job, Progress
from jobs.models.results import Checkpoint, CheckpointFile, ResultFile
from jobs.models.retention import UNIT, Removal, counted
from jobs.models.share import Share
from jobs.models.storage import POINT_BYTES, StorageChange, StorageKind, StorageUse
from jobs.models.telemetry import LogChunk, LogIndex, MetricPoint, MetricRollup
from jobs.models.usage import UsageDay, UsageDue

__all__ = [
    "JOB_TERMS",
    "POINT_BYTES",
    "SCHEDULER",
    "UNIT",
    "WORKER_ALIVE",
    "WORKER_SILENT_S",
    "Attempt",
    "Blob",
    "Checkpoint",
    "CheckpointFile",
    "ClusterNode",
    "DecidedPlan",
    "Dismissal",
    "Estimate",
    "FairnessHour",
    "FairnessShare",
    "IdempotentResponse",
    "Job",
    "JobEvent",
    "Learner",
    "LogChunk",
    "LogIndex",
    "MetricPoint",
    "MetricRollup",
    "NodeChange",
    "PeriodicTask",
    "PlatformStop",
    "Progress",
    "Promise",
    "Removal",
    "ResultFile",
    "Runtime",
    "SchedulerState",
    "SchedulingLease",
    "Share",
    "StorageChange",
    "StorageKind",
    "StorageUse",
    "Upload",
    "UsageDay",
    "UsageDue",
    "Worker",
    "counted",
    "event_choices",
    "intent_choices",
    "phase_choices",
    "state_choices",
]
