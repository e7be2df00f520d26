"""Submit a job: the spec as a form and as YAML side by side. Without scripts the YAML alone does it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from examples import catalog
from jobs import services
from jobs.archives import DEFAULT_LIMITS
from jobs.errors import CheckpointNotFound, JobError, JobNotFound
from jobs.models import Checkpoint, Job
from jobs.selectors import cluster, installation
from jobs.selectors.jobs import job_get
from jobs.selectors.usage import CPU_TYPE
from jobs.selectors.what_if import default_project
from jobs.services.clone import changed
from jobs.services.intents import checkpoint_of
from jobs.services.submit import parse_spec
from jobs.spec import to_yaml
from jobs.spec.definition import DEFAULTS, MAX_OPPORTUNISTIC_GRACE, PRIORITIES, PYTHON_VERSIONS, TOPOLOGIES
from jobs.spec.paths import page_rules
from jobs.spec.quantities import DURATION_PATTERN
from jobs.states import State
from jobs.steps import fell_since
from portal import submissions
from portal.pages.form_once import once, say
from portal.pages.guard import in_tenant, person
from portal.pages.shell import frame
from tenants import access
from tenants.errors import NotAllowed
from tenants.models import Tenant
from tenants.roles import Permission

SAID_AFTERWARD = ("env_looks_secret", "checkpoints_not_found")
"""Warnings that are said of a submitted job, too: it can still be canceled before something is lost or known."""
SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
DURATION = re.compile(DURATION_PATTERN)


@require_http_methods(["GET", "POST"])
@in_tenant
def new_job(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """GET shows the page, from a template or a job to clone; POST submits and goes to the new job."""
    try:
        access.require(request.user, Permission.SUBMIT, tenant)
    except NotAllowed as error:
        raise PermissionDenied(error.message) from error
    if request.method == "GET":
        source, text = _start(request, tenant)
        return _page(request, tenant, source=source, text=text, error=_missing_checkpoint(request, tenant))
    text = request.POST.get("spec", "")
    parent = _parent(request, tenant)
    accept: Callable[[], Job]

    def prepare() -> None:
        nonlocal accept
        accept = _prepared(request, tenant, parent, text)

    try:
        made = once(request, lambda: {"job": accept().pk}, prepare=prepare)
    except JobError as error:
        return _page(request, tenant, source="refused", text=text, error=error)
    for warning in parse_spec(text, "application/yaml").warnings:
        if warning.code in SAID_AFTERWARD:
            say(request, f"{warning.path} {warning.message}.", messages.WARNING)
    return HttpResponseRedirect(f"/t/{tenant.slug}/jobs/{made['job']}")


def _prepared(request: HttpRequest, tenant: Tenant, parent: Job | None, text: str) -> Callable[[], Job]:
    """Check the job and store its code; return what writes it."""
    user = person(request)
    submissions.spend(user, submissions.What.JOBS)
    if parent:
        clone = services.clone_prepare(
            user=user, job_id=parent.pk, text=text, checkpoint=_checkpoint(request)
        )
        return partial(services.clone_accept, clone)
    job = services.job_prepare(user=user, tenant=tenant, source=text, content_type="application/yaml")
    return partial(services.job_accept, job)


def _parent(request: HttpRequest, tenant: Tenant) -> Job | None:
    """The job that is cloned; 404 where the address names one that is not there to be cloned into this tenant."""
    name = request.GET.get("from", "")
    if not name:
        return None
    try:
        job = job_get(user=request.user, job_id=name)
    except JobNotFound as error:
        raise Http404 from error
    if job.tenant_id != tenant.pk:
        raise Http404
    return job


def _checkpoint(request: HttpRequest) -> int | None:
    """The checkpoint of the cloned job that the new one starts from, as the address names it."""
    text = request.GET.get("checkpoint", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _missing_checkpoint(request: HttpRequest, tenant: Tenant) -> JobError | None:
    """What submitting would say of the address's checkpoint, while there is still nothing to lose."""
    parent, n = _parent(request, tenant), _checkpoint(request)
    try:
        if parent and n is not None:
            checkpoint_of(parent, n)
    except CheckpointNotFound as error:
        return error
    return None


def _start(request: HttpRequest, tenant: Tenant) -> tuple[str, str]:
    """Where the text comes from, and the text: a template, a job, or the first example."""
    name, parent = request.GET.get("template", ""), _parent(request, tenant)
    if parent:
        return "clone", to_yaml(changed(parent.spec, _changes(request)))
    if name and name not in catalog.names():
        raise Http404
    return ("template" if name else "default"), to_yaml(catalog.load(name or catalog.FIRST_JOB))


def _changes(request: HttpRequest) -> dict[str, Any]:
    """What the address asks to change of a clone, by the names of its fields; anything else is left out."""
    found: dict[str, Any] = {}
    for name in ("learners", "gpus", "cpus"):
        text = request.GET.get(name, "")
        if text.isascii() and text.isdecimal() and len(text) <= 4:
            found.setdefault("resources", {})[name] = int(text)
    if SLUG.fullmatch(kind := request.GET.get("gpu_type", "")):
        found.setdefault("resources", {})["gpu_type"] = kind
    if (level := request.GET.get("priority", "")) in PRIORITIES:
        found["priority"] = level
    if (topology := request.GET.get("topology", "")) in TOPOLOGIES:
        how, level = topology.split()
        found["topology"] = {how: level}
    if DURATION.fullmatch(limit := request.GET.get("time_limit", "")):
        found["time_limit"] = limit
    if request.GET.get("opportunistic", "") == "true":
        found["opportunistic"] = True
    return found


def _changed_fields(request: HttpRequest) -> str:
    """The same in words, for the heading of the clone."""
    changes = _changes(request)
    fields = changes.get("resources", {}) | {
        name: changes[name] for name in ("priority", "time_limit") if name in changes
    }
    fields |= {f"{how} topology": level for how, level in changes.get("topology", {}).items()}
    fields |= {"opportunistic": "true"} if "opportunistic" in changes else {}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in fields.items())


def _at_the_end(parent: Job, saved: Checkpoint) -> bool:
    """Whether the job that is cloned had nothing left to do after this checkpoint."""
    if saved.step is None or fell_since(saved):
        return False
    reported, total = parent.progress.step, parent.progress.total
    if parent.state == State.COMPLETED and reported is not None and saved.step >= reported:
        return True
    return total is not None and saved.step >= total


def _types(request: HttpRequest) -> list[dict[str, Any]]:
    """What a job can run on, with what is free: any GPU, each GPU type, CPUs. Nothing where there are no GPUs."""
    pools = cluster.pools(cluster.nodes(person(request)))
    types = [
        {"value": pool.slot_type, "name": pool.slot_type, "free": pool.free, "slots": pool.slots}
        for pool in pools
    ]
    gpus = [pool for pool in pools if pool.slot_type != CPU_TYPE]
    if not gpus:
        return []
    free, slots = sum(pool.free for pool in gpus), sum(pool.slots for pool in gpus)
    return [{"value": "", "name": "any GPU", "free": free, "slots": slots}, *types]


def _took(source: Job) -> dict[str, Any] | None:
    """What the job that is cloned took from its first step to its last; nothing of one that did not complete."""
    if source.state != State.COMPLETED:
        return None
    unit = "GPU-hours" if source.gpus else "CPU-hours"
    hours = source.running_s * source.slots * source.learners / 3600
    return {"seconds": source.running_s, "hours": hours, "unit": unit}


def _page(
    request: HttpRequest, tenant: Tenant, *, source: str, text: str, error: JobError | None = None
) -> HttpResponse:
    details: dict[str, Any] = getattr(error, "details", {})
    parent, n = _parent(request, tenant), _checkpoint(request)
    saved = parent.checkpoints.filter(n=n).first() if parent and n is not None else None
    context = frame(request, tenant, "jobs") | {
        "source": source,
        "clone": parent,
        "checkpoint": n if parent else None,
        "saved": saved,
        "ended": bool(parent and saved and _at_the_end(parent, saved)),
        "changes": _changed_fields(request) if parent else "",
        "parent": to_yaml(parent.spec) if parent else None,
        "text": text,
        "templates": catalog.templates(),
        "runtimes": installation.runtimes(),
        "types": _types(request),
        "defaults": DEFAULTS,
        "idle_grace": MAX_OPPORTUNISTIC_GRACE,
        "pythons": PYTHON_VERSIONS,
        "limits": DEFAULT_LIMITS,
        "path_rules": page_rules(),
        "took": _took(parent) if parent else None,
        "topologies": TOPOLOGIES,
        "projects": list(tenant.projects.order_by("slug").values_list("slug", flat=True)),
        "default_project": default_project(tenant),
        "priorities": [level for level in PRIORITIES if level in tenant.priorities],
        "error": error.message if error else "",
        "errors": details.get("errors", []),
    }
    return render(request, "jobs/new.html", context, status=422 if error else 200)
