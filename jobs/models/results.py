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
        DROPPED = "DROPPED"  # superseded by newer ones (keep), or given up; bytes released

    NEWEST_FIRST = ("-attempt", F("saved_ns").desc(nulls_last=True), F("step").desc(nulls_last=True), "-n")
    """What a later attempt saved counts more than what an earlier one did: its owner went back on purpose. Within an
    attempt the save that was put in place last counts, whatever its step: a program may count from the beginning again.
    Of learners that do not say when, the highest step."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="checkpoints")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    n = models.PositiveIntegerField()  # 1, 2, 3 … per job
    attempt = models.PositiveIntegerField()
    step = models.BigIntegerField(null=True)  # null: unknown, for a program saves when it chooses
    ordinal = models.BigIntegerField(null=True)  # saves of the step before it in its attempt; null: not said
    # When it was put in place, by its learner's clock; only for the order within an attempt; null: not said.
    saved_ns = models.BigIntegerField(null=True)
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

    @property
    def is_given_up(self) -> bool:
        """Whether it was dropped before it was complete (docs/adr/0159)."""
        return self.state == self.State.DROPPED and self.committed_at is None


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
