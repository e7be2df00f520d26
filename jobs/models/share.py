"""What owners of jobs share with users outside their tenant."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from jobs.models.job import Job
from tenants.models import Tenant


class Share(models.Model):
    """One job shared with the user of this name, whether or not there is one; see jobs.services.sharing.

    The grants that count are django-guardian's; a user who is made later gets none.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="shares")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    username = models.CharField(max_length=150)
    permission = models.CharField(max_length=12)  # jobs.services.sharing.SharePermission
    granted_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    granted_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "username"], name="share_once")]
        indexes = [models.Index(fields=["username"], name="share_by_username")]
