"""The job itself, its progress and its estimated start."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex, GistIndex
from django.db import models
from django.db.models import F, Q
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from jobs.ids import new_id
from jobs.models.blobs import Blob
from jobs.models.choices import intent_choices, state_choices
from jobs.states import ACTIVE, FINAL, Intent, State
from tenants import search
from tenants.models import Tenant


def _listed(*keys: Any, name: str, also: Q | None = None) -> models.Index:
    """An index for lists, which leave deleted jobs out: so they need not look at the rows they only count."""
    return models.Index(*keys, name=name, condition=Q(deleted_at=None) & (also or Q()))


LIFE_SQL = (
    "tstzrange(least(created_at, finished_at), greatest(created_at, coalesce(finished_at, 'infinity')), '[]')"
)
"""When a job was alive, as its index has it; usage of a part of a day looks for the jobs that were. Where the clock was
set back, a job may have ended before it was made."""

JOB_TERMS = search.terms("name", tenant="tenant", person="owner", words="tags")
"""What jobs are searched by, as their index has it."""


class Job(models.Model):
    """One training job over all its attempts. Slots are per learner: GPUs of gpu_type, or CPUs if gpus is 0."""

    id = models.CharField(primary_key=True, max_length=12, default=new_id)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="jobs", db_index=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs", db_index=False
    )
    name = models.CharField(max_length=120)
    tags = ArrayField(models.CharField(max_length=60), default=list, blank=True)
    spec: models.JSONField[Any, Any] = models.JSONField()  # normalized luthier/v1
    spec_text = models.TextField(blank=True)  # as submitted
    code = models.ForeignKey(Blob, null=True, on_delete=models.PROTECT, related_name="+")
    # {"requirements": one per entry, "lock": the versions chosen for them, once they are}; {} without requirements
    packages: models.JSONField[Any, Any] = models.JSONField(default=dict, db_default={})
    cloned_from = models.ForeignKey(
        "self", null=True, on_delete=models.SET_NULL, related_name="clones", db_index=False
    )
    # Read out of the spec for queries and for the scheduler.
    framework = models.CharField(max_length=300)
    learners = models.PositiveIntegerField()  # of an elastic job: those it has, had, or is to have
    gpus = models.PositiveIntegerField()  # per learner, as asked; 0 = CPU job
    gpu_type = models.CharField(max_length=40, blank=True)  # as asked; "" = any
    slots = models.PositiveIntegerField()  # per learner, held while running
    resources = models.TextField(null=True)  # noqa: DJ001  # as JSON; null: an earlier version wrote the row
    measured = models.TextField(null=True)  # noqa: DJ001  # of an elastic job, as JSON; null: nothing yet
    # Of an elastic job that runs: why it gets no more learners, by the last pass (lifecycle.growths).
    growth: models.JSONField[Any, Any] = models.JSONField(null=True)
    placement = models.CharField(max_length=8)
    topology = models.CharField(max_length=20, blank=True, db_default="")  # such as "required rack"; "": none
    # of its tenant, by name; "": none, or one that is not there any more
    project = models.CharField(max_length=40, blank=True, default="", db_default="")
    priority = models.CharField(max_length=12)
    priority_rank = models.SmallIntegerField()
    opportunistic = models.BooleanField(default=False, db_default=False)
    max_restarts = models.PositiveIntegerField()
    time_limit_s = models.PositiveIntegerField(null=True)
    grace_s = models.PositiveIntegerField(default=60)
    # The intent (services).
    intent = models.CharField(max_length=8, choices=intent_choices, default=Intent.RUN)
    intent_gen = models.BigIntegerField(default=1)
    intent_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )  # for operators, in SQL; the job's history has it, too
    intent_at = models.DateTimeField(db_default=Now())
    resume_from = models.ForeignKey(
        "Checkpoint", null=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )  # as requested
    resume_after = models.PositiveIntegerField(default=0, db_default=0)  # the attempt at that request
    # The state (lifecycle).
    state = models.CharField(max_length=12, choices=state_choices, default=State.QUEUED)
    reason_code = models.CharField(max_length=40, blank=True)
    reason_message = models.TextField(blank=True)
    reason_numbers: models.JSONField[Any, Any] = models.JSONField(default=dict)
    stop_reason = models.CharField(max_length=24, blank=True)  # while STOPPING, and of the last stop after it
    stop_at = models.DateTimeField(null=True)  # when STOPPING began
    last_halt: models.JSONField[Any, Any] = models.JSONField(null=True)  # receipt of the last halt
    # The scheduler's pending order (lifecycle.plan_effects): stop the job, or run it in another size.
    order_reason = models.CharField(
        max_length=24, blank=True, db_default=""
    )  # a StopReason in BY_ORDER; "": none
    order_for_job = models.CharField(
        max_length=12, blank=True, db_default=""
    )  # is offered the freed slots first
    order_learners = models.PositiveIntegerField(null=True)  # the new size, of a resize order
    order_gen = models.BigIntegerField(default=0, db_default=0)  # intent_gen for which the order was decided
    order_plan: models.JSONField[Any, Any] = models.JSONField(
        null=True
    )  # lifecycle.recording.Source of the order
    order_loss: models.JSONField[Any, Any] = models.JSONField(
        null=True
    )  # gpu_scheduler.losses.Loss of the order
    attempt = models.PositiveIntegerField(default=0)
    restarts_used = models.PositiveIntegerField(default=0)
    slot_seconds = models.FloatField(default=0)  # of closed attempts
    running_s = models.FloatField(default=0)  # of closed attempts
    early_ends = models.PositiveIntegerField(
        default=0
    )  # attempts in a row that ended early, whatever the cause
    agent_losses = models.PositiveIntegerField(
        default=0, db_default=0
    )  # attempts in a row whose agents died early
    start_after = models.DateTimeField(null=True)  # the back-off before the next attempt ends; null: none
    event_seq = models.BigIntegerField(default=0)  # number of the newest JobEvent; also the row's version
    created_at = models.DateTimeField(db_default=Now())
    queued_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)  # first PROCESSING
    finished_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True)
    # The lease (lifecycle): who is working on this job, guarded by lease_token; see docs/adr on leases.
    lease_owner = models.CharField(max_length=80, blank=True)
    lease_token = models.UUIDField(null=True)
    lease_until = models.DateTimeField(null=True)  # stays after a look, for `leases.make_due`
    fence = models.BigIntegerField(default=0)  # counts the claims; for operators, in SQL
    next_reconcile_at = models.DateTimeField(null=True, db_default=Now())
    fail_streak = models.PositiveIntegerField(default=0)
    settled = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(settled=True) | Q(next_reconcile_at__isnull=False), name="job_not_forgotten"
            ),
            models.CheckConstraint(condition=Q(state__in=[s.value for s in State]), name="job_state_known"),
            models.CheckConstraint(
                condition=Q(intent__in=[i.value for i in Intent]), name="job_intent_known"
            ),
            models.CheckConstraint(condition=Q(learners__gte=1) & Q(slots__gte=1), name="job_has_size"),
        ]
        indexes = [
            # A list of one tenant is one range of one of these, in each of selectors.jobs.ORDERS.
            # The first one also holds what a search looks at, as that may have to look at every job.
            models.Index(
                fields=["tenant", "-id"],
                include=["name", "gpu_type", "owner"],
                condition=Q(deleted_at=None),
                name="job_by_tenant",
            ),
            _listed(F("tenant"), F("state"), F("id").desc(), name="job_by_state"),
            _listed(F("tenant"), F("name"), F("id"), name="job_by_name"),
            _listed(F("tenant"), F("priority_rank").desc(), F("id").desc(), name="job_by_priority"),
            _listed(
                F("tenant"), F("finished_at").desc(), name="job_by_end", also=Q(finished_at__isnull=False)
            ),
            # The same orders for admins, whose lists are of all tenants.
            _listed(F("state"), F("id").desc(), name="job_of_all_by_state"),
            _listed(F("name"), F("id"), name="job_of_all_by_name"),
            _listed(F("priority_rank").desc(), F("id").desc(), name="job_of_all_by_priority"),
            _listed(F("owner"), F("id").desc(), name="job_by_owner"),
            _listed(F("tenant"), F("gpu_type"), F("id").desc(), name="job_by_gpu", also=Q(gpus__gt=0)),
            _listed(F("tenant"), F("state"), name="job_live", also=Q(state__in=sorted(ACTIVE))),
            models.Index(
                fields=["tenant", "created_at"], include=["owner", "state"], name="job_by_creation"
            ),  # deleted ones, too: usage counts them
            GistIndex(RawSQL(LIFE_SQL, []), name="job_life"),  # noqa: S611  # no value of anybody is in it
            models.Index(
                fields=["cloned_from"], condition=Q(cloned_from__isnull=False), name="job_cloned_from"
            ),
            models.Index(
                fields=["resume_from"], condition=Q(resume_from__isnull=False), name="job_resume_from"
            ),
            # None on the lease and the due time themselves: they change every few seconds while a job lives, and a
            # change of an indexed column writes the row to all indexes again. Unsettled jobs are few.
            models.Index(fields=["id"], condition=Q(settled=False), name="job_unsettled"),
            models.Index(fields=["queued_at"], condition=Q(state=State.QUEUED), name="job_waiting"),
            GinIndex(fields=["tags"], name="job_tags"),
            # New rows are pending first: each change of a job's state writes its twenty terms again. A search reads the
            # list of them, so it is short.
            GinIndex(
                JOB_TERMS,
                fastupdate=True,
                gin_pending_list_limit=128,  # KiB
                condition=Q(deleted_at=None),
                name="job_search",
            ),
        ]
        permissions = [("operate_job", "Can halt, resume and cancel one job")]

    def __str__(self) -> str:
        return self.id

    @property
    def is_final(self) -> bool:
        return self.state in FINAL


class Progress(models.Model):
    """What a job's learners last reported, and its counters. Written by ingest only, so that a loud job does
    not contend with its own lifecycle for one row."""

    job = models.OneToOneField(Job, primary_key=True, on_delete=models.CASCADE, related_name="progress")
    step = models.BigIntegerField(null=True)
    total = models.BigIntegerField(null=True)
    metrics: models.JSONField[Any, Any] = models.JSONField(
        default=dict
    )  # name -> {"last": number | "NaN" | "Infinity", "step": n, "rank": r, "axis": "step" | "order"}
    log_seq = models.BigIntegerField(default=0)  # newest LogChunk.seq
    log_bytes = models.BigIntegerField(
        default=0
    )  # output kept of all learners and attempts, against the job's cap
    metric_names = models.BigIntegerField(default=0, db_default=0)  # different metrics that were stored
    metric_lost = models.BigIntegerField(
        default=0, db_default=0
    )  # points that were not kept for want of room
    metric_seq = models.BigIntegerField(default=0)  # newest MetricPoint.seq
    metric_rolled = models.BigIntegerField(default=0)  # newest MetricPoint.seq that is in a MetricRollup
    reported_at = models.DateTimeField(null=True)


class Estimate(models.Model):
    """When a waiting job is expected to start, by the last forecast, and by the first one since it last queued, to be
    judged by. soonest and first_soonest are a StartForecast's p50, latest and first_latest its p90. Kept after the
    start. Written by lifecycle only."""

    job = models.OneToOneField(Job, primary_key=True, on_delete=models.CASCADE, related_name="estimate")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    soonest = models.DateTimeField(null=True)
    latest = models.DateTimeField(null=True)
    basis: models.JSONField[Any, Any] = models.JSONField(default=list)
    why_none = models.CharField(max_length=16, blank=True)
    made_at = models.DateTimeField(db_default=Now())
    first_soonest = models.DateTimeField(null=True)
    first_latest = models.DateTimeField(null=True)
    first_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)  # when it got its slots; null while it waits

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(soonest__isnull=True, latest__isnull=True) | Q(soonest__lte=F("latest")),
                name="estimate_is_a_range",
            )
        ]
