"""Jobs: list, read, submit, validate, edit and delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from jobs import models
from jobs.errors import SpecInvalid
from jobs.selectors import validation, what_if
from jobs.selectors.jobs import ORDERS, detailed, job_list
from jobs.selectors.redaction import redacted_job
from jobs.selectors.serializers import STATES, EstimateSerializer, JobSerializer, ReasonSerializer
from jobs.serialization import ReadSerializer
from jobs.services import job_accept, job_check, job_delete, job_edit, job_prepare
from jobs.services.submit import Kept, Prepared
from jobs.spec import json_schema
from jobs.spec.definition import PRIORITIES
from jobs.spec.problems import Problem
from jobs.spec.walk import Walk
from jobs.states import State
from portal import submissions
from portal.api import bodies, paging, permissions
from portal.api.errors import NotFoundError
from portal.api.examples import JOB_EXAMPLE, SPEC_YAML
from portal.api.fields import Follows, PagedQuery, StrictCharField, StrictSerializer
from portal.api.openapi import FieldErrorSerializer
from portal.api.operations import Call, operation
from tenants import access, audit
from tenants.models import Tenant
from tenants.roles import Permission

SPEC = json_schema()["properties"]
"""The fields of a spec; an edit has the same limits."""
SPEC_KINDS = (bodies.JSON, *bodies.YAML)


class JobsQuery(PagedQuery):
    tenant = serializers.CharField(required=False, default="", max_length=40)
    state = serializers.ListField(
        child=serializers.ChoiceField(STATES),
        required=False,
        default=list,
        help_text="one, or several separated by commas",
    )
    owner = serializers.CharField(required=False, default="", max_length=150)
    tag = serializers.CharField(required=False, default="", max_length=60)
    gpu_type = serializers.CharField(
        required=False,
        default="",
        max_length=40,
        help_text="as requested, or, if any, of its last placement; or cpu",
    )
    project = serializers.CharField(required=False, default="", max_length=40)
    opportunistic = serializers.BooleanField(required=False, help_text="true: these alone; false: all others")
    q = serializers.CharField(
        required=False, default="", allow_blank=True, max_length=200, help_text="in name, id, owner and tags"
    )
    order = serializers.ChoiceField(list(ORDERS), required=False, default="newest")


@operation(Out=JobSerializer, Query=JobsQuery, many=True, response_example=JOB_EXAMPLE)
def jobs_list(call: Call) -> dict[str, Any]:
    """Jobs of all tenants of the caller, and those shared with them.

    A filter that names what the caller cannot see finds nothing. Platform admins see all; their reads are recorded.
    """
    query = call.query
    rows = job_list(
        user=call.user,
        tenant=query["tenant"],
        states=[State(state) for state in query["state"]],
        owner=query["owner"],
        tag=query["tag"],
        gpu_type=query["gpu_type"],
        project=query["project"],
        opportunistic=query.get("opportunistic"),
        q=query["q"],
        order=query["order"],
    )

    def load(page: list[models.Job]) -> list[models.Job]:
        shown = [redacted_job(call.user, job) for job in detailed(page)]
        _record_admin(call, shown)
        return shown

    return paging.page(call, rows, JobSerializer.render, keys=ORDERS[query["order"]], load=load)


def _record_admin(call: Call, shown: list[models.Job]) -> None:
    """Record for each tenant that a platform admin read its jobs, or filtered by it."""
    targets = {job.tenant_id: job.tenant.slug for job in shown}
    if named := call.query["tenant"] and access.find_tenant(call.user, call.query["tenant"]):
        targets[named.pk] = named.slug
    audit.admin_reads(user=call.user, targets=targets, action="job.list", reason=call.reason)


@operation(Out=JobSerializer, response_example=JOB_EXAMPLE)
def job_read(call: Call, job_id: str) -> dict[str, Any]:
    """One job."""
    return JobSerializer.render(permissions.job(call, job_id))


def _as_in_a_spec(rules: Mapping[str, Any], **options: Any) -> StrictCharField:
    """A text field by its rules in the schema of specs."""

    def check(value: str) -> dict[str, Any] | None:
        found = next(Walk({}).faults(value, rules), None)
        return None if found is None else found.as_dict()

    return StrictCharField(max_length=rules["maxLength"], validators=[Follows(check)], **options)


class JobChangeRequest(StrictSerializer):
    name = _as_in_a_spec(SPEC["name"], required=False)
    tags = serializers.ListField(
        child=_as_in_a_spec(SPEC["tags"]["items"]),
        required=False,
        max_length=SPEC["tags"]["maxItems"],
    )
    priority = serializers.ChoiceField(PRIORITIES, required=False)


@operation(
    authorize=permissions.to_manage,
    In=JobChangeRequest,
    Out=JobSerializer,
    request_example={"tags": ["baseline"], "priority": "high"},
    response_example=JOB_EXAMPLE,
    fails=(409,),
)
def job_change(call: Call, job_id: str) -> dict[str, Any]:
    """Change a job's name, tags or priority; for its owner and managers. Other fields are refused, not ignored."""
    edited = job_edit(user=call.user, job_id=job_id, if_match=call.if_match, **call.data)
    return JobSerializer.render_for(call.user, edited)


@operation(authorize=permissions.to_manage, status=204, fails=(409, 412))
def job_remove(call: Call, job_id: str) -> None:
    """Delete a finished job; for its owner and managers. It is hidden at once and purged after the retention time."""
    job_delete(user=call.user, job_id=job_id, if_match=call.if_match)


class AcceptedSerializer(JobSerializer):
    """The new job, and what its author may want to change."""

    warnings = FieldErrorSerializer(
        many=True, required=False, help_text="as of jobs:validate; left out where there are none"
    )


def _submission(call: Call, t: str) -> Prepared:
    submissions.spend(call.user, submissions.What.JOBS)
    source, kind = call.body, bodies.media_type(call.request)
    return job_prepare(user=call.user, tenant=call.found, source=source, content_type=kind)


@operation(
    Out=AcceptedSerializer,
    authorize=permissions.into_tenant(Permission.SUBMIT),
    prepare=_submission,
    status=201,
    kinds=SPEC_KINDS,
    location=lambda made: f"/api/v1/jobs/{made['id']}",
    request_example=SPEC_YAML,
    response_example=JOB_EXAMPLE,
)
def job_create(call: Call, t: str) -> dict[str, Any]:
    """Submit a job; for researchers and managers. The body is a job spec, as JSON or as YAML (application/yaml).

    When the response arrives, the job is durable and QUEUED. A refusal lists all errors of the spec; the job of a spec
    with warnings is accepted, and the response lists them.
    """
    warnings: list[Problem] = []
    made = job_accept(call.prepared, warnings=warnings)
    shown = {"warnings": [warning.as_dict() for warning in warnings]} if warnings else {}
    return JobSerializer.render(made) | shown


class OutlookSerializer(ReasonSerializer):
    """What would happen to a job, with the reason if it would wait."""

    starts = serializers.BooleanField()
    slot_type = serializers.CharField(allow_null=True)
    nodes = serializers.ListField(child=serializers.CharField(), help_text="one per learner")
    estimate = EstimateSerializer()


class QuotaNeedSerializer(ReadSerializer):
    slot_type = serializers.CharField(
        help_text="the type it would run on; for a job of any GPU type, the one with most left"
    )
    limit = serializers.IntegerField()
    used = serializers.IntegerField()
    asked = serializers.IntegerField(help_text="slots of this job, over all learners")

    @staticmethod
    def get_asked(quota: object, need: int) -> int:
        return need


class CheckSerializer(ReadSerializer):
    name = serializers.ChoiceField(
        validation.NAMES, help_text="budget: only of a GPU job of a tenant with a GPU-hour budget"
    )
    result = serializers.ChoiceField(
        list(validation.Result),
        help_text="failed: the job is refused; waits: it is accepted, but does not start now",
    )
    message = serializers.CharField()


class ValidationSerializer(ReadSerializer):
    valid = serializers.BooleanField()
    errors = FieldErrorSerializer(many=True)  # type: ignore[assignment]  # a field; the metaclass takes it off the class
    warnings = FieldErrorSerializer(many=True)
    spec = serializers.DictField(allow_null=True, help_text="normalized: with defaults and canonical units")
    now = OutlookSerializer(
        allow_null=True, help_text="what the scheduler would do if the job were submitted now"
    )
    quota = QuotaNeedSerializer(
        allow_null=True,
        help_text="the tenant's quota and what the job requests; null of an opportunistic job, which uses none",
    )
    checks = CheckSerializer(many=True, help_text="the checks in the order in which they ran")


class ValidateQuery(StrictSerializer):
    cloned_from = StrictCharField(
        required=False,
        max_length=12,
        help_text="validate as a clone of this job of the tenant, whose code is stored even if its upload has expired",
    )


@operation(
    Out=ValidationSerializer,
    Query=ValidateQuery,
    authorize=permissions.into_tenant(Permission.SUBMIT),
    kinds=SPEC_KINDS,
    request_example=SPEC_YAML,
    response_example={
        "valid": False,
        "errors": [
            {
                "path": "resources.learners",
                "code": "out_of_range",
                "message": "must be at least 1",
                "got": "0",
                "allowed": "at least 1",
                "line": 9,
                "column": 24,
                "near": None,
            }
        ],
        "warnings": [],
        "spec": None,
        "now": None,
        "quota": None,
        "checks": [
            {"name": "spec", "result": "failed", "message": "1 error, on line 9"},
            *(
                {"name": name, "result": "skipped", "message": validation.LATER}
                for name in validation.NAMES[1:]
                if name not in validation.OF_SOME
            ),
        ],
    },
)
def job_validate(call: Call, t: str) -> dict[str, Any]:
    """Validate a job spec as submitting it would, and change nothing; for researchers and managers.

    The status is 200 for a spec with errors, too.
    """
    tenant: Tenant = call.found
    source = permissions.job(call, call.query["cloned_from"]) if "cloned_from" in call.query else None
    if source and source.tenant_id != tenant.pk:
        raise NotFoundError
    submissions.spend(call.user, submissions.What.CHECKS)
    try:
        checked = job_check(
            user=call.user,
            tenant=tenant,
            source=call.body,
            content_type=bodies.media_type(call.request),
            kept=Kept.of(source) if source else None,
        )
    except SpecInvalid as error:
        errors = error.details["errors"]
        nothing: dict[str, Any] = {"warnings": [], "spec": None, "now": None, "quota": None}
        return {"valid": False, "errors": errors, **nothing, "checks": validation.of_refused(errors)}
    foreseen = what_if.preview(tenant, checked.spec, call.user.get_username())
    return ValidationSerializer.render(
        {
            "valid": True,
            "errors": [],
            "warnings": [warning.as_dict() for warning in checked.findings.warnings],
            "spec": checked.spec.normalized,
            "now": foreseen,
            "quota": None if checked.spec.opportunistic else foreseen.quota,
            "checks": validation.of_valid(
                tenant, checked.spec, foreseen, warnings=len(checked.findings.warnings)
            ),
        },
        checked.spec.asked,
    )
