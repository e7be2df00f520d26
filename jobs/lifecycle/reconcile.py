"""Bring one job as far as it can go: read its intent, its rows and the cluster's report, decide, act, and again.

load -> observe -> decide -> act or move; each decision is written only under the lease with which the job was read. No
call to the cluster happens inside a transaction; each may happen twice. A worker may die at any point: the next one
continues.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from gpu_scheduler.clusters.base import (
    Absences,
    Cluster,
    ClusterBusy,
    ClusterError,
    GangBlocked,
    GangSpec,
    LaunchRefused,
    LearnerSpec,
    Observation,
    ProvisionOutdated,
    Removal,
)
from gpu_scheduler.clusters.registry import ClusterMisconfigured
from jobs import clusters, events, tokens
from jobs.errors import ImageNotAllowed
from jobs.failpoints import fp
from jobs.lifecycle import choosing, leases, transitions
from jobs.lifecycle.decision import Act, Decision, decide, decide_without_cluster
from jobs.lifecycle.facts import CLUSTER_BUSY, CLUSTER_QUOTA, JobObservation, Move, Reason
from jobs.lifecycle.leases import Lease
from jobs.lifecycle.observation import JobRows, load, proves_alive, with_report
from jobs.models import Attempt, Job, Runtime
from jobs.retries import database_away
from jobs.selectors.images import allowed_image
from jobs.selectors.requests import elastic_range
from jobs.spec.quantities import parse_duration, parse_memory
from jobs.states import HOLDS_GPUS, KEEPS_REASON, EventCode, Intent, State, StopReason
from tenants.errors import SecretsUnavailable
from tenants.services import secrets
from tenants.services.secrets import SecretMissing

logger = logging.getLogger(__name__)

MAX_STEPS = 12
CALL_S = 2.0  # begin a call to the cluster only while the lease lasts that much longer
BUSY_S = 2.0  # a cluster that asks to wait
KEYS_RETRY_S = 15.0  # keys that only an operator can put back
KEYS_WAIT_S = 60.0  # as long as it takes to put a key back at a restart; longer, others use the GPUs
QUOTA_WAIT_S = 10.0  # a cluster's count of what has just ended follows within seconds
BACK_OFF_MAX_S = 60.0
PERSISTENT_AFTER, PERSISTENT_RETRY_S = 8, 3600.0

_absences = Absences()


class LeaseOver(Exception):
    """The lease ends too soon for another call to the cluster."""


def hold(lease: Lease) -> bool:
    """Work on the job under this lease, then release it. An error of the platform costs this job, not the batch."""
    try:
        return _walk(lease)
    except transitions.StaleJob:
        logger.info("another worker took the job", extra={"job": lease.job_id})
    except LeaseOver:
        leases.release_later(lease, 0)
    except Exception as error:
        if database_away(error):
            raise  # nothing can be written now; the lease ends by itself
        _back_off(lease)  # also for an error of the database that only this job's rows cause
    return False


def _walk(lease: Lease) -> bool:
    """Decide and act until there is nothing more to do now."""
    wants_cycle = False
    for step in range(MAX_STEPS):
        if step and not lease.may_act(settings.LUTHIER_LEASE_S / 2) and not leases.renew(lease):
            raise transitions.StaleJob(lease.job_id)
        rows = load(lease.job_id)
        if rows is None:
            return False
        try:
            rows, observation = _observe(rows, lease)
            decision = decide(observation)
            if decision.move is not None:
                transitions.move(rows, decision.move, lease)
                wants_cycle |= decision.move.to not in HOLDS_GPUS
                continue
            if decision.act is not Act.NONE:
                fp(f"{decision.act}.before_cluster")
                if decision.act is Act.REMOVE:
                    transitions.note_reports([(rows, observation)])
                if decision.act is Act.CHOOSE:
                    requeue_after_s = _choose(rows, lease)
                    if requeue_after_s is None:
                        wants_cycle = True
                        continue
                    assert decision.requeue_after_s is not None, "a waiting job is never settled"
                    decision = replace(
                        decision, requeue_after_s=min(requeue_after_s, decision.requeue_after_s)
                    )
                elif act(rows, observation, decision, lease):
                    continue
        except ClusterBusy as busy:
            _wait_for_cluster(rows, lease, busy)
            return wants_cycle
        except SecretsUnavailable as error:
            if not _wait_for_keys(rows, lease, error):
                return wants_cycle
            continue
        except ClusterMisconfigured as error:
            if not _without_cluster(rows, lease, error):
                return wants_cycle
            wants_cycle = True
            continue
        if decision.note is not None:
            transitions.note_reason(rows, lease, decision.note)
        fp("reconcile.before_release")
        if leases.release(lease, requeue_after_s=decision.requeue_after_s, intent_gen=observation.intent_gen):
            fp("reconcile.after_release")
            return wants_cycle or decision.wants_cycle
        if not leases.renew(lease):  # lost; otherwise the intent is newer: observe again
            raise transitions.StaleJob(lease.job_id)
    leases.release(
        lease, requeue_after_s=0, intent_gen=None
    )  # enough steps for one turn: other jobs get theirs
    return wants_cycle


def _observe(rows: JobRows, lease: Lease) -> tuple[JobRows, JobObservation]:
    """The observation with the cluster's report, which is requested only for a gang that may exist."""
    if not may_have_gang(rows):
        return rows, rows.observation
    _require(lease, after_look=False)
    found = noted(rows, lease, cluster_of(rows).observe([rows.observation.gang_name]))
    note_alive([found])
    return found


def note_alive(found: Sequence[tuple[JobRows, JobObservation]]) -> None:
    """Record of which jobs the cluster showed that their learners are alive."""
    transitions.note_alive([rows for rows, seen in found if proves_alive(rows, seen.gang)])


def may_have_gang(rows: JobRows) -> bool:
    """Whether the cluster may have the gang of the job's live attempt."""
    return rows.holds_gpus and (rows.observation.launched or rows.observation.state == State.STOPPING)


def noted(rows: JobRows, lease: Lease, found: Observation) -> tuple[JobRows, JobObservation]:
    """The observation with what the cluster showed of the job's gang, which is noted where it must be kept. Raises
    ClusterBusy if that does not say whether there is one."""
    name = rows.observation.gang_name
    report = found.gangs.get(name)
    if report is None and not _absences.is_gone(name, found):
        raise ClusterBusy(f"The cluster does not yet say whether {name} exists.")
    if report is not None and report.lock:
        transitions.note_lock(rows, lease, report.lock)
    if report is not None:
        transitions.note_images(rows, lease, report.learners)
    observation = with_report(rows, report)
    if any(learner.processes_ended and not learner.exited for learner in observation.learners):
        # It ended after its rows were read. A shipper leaves once its report is stored, and only that shows whether
        # a halt had reached the program: an exit code alone would make a halted job a completed one.
        rows = load(lease.job_id) or rows
        observation = with_report(rows, report)
    return rows, observation


def cluster_of(rows: JobRows) -> Cluster:
    """The cluster of the live attempt, which need not be the one for new attempts."""
    assert rows.attempt is not None, "only an attempt has a gang"
    return clusters.named(rows.attempt.cluster)


def act(rows: JobRows, observation: JobObservation, decision: Decision, lease: Lease) -> bool:
    """Have one effect on the cluster. True if the job should be observed again right away. Before a removal, what the
    cluster shows is to be noted: transitions.note_reports."""
    _require(lease)
    cluster = cluster_of(rows)
    match decision.act:
        case Act.LAUNCH:
            return _launch(rows, lease)
        case Act.STOP:
            cluster.stop(observation.gang_name, grace_s=decision.grace_s)
            fp("stop.after_cluster")
            return False
        case Act.REMOVE:
            if decision.cut_off is not None:
                transitions.note_condition(rows, lease, decision.cut_off)
            uids = [learner.report.uid for learner in observation.learners if learner.report is not None]
            removal = cluster.remove(observation.gang_name, uids=uids)
            fp("remove.after_cluster")
            return removal is Removal.GONE
    return False


def _launch(rows: JobRows, lease: Lease) -> bool:
    """See act. A gang that was accepted is not looked at yet: the cluster has nothing else to show."""
    if not launch(rows, lease, runtimes_of([rows]).get(rows.job.pk)):
        return True
    transitions.note_launched(rows, lease)
    fp("launch.after_noted")
    return False


def _choose(rows: JobRows, lease: Lease) -> float | None:
    """See choosing.choose."""
    _require(lease)
    return choosing.choose(rows, lease, runtimes_of([rows]).get(rows.job.pk))


def runtimes_of(all_rows: Sequence[JobRows]) -> dict[str, Runtime]:
    """By the ids of their jobs, the runtimes that these name and that say what to run. Not those of the source tree:
    their requirements are a file, or their image a setting."""
    own = Q(requirements__isnull=False) | ~Q(image="")
    named = {rows.job.pk: rows.job.spec.get("framework") for rows in all_rows}
    found = Runtime.objects.filter(own).in_bulk({slug for slug in named.values() if slug})
    return {job: found[slug] for job, slug in named.items() if slug in found}


def launch(rows: JobRows, lease: Lease, runtime: Runtime | None) -> bool:
    """Have the cluster start the job's gang. runtime: see runtimes_of. True if it accepted it, which is to be noted;
    else the job has moved."""
    _require(lease)
    try:
        cluster_of(rows).launch(_gang_to_launch(rows, runtime))
    except ImageNotAllowed as refused:
        message = f"Not started: {refused} Then clone the job."
        _refuse(rows, lease, StopReason.IMAGE_ERROR, message)
        return False
    except SecretMissing as missing:
        _refuse(rows, lease, StopReason.SECRET_MISSING, _missing(rows.job.spec["secrets"], missing))
        return False
    except LaunchRefused as refused:
        _refuse(rows, lease, StopReason(refused.code), f"The cluster refused to start it: {refused}")
        return False
    except ProvisionOutdated as refused:
        assert rows.attempt is not None, "only an attempt is launched"
        if (rows.now - rows.attempt.opened_at).total_seconds() < QUOTA_WAIT_S:
            raise
        reason = Reason(CLUSTER_QUOTA, f"Not started: {refused}.")
        transitions.move(rows, Move(State.STOPPING, reason, StopReason.DEPLOY_TIMEOUT), lease)
        return False
    fp("launch.after_cluster")
    return True


def _refuse(rows: JobRows, lease: Lease, reason: StopReason, message: str) -> None:
    transitions.move(rows, Move(State.STOPPING, Reason(reason.value, message), reason), lease)


def _missing(granted: Mapping[str, str], missing: SecretMissing) -> str:
    """Of each secret that a job names and that was deleted since, where the job names it."""
    names = [f"{name} (secrets.{variable})" for variable, name in granted.items() if name in missing.names]
    which = f"Secret {names[0]} does" if len(names) == 1 else f"Secrets {', '.join(names)} do"
    return (
        f"{which} not exist any more, for this job's owner or its tenant. Set it again, then clone the job."
    )


def _secrets(job: Job) -> dict[str, str]:
    """The program's secrets by variable. They are read here alone, for the cluster. Raises SecretMissing and
    SecretsUnavailable."""
    granted: dict[str, str] = job.spec.get("secrets", {})
    if not granted:
        return {}
    values = secrets.values_for(owner=job.owner, tenant=job.tenant, names=set(granted.values()))
    return {variable: values[name] for variable, name in granted.items()}


def _gang_to_launch(rows: JobRows, runtime: Runtime | None) -> GangSpec:
    """The gang of the job's live attempt: the same for every call, the shippers' secrets included.

    Raises ImageNotAllowed, SecretMissing and SecretsUnavailable.
    """
    job, attempt = rows.job, rows.attempt
    assert attempt is not None
    spec: dict[str, Any] = job.spec
    resources = spec["resources"]
    runs_images = cluster_of(rows).capabilities.images
    image = spec.get("image") or (runtime.image if runtime is not None and runs_images else "")
    if image and runs_images:
        image = allowed_image(job, runtime)
    environment = choosing.environment_of(job, runtime)
    return GangSpec(
        name=rows.observation.gang_name,
        job=job.pk,
        attempt=attempt.n,
        tenant=job.tenant.slug,
        learners=[
            LearnerSpec(
                rank=learner.rank,
                node=learner.node,
                env=spec.get("env", {}) | _batch(attempt),
                secret=tokens.derive(job.pk, attempt.n, learner.rank)[0],
            )
            for learner in rows.learners
        ],
        slots=attempt.slots,
        slot_type=attempt.slot_type,
        cpus=float(resources["cpus"]),
        memory_mib=parse_memory(resources["memory"]),
        command=spec["command"],
        ingest_url=settings.LUTHIER_INGEST_URL,
        runtime=None if image else environment.runtime,
        python=environment.python,
        runtime_requirements=environment.runtime_requirements,
        requirements=environment.requirements,
        lock=job.packages.get("lock", ()),
        image=image or None,
        grace_s=job.grace_s,
        checkpoint_every_s=parse_duration(spec["checkpoint"]["every"]),
        # At every size of an elastic job, its program finds the same variables.
        distributed=spec.get("distributed", None if elastic_range(job.resources) is None else True),
        setup=spec.get("setup", ()),
        secrets=_secrets(job),
        data={mount["name"]: mount["path"] for mount in spec.get("data", ())},
        opportunistic=attempt.opportunistic,
    )


def _batch(attempt: Attempt) -> dict[str, str]:
    """The variables that say which batch the platform chose; none where the program has its own."""
    if attempt.batch is None:
        return {}
    return {"LUTHIER_BATCH": str(attempt.batch), "LUTHIER_MICRO_BATCH": str(attempt.micro_batch)}


def _require(lease: Lease, *, after_look: bool = True) -> None:
    """Begin a call only while the lease lasts CALL_S more; a call may outlast it, and its result is then void.
    after_look: see `renew`."""
    if not lease.may_act(CALL_S) and not leases.renew(lease, after_look=after_look):
        raise LeaseOver


def _wait_for_cluster(rows: JobRows, lease: Lease, busy: ClusterError) -> None:
    """The cluster does not answer or asks to wait: no job fails for that, and people can read it."""
    if rows.observation.state not in KEEPS_REASON:
        message = f"Waiting for the cluster: {busy}"
        numbers = {"node": busy.node} if isinstance(busy, GangBlocked) else {}
        transitions.note_reason(rows, lease, Reason(CLUSTER_BUSY, message, numbers))
    fp("busy.after_noted")
    leases.release(lease, requeue_after_s=BUSY_S * random.uniform(0.8, 1.2), intent_gen=None, looked=False)


def _wait_for_keys(rows: JobRows, lease: Lease, error: SecretsUnavailable) -> bool:
    """Its secrets cannot be decrypted: it is never launched without them, and waits until an operator has put it
    right; after KEYS_WAIT_S in the queue, without slots. True if the job moved; otherwise its lease is released."""
    logger.error("secrets unavailable", extra={"job": lease.job_id, "error": str(error)})
    assert rows.attempt is not None
    if (rows.now - rows.attempt.opened_at).total_seconds() >= KEYS_WAIT_S:
        reason = Reason(error.code, f"Not started without its secrets: {error}")
        transitions.move(rows, Move(State.STOPPING, reason, StopReason.DEPLOY_TIMEOUT), lease)
        return True
    transitions.note_reason(rows, lease, Reason(error.code, f"Waiting for its secrets: {error}"))
    leases.release(lease, requeue_after_s=KEYS_RETRY_S, intent_gen=None, looked=False)
    return False


def _without_cluster(rows: JobRows, lease: Lease, error: ClusterMisconfigured) -> bool:
    """The attempt's own cluster cannot be reached with this installation's settings, and another driver would not know
    its learners. True if the job moved; otherwise it says so, and its lease is released."""
    assert rows.attempt is not None
    cluster = rows.attempt.cluster
    logger.error("cluster unavailable", extra={"job": lease.job_id, "cluster": cluster})
    decision = decide_without_cluster(rows.observation, cluster=cluster, error=str(error), now=rows.now)
    if decision.move is not None:
        transitions.move(rows, decision.move, lease)
        return True
    assert decision.note is not None
    transitions.note_condition(rows, lease, decision.note)
    if _may_replace_reason(rows.observation):
        transitions.note_reason(rows, lease, decision.note)
    leases.release(
        lease, requeue_after_s=decision.requeue_after_s, intent_gen=rows.job.intent_gen, looked=False
    )
    return False


def _may_replace_reason(job: JobObservation) -> bool:
    if job.intent == Intent.CANCEL:
        return True  # it ends as canceled, whatever it was on its way to
    return job.state not in KEEPS_REASON or job.stop_reason == StopReason.HALT_REQUESTED


def _back_off(lease: Lease) -> None:
    """Retry later with exponential back-off. From the 8th error in a row, retry hourly and publish an event once. What
    the job's rows say may be the error: they are not made into an observation here."""
    logger.exception("reconcile failed", extra={"job": lease.job_id})
    found = Job.objects.filter(pk=lease.job_id).values_list("tenant_id", "attempt", "fail_streak").first()
    if found is None:
        return
    tenant, attempt, failed = found
    streak = failed + 1
    persistent = streak >= PERSISTENT_AFTER
    wait_s = (
        PERSISTENT_RETRY_S
        if persistent
        else random.uniform(0.5, 1) * min(BACK_OFF_MAX_S, 2.0 ** (streak - 1))
    )
    with transaction.atomic():  # the event is written once, so it must not be lost between the two
        if leases.release_later(lease, wait_s) != PERSISTENT_AFTER:
            return
        fp("back_off.after_release")
        events.append(
            job_id=lease.job_id,
            tenant_id=tenant,
            code=EventCode.CONDITION,
            attempt=attempt,
            reason="reconcile_failing",
            message=f"The platform failed {streak} times on this job and retries hourly."
            " A platform admin should look at the worker's log.",
            source="lifecycle",
        )
