"""The history of a job: its events, attempts and learners, and its spec."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.utils import timezone
from rest_framework import serializers

from jobs.models import Attempt, Job, JobEvent, Learner
from jobs.selectors.attempts import attempts_of, repeated_steps
from jobs.selectors.platform_stops import stops_between
from jobs.selectors.redaction import needs_redaction, redact_event
from jobs.selectors.serializers import EventSerializer
from jobs.serialization import ReadSerializer, TimestampField, json_bytes
from jobs.spec import in_order, to_yaml
from jobs.states import Phase
from portal.api import bodies, paging, permissions
from portal.api.errors import NoSuchAttempt
from portal.api.examples import NO_REASON, SPEC
from portal.api.fields import PagedQuery, StrictSerializer
from portal.api.operations import Call, operation


class EventsQuery(PagedQuery):
    after = serializers.IntegerField(
        required=False, min_value=0, max_value=2**63 - 1, help_text="events above n"
    )


@operation(
    Out=EventSerializer,
    Query=EventsQuery,
    many=True,
    response_example={
        "n": 3,
        "at": "2026-11-21T09:00:02.000Z",
        "code": "PROCESSING",
        "from_state": "DOWNLOADING",
        "to_state": "PROCESSING",
        "attempt": 1,
        "reason": NO_REASON | {"message": "All learners are running."},
        "message": "All learners are running.",
        "numbers": {},
        "actor": None,
        "source": "lifecycle",
    },
)
def event_list(call: Call, job_id: str) -> dict[str, Any]:
    """A job's events, oldest first. Numbers have no gaps, so `after` follows a job exactly.

    `platform_stops`: from when to when the platform was stopped since the job was submitted; it did not wait then.
    """
    job = permissions.job(call, job_id)
    stops = stops_between(job.created_at, job.finished_at or timezone.now())
    return {**_events(call, job), "platform_stops": [{"from": began, "to": ended} for began, ended in stops]}


def _events(call: Call, job: Job) -> dict[str, Any]:
    rows = JobEvent.objects.filter(job=job).select_related("actor")
    if "after" in call.query:
        rows = rows.filter(n__gt=call.query["after"])
    if needs_redaction(call.user, job.tenant_id):
        return paging.page(call, rows, lambda event: redact_event(EventSerializer.render(event)), keys=("n",))
    return paging.page(call, rows, EventSerializer.render, keys=("n",))


class AttemptSerializer(ReadSerializer):
    n = serializers.IntegerField()
    cluster = serializers.CharField()
    slot_type = serializers.CharField()
    slots = serializers.IntegerField(help_text="per learner")
    learners = serializers.IntegerField()
    nodes = serializers.ListField(child=serializers.CharField(), help_text="by rank")
    batch = serializers.IntegerField(
        allow_null=True,
        help_text="samples in a step, chosen for an elastic job; null: the program has its own",
    )
    micro_batch = serializers.IntegerField(allow_null=True, help_text="samples in each learner at once")
    step_s = serializers.FloatField(
        allow_null=True, help_text="seconds of a step of an elastic job; null: not measured"
    )
    resumed_from = serializers.IntegerField(
        allow_null=True, source="resume_from.n", help_text="number of the checkpoint"
    )
    repeated_steps = serializers.IntegerField(
        allow_null=True,
        help_text="steps of the run before that it trained again, as they came after its checkpoint; null: unknown",
    )
    opened_at = TimestampField()
    processing_at = TimestampField(allow_null=True)
    closed_at = TimestampField(allow_null=True)
    outcome = serializers.CharField(allow_blank=True)
    message = serializers.CharField(allow_blank=True)
    image = serializers.CharField(
        allow_blank=True,
        help_text="container image of its pods, once the cluster says what it is; empty: none, or unknown",
    )
    image_digests = serializers.ListField(
        child=serializers.CharField(),
        help_text="of the images that its learners ran, one unless they differ; empty: unknown",
    )

    @staticmethod
    def get_repeated_steps(row: Attempt, context: object) -> int | None:
        return repeated_steps(row)


@operation(Out=AttemptSerializer, Query=PagedQuery, many=True)
def attempt_list(call: Call, job_id: str) -> dict[str, Any]:
    """A job's attempts, the newest first."""
    rows = attempts_of(permissions.job(call, job_id).pk)
    return paging.page(call, rows, AttemptSerializer.render, keys=("-n",))


class LearnerSerializer(ReadSerializer):
    attempt = serializers.IntegerField()
    rank = serializers.IntegerField(help_text="from 0")
    node = serializers.CharField()
    phase = serializers.ChoiceField([phase.value for phase in Phase])
    message = serializers.CharField(allow_blank=True)
    exit_code = serializers.IntegerField(allow_null=True)
    last_step = serializers.IntegerField(allow_null=True)
    last_seen_at = TimestampField(allow_null=True)
    log_lines = serializers.IntegerField()
    log_bytes = serializers.IntegerField()
    log_sealed = serializers.BooleanField()
    cluster_phase = serializers.CharField(allow_blank=True)
    cluster_message = serializers.CharField(allow_blank=True)

    @staticmethod
    def get_exit_code(row: Learner, context: object) -> int | None:
        return row.exit_code if row.exit_code is not None else row.cluster_exit_code


class LearnersQuery(PagedQuery):
    attempt = serializers.IntegerField(required=False, min_value=1, max_value=2**31 - 1)


@operation(Out=LearnerSerializer, Query=LearnersQuery, many=True)
def learner_list(call: Call, job_id: str) -> dict[str, Any]:
    """A job's learners, newest attempt first, or of one attempt."""
    job = permissions.job(call, job_id)
    rows = Learner.objects.filter(job=job)
    if attempt := call.query.get("attempt"):
        if attempt > job.attempt:
            raise NoSuchAttempt(attempt, job.attempt)
        rows = rows.filter(attempt=attempt)
    return paging.page(call, rows, LearnerSerializer.render, keys=("-attempt", "rank"))


class SpecSerializer(ReadSerializer):
    """A job spec, luthier/v1; its schema is at /api/v1/schema/job."""

    apiVersion = serializers.CharField()
    name = serializers.CharField()


class SpecQuery(StrictSerializer):
    form = serializers.ChoiceField(["yaml", "json"], required=False, help_text="overrides Accept")


@operation(Out=SpecSerializer, Query=SpecQuery, response_example=SPEC, also=("application/yaml",))
def spec_read(call: Call, job_id: str) -> HttpResponse:
    """The normalized spec of a job as JSON or, with Accept: application/yaml, as YAML that can be submitted again."""
    job = permissions.job(call, job_id)
    preferred = call.request._request.get_preferred_type([bodies.JSON, *bodies.YAML])
    if call.query.get("form", "yaml" if preferred in bodies.YAML else "json") == "yaml":
        response = HttpResponse(to_yaml(job.spec), content_type="application/yaml; charset=utf-8")
    else:
        response = HttpResponse(json_bytes(in_order(job.spec)), content_type="application/json")
    response["Vary"] = "Accept"
    return response
