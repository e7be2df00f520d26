"""What happened to a job: its events, attempts and learners, and the spec it was made of."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from rest_framework import serializers

from jobs.models import Attempt, JobEvent, Learner
from jobs.selectors.redaction import is_guest, redact_event
from jobs.selectors.serializers import event_view
from jobs.spec import to_yaml
from jobs.states import EventCode, Phase
from jobs.timestamps import rfc3339
from portal.api import paging, permissions
from portal.api.errors import NoSuchAttempt
from portal.api.fields import Moment, Paged, Strict
from portal.api.operations import Call, operation
from portal.api.renderers import json_bytes
from portal.api.serializers import SPEC, STATES

EVENT_CODES = [*(code.value for code in EventCode if code != EventCode.MOVED), *STATES]
"""A move is told by the state it led to."""


class EventReason(serializers.Serializer[Any]):
    code = serializers.CharField(allow_blank=True)
    message = serializers.CharField(allow_blank=True)
    numbers = serializers.DictField()


class Event(serializers.Serializer[Any]):
    n = serializers.IntegerField(help_text="1, 2, 3 … per job")
    at = Moment()
    code = serializers.ChoiceField(EVENT_CODES)
    from_state = serializers.ChoiceField(STATES, allow_null=True)
    to_state = serializers.ChoiceField(STATES, allow_null=True)
    attempt = serializers.IntegerField()
    reason = EventReason()
    message = serializers.CharField(allow_blank=True)
    numbers = serializers.DictField()
    actor = serializers.CharField(allow_null=True)
    source = serializers.CharField()  # type: ignore[assignment]  # see documents.Problem


class EventsQuery(Paged):
    after = serializers.IntegerField(
        required=False, min_value=0, max_value=2**63 - 1, help_text="events above n"
    )


@operation(
    Out=Event,
    Query=EventsQuery,
    many=True,
    tell={
        "n": 3,
        "at": "2026-11-21T09:00:02.000Z",
        "code": "PROCESSING",
        "from_state": "DOWNLOADING",
        "to_state": "PROCESSING",
        "attempt": 1,
        "reason": {"code": "", "message": "All learners run.", "numbers": {}},
        "message": "All learners run.",
        "numbers": {},
        "actor": None,
        "source": "lifecycle",
    },
)
def event_list(call: Call, job_id: str) -> dict[str, Any]:
    """A job's events from the first on; numbers have no holes, so `after` follows a job exactly."""
    job = permissions.job(call, job_id)
    rows = JobEvent.objects.filter(job=job).select_related("actor")
    if "after" in call.query:
        rows = rows.filter(n__gt=call.query["after"])
    if is_guest(call.user, job.tenant_id):
        return paging.page(call, rows, lambda event: redact_event(event_view(event)), keys=("n",))
    return paging.page(call, rows, event_view, keys=("n",))


class AttemptOut(serializers.Serializer[Any]):
    n = serializers.IntegerField()
    cluster = serializers.CharField()
    slot_type = serializers.CharField()
    slots = serializers.IntegerField(help_text="per learner")
    learners = serializers.IntegerField()
    nodes = serializers.ListField(child=serializers.CharField(), help_text="by rank")
    resumed_from = serializers.IntegerField(allow_null=True, help_text="number of the checkpoint")
    opened_at = Moment()
    processing_at = Moment(allow_null=True)
    closed_at = Moment(allow_null=True)
    outcome = serializers.CharField(allow_blank=True)
    message = serializers.CharField(allow_blank=True)


@operation(Out=AttemptOut, Query=Paged, many=True)
def attempt_list(call: Call, job_id: str) -> dict[str, Any]:
    """A job's deployments, the newest first."""
    rows = Attempt.objects.filter(job=permissions.job(call, job_id)).select_related("resume_from")
    return paging.page(call, rows, _attempt_view, keys=("-n",))


def _attempt_view(row: Attempt) -> dict[str, Any]:
    return {
        "n": row.n,
        "cluster": row.cluster,
        "slot_type": row.slot_type,
        "slots": row.slots,
        "learners": row.learners,
        "nodes": row.nodes,
        "resumed_from": row.resume_from.n if row.resume_from else None,
        "opened_at": rfc3339(row.opened_at),
        "processing_at": rfc3339(row.processing_at),
        "closed_at": rfc3339(row.closed_at),
        "outcome": row.outcome,
        "message": row.message,
    }


class LearnerOut(serializers.Serializer[Any]):
    attempt = serializers.IntegerField()
    rank = serializers.IntegerField(help_text="from 0")
    node = serializers.CharField()
    phase = serializers.ChoiceField([phase.value for phase in Phase])
    message = serializers.CharField(allow_blank=True)
    exit_code = serializers.IntegerField(allow_null=True)
    last_step = serializers.IntegerField(allow_null=True)
    last_seen_at = Moment(allow_null=True)
    log_lines = serializers.IntegerField()
    log_bytes = serializers.IntegerField()
    log_sealed = serializers.BooleanField()
    cluster_phase = serializers.CharField(allow_blank=True)
    cluster_message = serializers.CharField(allow_blank=True)


class LearnersQuery(Paged):
    attempt = serializers.IntegerField(required=False, min_value=1, max_value=2**31 - 1)


@operation(Out=LearnerOut, Query=LearnersQuery, many=True)
def learner_list(call: Call, job_id: str) -> dict[str, Any]:
    """A job's learners, the newest attempt's first unless one attempt is asked for."""
    job = permissions.job(call, job_id)
    rows = Learner.objects.filter(job=job)
    if attempt := call.query.get("attempt"):
        if attempt > job.attempt:
            raise NoSuchAttempt(attempt, job.attempt)
        rows = rows.filter(attempt=attempt)
    return paging.page(call, rows, _learner_view, keys=("-attempt", "rank"))


def _learner_view(row: Learner) -> dict[str, Any]:
    return {
        "attempt": row.attempt,
        "rank": row.rank,
        "node": row.node,
        "phase": row.phase,
        "message": row.message,
        "exit_code": row.exit_code if row.exit_code is not None else row.cluster_exit_code,
        "last_step": row.last_step,
        "last_seen_at": rfc3339(row.last_seen_at),
        "log_lines": row.log_lines,
        "log_bytes": row.log_bytes,
        "log_sealed": row.log_sealed,
        "cluster_phase": row.cluster_phase,
        "cluster_message": row.cluster_message,
    }


class SpecOut(serializers.Serializer[Any]):
    """A job spec, luthier/v1; its schema is at /api/v1/schema/job."""

    apiVersion = serializers.CharField()
    name = serializers.CharField()


class SpecQuery(Strict):
    form = serializers.ChoiceField(["yaml", "json"], required=False, help_text="instead of Accept")


@operation(Out=SpecOut, Query=SpecQuery, tell=SPEC, also=("application/yaml",))
def spec_read(call: Call, job_id: str) -> HttpResponse:
    """The normalised spec of a job, as JSON or, by Accept: application/yaml, as YAML that may be submitted again."""
    job = permissions.job(call, job_id)
    accept = call.request.headers.get("Accept", "").lower()
    wants_yaml = "yaml" in accept and not accept.startswith("application/json")
    if call.query.get("form", "yaml" if wants_yaml else "json") == "yaml":
        response = HttpResponse(to_yaml(job.spec), content_type="application/yaml; charset=utf-8")
    else:
        response = HttpResponse(json_bytes(job.spec), content_type="application/json")
    response["Vary"] = "Accept"
    return response
