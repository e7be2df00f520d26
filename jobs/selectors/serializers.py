"""A job, its events, checkpoints and quotas as REST, pages and sockets show them. No queries but a manifest's files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.utils import timezone
from rest_framework import serializers

from gpu_scheduler.model import Range
from jobs.accounting import counts_until, ran_s
from jobs.models import Attempt, Checkpoint, Job, JobEvent, Progress
from jobs.selectors.checkpoints import checkpoint_files
from jobs.selectors.jobs import actions_of, etag
from jobs.selectors.queue import estimate_view
from jobs.selectors.redaction import redacted_job
from jobs.selectors.requests import elastic_range
from jobs.selectors.throughput import Run, Throughput, throughput
from jobs.selectors.usage import QuotaStatus, quota_etag
from jobs.selectors.wait_reasons import Meter, Remedy, check_of, failed_meter
from jobs.serialization import ReadSerializer, TimestampField
from jobs.spec.definition import PRIORITIES
from jobs.states import EventCode, Intent, State, display_phase
from tenants import access
from tenants.services.quotas import TERMS

STATES = [state.value for state in State]
INTENTS = [intent.value for intent in Intent]
BASES = ["progress", "history"]
EVENT_CODES = [*(code.value for code in EventCode if code != EventCode.MOVED), *STATES]
"""A transition has the code of the state it leads to."""


class ReasonRow(NamedTuple):
    """What ReasonSerializer renders."""

    code: str
    message: str
    numbers: dict[str, Any]


class MeterSerializer(ReadSerializer):
    used = serializers.IntegerField()
    limit = serializers.IntegerField(allow_null=True)
    asked = serializers.IntegerField()


class ReasonSerializer(ReadSerializer):
    """A reason; title, actor and meter are null unless it is given by an admission check."""

    code = serializers.CharField(allow_blank=True)
    message = serializers.CharField(allow_blank=True)
    numbers = serializers.DictField(help_text="the numbers in the message, by code")
    title = serializers.CharField(allow_null=True, help_text="what was checked")
    actor = serializers.ChoiceField(
        [remedy.value for remedy in Remedy],
        allow_null=True,
        help_text="who can end the wait: wait (time), ask (a platform admin), fix (the owner changes the job)",
    )
    meter = MeterSerializer(allow_null=True, help_text="used, limit, and what the job adds, if it is counted")

    @staticmethod
    def get_title(reason: ReasonRow, context: object) -> str | None:
        check = check_of(reason.code)
        return check.title if check else None

    @staticmethod
    def get_actor(reason: ReasonRow, context: object) -> str | None:
        check = check_of(reason.code)
        return check.remedy_for(reason.numbers).value if check else None

    @staticmethod
    def get_meter(reason: ReasonRow, context: object) -> Meter | None:
        return failed_meter(reason.numbers) if check_of(reason.code) else None


class FirstEstimateSerializer(ReadSerializer):
    from_ = TimestampField(allow_null=True)
    to = TimestampField(allow_null=True)
    at = TimestampField(help_text="when it was made")


class EstimateSerializer(ReadSerializer):
    """When a waiting job is expected to start if no other job is submitted: p50 to p90."""

    from_ = TimestampField(allow_null=True, help_text="p50: as likely before as after; null: no estimate")
    to = TimestampField(allow_null=True, help_text="p90: in nine of ten simulations it has started by then")
    basis = serializers.ListField(
        child=serializers.ChoiceField(BASES), help_text="how the ends of the jobs ahead were estimated"
    )
    message = serializers.CharField(
        allow_blank=True, help_text="what it is based on, or why there is no estimate"
    )
    at = TimestampField(allow_null=True, help_text="when it last changed")
    first = FirstEstimateSerializer(allow_null=True, help_text="the first estimate since the job was queued")
    started_at = TimestampField(
        allow_null=True, help_text="when the job got its devices, to compare with `first`"
    )


class ProgressSerializer(ReadSerializer):
    step = serializers.IntegerField(allow_null=True)
    total = serializers.IntegerField(allow_null=True)
    percent = serializers.FloatField(allow_null=True)

    @staticmethod
    def get_percent(progress: Progress, context: object) -> float | None:
        """0 to 100; None while the total is unknown."""
        step, total = progress.step, progress.total
        return min(100.0, round(100 * step / total, 1)) if step is not None and total else None


class ThroughputSerializer(ReadSerializer):
    """Throughput over all attempts; null while the job does not run or nothing is known."""

    seconds_left = serializers.FloatField(allow_null=True)
    steps_per_second = serializers.FloatField(allow_null=True)


class NewestCheckpointSerializer(ReadSerializer):
    n = serializers.IntegerField()
    step = serializers.IntegerField(allow_null=True)
    at = TimestampField()


@dataclass(frozen=True, slots=True)
class _Live:
    """What several fields of a job need: the current time, its live attempt, and the slot-seconds used so far."""

    now: datetime
    attempt: Attempt | None
    slot_seconds: float


class ElasticSerializer(ReadSerializer):
    min = serializers.IntegerField(help_text="the fewest learners")
    max = serializers.IntegerField(help_text="the most learners")


class JobSerializer(ReadSerializer):
    """A job as the API, the pages and the live channels show it.

    Its row comes from job_get or job_list, which load everything that it needs.
    """

    id = serializers.CharField(source="pk")
    name = serializers.CharField()
    tenant = serializers.CharField(source="tenant.slug")
    owner = serializers.CharField(source="owner.username")
    state = serializers.ChoiceField(STATES)
    phase = serializers.CharField(help_text="the state as people read it: Halting, Resuming, …")
    intent = serializers.ChoiceField(INTENTS)
    reason = ReasonSerializer()
    estimate = EstimateSerializer(
        allow_null=True, help_text="null for a job that is not waiting and had no estimate"
    )
    attempt = serializers.IntegerField()
    restarts_used = serializers.IntegerField()
    max_restarts = serializers.IntegerField()
    spec = serializers.DictField()
    framework = serializers.CharField()
    learners = serializers.IntegerField(
        help_text="of an elastic job: those that it has, had, or is to have next"
    )
    elastic = ElasticSerializer(
        allow_null=True, help_text="between which the platform changes learners; null: it does not"
    )
    growth = ReasonSerializer(
        allow_null=True,
        help_text="of an elastic job that runs with fewer learners than it can have: why it gets no more, by the last "
        "plan; null: it has its most, does not run, or that is not known",
    )
    gpus = serializers.IntegerField(help_text="per learner; 0: a CPU job")
    gpu_type = serializers.CharField(allow_null=True, help_text="as requested; null: any")
    slot_type = serializers.CharField(
        allow_null=True, help_text="of its newest attempt; null before the first"
    )
    slots = serializers.IntegerField(help_text="per learner")
    priority = serializers.ChoiceField(PRIORITIES)
    project = serializers.CharField(allow_blank=True, help_text="of its tenant; empty: none")
    opportunistic = serializers.BooleanField(
        help_text="it runs only on devices that no other job can take, and uses none of its tenant's quota"
    )
    tags = serializers.ListField(child=serializers.CharField())
    progress = ProgressSerializer()
    throughput = ThroughputSerializer()
    metrics = serializers.DictField(
        source="progress.metrics",
        help_text='name: {"last": number or "NaN", "step": n, "axis": "step" or "order"}',
    )
    checkpoint = NewestCheckpointSerializer(allow_null=True)
    last_halt = serializers.DictField(allow_null=True, help_text="the receipt of the last halt")
    gpu_seconds = serializers.FloatField()
    slot_seconds = serializers.FloatField()
    cloned_from = serializers.CharField(allow_null=True, source="cloned_from_id")
    created_at = TimestampField()
    queued_at = TimestampField()
    started_at = TimestampField(allow_null=True)
    finished_at = TimestampField(allow_null=True)
    allowed_actions = serializers.ListField(child=serializers.CharField())
    etag = serializers.CharField()

    @classmethod
    def render(cls, row: Job, context: datetime | None = None) -> dict[str, Any]:
        """The JSON object of a job. context: the current time, if the caller has read it already."""
        now = context or timezone.now()
        attempt = _attempt(getattr(row, "live_attempt", None))
        return super().render(
            row, _Live(now, attempt, row.slot_seconds + _live_slot_seconds(row, attempt, now))
        )

    @classmethod
    def render_for(cls, user: access.Person, row: Job) -> dict[str, Any]:
        """The JSON object of a job as this user can read it. row: fetched without redaction, never saved after this."""
        return cls.render(redacted_job(user, row))

    @staticmethod
    def get_state(job: Job, live: _Live) -> str:
        return State(job.state).value

    @staticmethod
    def get_elastic(job: Job, live: _Live) -> Range | None:
        return elastic_range(job.resources)

    @staticmethod
    def get_growth(job: Job, live: _Live) -> ReasonRow | None:
        """What an earlier size had does not count: it is of the run that it was decided for."""
        found = job.growth if job.state == State.PROCESSING and job.intent == Intent.RUN else None
        if not found or found["numbers"].get("learners") != job.learners:
            return None
        return ReasonRow(found["code"], found["message"], found["numbers"])

    @staticmethod
    def get_phase(job: Job, live: _Live) -> str:
        state, intent = State(job.state), Intent(job.intent)
        return display_phase(state, intent, job.stop_reason, job.attempt, job.early_ends)

    @staticmethod
    def get_intent(job: Job, live: _Live) -> str:
        return Intent(job.intent).value

    @staticmethod
    def get_reason(job: Job, live: _Live) -> ReasonRow:
        return ReasonRow(job.reason_code, job.reason_message, job.reason_numbers)

    @staticmethod
    def get_estimate(job: Job, live: _Live) -> dict[str, Any] | None:
        return estimate_view(job, live.now)

    @staticmethod
    def get_gpu_type(job: Job, live: _Live) -> str | None:
        return job.gpu_type or None

    @staticmethod
    def get_slot_type(job: Job, live: _Live) -> str | None:
        return getattr(job, "slot_type", None)

    @staticmethod
    def get_throughput(job: Job, live: _Live) -> dict[str, Any]:
        found = _throughput(job, live.now) if job.state == State.PROCESSING else None
        return {
            "seconds_left": round(found.left_s, 1) if found else None,
            "steps_per_second": found.steps_per_s if found else None,
        }

    @staticmethod
    def get_checkpoint(job: Job, live: _Live) -> dict[str, Any] | None:
        newest: dict[str, Any] | None = getattr(job, "newest_checkpoint", None)
        return newest and newest | {"at": datetime.fromisoformat(newest["at"])}

    @staticmethod
    def get_gpu_seconds(job: Job, live: _Live) -> float:
        return round(live.slot_seconds, 1) if job.gpus else 0.0

    @staticmethod
    def get_slot_seconds(job: Job, live: _Live) -> float:
        return round(live.slot_seconds, 1)

    @staticmethod
    def get_allowed_actions(job: Job, live: _Live) -> list[str]:
        return [action.value for action in actions_of(job, live.attempt, live.now)]

    @staticmethod
    def get_etag(job: Job, live: _Live) -> str:
        return etag(job)


class EventSerializer(ReadSerializer):
    """One event of a job, the same by REST and on the socket. The receipt of a halt is the reason.numbers of its HALTED
    event."""

    n = serializers.IntegerField(help_text="1, 2, 3 … per job")
    at = TimestampField()
    code = serializers.ChoiceField(EVENT_CODES)
    from_state = serializers.ChoiceField(STATES, allow_null=True)
    to_state = serializers.ChoiceField(STATES, allow_null=True)
    attempt = serializers.IntegerField()
    reason = ReasonSerializer()
    message = serializers.CharField(allow_blank=True)
    numbers = serializers.DictField()
    actor = serializers.CharField(allow_null=True, source="actor.username")
    source = serializers.CharField()  # type: ignore[assignment]  # a field; the metaclass takes it off the class

    @staticmethod
    def get_code(event: JobEvent, context: object) -> str:
        return event.to_state if event.code == EventCode.MOVED else event.code

    @staticmethod
    def get_from_state(event: JobEvent, context: object) -> str | None:
        return event.from_state or None

    @staticmethod
    def get_to_state(event: JobEvent, context: object) -> str | None:
        return event.to_state or None

    @staticmethod
    def get_reason(event: JobEvent, context: object) -> ReasonRow:
        return ReasonRow(event.reason, event.message, event.numbers)


class CheckpointSerializer(ReadSerializer):
    n = serializers.IntegerField()
    attempt = serializers.IntegerField()
    step = serializers.IntegerField(allow_null=True)
    state = serializers.ChoiceField(
        Checkpoint.State.values,
        help_text="DROPPED: no longer kept; without `committed_at`: its upload was given up",
    )
    implicit = serializers.BooleanField(
        help_text="the folder as it was when the program ended, without a manifest"
    )
    parts = serializers.IntegerField()
    world_size = serializers.IntegerField()
    bytes = serializers.IntegerField(
        source="size", help_text="UPLOADING: of the files in the manifest so far"
    )
    received = serializers.IntegerField(help_text="bytes uploaded so far")
    created_at = TimestampField()
    committed_at = TimestampField(allow_null=True)
    etag = serializers.CharField()

    @staticmethod
    def get_etag(saved: Checkpoint, context: object) -> str:
        return f'"{saved.n}-{saved.state.lower()}"'


class FileSerializer(ReadSerializer):
    path = serializers.CharField()
    size = serializers.IntegerField()
    sha256 = serializers.CharField()


class CheckpointManifestSerializer(CheckpointSerializer):
    """A checkpoint with its files. The parts of a gang keep theirs under part-<k>/."""

    files = FileSerializer(many=True)

    @staticmethod
    def get_files(saved: Checkpoint, context: object) -> list[dict[str, Any]]:
        return checkpoint_files(saved)


class QuotaSerializer(ReadSerializer):
    gpu_type = serializers.CharField()
    limit = serializers.IntegerField()
    used = serializers.IntegerField()
    waiting = serializers.IntegerField(help_text="slots that queued jobs request")
    borrowed = serializers.IntegerField(help_text="the part of used that other tenants of the cohort lend")
    lent = serializers.IntegerField(help_text="the part of the limit that other tenants of the cohort use")
    opportunistic = serializers.IntegerField(
        help_text="slots that opportunistic jobs hold beside the quota; neither used nor borrowed"
    )
    cohort = serializers.CharField(
        allow_blank=True, help_text="the tenants it lends to and borrows from; empty: none"
    )
    borrowing_limit = serializers.IntegerField(allow_null=True, help_text="null: all that others lend")
    lending_limit = serializers.IntegerField(allow_null=True, help_text="null: the whole limit")
    weight = serializers.IntegerField(help_text="its part where several tenants borrow")
    user_limit = serializers.IntegerField(
        allow_null=True, help_text="the most that jobs of one user hold at once; null: no limit"
    )
    gang_limit = serializers.IntegerField(
        allow_null=True, help_text="the most that one job holds; null: no limit"
    )
    etag = serializers.CharField(help_text="of the limit and the terms: use changes by the second")

    @staticmethod
    def get_etag(use: QuotaStatus, context: object) -> str:
        return quota_etag(use.limit, {name: getattr(use, name) for name in TERMS})


def _throughput(job: Job, now: datetime) -> Throughput | None:
    live: dict[str, Any] = getattr(job, "live_attempt", None) or {}
    if not live.get("processing_at"):
        return None
    since, progress = datetime.fromisoformat(live["processing_at"]), job.progress
    first_step, began_step = getattr(job, "first_step", None), live.get("began_step")
    run = Run(
        progress.step, progress.total, progress.reported_at, job.running_s, first_step, since, began_step
    )
    return throughput(run, now)


def _attempt(live: dict[str, Any] | None) -> Attempt | None:
    """The live attempt, as far as its times go."""
    if live is None:
        return None
    times = ((name, live.get(name)) for name in ("opened_at", "processing_at", "known_at"))
    return Attempt(**{name: datetime.fromisoformat(text) if text else None for name, text in times})


def ran_so_far_s(job: Job, now: datetime) -> float:
    """Seconds that its program has run, in the live attempt, too. job: as job_get and job_list load it."""
    live = _attempt(getattr(job, "live_attempt", None))
    return job.running_s + (
        ran_s(live.processing_at, counts_until(live.known_at, None, now)) if live else 0.0
    )


def _live_slot_seconds(job: Job, live: Attempt | None, now: datetime) -> float:
    if live is None:
        return 0.0
    held_s = (counts_until(live.known_at, None, now) - live.opened_at).total_seconds()
    return max(0.0, held_s) * job.slots * job.learners
