"""Failures that users have dismissed from what needs their attention."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from jobs.models.job import Job
from tenants.models import Tenant


class Dismissal(models.Model):
    """The failure of a job that one user has dismissed; see jobs.services.dismissals. Others still see it."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="dismissals")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", db_index=False)
    dismissed_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "job"], name="dismissal_once")]
