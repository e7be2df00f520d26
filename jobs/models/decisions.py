"""What the scheduler decided, from what, and by which program."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models.functions import Now


class DecidedPlan(models.Model):
    """A plan that decided something. Written by jobs.lifecycle.recording only.

    digest: SHA-256 of the snapshot that it was made from; events of the decisions carry it. policy: the setting that
    selected the policy. program: SHA-256 of the policy's parameters and of the source that decides. decided: as in
    gpu_scheduler.record.decisions. snapshot: its text, compressed; null where it was too large to keep, or is kept no
    longer.
    """

    digest = models.CharField(max_length=64, unique=True)
    at = models.DateTimeField(db_default=Now())
    policy = models.CharField(max_length=400)
    program = models.CharField(max_length=64)
    decided: models.JSONField[Any, Any] = models.JSONField()
    snapshot = models.BinaryField(null=True)

    class Meta:
        indexes = [models.Index(fields=["at"], name="decided_plan_by_time")]
