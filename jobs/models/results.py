"""What programs save: checkpoints and result files."""

from __future__ import annotations

from django.db import models
from django.db.models import F
from django.db.models.functions import Now

from jobs.models.blobs import Blob
from jobs.models.job import Job
from tenants.models import Tenant


class Checkpoint(models.Model):
    """A saved state of training. Counts once COMMITTED: every part there, every byte hashed by the server."""

    class State(models.TextChoices):
        UPLOADING = "UPLOADING"
        COMMITTED = "COMMITTED"
        CORRUPT = "CORRUPT"
        DROPPED = "DROPPED"  # superseded by newer ones (keep), bytes released

    NEWEST_FIRST = ("-attempt", F("step").desc(nulls_last=True), "-n")
    """What a later attempt saved counts more than a higher step of an earlier one: its owner went back on purpose."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="checkpoints")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    n = models.PositiveIntegerField()  # 1, 2, 3 … per job
    attempt = models.PositiveIntegerField()
    step = models.BigIntegerField(null=True)  # null: unknown, for a program saves when it chooses
    ordinal = models.BigIntegerField(null=True)  # saves of the step before it in its attempt; null: not said
    state = models.CharField(max_length=12, choices=State.choices, default=State.UPLOADING)
    implicit = models.BooleanField(default=False)
    parts = models.PositiveIntegerField(default=1)
    world_size = models.PositiveIntegerField(default=1)
    bytes = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(db_default=Now())
    committed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "n"], name="checkpoint_once"),
        ]
        indexes = [
            models.Index(
                fields=["tenant"],
                include=["bytes"],
                condition=models.Q(state="COMMITTED"),
                name="checkpoint_kept",
            )
        ]


class CheckpointFile(models.Model):
    """One file of a checkpoint, by row; path is only ever compared, never opened."""

    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.CASCADE, related_name="files")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    part = models.PositiveIntegerField(default=0)
    path = models.CharField(max_length=1024)
    blob = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["checkpoint", "part", "path"], name="checkpoint_file_once")
        ]


class ResultFile(models.Model):
    """One file of the job's results: those of a learner's most recent end replace all that it had before."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="results")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    attempt = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    path = models.CharField(max_length=1024)
    blob = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="+")
    in_code = models.BooleanField(
        default=False, db_default=False
    )  # kept from the code folder, not RESULT_DIR
    archive = models.BooleanField(default=False, db_default=False)  # of files that were too many to list

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "rank", "path"], name="result_once")]
