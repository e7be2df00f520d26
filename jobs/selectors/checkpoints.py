"""A job's checkpoints with their manifests and files.

Nothing here checks permission: callers have fetched the job (job_get). A path from a request is compared with rows
and never opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import BigIntegerField, Case, F, OuterRef, QuerySet, Subquery, Sum, When
from django.db.models.functions import Coalesce

from jobs.models import Attempt, Blob, Checkpoint, CheckpointFile, Job, Learner


def checkpoints_of(job_id: str) -> QuerySet[Checkpoint]:
    """A job's checkpoints, each with `size` (bytes of its files; while UPLOADING, of those in the manifest so far) and
    `received` (bytes of them that are stored)."""
    return Checkpoint.objects.filter(job_id=job_id).annotate(
        size=_sum_so_far("blob__size"), received=_sum_so_far("blob__received")
    )


def kept_bytes(tenant_id: int) -> int:
    """Bytes of all committed checkpoints of the tenant, each counted in full; a deleted job's until they are removed.

    It reads an index alone: checkpoints are many.
    """
    kept = Checkpoint.objects.filter(tenant=tenant_id, state=Checkpoint.State.COMMITTED)
    return kept.aggregate(total=Sum("bytes"))["total"] or 0


def _sum_so_far(field: str) -> Case:
    files = CheckpointFile.objects.filter(checkpoint=OuterRef("pk")).order_by()
    total = Subquery(files.values("checkpoint").annotate(total=Sum(field)).values("total"))
    return Case(
        When(state=Checkpoint.State.UPLOADING, then=Coalesce(total, 0)),
        default=F("bytes"),
        output_field=BigIntegerField(),
    )


def checkpoint_list(job_id: str) -> list[Checkpoint]:
    """All of a job's checkpoints, including those deleted by retention; the one saved last is first."""
    return list(checkpoints_of(job_id).order_by(*Checkpoint.NEWEST_FIRST))


@dataclass(frozen=True)
class SaveRequest:
    """Whether a running program can be asked to save.

    supported: it has asked for requests. waits_since: when it was asked last, if it has not saved since.
    """

    supported: bool
    waits_since: datetime | None


def save_request(job: Job) -> SaveRequest:
    """Of the job's newest attempt. It is answered once a learner says that it has saved, before all is stored."""
    attempt = Attempt.objects.filter(job=job, n=job.attempt).first()
    learners = Learner.objects.filter(job=job, attempt=job.attempt)
    if attempt is None or not learners.filter(checks_save=True).exists():
        return SaveRequest(supported=False, waits_since=None)
    answered = learners.filter(saved_for__gte=attempt.saves_requested).exists()
    return SaveRequest(supported=True, waits_since=None if answered else attempt.save_requested_at)


def checkpoint_for(job: Job) -> Checkpoint | None:
    """The checkpoint that the next attempt resumes from.

    Normally the newest valid one. After a resume from an older checkpoint: that one, until an attempt that started
    from it since the request has saved a checkpoint of its own.
    """
    valid = job.checkpoints.filter(state=Checkpoint.State.COMMITTED)
    requested = job.resume_from
    if requested is not None and requested.state == Checkpoint.State.COMMITTED:
        started = job.attempts.filter(resume_from=requested, n__gt=job.resume_after)
        first = started.order_by("n").first()
        valid = valid.filter(attempt__gte=first.n) if first else valid.none()
        return valid.order_by(*Checkpoint.NEWEST_FIRST).first() or requested
    return valid.order_by(*Checkpoint.NEWEST_FIRST).first()


def checkpoint_find(job_id: str, n: int) -> Checkpoint | None:
    return checkpoints_of(job_id).filter(n=n).first()


def checkpoint_files(saved: Checkpoint, *, first: int | None = None) -> list[dict[str, Any]]:
    """Path, size and SHA-256 of the files; first: at most this number."""
    files = CheckpointFile.objects.filter(checkpoint=saved).select_related("blob").order_by("part", "path")
    return [
        {"path": _shown_path(saved, entry), "size": entry.blob.size, "sha256": entry.blob.sha256}
        for entry in files[:first]
    ]


def checkpoint_file(saved: Checkpoint, path: str) -> Blob | None:
    """The blob of one file by its path in the manifest; None if there is none or it is not fully stored."""
    part, inner = 0, path
    if saved.parts > 1:
        head, _, inner = path.partition("/")
        if not head.startswith("part-") or not head[5:].isdecimal() or str(int(head[5:])) != head[5:]:
            return None
        part = int(head[5:])
    entry = (
        CheckpointFile.objects.select_related("blob").filter(checkpoint=saved, part=part, path=inner).first()
    )
    return entry.blob if entry is not None and entry.blob.verified else None


def _shown_path(saved: Checkpoint, entry: CheckpointFile) -> str:
    return f"part-{entry.part}/{entry.path}" if saved.parts > 1 else entry.path
