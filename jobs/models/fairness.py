"""What is kept of fairness and of nodes over time: sums by hour, and each change of a node."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from tenants.models import Tenant


class FairnessHour(models.Model):
    """An hour (UTC) whose figures are stored. Of an hour without a row, nothing is known."""

    at = models.DateTimeField(primary_key=True)


class FairnessShare(models.Model):
    """The figures of one tenant and slot type in one hour, in slot-seconds, as in gpu_scheduler.fairness.Figures. A
    tenant without demand has no row. Written once, by jobs.fairness_hours only."""

    hour = models.ForeignKey(FairnessHour, on_delete=models.CASCADE, related_name="shares", db_index=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", db_index=False)
    slot_type = models.CharField(max_length=40)
    guaranteed = models.FloatField()
    share = models.FloatField()
    received = models.FloatField()
    borrowed = models.FloatField()
    lent = models.FloatField()
    shortfall = models.FloatField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["hour", "tenant", "slot_type"], name="fairness_share_once")
        ]
        indexes = [models.Index(fields=["tenant", "hour"], name="fairness_share_of_tenant")]


class NodeChange(models.Model):
    """What a node was from this time on: written by the scheduling cycle when one of these changes, so that the past
    of a node is known."""

    class State(models.TextChoices):
        READY = "ready"
        CORDONED = "cordoned"
        DOWN = "down"
        GONE = "gone"

    name = models.CharField(max_length=120)
    at = models.DateTimeField(db_default=Now())
    slot_type = models.CharField(max_length=40)
    slots = models.PositiveIntegerField()
    state = models.CharField(max_length=8, choices=State.choices)

    class Meta:
        indexes = [models.Index(fields=["name", "at"], name="node_change_by_time")]
