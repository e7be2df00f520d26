"""Rows of the installation as a whole: runtimes, workers, nodes, periodic tasks, answered requests."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models.functions import Now


class Runtime(models.Model):
    """A framework of this installation: a virtual environment locally, an image on Kubernetes."""

    slug = models.SlugField(max_length=40, primary_key=True)
    title = models.CharField(max_length=80)
    description = models.CharField(max_length=300, blank=True)
    image = models.CharField(max_length=300, blank=True)
    enabled = models.BooleanField(default=True)


WORKER_LOCKS = 77
"""Advisory lock (77, Worker.id) is held while that worker process lives; (76, 0) is the scheduling cycle's."""
WORKER_LOCK_HELD = f"""SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = {WORKER_LOCKS}
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND objid ="""
"""SQL, to be followed by a worker's id: a row if that worker process lives."""


class Worker(models.Model):
    """One Celery worker process. It holds the advisory lock of its id while it lives, so the others see at once
    that it died; a host that merely froze is noticed when its leases end."""

    name = models.CharField(max_length=120)
    started_at = models.DateTimeField(db_default=Now())
    seen_at = models.DateTimeField(db_default=Now())  # last completed look at due jobs


class ClusterNode(models.Model):
    """A node as the cluster last showed it to the scheduling cycle; requests read this row, never the cluster."""

    name = models.CharField(primary_key=True, max_length=120)
    cluster = models.CharField(max_length=40)
    slot_type = models.CharField(max_length=40)
    slots = models.PositiveIntegerField()
    memory_mib = models.PositiveIntegerField(
        null=True
    )  # the most for one learner; null: the cluster does not report it
    ready = models.BooleanField(default=True)
    changed_at = models.DateTimeField(db_default=Now())  # for operators, in SQL


class PeriodicTask(models.Model):
    """A task that the installation repeats; whichever worker claims it when it is due runs it."""

    CYCLE = "cycle"
    """Name of the scheduling cycle's row; jobs.lifecycle.periodic names the others."""

    name = models.CharField(primary_key=True, max_length=40)
    next_at = models.DateTimeField(db_default=Now())
    done_at = models.DateTimeField(null=True)
    result: models.JSONField[Any, Any] = models.JSONField(default=dict)


class SchedulerState(models.Model):
    """What a scheduling policy carries from plan to plan. Only the policy reads the state; the cycle writes it."""

    policy = models.CharField(primary_key=True, max_length=400)  # LUTHIER_SCHEDULER_POLICY
    state: models.JSONField[Any, Any] = models.JSONField(default=dict)
    changed_at = models.DateTimeField(db_default=Now())  # for operators, in SQL


class IdempotentResponse(models.Model):
    """The response to a POST with this Idempotency-Key, so that its repeat gets the same one."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=128)
    request_sha256 = models.CharField(max_length=64)  # method, path and body
    status = models.PositiveSmallIntegerField(null=True)  # null only inside the transaction that answers
    body: models.JSONField[Any, Any] = models.JSONField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "jobs_idempotentanswer"  # its name before the model's
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="idempotency_once")]
