"""How many bytes each tenant stores, by kind, counted as rows come and go."""

from __future__ import annotations

from enum import StrEnum

from django.db import models

from tenants.models import Tenant

POINT_BYTES = 250
"""About what a metric point takes with its entries in the indexes."""


class StorageKind(StrEnum):
    """What bytes are stored for. Bytes that are stored once for several uses count for the first."""

    LOGS = "logs"
    METRICS = "metrics"
    CHECKPOINTS = "checkpoints"
    RESULTS = "results"
    CODE = "code"


class StorageUse(models.Model):
    """Bytes of one kind that a tenant stores, without those in StorageChange. Written by jobs.storage alone.

    numeric: a program may declare files of any size, and no sum of them may overflow.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", db_index=False)
    kind = models.CharField(max_length=12)  # StorageKind
    bytes = models.DecimalField(max_digits=40, decimal_places=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "kind"], name="storage_use_once")]


class StorageChange(models.Model):
    """Bytes that one statement stored or removed (below 0), to be added to StorageUse. Written by triggers.

    A row per statement, and not an update of the sum: writers of one tenant never wait for each other. No foreign-key
    constraint, as for LogChunk.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", db_constraint=False)
    kind = models.CharField(max_length=12)  # StorageKind
    bytes = models.DecimalField(max_digits=40, decimal_places=0)
