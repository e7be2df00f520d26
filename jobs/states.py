"""The job's states, intents and reasons, and which move is legal. Pure: no Django, no clock.

docs/job_states.md draws TRANSITIONS and a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """What a job does now. Written by jobs.lifecycle.transitions alone; named as in FfDL where it has the state."""

    QUEUED = "QUEUED"
    DEPLOYING = "DEPLOYING"
    DOWNLOADING = "DOWNLOADING"
    PROCESSING = "PROCESSING"
    STORING = "STORING"
    STOPPING = "STOPPING"
    HALTED = "HALTED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class Intent(StrEnum):
    """What the job's owner requested. Written by jobs.services alone."""

    RUN = "RUN"
    HALT = "HALT"
    CANCEL = "CANCEL"


class StopReason(StrEnum):
    """Why a job is STOPPING; it decides where STOPPING leads."""

    HALT_REQUESTED = "halt_requested"
    PREEMPTED = "preempted"
    RECLAIMED = "reclaimed"
    MOVED = "moved"
    RESCALED = "rescaled"
    CANCEL_REQUESTED = "cancel_requested"
    TIME_LIMIT = "time_limit"
    BUDGET_EXHAUSTED = "budget_exhausted"
    LEARNER_FAILED = "learner_failed"
    LEARNER_LOST = "learner_lost"
    NODE_LOST = "node_lost"
    PLATFORM_STOPPED = "platform_stopped"
    DEPLOY_TIMEOUT = "deploy_timeout"
    DEPLOY_FAILED = "deploy_failed"
    IMAGE_ERROR = "image_error"
    DATA_ERROR = "data_error"
    SECRET_MISSING = "secret_missing"  # noqa: S105 - a reason


class Phase(StrEnum):
    """What one learner says of itself: an observation, never the job's state."""

    WAITING = "WAITING"
    DOWNLOADING = "DOWNLOADING"
    READY = "READY"
    PROCESSING = "PROCESSING"
    EXITED = "EXITED"
    STORING = "STORING"
    DONE = "DONE"


PHASE_ORDER: dict[str, int] = {phase: order for order, phase in enumerate(Phase)}


TRANSITIONS: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.DEPLOYING, State.HALTED, State.FAILED, State.CANCELED}),
    State.DEPLOYING: frozenset({State.DOWNLOADING, State.STOPPING}),
    State.DOWNLOADING: frozenset({State.PROCESSING, State.STOPPING}),
    State.PROCESSING: frozenset({State.STORING, State.STOPPING}),
    State.STORING: frozenset({State.COMPLETED, State.FAILED, State.STOPPING}),
    State.STOPPING: frozenset({State.STORING, State.HALTED, State.QUEUED, State.CANCELED, State.FAILED}),
    State.HALTED: frozenset({State.QUEUED, State.CANCELED}),
    State.COMPLETED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELED: frozenset(),
}

FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELED})
ACTIVE = frozenset(State) - FINAL
"""What pages call active: everything that has not ended, halted jobs included."""
PROGRESS = (State.DEPLOYING, State.DOWNLOADING, State.PROCESSING, State.STORING, State.COMPLETED)
"""The states of a job from its placement on, if nothing stops it."""
HOLDS_GPUS = frozenset({*PROGRESS, State.STOPPING}) - FINAL
PROGRAM_FINISHED = frozenset({State.STORING})
"""Too late to halt, to resume and to stop by order: only a cancel or a lost node changes how the job ends."""
TAKES_ORDERS = HOLDS_GPUS - PROGRAM_FINISHED - {State.STOPPING}
"""States in which the scheduler can order a job to stop or to be resized."""
KEEPS_REASON = PROGRAM_FINISHED | {State.STOPPING}
"""States whose reason no note replaces: a stop's is needed at its end, and no later step would restore the others."""

AFTER_STOPPING: dict[StopReason, State] = {
    StopReason.HALT_REQUESTED: State.HALTED,
    StopReason.PREEMPTED: State.QUEUED,
    StopReason.RECLAIMED: State.QUEUED,
    StopReason.MOVED: State.QUEUED,
    StopReason.RESCALED: State.QUEUED,
    StopReason.CANCEL_REQUESTED: State.CANCELED,
    StopReason.TIME_LIMIT: State.FAILED,
    StopReason.BUDGET_EXHAUSTED: State.QUEUED,
    StopReason.LEARNER_FAILED: State.QUEUED,
    StopReason.LEARNER_LOST: State.QUEUED,
    StopReason.NODE_LOST: State.QUEUED,
    StopReason.PLATFORM_STOPPED: State.QUEUED,
    StopReason.DEPLOY_TIMEOUT: State.QUEUED,
    StopReason.DEPLOY_FAILED: State.FAILED,
    StopReason.IMAGE_ERROR: State.FAILED,
    StopReason.DATA_ERROR: State.FAILED,
    StopReason.SECRET_MISSING: State.FAILED,
}
"""Where STOPPING leads. QUEUED becomes FAILED when OWN_FAILURES have used up max_restarts, and a requested
halt or cancel has precedence over a restart."""

BY_ORDER = frozenset(
    {
        StopReason.PREEMPTED,
        StopReason.RECLAIMED,
        StopReason.MOVED,
        StopReason.RESCALED,
        StopReason.BUDGET_EXHAUSTED,
    }
)
"""Ordered by the scheduler: the job saves, then queues again in its old place; no restart is counted."""

EARLY_ENDS = frozenset(
    {StopReason.LEARNER_FAILED, StopReason.LEARNER_LOST, StopReason.NODE_LOST, StopReason.DEPLOY_TIMEOUT}
)
"""Failures after which the platform starts the learners again by itself, while max_restarts allows it."""

OWN_FAILURES = frozenset({StopReason.LEARNER_FAILED})
"""The program's own doing: counted against max_restarts. Infrastructure failures are not counted."""


def ends_failed(state: State, stop_reason: str, restarts_used: int, max_restarts: int) -> bool:
    """Whether it stops for a reason that leads to FAILED: no request but a cancel changes that."""
    if state != State.STOPPING or not stop_reason:
        return False
    reason = StopReason(stop_reason)
    spent = reason in OWN_FAILURES and restarts_used >= max_restarts
    return spent or AFTER_STOPPING[reason] == State.FAILED


SILENT_S = 45.0
"""A learner without a heartbeat for this long is silent. A node that does not answer is lost only if its learner is
silent, too."""
RESULTS_NOT_KEPT = "results_not_kept"
"""A learner's error code that fails a job whose program finished successfully."""


class Action(StrEnum):
    """What a person may do to a job."""

    HALT = "halt"
    CHECKPOINT = "checkpoint"
    RESUME = "resume"
    CANCEL = "cancel"
    CLONE = "clone"
    EDIT = "edit"
    DELETE = "delete"


class EventCode(StrEnum):
    """Every kind of JobEvent. MOVED and PLACED carry from_state and to_state, SUBMITTED to_state."""

    SUBMITTED = "SUBMITTED"
    MOVED = "MOVED"
    REQUESTED = "REQUESTED"
    WAITING = "WAITING"
    PLACED = "PLACED"
    CHECKPOINT_REQUESTED = "CHECKPOINT_REQUESTED"
    CHECKPOINT_STORED = "CHECKPOINT_STORED"
    CHECKPOINT_CORRUPT = "CHECKPOINT_CORRUPT"
    GPUS_RETURNED = "GPUS_RETURNED"
    LEARNER_RESTARTED = "LEARNER_RESTARTED"
    QUOTA_CHANGED = "QUOTA_CHANGED"
    EDITED = "EDITED"
    DELETED = "DELETED"
    CLONED = "CLONED"
    CONDITION = "CONDITION"
    DATA_REMOVED = "DATA_REMOVED"


EVENT_MESSAGES: dict[EventCode, str] = {
    EventCode.SUBMITTED: "The job was submitted.",
    EventCode.MOVED: "The job's state changed.",
    EventCode.REQUESTED: "Halt, resume or cancel was requested.",
    EventCode.WAITING: "The job is waiting.",
    EventCode.PLACED: "The job was allocated its devices.",
    EventCode.CHECKPOINT_REQUESTED: "A checkpoint was requested.",
    EventCode.CHECKPOINT_STORED: "A checkpoint is stored and verified.",
    EventCode.CHECKPOINT_CORRUPT: "A checkpoint is damaged.",
    EventCode.GPUS_RETURNED: "The devices were released.",
    EventCode.LEARNER_RESTARTED: "The learners run again after an early end.",
    EventCode.QUOTA_CHANGED: "A quota was changed.",
    EventCode.EDITED: "The job was edited.",
    EventCode.DELETED: "The job was deleted.",
    EventCode.CLONED: "The job was cloned.",
    EventCode.CONDITION: "Something about the job changed.",
    EventCode.DATA_REMOVED: "Data was removed by retention.",
}
"""What people read of an event that carries no message of its own."""


def allowed_actions(
    state: State, intent: Intent, *, fails: bool = False, time_is_up: bool = False
) -> tuple[Action, ...]:
    """The actions that would change something now. A request that repeats the present intent is not offered.

    A checkpoint is refused, too, if the program has not asked for requests of one.
    fails: see ends_failed. time_is_up: nothing is left of its time limit, so that no resume can go on.
    """
    if state in FINAL:
        return (Action.CLONE, Action.EDIT, Action.DELETE)
    actions = []
    if intent == Intent.RUN and state not in PROGRAM_FINISHED and not fails:
        actions.append(Action.HALT)
        if state == State.PROCESSING:
            actions.append(Action.CHECKPOINT)
    if intent == Intent.HALT and state not in PROGRAM_FINISHED and not fails and not time_is_up:
        actions.append(Action.RESUME)
    if intent != Intent.CANCEL:
        actions.append(Action.CANCEL)
    return (*actions, Action.CLONE, Action.EDIT)


STOP_LABELS: dict[StopReason, str] = {
    StopReason.HALT_REQUESTED: "Halting",
    StopReason.PREEMPTED: "Preempting",
    StopReason.RECLAIMED: "Preempting",
    StopReason.MOVED: "Moving",
    StopReason.RESCALED: "Rescaling",
    StopReason.CANCEL_REQUESTED: "Canceling",
    StopReason.TIME_LIMIT: "Stopping",
    StopReason.BUDGET_EXHAUSTED: "Stopping",
    StopReason.LEARNER_FAILED: "Stopping",
    StopReason.LEARNER_LOST: "Restarting",
    StopReason.NODE_LOST: "Restarting",
    StopReason.PLATFORM_STOPPED: "Stopping",
    StopReason.DEPLOY_TIMEOUT: "Restarting",
    StopReason.DEPLOY_FAILED: "Stopping",
    StopReason.IMAGE_ERROR: "Stopping",
    StopReason.DATA_ERROR: "Stopping",
    StopReason.SECRET_MISSING: "Stopping",
}


RESTART_LOOP = 3
"""Attempts in a row that ended early, after which a job is shown as one that fails again and again."""


def in_restart_loop(state: State, early_ends: int) -> bool:
    """Whether its last attempts ended early again and again, so that waiting alone may not help."""
    return state == State.QUEUED and early_ends >= RESTART_LOOP


def stop_label(reason: str) -> str:
    """What a STOPPING event is called. A finer code than a stop reason, such as out_of_memory, is a failure's."""
    return STOP_LABELS[StopReason(reason)] if reason in set(StopReason) else "Stopping"


def display_phase(state: State, intent: Intent, stop_reason: str, attempt: int, early_ends: int = 0) -> str:
    """The word a person reads: what the job is on its way to, derived and never stored."""
    if state in FINAL:
        return state.capitalize()
    if intent == Intent.CANCEL:
        return "Canceling"
    if state in PROGRAM_FINISHED:
        return state.capitalize()
    if state == State.STOPPING:
        return "Halting" if intent == Intent.HALT and stop_reason in BY_ORDER else stop_label(stop_reason)
    if state == State.HALTED:
        return "Resuming" if intent == Intent.RUN else "Halted"
    if intent == Intent.HALT:
        return "Halting"
    if attempt > 1 and state in (State.DEPLOYING, State.DOWNLOADING):
        return "Resuming"
    if in_restart_loop(state, early_ends):
        return "Restart loop"
    return state.capitalize()
