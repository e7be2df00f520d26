"""How a phase of a job or learner is drawn, and how the end of an attempt is named and drawn. Pure."""

from __future__ import annotations

from typing import NamedTuple

from jobs.states import StopReason

STOPPED = {
    StopReason.HALT_REQUESTED: "Halted",
    StopReason.PREEMPTED: "Preempted",
    StopReason.RECLAIMED: "Preempted",
    StopReason.MOVED: "Moved",
    StopReason.RESCALED: "Rescaled",
    StopReason.CANCEL_REQUESTED: "Canceled",
    StopReason.TIME_LIMIT: "Time limit reached",
    StopReason.BUDGET_EXHAUSTED: "Stopped",
    StopReason.LEARNER_FAILED: "A learner failed",
    StopReason.LEARNER_LOST: "A learner was lost",
    StopReason.NODE_LOST: "A node was lost",
    StopReason.PLATFORM_STOPPED: "Platform stopped",
    StopReason.DEPLOY_TIMEOUT: "Not deployed in time",
    StopReason.DEPLOY_FAILED: "Could not be deployed",
    StopReason.IMAGE_ERROR: "No usable image",
    StopReason.DATA_ERROR: "Data could not be read",
    StopReason.SECRET_MISSING: "A secret is missing",
}
"""How an attempt ended before a restart."""


class PhaseBadge(NamedTuple):
    """family: a color of the style sheet; icon: its name in the sprite."""

    family: str
    icon: str


STOP = PhaseBadge("amber", "circle-dashed")
FAILURE = PhaseBadge("red", "octagon-x")
LOSS = PhaseBadge("neutral", "server-off")
SUCCESS = PhaseBadge("green", "circle-check")
END = PhaseBadge("neutral", "circle-check")
STARTING = PhaseBadge("violet", "layers")
WAITING = PhaseBadge("neutral", "clock")

BADGES = {
    "Queued": WAITING,
    "Restart loop": PhaseBadge("red", "rotate-cw"),
    "Deploying": STARTING,
    "Downloading": PhaseBadge("violet", "download"),
    "Resuming": PhaseBadge("violet", "rotate-cw"),
    "Processing": PhaseBadge("blue", "loader-circle"),
    "Storing": PhaseBadge("teal", "upload"),
    "Completed": SUCCESS,
    "Failed": FAILURE,
    "Halted": PhaseBadge("amber", "circle-pause"),
    "Canceled": PhaseBadge("neutral", "ban"),
    # What a learner says of itself:
    "Waiting": WAITING,
    "Ready": STARTING,
    "Exited": END,
    "Done": SUCCESS,
    "Stopped": END,
    "Lost": LOSS,
    "Not started": WAITING,
    # How an attempt ended:
    STOPPED[StopReason.LEARNER_FAILED]: FAILURE,
    STOPPED[StopReason.LEARNER_LOST]: LOSS,
    STOPPED[StopReason.NODE_LOST]: LOSS,
    STOPPED[StopReason.PLATFORM_STOPPED]: PhaseBadge("neutral", "power-off"),
    STOPPED[StopReason.DEPLOY_TIMEOUT]: LOSS,
    STOPPED[StopReason.DEPLOY_FAILED]: FAILURE,
    STOPPED[StopReason.IMAGE_ERROR]: FAILURE,
    STOPPED[StopReason.DATA_ERROR]: FAILURE,
    STOPPED[StopReason.SECRET_MISSING]: FAILURE,
    "Ended": END,
}


def phase_badge(phase: str) -> PhaseBadge:
    """The badge of a display phase or of an attempt's end; every "…ing" of a stop is amber and dashed."""
    return BADGES.get(phase, STOP)
