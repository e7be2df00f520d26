"""What a simulation is given, and what it returns. All durations are in seconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpu_scheduler.model import Gang, Node, Profile, Project, QuotaUse, TenantState
from gpu_scheduler.policies.base import Policy


@dataclass(frozen=True, slots=True)
class Costs:
    """What an executor needs beside the work itself.

    start_s: from a job's first placement to its first progress. restore_s: the same at each later start.
    checkpoint_s: from a stop order until the slots are released; nothing is computed meanwhile, nothing is lost.
    checkpoint_every_s: seconds of computing between the saves that a job makes on its own, beside its computing; None:
    it saves only when it is stopped. Raises ValueError for negative times.
    """

    start_s: float = 0.0
    restore_s: float = 0.0
    checkpoint_s: float = 0.0
    checkpoint_every_s: float | None = None

    def __post_init__(self) -> None:
        every = 1.0 if self.checkpoint_every_s is None else self.checkpoint_every_s
        if min(self.start_s, self.restore_s, self.checkpoint_s) < 0 or every <= 0:
            raise ValueError(
                f"{self}: start_s, restore_s and checkpoint_s must be 0 or more, checkpoint_every_s more than 0"
            )


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A job and its length: work_s seconds at rate 1. arrives_at: None: when the gang was queued; another time for one
    that was queued before the simulated time. waits_at_most_s: it leaves if it has not started so long after its
    arrival, a plan at that very time included; None: it waits."""

    gang: Gang
    work_s: float
    costs: Costs = Costs()
    waits_at_most_s: float | None = None
    arrives_at: datetime | None = None

    @property
    def arrives(self) -> datetime:
        return self.gang.queued_at if self.arrives_at is None else self.arrives_at


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """The node is lost at this time, with all that runs on it, and back down_s later.

    notice_s: a notice comes so long before, as from clouds where they take a spot machine back. From then on nothing
    starts there, and a plan is made: a policy may resize elastic runs, so that they leave that node alone. What else
    runs there and can save in this time saves, leaves and queues again; a run that cannot computes until the end, and
    keeps what it has saved by itself. 0: it comes without a notice.
    """

    at: datetime
    node: str
    down_s: float
    notice_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Rate:
    """per_s: seconds of a job's work that are done in a second, more than 0. until: how much of its work is done when
    that changes."""

    per_s: float
    until: float = math.inf


Rates = Callable[[Gang, tuple[str, ...], float], Rate]
"""The rate of a job on these nodes (a name per rank) once so much of its work is done."""

Known = Callable[[Gang, tuple[str, ...], float], Profile]
"""What is known of an elastic job that computes on these nodes, none while it waits, and has done so much work."""


def learners_held(gang: Gang, nodes: tuple[str, ...], done_s: float) -> Rate:
    """A rate in proportion to the learners: 1 for the fewest that the gang runs with."""
    return Rate(len(nodes) / gang.learners.min)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster, its tenants, a policy and a workload. quotas and tenants are those before the first arrival; GPU-hour
    budgets are followed from what is used of them then, month by month.

    round_s: plans are made at multiples of this, counted from begin, when something has changed since the last one; 0:
    at once, as at a notice always. rate and known are asked with the gang as it was submitted, known before each plan;
    None: what a gang's profile says stays. begin: None: the first arrival, loss of a node or notice of one. until:
    nothing happens after this; None: the simulation ends by itself. work: units that plans may use, at most, in a
    simulation with an end: where they would use more, they are made later, so that 40,000 jobs take minutes; None: no
    bound. Raises ValueError for two jobs of one name, for work that is not positive, for waits and notices below 0, for
    failures of unknown nodes and for a bound without an end.
    """

    nodes: tuple[Node, ...]
    jobs: tuple[SimulatedJob, ...]
    quotas: tuple[QuotaUse, ...]
    policy: Policy
    tenants: tuple[TenantState, ...] = ()
    failures: tuple[NodeFailure, ...] = ()
    round_s: float = 60.0
    rate: Rates = learners_held
    known: Known | None = None
    begin: datetime | None = None
    until: datetime | None = None
    work: int | None = None
    projects: tuple[Project, ...] = ()

    def __post_init__(self) -> None:
        names = [job.gang.job for job in self.jobs]
        known = {node.name for node in self.nodes}
        wrong = []
        if len(set(names)) < len(names):
            wrong.append("jobs: two have the same name")
        wrong += [f"jobs: {job.gang.job} has no work" for job in self.jobs if job.work_s <= 0]
        wrong += [
            f"jobs: {job.gang.job} waits for less than no time"
            for job in self.jobs
            if job.waits_at_most_s is not None and not job.waits_at_most_s >= 0
        ]
        wrong += [f"failures: no node {each.node}" for each in self.failures if each.node not in known]
        wrong += [
            f"failures: {each.node} has less than no notice"
            for each in self.failures
            if not each.notice_s >= 0
        ]
        if self.work is not None and (self.work <= 0 or self.until is None):
            wrong.append("work: must be more than 0, and of a scenario with until")
        if wrong:
            raise ValueError("; ".join(wrong))


class RunEnd(StrEnum):
    """How a stay on nodes ended. REVOKED: it saved because of a notice that one of them is lost. CUT: it did not; the
    simulated time was over."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    REVOKED = "revoked"
    NODE_FAILED = "node_failed"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One stay of a job on its nodes, from its start until its slots were released.

    work_s: the work of it that was kept. useful_s: the seconds that it took. lost_s: seconds spent on work that was
    lost. The rest of the stay are start, restore and save.
    """

    gang: Gang
    slot_type: str
    nodes: tuple[str, ...]
    began: datetime
    ended: datetime
    end: RunEnd
    work_s: float
    useful_s: float
    lost_s: float

    @property
    def slots(self) -> int:
        """Over all learners."""
        return len(self.nodes) * self.gang.slots


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened. runs: in the order in which they ended. unfinished: jobs that nothing would ever start, or that
    waited when the simulated time was over. left: jobs that had waited for as long as they would.
    plans_late_s: the longest that a plan was put off for want of work."""

    begin: datetime
    end: datetime
    runs: tuple[RunRecord, ...]
    unfinished: tuple[str, ...]
    plans: int
    completed: dict[str, datetime] = field(default_factory=dict)
    first_started: dict[str, datetime] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    plans_late_s: float = 0.0
