"""A job's attempts, their learners, and its history."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from jobs.models.choices import event_choices, phase_choices
from jobs.models.job import Job
from jobs.states import EVENT_MESSAGES, EventCode, Phase, State
from tenants.models import Tenant


class Attempt(models.Model):
    """One deployment of a job, from the placement to the last pod's end. held: its slots count as used."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempts", db_index=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", db_index=False)
    n = models.PositiveIntegerField()
    cluster = models.CharField(max_length=40)
    slot_type = models.CharField(max_length=40)
    slots = models.PositiveIntegerField()  # per learner
    learners = models.PositiveIntegerField()
    nodes: models.JSONField[Any, Any] = models.JSONField()  # node name per rank
    # Of an elastic job: samples in a step over all learners, and at once in each; null: the program's own.
    batch = models.PositiveIntegerField(null=True)
    micro_batch = models.PositiveIntegerField(null=True)
    step_s = models.FloatField(null=True)  # of an elastic job: seconds of a step, as last measured
    held = models.BooleanField(default=True)
    opportunistic = models.BooleanField(
        default=False, db_default=False
    )  # takes nothing of its tenant's quota
    resume_from = models.ForeignKey("Checkpoint", null=True, on_delete=models.SET_NULL, related_name="+")
    opened_at = models.DateTimeField(db_default=Now())
    launched_at = models.DateTimeField(null=True)
    processing_at = models.DateTimeField(null=True)
    known_at = models.DateTimeField(null=True)  # last heartbeat; once closed: until when it counts
    closed_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=40, blank=True)  # state or stop reason that ended it
    # How often a checkpoint was requested while its program runs, and when last.
    saves_requested = models.PositiveIntegerField(default=0, db_default=0)
    save_requested_at = models.DateTimeField(null=True)
    freed_for = models.CharField(
        max_length=12, blank=True, db_default=""
    )  # job that is offered its slots first; after a resize its own is, too
    message = models.TextField(blank=True)
    image = models.CharField(
        max_length=500, blank=True, db_default=""
    )  # of its pods; "": none, or not known yet
    # Of the images that its learners ran, one unless they differ; [] while the cluster does not say.
    image_digests: models.JSONField[Any, Any] = models.JSONField(default=list, db_default=[])

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "n"], name="attempt_once"),
            models.UniqueConstraint(
                fields=["job"], condition=Q(closed_at__isnull=True), name="attempt_one_live"
            ),
            models.CheckConstraint(
                condition=Q(held=True) ^ Q(closed_at__isnull=False), name="attempt_held_iff_live"
            ),
        ]
        indexes = [
            models.Index(fields=["tenant", "opened_at"], name="attempt_usage"),
            # Use since a time reads what was closed after it, and the live ones: the same index has them as nulls.
            models.Index(fields=["tenant", "closed_at"], name="attempt_ended"),
            models.Index(fields=["tenant"], condition=Q(held=True), name="attempt_held"),
            models.Index(fields=["closed_at"], condition=~Q(freed_for=""), name="attempt_freed_for"),
        ]


class Learner(models.Model):
    """One rank of one attempt: what it reported (ingest) and what the cluster showed (lifecycle, cluster_*)."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="learner_rows", db_index=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", db_index=False)
    attempt = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    node = models.CharField(max_length=120)
    secret_sha256 = models.CharField(max_length=64, unique=True)
    # Reported (ingest).
    phase = models.CharField(max_length=12, choices=phase_choices, default=Phase.WAITING)
    message = models.TextField(blank=True)
    gen_seen = models.BigIntegerField(default=0)  # newest intent generation that reached the program
    halt_seen_at = models.DateTimeField(null=True)
    downloading_at = models.DateTimeField(
        null=True
    )  # when it came to these phases, for the start-up timeline
    ready_at = models.DateTimeField(null=True)
    processing_at = models.DateTimeField(null=True)
    checks_halt = models.BooleanField(default=False, db_default=False)  # it called halt_requested()
    checks_save = models.BooleanField(default=False, db_default=False)  # it called checkpoint_due()
    # Of the attempt's requests for a checkpoint, the newest that came before a save of this learner.
    saved_for = models.PositiveIntegerField(default=0, db_default=0)
    exited_at = models.DateTimeField(null=True)
    exit_code = models.IntegerField(null=True)  # 128 + signal when a signal ended it
    halted = models.BooleanField(default=False)  # a halt had reached the program when it exited
    finished_mark = models.BooleanField(default=False)  # the program's own "finished"
    error_code = models.CharField(max_length=24, blank=True)  # data_error … as the shipper names it
    done_at = models.DateTimeField(null=True)  # everything shipped and confirmed
    last_seen_at = models.DateTimeField(null=True)
    stored_at = models.DateTimeField(null=True)  # when something that it sent was last stored or acknowledged
    first_step = models.BigIntegerField(null=True)  # the program's own; null: it has reported none
    last_step = models.BigIntegerField(null=True)
    fell_ms = models.BigIntegerField(
        null=True
    )  # when its steps last fell back, by its own clock; null: never
    steps_by_rule = models.BooleanField(default=False, db_default=False)  # both only read from its log
    # The log stream's cursor.
    log_bytes = models.BigIntegerField(default=0)
    log_lines = models.BigIntegerField(default=0)  # complete lines: newlines before log_bytes
    log_crc = models.BigIntegerField(
        default=0
    )  # zlib.crc32 of the whole stream; -1 once it contains a tombstone
    log_sealed = models.BooleanField(default=False)
    log_merged = models.BigIntegerField(
        default=0, db_default=0, null=True
    )  # bytes whose chunks are merged; null: all, for good
    # For its index: one that follows log_merged itself would be written at each merge, and all others with it.
    log_unmerged = models.GeneratedField(
        expression=Q(log_merged__isnull=False),  # type: ignore[arg-type]  # the stubs lack conditions
        output_field=models.BooleanField(),
        db_persist=True,
    )
    metric_cursor = models.BigIntegerField(default=0)  # bytes of metrics.jsonl taken in
    # Shown by the cluster (lifecycle).
    # cluster_uid and failure_details: for operators, in SQL, to compare with the cluster's own records.
    cluster_uid = models.CharField(max_length=120, blank=True)
    cluster_phase = models.CharField(max_length=12, blank=True)
    cluster_exit_code = models.IntegerField(null=True)
    cluster_message = models.TextField(blank=True)
    failure_details: models.JSONField[Any, Any] = models.JSONField(default=dict)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "attempt", "rank"], name="learner_once")]
        indexes = [models.Index("id", condition=Q(log_unmerged=True), name="learner_log_to_merge")]


class JobEvent(models.Model):
    """One line of a job's history. Append-only (a trigger refuses change); n is 1, 2, 3 … per job."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events", db_index=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", db_index=False)
    n = models.BigIntegerField()
    at = models.DateTimeField(db_default=Now())
    code = models.CharField(max_length=24, choices=event_choices)
    from_state = models.CharField(max_length=12, blank=True)
    to_state = models.CharField(max_length=12, blank=True)
    attempt = models.PositiveIntegerField(default=0)
    reason = models.CharField(max_length=40, blank=True)
    message = models.TextField(blank=True)
    numbers: models.JSONField[Any, Any] = models.JSONField(default=dict)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )
    source = models.CharField(max_length=16)  # user, scheduler, lifecycle, learner, admin

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "n"], name="event_once")]
        indexes = [
            models.Index(fields=["tenant", "id"], name="event_by_tenant"),
            models.Index(
                fields=["tenant", "at"],
                condition=Q(from_state=State.QUEUED) & ~Q(to_state=""),
                name="event_left_queue",
            ),
        ]

    @property
    def words(self) -> str:
        """Its message, or what every event of its code says."""
        return self.message or (EVENT_MESSAGES[self.kind] if self.kind else self.code)

    @property
    def kind(self) -> EventCode | None:
        """None for a code that only a later version knows, which may run beside this one (docs/adr/0063)."""
        return next((code for code in EventCode if code == self.code), None)
