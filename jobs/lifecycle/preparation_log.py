"""What was printed while a learner's environment was prepared, as the log of a learner whose program never began.

So it is read, downloaded, kept and removed as every log is. No one else writes it: a learner's shipper, which sends its
log, starts after its environment is ready.
"""

from __future__ import annotations

import time
import zlib
from functools import partial

import zstandard
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from jobs import pubsub
from jobs.models import Learner, LogChunk, Progress

FINAL_NEWLINE = "\n"


@transaction.atomic
def store(row: Learner, output: str) -> None:
    """Write it unless the learner has a log. A repeat changes nothing."""
    text = output.removesuffix(FINAL_NEWLINE) + FINAL_NEWLINE
    data, lines = text.encode(), text.count("\n")
    empty = Learner.objects.filter(pk=row.pk, log_bytes=0, log_sealed=False)
    if not empty.update(
        log_bytes=len(data), log_lines=lines, log_crc=zlib.crc32(data), log_sealed=True, stored_at=Now()
    ):
        return
    progress = Progress.objects.select_for_update(no_key=True).get(job=row.job_id)
    LogChunk.objects.create(
        job_id=row.job_id, tenant_id=row.tenant_id, attempt=row.attempt, rank=row.rank, offset=0, len=len(data),
        first_line=1, lines=lines, seq=progress.log_seq + 1, data=zstandard.compress(data),
        times=[[0, int(time.time() * 1000)]],
    )  # fmt: skip
    Progress.objects.filter(pk=progress.pk).update(
        log_seq=F("log_seq") + 1, log_bytes=F("log_bytes") + len(data)
    )
    transaction.on_commit(
        partial(pubsub.logs_grew, row.job_id, attempt=row.attempt, rank=row.rank, upto=lines), robust=True
    )
