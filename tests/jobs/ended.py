"""A job that ended some time ago, with some of each kind of data, as retention finds it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import zstandard
from django.utils import timezone

from jobs import blobs
from jobs.models import (
    CheckpointFile,
    Job,
    JobEvent,
    LogChunk,
    LogIndex,
    MetricPoint,
    MetricRollup,
    Progress,
    ResultFile,
)
from jobs.states import EventCode, State
from tenants.models import User
from tests import factories


def ended(owner: User, days_ago: float, *, state: State = State.COMPLETED, log_bytes: int = 1000) -> Job:
    """A job with some of each kind of data. log_bytes: as its progress counts them."""
    at = timezone.now() - timedelta(days=days_ago)
    job = factories.job(owner=owner, state=state, attempt=1)
    Job.objects.filter(pk=job.pk).update(finished_at=at if job.is_final else None)
    stream: dict[str, Any] = {"job": job, "tenant": job.tenant, "attempt": 1, "rank": 0}
    place = stream | {"seq": 1}
    packed = zstandard.compress(b"x" * (log_bytes - 1) + b"\n")
    LogChunk.objects.create(**place, offset=0, len=log_bytes, first_line=1, lines=1, data=packed)
    MetricPoint.objects.create(**place, name="loss", step=1, value=0.5, at=job.created_at)
    LogIndex.objects.create(
        **stream, first_line=1, next_line=2, end=log_bytes, after=0, warnings=0, errors=0, marks=b""
    )
    MetricRollup.objects.create(
        **stream, name="loss", first_seq=1, last_seq=1, points=1, not_finite=0, in_order=True, low_step=1,
        high_step=1, low_at=job.created_at, high_at=job.created_at, low=0.5, high=0.5, last=0.5,
    )  # fmt: skip
    Progress.objects.filter(job=job).update(log_bytes=log_bytes, metric_seq=1, log_seq=1)
    job.learner_rows.update(log_bytes=log_bytes, log_lines=1, log_sealed=True)
    for name in ("model", "result"):
        blob = blobs.put(job.tenant_id, f"{name} of {job.pk}".encode())
        if name == "model":
            CheckpointFile.objects.create(
                checkpoint=factories.checkpoint(job), tenant=job.tenant, path="m", blob=blob
            )
        else:
            ResultFile.objects.create(job=job, tenant=job.tenant, attempt=1, rank=0, path="r", blob=blob)
    for n, code in enumerate((EventCode.WAITING, EventCode.EDITED), 2):  # the first one is the job's end here
        JobEvent.objects.create(job=job, tenant=job.tenant, n=n, source="user", code=code)
    Job.objects.filter(pk=job.pk).update(event_seq=3)
    job.refresh_from_db()
    return job
