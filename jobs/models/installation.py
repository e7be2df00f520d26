"""Rows of the installation as a whole: runtimes, workers, nodes, periodic tasks, answered requests."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import connection, models
from django.db.models.functions import Now


class Runtime(models.Model):
    """A framework of this installation: a virtual environment locally, an image on Kubernetes.

    requirements and python: of one that an administrator made; requirements null: one of the source tree.
    """

    slug = models.SlugField(max_length=40, primary_key=True)
    title = models.CharField(max_length=80)
    description = models.CharField(max_length=300, blank=True)
    image = models.CharField(max_length=300, blank=True)
    enabled = models.BooleanField(default=True)
    requirements: models.JSONField[Any, Any] = models.JSONField(null=True, blank=True)  # list of strings
    python = models.CharField(max_length=8, blank=True, db_default="")  # "": the platform's own


WORKER_SILENT_S = 5.0
"""A worker writes seen_at at every tick. One that has not for this long is dead or frozen, and its leases are free."""
WORKER_ALIVE = f"""SELECT 1 FROM jobs_worker seen
    WHERE seen.seen_at > clock_timestamp() - make_interval(secs => {WORKER_SILENT_S}) AND seen.id ="""
"""SQL, to be followed by a worker's id: a row if that worker process was alive a moment ago."""


SCHEDULER = "scheduler: "
"""The name of a worker begins so if it only makes scheduling passes: where workers are counted, it is none."""


class Worker(models.Model):
    """One Celery worker process. Only this row says that it lives: no lock of a session does, so that a connection
    pool between us and PostgreSQL may give each transaction another session."""

    name = models.CharField(max_length=120)
    started_at = models.DateTimeField(db_default=Now())
    seen_at = models.DateTimeField(db_default=Now())  # last completed look at due jobs


class ClusterNode(models.Model):
    """A node as the cluster last showed it to the scheduling cycle; requests read this row, never the cluster."""

    name = models.CharField(primary_key=True, max_length=120)
    cluster = models.CharField(max_length=40)
    slot_type = models.CharField(max_length=40)
    rack = models.CharField(max_length=63, blank=True, db_default="")  # this and the next: "": not known
    block = models.CharField(max_length=63, blank=True, db_default="")
    slots = models.PositiveIntegerField()
    memory_mib = models.PositiveIntegerField(
        null=True
    )  # the most for one learner; null: the cluster does not report it
    cpus = models.FloatField(
        null=True
    )  # this and the next: divided among learners; null: not known, not counted
    divided_mib = models.PositiveIntegerField(null=True)
    learner_cpus = models.FloatField(default=0)  # taken by each learner beyond what it requests, as the next
    learner_mib = models.PositiveIntegerField(default=0)
    others_slots = models.PositiveIntegerField(default=0)  # held by programs outside Luthier, as the next two
    others_cpus = models.FloatField(default=0)
    others_mib = models.PositiveIntegerField(default=0)
    cordoned = models.BooleanField(default=False)
    unhealthy = models.PositiveIntegerField(default=0)  # devices that it has beside its slots but cannot use
    why = models.CharField(max_length=500, blank=True)  # sentences about what keeps learners away
    avoid_until = models.DateTimeField(null=True)  # it failed a gang; written by jobs.lifecycle.transitions
    avoid_reason = models.CharField(max_length=500, blank=True)
    ready = models.BooleanField(default=True)
    changed_at = models.DateTimeField(db_default=Now())  # for operators, in SQL


CLAIM = """
UPDATE jobs_periodictask SET next_at = clock_timestamp() + make_interval(secs => %s)
WHERE name = %s AND next_at <= clock_timestamp()
"""


class PeriodicTask(models.Model):
    """A task that the installation repeats; whichever worker claims it when it is due runs it."""

    CYCLE = "cycle"
    """Name of the scheduling cycle's row; jobs.lifecycle.periodic names the others."""

    name = models.CharField(primary_key=True, max_length=40)
    next_at = models.DateTimeField(db_default=Now())
    done_at = models.DateTimeField(null=True)
    result: models.JSONField[Any, Any] = models.JSONField(default=dict)

    @classmethod
    def claim(cls, name: str, every_s: float) -> bool:
        """Whether it is due and this worker's to run, by the database's clock; then it is due again in every_s."""
        with connection.cursor() as cursor:
            cursor.execute(CLAIM, [every_s, name])
            return cursor.rowcount == 1


class PlatformStop(models.Model):
    """A span in which no worker ran, found at the first look afterwards. began_at: the last sign of one before it.

    Waiting for devices begins and ends with the platform: this time is no job's wait (jobs.selectors.platform_stops).
    """

    began_at = models.DateTimeField()
    ended_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["ended_at"], name="platform_stop_by_end")]


class SchedulingLease(models.Model):
    """Who may make the passes of the scheduling cycle now (jobs.lifecycle.cycle_lease); its only row is named
    PeriodicTask.CYCLE. A row of its own: an admission locks it, and requests of a pass must not wait for that."""

    name = models.CharField(primary_key=True, max_length=40)
    owner = models.CharField(max_length=80, blank=True)
    token = models.UUIDField(null=True)
    until = models.DateTimeField(null=True)
    problem = models.TextField(blank=True, db_default="")  # why the last pass did not complete; empty: it did


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
