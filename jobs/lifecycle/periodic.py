"""The installation's periodic tasks: each is a row with the time when it is due; one worker at a time runs it.

blobs     checks whether the blob store responds
compact   merges the many small chunks of quiet logs
decisions removes old snapshots that plans were made from
fairness  stores what tenants were entitled to and received in the last hours
forward   sends the audit log to another system
forecast  updates when each waiting job is expected to start
mail      mails security notices
measure   measures the step times of elastic jobs
notice    notes when no worker ran, which is no job's wait
orphans   removes gangs of no live attempt that were seen twice (a launch that outlived its attempt)
purge     removes bytes and rows of deleted jobs whose retention time is over
retention removes what the retention rules of tenants no longer keep
rollups   rolls up metric points that an earlier version stored
seal      continues the chain of the audit log
storage   adds up how many bytes each tenant stores
tidy      removes old idempotency answers, uploads and tokens, dead workers' rows, uploads of checkpoints of attempts
          that are over, bytes that a crash left behind
usage     rolls up usage by day
watch     notifies users of failed sign-ins under their names
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction
from django.db.models import F, Q
from django.db.models.functions import Now
from guardian.models import UserObjectPermission

from gpu_scheduler.clusters.base import ClusterBusy, GangReport, LeavesTraces, gang_name, job_of_gang
from jobs import blobs, clusters, drops, fairness_hours, retention, rollups, storage, usage_days
from jobs.accounting import NOTED_EVERY_S, PAUSE_S
from jobs.blobs import health, ownership
from jobs.failpoints import fp
from jobs.invariants import unowned
from jobs.lifecycle import forecasting, leases, log_compaction, measuring, recording
from jobs.models import (
    Attempt,
    CheckpointFile,
    IdempotentResponse,
    Job,
    PeriodicTask,
    ResultFile,
    Upload,
)
from jobs.retries import retry_on_serialization_failure
from jobs.selectors.snapshot import database_now
from tenants import audit_chain, audit_forward, notices, outbox
from tenants.models import Token

logger = logging.getLogger(__name__)

PURGE_BATCH = 20
KEEP = timedelta(hours=24)
UNKNOWN = timedelta(minutes=15)
EXPIRED_KEPT = timedelta(days=30)
"""For how long pages still show that a token has expired."""

NOTICE = "notice"
MAIL, FORWARD = "mail", "forward"
SLOW = frozenset({MAIL, FORWARD})
"""Wait for a server that may be slow: each has a turn of its own, so that no other task waits for it."""
NOTE_STOP = """
INSERT INTO jobs_platformstop (began_at, ended_at)
SELECT done_at, clock_timestamp() FROM jobs_periodictask
WHERE name = %(task)s AND done_at < clock_timestamp() - make_interval(secs => %(pause_s)s)
"""

Result = dict[str, Any]


def due(*others: str) -> set[str]:
    """Names of the tasks that are due, and of these others that are. A task that never ran is due."""
    known = dict(PeriodicTask.objects.annotate(is_due=Q(next_at__lte=Now())).values_list("name", "is_due"))
    return {name for name in (*TASKS, *others) if known.get(name, True)}


def run_due(*only: str) -> list[str]:
    """Run every task but the SLOW ones, or these, that is due and that no other worker is running; returns
    their names."""
    done = []
    for name in only or [name for name in TASKS if name not in SLOW]:
        every_s, task = TASKS[name]
        before = _claim(name, every_s)
        if before is None:
            continue
        fp("periodic.after_claim")
        next_at: Any = F("next_at")
        try:
            result = task(before)
            if (next_in_s := _next_in_s(result)) is not None:
                next_at = Now() + timedelta(seconds=next_in_s)
        except (ClusterBusy, blobs.StoreUnavailable) as busy:
            result = before | {"busy": str(busy)}
        fp("periodic.before_result")
        # At once, so that no other worker continues from the result before this one.
        PeriodicTask.objects.filter(name=name).update(result=result, done_at=Now(), next_at=next_at)
        done.append(name)
    return done


def _next_in_s(result: Result) -> float | None:
    """When the task is due again, if it says so itself; with more to do than one run may, at once."""
    return 0.0 if result.get("more") else result.get("next_in_s")


def _claim(name: str, every_s: float) -> Result | None:
    """The result of the last run if this worker may run the task now, else None."""
    PeriodicTask.objects.get_or_create(name=name)
    if not PeriodicTask.claim(name, every_s):
        return None
    return dict(PeriodicTask.objects.values_list("result", flat=True).get(name=name))


def remove_orphans(before: Result) -> Result:
    """Remove gangs that no live attempt owns. The cluster is asked first and the rows after it: an attempt's row is
    older than its gang, so a gang without one is an orphan. Only learners that the last run saw, too, are removed, and
    traces without learners that it saw as such.

    A gang of an attempt that this database never had is left alone for UNKNOWN_S: the database may be an older copy, or
    another one than the gang's, which people must be able to notice (/readyz and doctor say so) and correct."""
    cluster = clusters.current()
    traces = cluster.traces() if isinstance(cluster, LeavesTraces) else ()
    found = {name: _uids(gang) for name, gang in cluster.observe().gangs.items()}
    orphans = unowned({**{name: [] for name in traces}, **found})
    seen_before = before.get("orphans", {})
    removed = int(before.get("removed", 0))
    now = database_now()
    since = {name: before.get("unknown", {}).get(name, now.isoformat()) for name in _unknown(orphans)}
    for name, uids in orphans.items():
        if name in since and now - datetime.fromisoformat(since[name]) < UNKNOWN:
            continue
        again = [uid for uid in uids if uid in seen_before.get(name, [])]
        if again or (not uids and seen_before.get(name) == []):
            logger.warning("removing an orphaned gang", extra={"gang": name})
            fp("orphans.before_cluster")
            cluster.remove(name, uids=again or None)
            fp("orphans.after_cluster")
            removed += 1
    if since:
        logger.warning("gangs of no attempt in this database", extra={"gangs": sorted(since)[:20]})
    return {"orphans": orphans, "removed": removed, "unknown": since}


def _unknown(gangs: Iterable[str]) -> set[str]:
    """Those of which there is no attempt at all, not even a closed one."""
    names = set(gangs)
    known = Attempt.objects.filter(job__in={job_of_gang(name) for name in names}).values_list("job_id", "n")
    return names - {gang_name(job, n) for job, n in known}


def _uids(gang: GangReport) -> list[str]:
    return [learner.uid for learner in gang.learners]


def purge_deleted(_: Result) -> Result:
    """Remove what is left of jobs whose retention time after their deletion is over."""
    over = Now() - timedelta(days=settings.LUTHIER_RETENTION_DAYS)
    gone = list(
        Job.objects.filter(deleted_at__lt=over)
        .order_by("deleted_at")
        .values_list("pk", flat=True)[:PURGE_BATCH]
    )
    for job_id in gone:
        purge(job_id)
    return {"purged": gone}


def purge(job_id: str) -> None:
    """Remove every row and byte of a deleted job. May be interrupted anywhere and repeated."""
    if not Job.objects.filter(pk=job_id, deleted_at__isnull=False).exists():
        return
    retention.delete_logs(job_id)
    fp("purge.after_logs")
    retention.delete_metrics(job_id)
    fp("purge.after_points")
    held = [
        *CheckpointFile.objects.filter(checkpoint__job=job_id).values_list("blob_id", flat=True),
        *ResultFile.objects.filter(job=job_id).values_list("blob_id", flat=True),
        *Job.objects.filter(pk=job_id, code__isnull=False).values_list("code_id", flat=True),
    ]
    _delete_rows(job_id)
    fp("purge.after_rows")  # killed here, the bytes are left to the sweep
    blobs.release([blob for blob in held if blob is not None])


@retry_on_serialization_failure
def _delete_rows(job_id: str) -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL luthier.purge = 'on'")  # history is append-only but for this
        UserObjectPermission.objects.filter(  # shares name their job by its id alone
            object_pk=job_id, content_type=ContentType.objects.get_for_model(Job)
        ).delete()
        usage_days.roll_up_job(job_id)
        Job.objects.filter(pk=job_id, deleted_at__isnull=False).delete()
        fp("purge.before_commit")


def tidy(before: Result) -> Result:
    """Remove expired answers, uploads and workers, give up uploads of checkpoints of attempts that are over, and remove
    bytes that nothing refers to."""
    given_up, more = drops.give_up_ended()
    answers, _rows = IdempotentResponse.objects.filter(created_at__lt=Now() - KEEP).delete()
    expired = Upload.objects.filter(created_at__lt=Now() - Upload.KEPT_FOR)
    held = list(expired.values_list("blob_id", flat=True))
    uploads, _rows = expired.delete()
    fp("tidy.after_uploads")
    blobs.release(held)
    fp("tidy.after_bytes")
    tokens, _rows = Token.objects.filter(expiry__lt=Now() - EXPIRED_KEPT).delete()
    known = str(before.get("store", ""))
    mark = blobs.own_mark(known)
    swept, at = 0, ""
    if mark:
        orphans, at = blobs.sweep_keys(KEEP, str(before.get("swept_to", "")))
        swept = blobs.sweep(KEEP) + orphans
    else:
        logger.warning("the blob store is another installation's: nothing is removed from it")
    return {
        "store": mark or known,
        "answers": answers,
        "tokens": tokens,
        "notices": notices.forget(),
        "uploads": uploads,
        "workers": leases.remove_dead_workers(),
        "swept": swept,
        "swept_to": at,
        "given_up": given_up,
        "more": more,
    }


def notice_stop(_: Result) -> Result:
    """Note that the platform was stopped since the last run, which is due far more often than that."""
    with connection.cursor() as cursor:
        cursor.execute(NOTE_STOP, {"task": NOTICE, "pause_s": PAUSE_S})
        return {"noted": cursor.rowcount}


def seal_audit_log(before: Result) -> Result:
    """Seal new entries. The head of the chain goes to this process's log, which is outside of the database."""
    head = audit_chain.seal_new()
    if head["n"] != before.get("n", 0):
        logger.info("audit log sealed", extra={"n": head["n"], "hash": head["hash"]})
    return head


def send_mails(before: Result) -> Result:
    """Send the mails that are due; after a failure not before its pause is over."""
    return _asking_for(outbox.send_due(before), outbox.EVERY_S)


def forward_audit_log(before: Result) -> Result:
    """Send what is new in the audit log; after a failure not before its pause is over."""

    def keep(result: Result) -> None:
        PeriodicTask.objects.filter(name=FORWARD).update(result=result)

    return _asking_for(audit_forward.send_new(before, _line, keep), audit_forward.EVERY_S)


def _line(entry: dict[str, Any]) -> bytes:
    # Loads what only pages and REST need: not where nothing is sent.
    from jobs.serialization import json_bytes

    return json_bytes(entry)


def _asking_for(done: Result, every_s: float) -> Result:
    """The result of a task that says itself when to run again; None: as usual."""
    return done | {"next_in_s": every_s if done["next_in_s"] is None else done["next_in_s"]}


TASKS: dict[str, tuple[float, Callable[[Result], Result]]] = {
    health.TASK: (health.EVERY_S, lambda before: health.examine(before, database_now())),
    "compact": (60.0, log_compaction.compact),
    recording.TASK: (recording.EVERY_S, recording.forget),
    "fairness": (fairness_hours.EVERY_S, fairness_hours.record),
    forecasting.TASK: (forecasting.EVERY_S, forecasting.update_estimates),
    FORWARD: (audit_forward.RUN_S, forward_audit_log),  # for so long it is this worker's
    MAIL: (outbox.RUN_S, send_mails),  # as above
    measuring.TASK: (measuring.EVERY_S, measuring.measure),
    NOTICE: (NOTED_EVERY_S, notice_stop),
    "orphans": (30.0, remove_orphans),
    "purge": (600.0, purge_deleted),
    "retention": (600.0, lambda _: retention.enforce()),
    "rollups": (60.0, rollups.roll_up_stored),
    "seal": (5.0, seal_audit_log),
    "storage": (10.0, storage.add_up),
    ownership.TASK: (3600.0, tidy),
    "usage": (60.0, usage_days.roll_up),
    "watch": (notices.WATCH_EVERY_S, lambda _: {"noted": notices.watch()}),
}
"""Name -> seconds between two runs, and the function from the last run's result to the new one. more in it: the next
run is due at once; next_in_s: then, in seconds."""
