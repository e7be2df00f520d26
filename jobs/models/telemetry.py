"""What programs print and report: log chunks with their index, and metric points."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models.functions import Now

from jobs.models.job import Job
from tenants.models import Tenant


class LogChunk(models.Model):
    """A run of one learner's output. data is zstd; offsets count uncompressed bytes; a repeat changes nothing.

    times: [[byte offset within the chunk, milliseconds since the epoch], …], one per read of the launcher; of a chunk
    merged from smaller ones (jobs.lifecycle.log_compaction) they are in packed_times (jobs.selectors.chunk_times).
    lines counts the newlines inside; first_line is the number of the line in which the chunk begins (from 1).
    tombstone: the bytes were not kept; data is empty and len and lines say how much is missing.
    No foreign-key constraint: the writer holds the learner's row, and a bulk insert must not queue behind a lock
    that the lifecycle holds on the job's row.
    """

    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    attempt = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    offset = models.BigIntegerField()
    len = models.BigIntegerField()
    first_line = models.BigIntegerField()
    lines = models.BigIntegerField()
    seq = models.BigIntegerField()  # per job, over all learners
    data = models.BinaryField()
    times: models.JSONField[Any, Any] = models.JSONField(default=list)
    packed_times = models.BinaryField(null=True)
    tombstone = models.BooleanField(default=False)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "attempt", "rank", "offset"], name="chunk_once")
        ]
        indexes = [models.Index(fields=["job", "attempt", "rank", "first_line"], name="chunk_by_line")]


class LogIndex(models.Model):
    """Where the warnings and errors of a stretch of a learner's log are. Derived from LogChunk, filled by readers.

    A stretch is the lines first_line to next_line - 1; end is the offset of the byte after it. after: a
    jobs.log_levels.After, the state behind it. marks: the lines that are more than plain text, packed by
    jobs.selectors.log_index. warnings, errors: how many begin in it. Constraints: as LogChunk.
    """

    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    attempt = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    first_line = models.BigIntegerField()
    next_line = models.BigIntegerField()
    end = models.BigIntegerField()
    after = models.PositiveSmallIntegerField()
    warnings = models.PositiveIntegerField()
    errors = models.PositiveIntegerField()
    marks = models.BinaryField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "attempt", "rank", "first_line"], name="log_index_once")
        ]


class MetricPoint(models.Model):
    """One value of one series. NaN and infinities are values. seq is gapless per job. Constraints: as LogChunk."""

    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    attempt = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    name = models.CharField(max_length=120)
    step = models.BigIntegerField()
    value = models.FloatField()
    at = models.DateTimeField()
    seq = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "attempt", "rank", "name", "step"], name="metric_once"),
        ]
        indexes = [
            models.Index(fields=["job", "seq"], name="metric_by_seq"),
            models.Index(fields=["job", "name", "step"], name="metric_by_step"),
        ]


class MetricRollup(models.Model):
    """Points of one series that follow each other, in numbers: charts read these in place of the points.

    first_seq, last_seq: the points are those of the series with these numbers and between. in_order: their steps rise
    and their times do not fall, so that `last` is at the high end of both axes. low, high: of the finite values, null
    if there is none. None crosses a border of SEGMENT points of the job. Written as points
    arrive (jobs/rollups.py). Constraints: as LogChunk.
    """

    SEGMENT = 4_096

    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    attempt = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    name = models.CharField(max_length=120)
    first_seq = models.BigIntegerField()
    last_seq = models.BigIntegerField()
    points = models.PositiveIntegerField()
    not_finite = models.PositiveIntegerField()
    in_order = models.BooleanField()
    low_step = models.BigIntegerField()
    high_step = models.BigIntegerField()
    low_at = models.DateTimeField()
    high_at = models.DateTimeField()
    low = models.FloatField(null=True)
    high = models.FloatField(null=True)
    last = models.FloatField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job", "name", "rank", "attempt", "first_seq"], name="rollup_once"
            )
        ]
