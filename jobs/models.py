"""Jobs and everything seen of them. PostgreSQL is the only place where a fact lives.

Three writers, three places: services write Job.intent, ingest writes what learners report (Learner, Progress,
LogChunk, MetricPoint, Checkpoint, ResultFile), lifecycle alone writes Job.state, attempts and quota use.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from jobs.ids import new_job_id
from jobs.states import EVENT_WORDS, FINAL, EventCode, Intent, Phase, State
from tenants.models import Tenant


def state_choices() -> list[tuple[str, str]]:
    return [(state.value, state.value) for state in State]


def intent_choices() -> list[tuple[str, str]]:
    return [(intent.value, intent.value) for intent in Intent]


def event_choices() -> list[tuple[str, str]]:
    return [(code.value, code.value) for code in EventCode]


def phase_choices() -> list[tuple[str, str]]:
    return [(phase.value, phase.value) for phase in Phase]


def _listed(*keys: Any, name: str, also: Q | None = None) -> models.Index:
    """An index for lists, which leave deleted jobs out: so they need not look at the rows they only count."""
    return models.Index(*keys, name=name, condition=Q(deleted_at=None) & (also or Q()))


class Runtime(models.Model):
    """A framework of this installation: a virtual environment locally, an image on Kubernetes."""

    slug = models.SlugField(max_length=40, primary_key=True)
    title = models.CharField(max_length=80)
    description = models.CharField(max_length=300, blank=True)
    image = models.CharField(max_length=300, blank=True)
    enabled = models.BooleanField(default=True)


class Blob(models.Model):
    """Bytes in the blob store, once per tenant and content. received grows while pieces arrive."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    sha256 = models.CharField(max_length=64)
    size = models.BigIntegerField()
    received = models.BigIntegerField(default=0)
    verified = models.BooleanField(default=False)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "sha256"], name="blob_once")]


class Upload(models.Model):
    """An archive of code sent before its job; removed after 24 h if no job used it."""

    id = models.CharField(primary_key=True, max_length=12, default=new_job_id)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="uploads")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    blob = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="+")
    files = models.PositiveIntegerField()
    bytes = models.BigIntegerField()
    created_at = models.DateTimeField(db_default=Now())
    used_at = models.DateTimeField(null=True)


class Job(models.Model):
    """One training job over all its attempts. Slots are per learner: GPUs of slot_type, or CPU slots."""

    id = models.CharField(primary_key=True, max_length=12, default=new_job_id)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="jobs", db_index=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs", db_index=False
    )
    name = models.CharField(max_length=120)
    tags = ArrayField(models.CharField(max_length=60), default=list, blank=True)
    spec: models.JSONField[Any, Any] = models.JSONField()  # normalised luthier/v1
    spec_text = models.TextField(blank=True)  # as submitted
    code = models.ForeignKey(Blob, null=True, on_delete=models.PROTECT, related_name="+")
    cloned_from = models.ForeignKey(
        "self", null=True, on_delete=models.SET_NULL, related_name="clones", db_index=False
    )
    # Read out of the spec for queries and for the scheduler.
    framework = models.CharField(max_length=300)
    learners = models.PositiveIntegerField()
    gpus = models.PositiveIntegerField()  # per learner, as asked; 0 = CPU job
    gpu_type = models.CharField(max_length=40, blank=True)  # as asked; "" = any
    slots = models.PositiveIntegerField()  # per learner, held while running
    placement = models.CharField(max_length=8)
    priority = models.CharField(max_length=12)
    priority_rank = models.SmallIntegerField()
    max_restarts = models.PositiveIntegerField()
    time_limit_s = models.PositiveIntegerField(null=True)
    grace_s = models.PositiveIntegerField(default=60)
    # The intent (services).
    intent = models.CharField(max_length=8, choices=intent_choices, default=Intent.RUN)
    intent_gen = models.BigIntegerField(default=1)
    intent_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )
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
    # The scheduler's pending order (lifecycle.orders): stop the job, or run it in another size.
    order_reason = models.CharField(
        max_length=24, blank=True, db_default=""
    )  # a StopReason in BY_ORDER; "": none
    order_for_job = models.CharField(
        max_length=12, blank=True, db_default=""
    )  # is offered the freed slots first
    order_learners = models.PositiveIntegerField(null=True)  # the new size, of a resize order
    order_gen = models.BigIntegerField(default=0, db_default=0)  # intent_gen for which the order was decided
    attempt = models.PositiveIntegerField(default=0)
    restarts_used = models.PositiveIntegerField(default=0)
    slot_seconds = models.FloatField(default=0)  # of closed attempts
    running_s = models.FloatField(default=0)  # of closed attempts
    infra_streak = models.PositiveIntegerField(default=0)  # attempts in a row that ended early, by whatever
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
    lease_until = models.DateTimeField(null=True)
    fence = models.BigIntegerField(default=0)
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
            _listed(F("owner"), F("id").desc(), name="job_by_owner"),
            models.Index(
                fields=["cloned_from"], condition=Q(cloned_from__isnull=False), name="job_cloned_from"
            ),
            models.Index(
                fields=["resume_from"], condition=Q(resume_from__isnull=False), name="job_resume_from"
            ),
            models.Index(fields=["next_reconcile_at"], condition=Q(settled=False), name="job_due"),
            models.Index(fields=["lease_until"], condition=Q(lease_token__isnull=False), name="job_leased"),
            models.Index(fields=["queued_at"], condition=Q(state=State.QUEUED), name="job_waiting"),
            GinIndex(fields=["tags"], name="job_tags"),
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
    )  # name -> {"last": number | "NaN" | "Infinity", "step": n}
    log_seq = models.BigIntegerField(default=0)  # newest LogChunk.seq
    log_bytes = models.BigIntegerField(
        default=0
    )  # output kept of all learners and attempts, against the job's cap
    metric_seq = models.BigIntegerField(default=0)  # newest MetricPoint.seq
    reported_at = models.DateTimeField(null=True)


class Estimate(models.Model):
    """When a waiting job is expected to start, by the last forecast (p50 to p90), and the first estimate
    since it last queued, to be judged by. Kept after the start. Written by lifecycle only."""

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


class Attempt(models.Model):
    """One deployment of a job, from the placement to the last pod's end. held: its slots count as used."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempts")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    n = models.PositiveIntegerField()
    cluster = models.CharField(max_length=40)
    slot_type = models.CharField(max_length=40)
    slots = models.PositiveIntegerField()  # per learner
    learners = models.PositiveIntegerField()
    nodes: models.JSONField[Any, Any] = models.JSONField()  # node name per rank
    held = models.BooleanField(default=True)
    resume_from = models.ForeignKey("Checkpoint", null=True, on_delete=models.SET_NULL, related_name="+")
    opened_at = models.DateTimeField(db_default=Now())
    launched_at = models.DateTimeField(null=True)
    processing_at = models.DateTimeField(null=True)
    known_at = models.DateTimeField(null=True)  # last heartbeat; once closed: until when it counts
    closed_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=40, blank=True)  # state or stop reason that ended it
    freed_for = models.CharField(
        max_length=12, blank=True, db_default=""
    )  # job that is offered its slots first
    message = models.TextField(blank=True)

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
            models.Index(fields=["closed_at"], condition=~Q(freed_for=""), name="attempt_freed_for"),
        ]


class Learner(models.Model):
    """One rank of one attempt: what it reported (ingest) and what the cluster showed (lifecycle, cluster_*)."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="learner_rows")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    attempt = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    node = models.CharField(max_length=120)
    secret_sha256 = models.CharField(max_length=64, unique=True)
    # Reported (ingest).
    phase = models.CharField(max_length=12, choices=phase_choices, default=Phase.WAITING)
    message = models.TextField(blank=True)
    gen_seen = models.BigIntegerField(default=0)  # newest intent generation that reached the program
    halt_seen_at = models.DateTimeField(null=True)
    downloading_at = models.DateTimeField(null=True)  # when it came to these phases, as its start is drawn
    ready_at = models.DateTimeField(null=True)
    processing_at = models.DateTimeField(null=True)
    exited_at = models.DateTimeField(null=True)
    exit_code = models.IntegerField(null=True)  # 128 + signal when a signal ended it
    halted = models.BooleanField(default=False)  # a halt had reached the program when it exited
    finished_mark = models.BooleanField(default=False)  # the program's own "finished"
    error_code = models.CharField(max_length=24, blank=True)  # data_error … as the shipper names it
    done_at = models.DateTimeField(null=True)  # everything shipped and confirmed
    last_seen_at = models.DateTimeField(null=True)
    last_step = models.BigIntegerField(null=True)
    # The log stream's cursor.
    log_bytes = models.BigIntegerField(default=0)
    log_lines = models.BigIntegerField(default=0)  # complete lines: newlines before log_bytes
    log_crc = models.BigIntegerField(
        default=0
    )  # zlib.crc32 of the whole stream; -1 once it contains a tombstone
    log_sealed = models.BooleanField(default=False)
    metric_cursor = models.BigIntegerField(default=0)  # bytes of metrics.jsonl taken in
    # Shown by the cluster (lifecycle).
    cluster_uid = models.CharField(max_length=120, blank=True)
    cluster_phase = models.CharField(max_length=12, blank=True)
    cluster_exit_code = models.IntegerField(null=True)
    cluster_message = models.TextField(blank=True)
    failure_details: models.JSONField[Any, Any] = models.JSONField(default=dict)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "attempt", "rank"], name="learner_once")]


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
    source = models.CharField(max_length=16, default="system")  # user, scheduler, lifecycle, learner, admin

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "n"], name="event_once")]
        indexes = [models.Index(fields=["tenant", "id"], name="event_by_tenant")]

    @property
    def words(self) -> str:
        """Its message, or what every event of its code says."""
        return self.message or EVENT_WORDS[EventCode(self.code)]


class LogChunk(models.Model):
    """A run of one learner's output. data is zstd; offsets count uncompressed bytes; a repeat changes nothing.

    times: [[byte offset within the chunk, milliseconds since the epoch], …], one per read of the launcher.
    lines counts the newlines inside; first_line is the number of the line in which the chunk begins (from 1).
    tombstone: the bytes were not kept; data is empty and len and lines say how much is missing.
    No foreign-key constraint: the writer holds the learner's row, and a bulk insert must not queue behind a lock
    that the lifecycle holds on the job's row.
    """

    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    attempt = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    offset = models.BigIntegerField()
    len = models.BigIntegerField()
    first_line = models.BigIntegerField()
    lines = models.BigIntegerField()
    seq = models.BigIntegerField()  # per job, over all learners
    data = models.BinaryField()
    times: models.JSONField[Any, Any] = models.JSONField(default=list)
    tombstone = models.BooleanField(default=False)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "attempt", "rank", "offset"], name="chunk_once")
        ]
        indexes = [
            models.Index(fields=["job", "attempt", "rank", "first_line"], name="chunk_by_line"),
            models.Index(fields=["job", "seq"], name="chunk_by_seq"),
        ]


class MetricPoint(models.Model):
    """One value of one series. NaN and infinities are values. seq is gapless per job. Constraints: as LogChunk."""

    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    attempt = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    name = models.CharField(max_length=120)
    step = models.BigIntegerField()
    value = models.FloatField()
    at = models.DateTimeField()
    seq = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "attempt", "rank", "name", "step"], name="metric_once"),
        ]
        indexes = [
            models.Index(fields=["job", "seq"], name="metric_by_seq"),
            models.Index(fields=["job", "name", "step"], name="metric_by_step"),
        ]


class Checkpoint(models.Model):
    """A saved state of training. Counts once COMMITTED: every part there, every byte hashed by the server."""

    class State(models.TextChoices):
        UPLOADING = "UPLOADING"
        COMMITTED = "COMMITTED"
        CORRUPT = "CORRUPT"
        DROPPED = "DROPPED"  # superseded by newer ones (keep), bytes released

    NEWEST_FIRST = ("-attempt", F("step").desc(nulls_last=True), "-n")
    """What a later attempt saved counts more than a higher step of an earlier one: its owner went back on purpose."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="checkpoints")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    n = models.PositiveIntegerField()  # 1, 2, 3 … per job
    attempt = models.PositiveIntegerField()
    step = models.BigIntegerField(null=True)  # null: the program never said
    state = models.CharField(max_length=12, choices=State.choices, default=State.UPLOADING)
    implicit = models.BooleanField(default=False)
    parts = models.PositiveIntegerField(default=1)
    world_size = models.PositiveIntegerField(default=1)
    bytes = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(db_default=Now())
    committed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "n"], name="checkpoint_once"),
        ]


class CheckpointFile(models.Model):
    """One file of a checkpoint, by row; path is only ever compared, never opened."""

    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.CASCADE, related_name="files")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    part = models.PositiveIntegerField(default=0)
    path = models.CharField(max_length=1024)
    blob = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["checkpoint", "part", "path"], name="checkpoint_file_once")
        ]


class ResultFile(models.Model):
    """One file of RESULT_DIR after STORING."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="results")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    attempt = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    path = models.CharField(max_length=1024)
    blob = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "attempt", "rank", "path"], name="result_once")]


WORKER_LOCKS = 77
"""Advisory lock (77, Worker.id) is held while that worker process lives; (76, 0) is the scheduling cycle's."""


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
    changed_at = models.DateTimeField(db_default=Now())


class PeriodicTask(models.Model):
    """A task that the installation repeats; whichever worker claims it when it is due runs it."""

    name = models.CharField(primary_key=True, max_length=40)
    next_at = models.DateTimeField(db_default=Now())
    done_at = models.DateTimeField(null=True)
    result: models.JSONField[Any, Any] = models.JSONField(default=dict)


class SchedulerState(models.Model):
    """What a scheduling policy carries from plan to plan. Only the policy reads the state; the cycle writes it."""

    policy = models.CharField(primary_key=True, max_length=400)  # LUTHIER_SCHEDULER_POLICY
    state: models.JSONField[Any, Any] = models.JSONField(default=dict)
    changed_at = models.DateTimeField(db_default=Now())


class IdempotentAnswer(models.Model):
    """What a POST with this Idempotency-Key was answered, so that its repeat is answered the same."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=128)
    request_sha256 = models.CharField(max_length=64)  # method, path and body
    status = models.PositiveSmallIntegerField(null=True)  # null: still being worked on
    body: models.JSONField[Any, Any] = models.JSONField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="idempotency_once")]
