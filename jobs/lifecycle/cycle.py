"""Start what can start: rows and the cluster's nodes -> Snapshot -> plan() -> one transaction per start.

One pass at a time over the whole installation (an advisory lock); a request that comes during a pass is not lost, the
holder makes another one. A start that is refused by quota, limit or a newer wish is skipped: nothing is admitted then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial

from django.db import connection, transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from gpu_scheduler.clusters.base import ClusterBusy
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Explanation, Node, Start, WaitReason
from jobs import announce, events, tokens
from jobs.failpoints import fp
from jobs.lifecycle import cluster as clusters
from jobs.models import Attempt, Checkpoint, ClusterNode, Duty, Job, JobEvent, Learner
from jobs.selectors.snapshot import snapshot
from jobs.states import EventCode, Intent, State
from tenants.models import Tenant

logger = logging.getLogger(__name__)

CYCLE_LOCK = 76
DUTY = "cycle"
EVERY_S = 5.0  # the cycle looks so often while something waits, whatever hints were lost
NUMBERS_ONLY = 500  # explanations of which only numbers changed, written per pass
CHUNK = 500


class NotAdmitted(Exception):
    """The job may not start after all: its quota, its tenant or its own wish changed since the snapshot."""


def run(*, request: bool = True) -> list[str]:
    """Make passes until none is asked for any more; the ids of the jobs that were started.

    request: ask for a pass; False only takes up one that is due. If another worker holds the cycle, it makes ours too.
    """
    if request:
        Duty.objects.update_or_create(name=DUTY, defaults={"next_at": Now()})
    else:
        Duty.objects.get_or_create(name=DUTY)
    started: list[str] = []
    while _due():
        with _lock() as mine:
            if not mine:
                break
            while _take_request():
                started += one_pass()
    return started


def has_new() -> bool:
    """Somebody waits whom no pass has looked at yet: his hint may have been lost."""
    fresh = Q(reason_code__in=(WaitReason.NOT_EVALUATED.value, "resume_requested"))
    return Job.objects.filter(fresh, state=State.QUEUED, intent=Intent.RUN, deleted_at=None).exists()


def one_pass() -> list[str]:
    """Look once at everything that waits; the ids of the jobs that were started."""
    cluster = clusters.connected()
    try:
        nodes = cluster.nodes()
    except ClusterBusy as busy:
        _tell_cluster_busy(str(busy))
        return []
    _keep_nodes(cluster.name, nodes)
    now = _database_now()
    seen = snapshot(nodes=nodes, now=now)
    if not seen.waiting:
        return []
    decided = plan(seen)
    started = [start.job for start in decided.starts if _admit(start, cluster.name)]
    _explain(decided.waits)
    _keep_heads(seen.head_since, decided.head_since)
    return started


def _admit(start: Start, cluster: str) -> bool:
    """Give the job its slots and its next attempt, all in one transaction, or leave everything as it is."""
    try:
        with transaction.atomic():
            admit(start, cluster)
            fp("admit.before_commit")
    except NotAdmitted as refusal:
        logger.info("start skipped", extra={"job": start.job, "why": str(refusal)})
        return False
    fp("admit.after_commit")
    return True


def admit(start: Start, cluster: str) -> None:
    """Inside a transaction: the move to DEPLOYING, quota, attempt and learners. Raises NotAdmitted."""
    fp("admit.before_move")
    placement = start.placement
    job = _take_job(start)
    fp("admit.after_move")
    _take_quota(job, placement.slot_type, job.slots * job.learners)
    fp("admit.after_quota")
    n = job.attempt + 1
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
    )
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
    transaction.on_commit(partial(announce.quotas_changed, job.tenant_id), robust=True)


def checkpoint_for(job: Job) -> Checkpoint | None:
    """What the next attempt goes on from: the newest valid checkpoint, or the one its people went back to, until an
    attempt made from that one has saved a checkpoint of its own."""
    valid = job.checkpoints.filter(state=Checkpoint.State.COMMITTED)
    wished = job.resume_from
    if wished is not None and wished.state == Checkpoint.State.COMMITTED:
        first = job.attempts.filter(resume_from=wished, opened_at__gte=job.queued_at).order_by("n").first()
        first = first or job.attempts.filter(resume_from=wished).order_by("n").last()
        valid = valid.filter(attempt__gte=first.n) if first else valid.none()
        return valid.order_by(*Checkpoint.NEWEST_FIRST).first() or wished
    return valid.order_by(*Checkpoint.NEWEST_FIRST).first()


def _take_job(start: Start) -> Job:
    row = Job.objects.filter(pk=start.job, state=State.QUEUED, intent=Intent.RUN, deleted_at=None)
    moved = row.update(
        state=State.DEPLOYING,
        attempt=F("attempt") + 1,
        reason_code="deploying",
        reason_message="Its learners are being started.",
        reason_numbers={},
        stop_reason="",
        stop_at=None,
        start_after=None,
        head_since=None,
        lease_owner="",
        lease_token=None,
        lease_until=None,
        settled=False,
        next_reconcile_at=Now(),
    )
    if moved != 1:
        raise NotAdmitted("it no longer waits")
    job = Job.objects.select_related("resume_from").get(pk=start.job)
    job.attempt -= 1  # as it was: the caller opens the next
    return job


def _take_quota(job: Job, slot_type: str, slots: int) -> None:
    """The conditional UPDATE; the tables' triggers are the second lock."""
    with connection.cursor() as cursor:
        cursor.execute(
            'UPDATE tenants_quota SET used = used + %s WHERE tenant_id = %s AND gpu_type = %s AND used + %s <= "limit"',
            [slots, job.tenant_id, slot_type, slots],
        )
        if cursor.rowcount != 1:
            raise NotAdmitted(f"quota of {slot_type} is used up")
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


def _explain(waits: Sequence[Explanation]) -> None:
    """Write why each job waits, only where that changed; a new code is an event, new numbers are not."""
    shown = {
        job: (code, message)
        for job, code, message in Job.objects.filter(state=State.QUEUED).values_list(
            "pk", "reason_code", "reason_message"
        )
    }
    changed = [
        wait for wait in waits if wait.job in shown and shown[wait.job] != (wait.code.value, wait.message)
    ]
    fresh = [wait for wait in changed if shown[wait.job][0] != wait.code.value]
    numbers_only = [wait for wait in changed if shown[wait.job][0] == wait.code.value]
    numbers_only.sort(key=lambda wait: wait.numbers.get("cluster_position") or 0)
    for part in _chunks(fresh):
        _write_reasons(part, with_event=True)
    for part in _chunks(numbers_only[:NUMBERS_ONLY]):
        _write_reasons(part, with_event=False)


WRITE_REASONS = """
UPDATE jobs_job j SET reason_code = v.code, reason_message = v.message, reason_numbers = v.numbers,
  event_seq = event_seq + %s,
  next_reconcile_at = CASE WHEN j.intent = 'RUN' AND j.lease_token IS NULL AND j.start_after IS NULL
    THEN clock_timestamp() + interval '10 minutes' ELSE j.next_reconcile_at END
FROM jsonb_to_recordset(%s) AS v(job text, code text, message text, numbers jsonb)
WHERE j.id = v.job AND j.state = 'QUEUED' RETURNING j.id, j.tenant_id, j.event_seq, j.attempt
"""


def _write_reasons(waits: Sequence[Explanation], *, with_event: bool) -> None:
    by_job = {wait.job: wait for wait in waits}
    rows = [
        {"job": wait.job, "code": wait.code.value, "message": wait.message, "numbers": dict(wait.numbers)}
        for wait in waits
    ]
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(WRITE_REASONS, [int(with_event), json.dumps(rows, default=str)])
            written = cursor.fetchall()
        if with_event:
            JobEvent.objects.bulk_create(
                JobEvent(
                    job_id=job,
                    tenant_id=tenant,
                    n=n,
                    code=EventCode.WAITING,
                    attempt=attempt,
                    reason=by_job[job].code.value,
                    message=by_job[job].message,
                    numbers=json.loads(json.dumps(dict(by_job[job].numbers), default=str)),
                    source="scheduler",
                )
                for job, tenant, n, attempt in written
            )
        for job, tenant, n, _ in written:
            events.announce_later(job, tenant, n)


def _keep_heads(before: Mapping[str, datetime], after: Mapping[str, datetime]) -> None:
    """The policy's own memory: since when each head of a queue could not start."""
    for job in set(before) | set(after):
        if before.get(job) != after.get(job):
            Job.objects.filter(pk=job, state=State.QUEUED).update(head_since=after.get(job))


def _keep_nodes(cluster: str, nodes: Sequence[Node]) -> None:
    """Keep what requests show of the cluster; only what changed is written."""
    known = {
        node.name: (node.cluster, node.slot_type, node.slots, node.ready)
        for node in ClusterNode.objects.all()
    }
    shown = {node.name: (cluster, node.slot_type, node.slots, node.ready) for node in nodes}
    if known == shown:
        return
    with transaction.atomic():
        ClusterNode.objects.exclude(name__in=shown).delete()
        for name, (of, slot_type, slots, ready) in shown.items():
            if known.get(name) != shown[name]:
                values = {
                    "cluster": of,
                    "slot_type": slot_type,
                    "slots": slots,
                    "ready": ready,
                    "changed_at": Now(),
                }
                ClusterNode.objects.update_or_create(name=name, defaults=values)
        transaction.on_commit(announce.cluster_changed, robust=True)


def _tell_cluster_busy(why: str) -> None:
    waiting = Job.objects.filter(state=State.QUEUED, intent=Intent.RUN).values_list("pk", flat=True)
    message = (
        f"The cluster does not answer, so nothing starts now; everything that waits keeps its place. ({why})"
    )
    _explain([Explanation(job, WaitReason.NOT_EVALUATED, message, {}) for job in waiting])


def _due() -> bool:
    return Duty.objects.filter(name=DUTY, next_at__lte=Now()).exists()


def _take_request() -> bool:
    """Take up what was asked for until now; what is asked for from now on makes another pass."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_duty SET next_at = clock_timestamp() + make_interval(secs => %s), done_at = clock_timestamp()"
            " WHERE name = %s AND next_at <= clock_timestamp()",
            [EVERY_S, DUTY],
        )
        return cursor.rowcount == 1


@contextmanager
def _lock() -> Iterator[bool]:
    """The cycle's advisory lock for the time of the block; the connection's death frees it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, 0)", [CYCLE_LOCK])
        mine = bool(cursor.fetchone()[0])
    try:
        yield mine
    finally:
        if mine:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s, 0)", [CYCLE_LOCK])


def _database_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]


def _chunks(waits: Sequence[Explanation]) -> Iterable[Sequence[Explanation]]:
    return (waits[start : start + CHUNK] for start in range(0, len(waits), CHUNK))
