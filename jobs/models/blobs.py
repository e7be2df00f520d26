"""Bytes in the blob store, and archives of code that jobs can name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from jobs.ids import new_id
from jobs.models.storage import StorageKind
from tenants.models import Tenant


class Blob(models.Model):
    """Bytes in the blob store, once per tenant and content. received grows while they arrive; of an upload in parts
    it is what the store had when the server last looked.

    restarts: how often bytes that had arrived were given up; what was hashed of them counts no more.
    kind: what the bytes were stored for first (StorageKind); triggers count size from the row's beginning to its end.
    upload_id: the store's name for an upload in parts that is under way (`jobs.blobs.direct`).
    finishing_at: when the store was first asked to make one object of its parts.
    requested_from: ids of the jobs whose learners were asked for the bytes, which alone may send them or see what has
    arrived (docs/adr/0140); null: begun by the version before, which noted none, so any of the tenant may.
    released_at: when the last reference to it went; it may have a new one since (`jobs.blobs.removal`).
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    sha256 = models.CharField(max_length=64)
    size = models.BigIntegerField()
    kind = models.CharField(
        max_length=12, default=StorageKind.CHECKPOINTS.value, db_default=StorageKind.CHECKPOINTS.value
    )
    received = models.BigIntegerField(default=0)
    verified = models.BooleanField(default=False)
    restarts = models.PositiveIntegerField(default=0, db_default=0)
    upload_id = models.CharField(max_length=1024, default="", db_default="")
    finishing_at = models.DateTimeField(null=True)
    requested_from: models.JSONField[Any, Any] = models.JSONField(null=True)
    released_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "sha256"], name="blob_once")]
        indexes = [models.Index(fields=["id"], condition=models.Q(verified=False), name="blob_arriving")]

    def is_requested_from(self, job_id: str) -> bool:
        """Whether learners of this job may send its bytes and see what has arrived of them."""
        return self.requested_from is None or job_id in self.requested_from


class Promise(models.Model):
    """What a job's accepted files have still to fill of the disk; no row: nothing. Written by triggers on Blob, renewed
    by them and by jobs.blobs.promised (docs/adr/0155).

    bytes, files: of blobs whose first job this is. measured_from: what bytes would be if nothing had arrived since
    renewed_at.
    """

    job = models.OneToOneField(
        "jobs.Job", on_delete=models.CASCADE, primary_key=True, related_name="+", db_constraint=False
    )
    bytes = models.BigIntegerField()
    files = models.IntegerField()
    measured_from = models.BigIntegerField()
    renewed_at = models.DateTimeField(db_default=Now())


class Upload(models.Model):
    """An archive of code sent before its job. The row is removed after KEPT_FOR; a job that used it keeps the blob."""

    KEPT_FOR = timedelta(hours=24)

    id = models.CharField(primary_key=True, max_length=12, default=new_id)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="uploads")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    blob = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="+")
    files = models.PositiveIntegerField()
    bytes = models.BigIntegerField()
    created_at = models.DateTimeField(db_default=Now())
