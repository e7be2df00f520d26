"""Start a waiting job: its move, quota, attempt and learners in one transaction, or nothing."""

from __future__ import annotations

from functools import partial

from django.db import connection, transaction
from django.db.models.functions import Now

from gpu_scheduler.model import Start
from jobs import events, pubsub, tokens
from jobs.failpoints import fp
from jobs.lifecycle.transitions import leave_queue
from jobs.models import Attempt, Estimate, Job, Learner
from jobs.selectors.checkpoints import checkpoint_for
from jobs.states import EventCode, State
from tenants.models import Tenant


class NotAdmitted(Exception):
    """The job may not start after all: its quota, its tenant or its own intent changed since the snapshot."""


def admit(start: Start, cluster: str) -> None:
    """Inside a transaction: the move to DEPLOYING, quota, attempt and learners. Raises NotAdmitted."""
    fp("admit.before_move")
    placement = start.placement
    job = leave_queue(start.job)
    if job is None:
        raise NotAdmitted("it no longer waits")
    if len(placement.nodes) != job.learners:
        raise NotAdmitted("its size has changed")
    fp("admit.after_move")
    _take_quota(job, placement.slot_type, job.slots * job.learners)
    fp("admit.after_quota")
    n = job.attempt
    attempt = Attempt.objects.create(
        job=job,
        tenant_id=job.tenant_id,
        n=n,
        cluster=cluster,
        slot_type=placement.slot_type,
        slots=job.slots,
        learners=job.learners,
        nodes=list(placement.nodes),
        resume_from=checkpoint_for(job),
        known_at=Now(),
    )
    fp("admit.after_attempt")
    Learner.objects.bulk_create(
        Learner(
            job=job,
            tenant_id=job.tenant_id,
            attempt=n,
            rank=rank,
            node=node,
            secret_sha256=tokens.derive(job.pk, n, rank)[1],
        )
        for rank, node in enumerate(placement.nodes)
    )
    Estimate.objects.filter(job=job, started_at=None).update(started_at=Now())
    fp("admit.after_rows")
    events.append(
        job_id=job.pk,
        tenant_id=job.tenant_id,
        code=EventCode.PLACED,
        from_state=State.QUEUED.value,
        to_state=State.DEPLOYING.value,
        attempt=n,
        reason="placed",
        message=_placed(attempt),
        numbers={
            "nodes": list(placement.nodes),
            "slots": job.slots,
            "slot_type": placement.slot_type,
            "checkpoint": attempt.resume_from.n if attempt.resume_from else None,
        },
        source="scheduler",
    )
    transaction.on_commit(partial(pubsub.quotas_changed, job.tenant_id), robust=True)


def _take_quota(job: Job, slot_type: str, slots: int) -> None:
    """Take the slots with conditional UPDATEs; database triggers reject anything that these conditions miss."""
    with connection.cursor() as cursor:
        cursor.execute(
            'UPDATE tenants_quota SET used = used + %s WHERE tenant_id = %s AND gpu_type = %s AND used + %s <= "limit"',
            [slots, job.tenant_id, slot_type, slots],
        )
        if cursor.rowcount != 1:
            raise NotAdmitted(f"quota of {slot_type} is used up")
        fp("admit.after_slots_taken")
        cursor.execute(
            "UPDATE tenants_tenant SET jobs_used = jobs_used + 1 WHERE id = %s AND state = %s"
            " AND (jobs_limit IS NULL OR jobs_used < jobs_limit)",
            [job.tenant_id, Tenant.State.ACTIVE],
        )
        if cursor.rowcount != 1:
            raise NotAdmitted("the tenant is suspended or at its limit of live jobs")


def _placed(attempt: Attempt) -> str:
    nodes = ", ".join(dict.fromkeys(attempt.nodes))
    from_checkpoint = f", from checkpoint {attempt.resume_from.n}" if attempt.resume_from else ""
    learners = f"{attempt.learners} learner{'s' if attempt.learners > 1 else ''}"
    return f"Attempt {attempt.n}: {learners} with {attempt.slots} {attempt.slot_type} each on {nodes}{from_checkpoint}"
