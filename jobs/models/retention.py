"""What retention removed from jobs."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from jobs.humanize import filesize
from jobs.models.job import Job
from tenants.models import Tenant
from tenants.retention import Kind


class Removal(models.Model):
    """One kind of an ended job's data, removed by a retention rule: from begun_at on nothing of it is shown.

    Exactly one of days and bytes is the rule's limit. rows and size: what there was, counted before.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="removals")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    kind = models.CharField(max_length=12)  # tenants.retention.Kind
    days = models.PositiveIntegerField(null=True)
    bytes = models.BigIntegerField(null=True)
    rows = models.BigIntegerField()  # lines, points, checkpoints, files or events
    size = models.BigIntegerField()  # bytes
    begun_at = models.DateTimeField(db_default=Now())
    done_at = models.DateTimeField(null=True)
    audited = models.BooleanField(default=False, db_default=False)  # an entry of the audit log counts it

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "kind"], name="removal_once"),
            models.CheckConstraint(condition=Q(days=None) ^ Q(bytes=None), name="removal_has_one_limit"),
        ]
        indexes = [
            models.Index(fields=["begun_at"], condition=Q(done_at=None), name="removal_open"),
            models.Index(fields=["tenant"], condition=Q(audited=False), name="removal_unaudited"),
        ]

    @property
    def rule(self) -> str:
        """What was removed: "logs older than 90 days"."""
        if self.days is not None:
            return f"{self.kind} older than {self.days} day{'' if self.days == 1 else 's'}"
        return f"{self.kind} of the tenant beyond {filesize(self.bytes or 0)}, the oldest first"

    @property
    def words(self) -> str:
        """What its event says: "Logs older than 90 days were removed: 1.2 MiB." """
        rule = self.rule
        return f"{rule[0].upper()}{rule[1:]} were removed: {self.amount}."

    @property
    def amount(self) -> str:
        """How much it was: bytes where they are known, else how many."""
        if self.kind in (Kind.METRICS, Kind.EVENTS):
            return counted(Kind(self.kind), self.rows)
        return filesize(self.size)


UNIT = {
    Kind.LOGS: "lines",
    Kind.METRICS: "points",
    Kind.CHECKPOINTS: "checkpoints",
    Kind.RESULTS: "files",
    Kind.EVENTS: "events",
    Kind.AUDIT: "entries",
}
"""What is counted of each kind."""


def counted(kind: Kind, rows: int) -> str:
    """1 line, 48,210 lines."""
    unit = UNIT[kind]
    one = "entry" if kind is Kind.AUDIT else unit.removesuffix("s")
    return f"{rows:,} {one if rows == 1 else unit}"
