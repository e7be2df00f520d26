"""Use of ended attempts and waits, rolled up by day; and what has ended and is not in there yet."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from jobs.models.job import Job
from tenants.models import Tenant


class UsageDay(models.Model):
    """Slot-seconds of one user's jobs on one slot type and one UTC day, as in selectors.usage.Usage. It stays when the
    jobs are purged. Written by jobs.usage_days only.

    opportunistic: the part of used that counts against no quota and no budget.
    first_waits: for each job that started for the first time on this day, the seconds that it had waited.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", db_index=False)
    day = models.DateField()
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    slot_type = models.CharField(max_length=40)
    used = models.FloatField()
    waited = models.FloatField()
    lost = models.FloatField()
    opportunistic = models.FloatField(default=0, db_default=0)
    first_waits = ArrayField(models.FloatField(), default=list)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "day", "owner", "slot_type"], name="usage_day_once")
        ]


class UsageDue(models.Model):
    """An attempt that was closed (holds), or a wait that ended, and is not in UsageDay yet. Triggers add it in the
    transaction of the end, so that none is missed; the roll-up deletes it in its own.

    n: the attempt's number, or that of the event by which the job left the queue.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", db_index=False)
    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    holds = models.BooleanField()
    n = models.BigIntegerField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "holds", "n"], name="usage_due_once")]
        indexes = [models.Index(fields=["tenant", "holds"], name="usage_due_by_tenant")]
