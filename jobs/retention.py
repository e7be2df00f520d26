"""Removing what retention rules no longer keep: in small steps, each of which may be interrupted and repeated.

A job's row of removals is written first: from then on nothing of the kind is shown. Then the data goes, in batches that
lock nothing else; at last the job's history says what was removed, once. Bytes in the blob store go by
`blobs.release`, so a backup that is being made still finds them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Now, Random

from jobs import blobs, events, usage_days
from jobs.failpoints import fp
from jobs.models import (
    Attempt,
    Checkpoint,
    CheckpointFile,
    Job,
    LogChunk,
    LogIndex,
    MetricPoint,
    MetricRollup,
    Removal,
    ResultFile,
)
from jobs.retries import retry_on_serialization_failure
from jobs.selectors.retention import KEPT_EVENT, Chosen, chosen, old_entries
from jobs.states import FINAL, EventCode
from tenants import audit
from tenants.audit_chain import REMOVAL
from tenants.models import Session, Tenant
from tenants.retention import OF_JOBS, Kind, Rule
from tenants.services.retention import default_rules, effective_rules
from tenants.sessions import longest_idle

ROWS_BATCH, JOBS_BATCH = 5000, 1000
"""More jobs than a run can take: to find them, all jobs of a tenant are judged."""
RUN_S = 5.0
"""Seconds after which a run begins no further job; the next run continues."""


def enforce(until: float | None = None) -> dict[str, Any]:
    """One run for all tenants. until: of time.monotonic, when it begins nothing more. Returns what it did, and whether
    more is left to do."""
    end = time.monotonic() + RUN_S if until is None else until
    removed = finish_open(end)
    more = False
    for tenant in Tenant.objects.order_by(Random()):  # so that none waits for another's backlog
        count, left = enforce_tenant(tenant, end)
        removed, more = removed + count, more or left
    entries = remove_entries(None, default_rules().get(Kind.AUDIT))
    return {"jobs": removed, "entries": entries, "sessions": end_sessions(), "more": more}


def enforce_all(tenants: Iterable[Tenant], *, installation: bool) -> int:
    """All that the rules of these tenants remove, until nothing is left. Returns how many removals from jobs there
    were. installation: also what belongs to no tenant."""
    removed = finish_open(float("inf"))
    for tenant in tenants:
        removed += enforce_tenant(tenant, float("inf"))[0]
    if installation:
        remove_entries(None, default_rules().get(Kind.AUDIT))
        end_sessions()
    return removed


def enforce_tenant(tenant: Tenant, end: float) -> tuple[int, bool]:
    """What one tenant's rules remove. Returns how many removals from jobs there were, and whether more are left."""
    removed, more = 0, False
    rules = effective_rules(tenant)
    for kind in OF_JOBS:
        if time.monotonic() > end:  # to judge takes long
            return removed, True
        while found := chosen(tenant.pk, kind, rules[kind], JOBS_BATCH):
            done = 0
            for one in found:
                if time.monotonic() > end:
                    more = True
                    break
                done += remove(one, kind, rules[kind])
            removed += done
            if more or not done:  # what is locked or in use now is chosen again by a later run
                break
    remove_entries(tenant, rules[Kind.AUDIT])
    record(tenant)
    return removed, more


def finish_open(end: float) -> int:
    """Go on with removals that were interrupted."""
    done = 0
    for removal in Removal.objects.filter(done_at=None).order_by("begun_at"):
        if time.monotonic() > end:
            break
        done += _carry_out(removal)
    return done


def remove(one: Chosen, kind: Kind, rule: Rule) -> int:
    """Remove one kind of a job's data; 0 if that is not possible now."""
    removal = _begin(one, kind, rule)
    if removal is None:
        return 0
    fp("retention.after_begin")
    return _carry_out(removal)


@retry_on_serialization_failure
def _begin(one: Chosen, kind: Kind, rule: Rule) -> Removal | None:
    """Write that it is being removed, if the job may still lose it. Rows of checkpoints are locked before the job's, as
    everywhere (docs/adr/0012)."""
    with transaction.atomic():
        if kind is Kind.CHECKPOINTS and not _drop_checkpoints(one.job_id):
            return None
        ended = Job.objects.select_for_update(no_key=True, of=("self",)).filter(
            pk=one.job_id, state__in=FINAL, deleted_at=None
        )
        job = ended.first()
        if job is None or Removal.objects.filter(job=job, kind=kind).exists():
            transaction.set_rollback(True)
            return None
        limits = {"days": rule.days} if one.by_age else {"bytes": rule.bytes}
        return Removal.objects.create(
            job=job, tenant_id=job.tenant_id, kind=kind, rows=one.rows, size=one.bytes, **limits
        )


def _drop_checkpoints(job_id: str) -> bool:
    """Mark all of a job's checkpoints as dropped, unless an unfinished job would resume from one of them. Who picks one
    to resume from holds its row, so it either has it or finds it dropped."""
    held = Checkpoint.objects.select_for_update(no_key=True).filter(job=job_id).order_by("pk")
    numbers = [saved.pk for saved in held]
    opened = Attempt.objects.filter(closed_at=None, resume_from__in=numbers)
    requested = Job.objects.filter(resume_from__in=numbers, deleted_at=None).exclude(state__in=FINAL)
    if opened.exists() or requested.exists():
        return False
    Checkpoint.objects.filter(pk__in=numbers).update(state=Checkpoint.State.DROPPED)
    return True


def _carry_out(removal: Removal) -> int:
    """Remove the data, then say so in the job's history; 1 if this call was the one that said it."""
    REMOVERS[Kind(removal.kind)](removal.job_id)
    fp("retention.after_data")
    return _finish(removal)


@retry_on_serialization_failure
def _finish(removal: Removal) -> int:
    with transaction.atomic():
        if not Removal.objects.filter(pk=removal.pk, done_at=None).update(done_at=Now()):
            return 0
        events.append(
            job_id=removal.job_id,
            tenant_id=removal.tenant_id,
            code=EventCode.DATA_REMOVED,
            reason=f"retention_{removal.kind}",
            message=removal.words,
            numbers={
                "kind": removal.kind,
                "rows": removal.rows,
                "bytes": removal.size,
                "limit": {"days": removal.days, "bytes": removal.bytes},
            },
            source="lifecycle",
        )
    return 1


def delete_in_parts(table: str, job_id: str, condition: str = "true") -> None:
    """Delete a job's rows of a table in batches, each a transaction of its own.

    Under the rows of its learners: so no merge of chunks, step of an index, late commit of ingest or other worker that
    removes the same changes rows meanwhile, and a batch that is not full is the last one.
    """
    statement = (
        f"DELETE FROM {table} WHERE id IN (SELECT e.id FROM {table} e JOIN jobs_job j ON j.id = e.job_id"
        f" WHERE e.job_id = %s AND {condition} LIMIT %s)"
    )
    while True:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL luthier.purge = 'on'")  # history is append-only but for this
            cursor.execute(
                "SELECT id FROM jobs_learner WHERE job_id = %s ORDER BY id FOR NO KEY UPDATE", [job_id]
            )
            cursor.execute(statement, [job_id, ROWS_BATCH])
            if cursor.rowcount < ROWS_BATCH:
                return


def delete_logs(job_id: str) -> None:
    """Delete a job's lines and what is known about them."""
    delete_in_parts(LogChunk._meta.db_table, job_id)
    delete_in_parts(LogIndex._meta.db_table, job_id)


def delete_metrics(job_id: str) -> None:
    """Delete a job's points and their roll-ups."""
    delete_in_parts(MetricPoint._meta.db_table, job_id)
    delete_in_parts(MetricRollup._meta.db_table, job_id)


def _remove_files(files: QuerySet[Any]) -> None:
    """Delete rows that refer to blobs, and release these. After a crash in between the sweep finds them."""
    held = list(files.values_list("blob_id", flat=True))
    files.delete()
    fp("retention.after_files")
    blobs.release(held)


def _remove_events(job_id: str) -> None:
    """Usage of waits is counted from events: first what is not counted yet."""
    usage_days.roll_up_job(job_id)
    delete_in_parts("jobs_jobevent", job_id, f"NOT {KEPT_EVENT}")


REMOVERS: dict[Kind, Callable[[str], None]] = {
    Kind.LOGS: delete_logs,
    Kind.METRICS: delete_metrics,
    Kind.CHECKPOINTS: lambda job_id: _remove_files(CheckpointFile.objects.filter(checkpoint__job=job_id)),
    Kind.RESULTS: lambda job_id: _remove_files(ResultFile.objects.filter(job=job_id)),
    Kind.EVENTS: _remove_events,
}


@transaction.atomic
def record(tenant: Tenant) -> None:
    """Write into the audit log what was removed from the tenant's jobs since its last entry. Together with the marks:
    so a run that was killed is counted by the next one, once."""
    open_rows = Removal.objects.select_for_update(skip_locked=True).filter(
        tenant=tenant, audited=False, done_at__isnull=False
    )
    numbers = list(open_rows.values_list("pk", flat=True))
    if not numbers:
        return
    done = Removal.objects.filter(pk__in=numbers)
    sums = done.values("kind").annotate(jobs=Count("pk"), of=Sum("rows"), size=Sum("size")).order_by("kind")
    details = {
        each["kind"]: {"jobs": each["jobs"], "rows": each["of"], "bytes": each["size"]} for each in sums
    }
    done.update(audited=True)
    audit.record(
        actor=None, action="retention.remove", tenant_id=tenant.pk, target=tenant.slug, details=details
    )


def remove_entries(tenant: Tenant | None, rule: Rule | None) -> int:
    """Remove what is too old for the audit log's own rule, in batches; a new entry says how much it was.

    tenant None: entries of the installation as a whole."""
    if rule is None or rule.days is None:
        return 0
    tenant_id = tenant.pk if tenant else None
    removed = 0
    while True:
        with transaction.atomic():
            old = list(old_entries(tenant_id, rule.days).order_by("pk").values_list("pk", "at")[:ROWS_BATCH])
            if not old:
                return removed
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL luthier.audit_retention = 'on'")  # append-only but for this
                ids = [pk for pk, _ in old]
                cursor.execute("UPDATE tenants_auditseal SET removed = true WHERE entry_id = ANY(%s)", [ids])
                cursor.execute("DELETE FROM tenants_auditentry WHERE id = ANY(%s)", [ids])
                gone = cursor.rowcount
            if gone:
                details = {"entries": gone, "days": rule.days, "until": max(at for _, at in old).isoformat()}
                target = tenant.slug if tenant else ""
                audit.record(actor=None, action=REMOVAL, tenant_id=tenant_id, target=target, details=details)
            removed += gone


def end_sessions() -> int:
    """Remove sessions that have expired or are not used, and those that the installation's rule ends. Returns how
    many."""
    rule = default_rules().get(Kind.SESSIONS)
    lasts = timedelta(seconds=settings.SESSION_COOKIE_AGE)
    early = lasts - timedelta(days=rule.days) if rule and rule.days is not None else timedelta(0)
    over = Q(expire_date__lt=Now() + max(early, timedelta(0)))
    unused = Q(user__isnull=False, seen_at__lt=Now() - longest_idle())
    gone, _ = Session.objects.filter(over | unused).delete()
    return gone
