"""Have the versions of a waiting job's packages chosen: it starts with those that there were when it was submitted, and
does not wait for devices if there are none.

Best effort: the cluster keeps what it is doing and is asked again, and what prepares a job without a lock chooses.
"""

from __future__ import annotations

import logging

from gpu_scheduler.clusters.base import ChoosesPackages, ClusterError, EnvironmentSpec, LaunchRefused
from jobs import clusters
from jobs.failpoints import fp
from jobs.lifecycle import transitions
from jobs.lifecycle.decision import WAIT_QUEUED_S
from jobs.lifecycle.facts import Move, Reason
from jobs.lifecycle.leases import Lease
from jobs.lifecycle.observation import JobRows
from jobs.models import Job, Runtime
from jobs.states import State

logger = logging.getLogger(__name__)

CHOOSING_S = 2.0
"""Between two questions whether the versions are chosen."""
RETRY_S, RETRY_MAX_S = 5.0, 300.0
"""Until the next try where the cluster cannot choose now: a quarter of what the job has waited, within these."""


def choose(rows: JobRows, lease: Lease, runtime: Runtime | None) -> float | None:
    """None: its versions were chosen, or it failed because there are none. Else the seconds until the next try; no
    problem of the cluster's is the job's. Raises StaleJob, also if it starts meanwhile: then its node chooses."""
    job = rows.job
    try:
        cluster = clusters.current()
        if not isinstance(cluster, ChoosesPackages):
            return WAIT_QUEUED_S
        versions = cluster.choose(environment_of(job, runtime))
    except LaunchRefused as refused:
        fp("choose.after_refused")
        transitions.move(rows, Move(State.FAILED, Reason(refused.code.value, str(refused))), lease)
        return None
    except ClusterError as error:
        logger.info("versions not chosen", extra={"job": job.pk, "error": str(error)})
        return min(max(RETRY_S, (rows.now - job.queued_at).total_seconds() / 4), RETRY_MAX_S)
    if versions is None:
        return CHOOSING_S
    fp("choose.after_cluster")
    transitions.note_lock(rows, lease, versions)
    return None


def environment_of(job: Job, runtime: Runtime | None) -> EnvironmentSpec:
    """What the job's packages go on top of, and which. runtime: see reconcile.runtimes_of."""
    return EnvironmentSpec(
        runtime=job.spec.get("framework"),
        python=runtime.python or None if runtime is not None else job.spec.get("python"),
        runtime_requirements=None if runtime is None else runtime.requirements,
        requirements=job.packages.get("requirements", ()),
    )
