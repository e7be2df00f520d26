"""The job page: header with timeline and actions, and a tab per address. Every part works without script."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from jobs import accounting, services
from jobs.errors import JobError, JobNotFound
from jobs.humanize import devices
from jobs.models import Attempt, Checkpoint, Job, JobEvent, Learner
from jobs.selectors import logs, metrics
from jobs.selectors.attempts import attempts_of, continues, counts_again, repeated_steps
from jobs.selectors.checkpoints import checkpoint_files, checkpoint_list, kept_bytes, save_request
from jobs.selectors.jobs import job_get, may_manage, may_operate
from jobs.selectors.packages import packages_line
from jobs.selectors.platform_stops import stops_between
from jobs.selectors.redaction import needs_redaction
from jobs.selectors.requests import size_range
from jobs.selectors.results import result_summary
from jobs.selectors.retention import removals_of
from jobs.selectors.serializers import JobSerializer
from jobs.selectors.wait_reasons import is_cluster_busy
from jobs.spec import in_order, to_yaml
from jobs.states import FINAL, HOLDS_GPUS, PROGRESS, State
from jobs.steps import fell_since, steps_from_scratch
from portal.pages import (
    job_cards,
    job_events,
    job_failure,
    job_halt,
    job_learners,
    job_resume,
    job_timeline,
    job_waiting,
    passes,
)
from portal.pages.cells import device, primary_metrics
from portal.pages.form_once import Outcome, once
from portal.pages.guard import note_read, person
from portal.pages.me import last_tenant
from portal.pages.shell import frame
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission

TAIL_LINES = 40
FILES_SHOWN = 100  # of a checkpoint; its manifest names all
GONE_SHOWN = 20  # removed checkpoints; the others are counted
RESULTS_SHOWN = 8  # the API names the others
BORDERS = 40  # attempts that the log of all attempts shows at most
SPANS_SHOWN = 3  # attempts in the header; more leave no room for words
ATTEMPTS_SHOWN = 10  # in the table, the newest ones
TABS = (
    ("", "Overview"),
    ("metrics", "Metrics"),
    ("logs", "Logs"),
    ("learners", "Learners"),
    ("events", "Events"),
    ("checkpoints", "Checkpoints"),
    ("spec", "Spec"),
)
REMOVABLE = ("metrics", "logs")
"""Tabs that have nothing else to show once retention removed what they are about."""
NEEDS_CLUSTER = {State.QUEUED, State.DEPLOYING, State.STORING, State.STOPPING}
"""What only a pass or the cluster ends."""
VERBS = {"halt": services.job_halt, "checkpoint": services.job_checkpoint, "cancel": services.job_cancel}


@require_GET
@login_required
def page(request: HttpRequest, slug: str, job_id: str, tab: str = "") -> HttpResponse:
    """One tab of a job. A stranger gets the page of a missing job."""
    job = job_of(request, slug, job_id)
    if tab not in dict(TABS):
        raise Http404
    context = job_frame(request, job, tab)
    if tab in REMOVABLE and (gone := context["removed"].get(tab)):
        return render(request, "jobs/detail/removed.html", context | {"gone": gone})
    context |= PARTS[tab](request, job)
    if "metrics" in context["removed"]:
        context["charts"] = []  # their newest values are known; the points are gone
    return render(request, f"jobs/detail/{tab or 'overview'}.html", context)


def act(request: HttpRequest, slug: str, job_id: str, verb: str) -> HttpResponse:
    """Halt, save, resume or cancel by a plain form, then redirect to the page, which shows the new state."""
    job = job_of(request, slug, job_id)
    user = person(request)
    if verb == "halt" and "confirmed" not in request.POST and may_operate(request.user, job):
        context = job_frame(request, job, "")
        if context["halt_question"]:
            return render(request, "jobs/detail/halt.html", context)

    def request_it() -> Outcome:
        if verb == "resume":
            text = request.POST.get("checkpoint", "")
            services.job_resume(user=user, job_id=job.pk, checkpoint=int(text) if text.isdecimal() else None)
        else:
            VERBS[verb](user=user, job_id=job.pk)
        return {}

    try:
        once(request, request_it)
    except JobError as error:
        messages.error(request, error.message)
    return HttpResponseRedirect(f"/t/{slug}/jobs/{job.pk}")


@login_required
def act_or_ask(request: HttpRequest, slug: str, job_id: str, verb: str) -> HttpResponse:
    """POST does it; GET asks once more before canceling, or halting where that may lose something (with script a dialog
    does)."""
    if request.method == "POST":
        return act(request, slug, job_id, verb)
    context = job_frame(request, job_of(request, slug, job_id), "")
    if verb == "cancel" or (verb == "halt" and context["halt_question"]):
        return render(request, f"jobs/detail/{verb}.html", context)
    return HttpResponseRedirect(context["base"])


def job_of(request: HttpRequest, slug: str, job_id: str) -> Job:
    try:
        job = job_get(user=request.user, job_id=job_id)
    except JobNotFound:
        raise Http404 from None
    if job.tenant.slug != slug:
        raise Http404
    note_read(request, job)
    return job


def job_frame(request: HttpRequest, job: Job, tab: str) -> dict[str, Any]:
    """Header, timeline, tabs: what every tab has."""
    view, now = JobSerializer.render(job), timezone.now()
    stretches = stretches_of(job, now)
    tabs = [
        {"title": title, "href": f"/t/{job.tenant.slug}/jobs/{job.pk}" + (f"/{name}" if name else ""),
         "current": name == tab, "count": _count(name, job)}
        for name, title in TABS
    ]  # fmt: skip
    # A user with whom only this job is shared sees the frame of their own tenant: the job's would lead to nothing.
    guest = access.find_tenant(request.user, job.tenant.slug) is None
    actions = _offered(request, job, view["allowed_actions"])
    hidden = needs_redaction(request.user, job.tenant_id)
    shell = frame(request, last_tenant(request), "") if guest else frame(request, job.tenant, "jobs")
    return shell | {
        "guest": guest,
        "job": view | {"devices_text": _devices_text(job, view), "most_learners": size_range(job).max},
        "row": job,
        "now": now,
        "stretches": stretches[-SPANS_SHOWN:],
        "earlier": max(0, len(stretches) - SPANS_SHOWN),
        "actions": actions,
        "resume": job_resume.outlook(job, now, guest=hidden) if "resume" in actions else None,
        "tabs": tabs,
        "tab": tab,
        "is_live": State(job.state) not in FINAL,
        "base": f"/t/{job.tenant.slug}/jobs/{job.pk}",
        "seq": job.event_seq,
        "holds_devices": State(job.state) in HOLDS_GPUS,
        "lost_if_canceled": _lost(job, view),
        "halt_question": job_halt.question(job, now),
        "save_request": save_request(job) if "checkpoint" in actions else None,
        "error_path": job_failure.error_path(job.reason_code, job.reason_numbers, job.attempt),
        "activity": _activity(view),
        "marks": json.dumps(marks_of(job)),
        "removed": {kind.value: each for kind, each in removals_of(job.pk).items()},
        "borders": json.dumps(job_timeline.borders(_newest_attempts(job))),
    }


def stretches_of(job: Job, now: datetime) -> list[job_timeline.AttemptSpan]:
    """What the job went through until now, by attempt."""
    moves = list(JobEvent.objects.filter(job=job).exclude(to_state="").order_by("n"))
    stops = stops_between(job.created_at, job.finished_at or now)
    return job_timeline.timeline(moves, now, _counts_until(job, now), stops)


def _counts_until(job: Job, now: datetime) -> dict[int, datetime]:
    """Until when each attempt counts."""
    known = job.attempts.values_list("n", "known_at", "closed_at")
    return {n: accounting.counts_until(heartbeat, closed, now) for n, heartbeat, closed in known}


def _offered(request: HttpRequest, job: Job, allowed: list[str]) -> list[str]:
    """Of what the state allows, what this viewer may do and what the tenant's suspension would not refuse."""
    refused = set() if may_operate(request.user, job) else set(allowed) - {"clone"}
    if not may_manage(request.user, job):
        refused |= {"edit", "delete"}
    if not access.may(request.user, Permission.SUBMIT, job.tenant_id):
        refused.add("clone")
    if job.tenant.state == Tenant.State.SUSPENDED:
        refused |= {"resume", "clone"}
    return [one for one in allowed if one not in refused]


def _halted_in_the_queue(job: Job) -> bool:
    """True if the halt found the job in the queue."""
    moves = JobEvent.objects.filter(job=job).exclude(to_state="").order_by("-n")
    return list(moves.values_list("to_state", flat=True)[:2]) == [State.HALTED, State.QUEUED]


def _devices_text(job: Job, view: dict[str, Any]) -> str:
    """What it holds or requests: 2 × 4 CPUs."""
    return devices(job.learners, device(view), each=job.gpus or job.slots)


def _activity(view: dict[str, Any]) -> str:
    """What an active job is at, where there is something to say, such as why its start takes long."""
    reason = view["reason"]
    active = view["state"] in PROGRESS and view["state"] not in FINAL
    return reason["message"] if active and reason["code"] else ""


def marks_of(job: Job) -> list[tuple[float, str] | tuple[float, str, str]]:
    """What charts mark, as words.ts (Mark) takes it: steps where an attempt went on and where something was saved (""),
    and of each metric whose points only have an order, with its name, where an attempt began in it. From right to left,
    at one step the newest attempt first."""
    later = attempts_of(job.pk).filter(n__gt=1).order_by("-n")
    begins = [(one.n, getattr(one, "began_after", None)) for one in later]
    marks: list[tuple[float, str] | tuple[float, str, str]] = [*_begins_in_order(job)]
    marks += [(step, f"attempt {n}") for n, step in begins if step is not None]
    saved = Checkpoint.objects.filter(job=job, state=Checkpoint.State.COMMITTED).exclude(step=None)
    steps = saved.order_by("-n").values_list("step", flat=True)[:50]
    marks += [(step, "") for step in steps if step is not None]
    return sorted(marks, key=lambda mark: -mark[0])


def _begins_in_order(job: Job) -> list[tuple[float, str, str]]:
    """Positions at which later attempts began, by metric; the newest one's first point will follow the last one."""
    ends = metrics.ends_in_order(job.pk) if job.attempt > 1 else {}
    if not ends:
        return []
    found = {(job.attempt, name): end + 1.0 for name, end in ends.items()}
    spans = metrics.spans(job.pk, names=list(ends))
    found |= {(span.attempt, span.name): span.low for span in reversed(spans)}  # the first learner's counts
    return [(x, f"attempt {n}", name) for (n, name), x in sorted(found.items()) if n > 1]


def _count(tab: str, job: Job) -> int | str | None:
    match tab:
        case "metrics":
            count = len(job.progress.metrics)
            return f"{count}+" if count >= metrics.MAX_SERIES else count or None
        case "learners":
            return job.learners
        case "events":
            return job.event_seq
        case "checkpoints":
            return Checkpoint.objects.filter(job=job, state=Checkpoint.State.COMMITTED).count() or None
        case _:
            return None


def _lost(job: Job, view: dict[str, Any]) -> int | None:
    """Steps since the newest checkpoint, or from the beginning without one; None if unknown."""
    step, kept = view["progress"]["step"], view["checkpoint"]
    if step is None:
        return None
    if kept is None:
        return steps_from_scratch(job.pk)
    if kept["step"] is None or fell_since(Checkpoint.objects.get(job=job, n=kept["n"])):
        return None
    return max(0, step - kept["step"])


def _overview(request: HttpRequest, job: Job) -> dict[str, Any]:
    view, now = JobSerializer.render(job), timezone.now()
    (kept, uploading), charts = _saved(job), primary_metrics(view, job_cards.CHARTS)
    until = job.start_after if job.start_after and job.start_after > now else None
    attempts = list(attempts_of(job.pk).order_by("-n")[:ATTEMPTS_SHOWN])
    outdated = outdated_of(job)
    return {
        "kpis": job_cards.kpis(
            view | {"devices_text": _devices_text(job, view)},
            ran_s=job.running_s,
            rest=job_resume.rest(job, now),
        ),
        "waiting": job_waiting.waiting(view, backs_off=bool(until)),
        "until": until,
        "wait": job_waiting.panel(request.user, job, view, timezone.now(), is_current=not outdated)
        if job.state == State.QUEUED
        else None,
        "needs_cluster": job.state in NEEDS_CLUSTER,
        "is_current": not outdated,
        "outdated": "" if is_cluster_busy(job.reason_code) else outdated,  # that says it already
        "hindsight": job_waiting.hindsight(view),
        "receipt": job_cards.receipt(view, waited=_halted_in_the_queue(job)),
        "failure": job_failure.failure(job, next(iter(kept), None)),
        "charts": charts,
        "metric_values": newest_values(job, charts),
        "slow_rules": _slow_rules(job),
        "rules_found_nothing": _rules_found_nothing(job),
        "learner_rows": job_learners.rows(job, None, timezone.now())[:8],
        "events": job_events.lines(job_events.newest(request.user, job), of=job)[:5],
        "checkpoints": kept[:3],
        "uploading": uploading[:1],
        "kept_count": len(kept),
        "results": result_summary(job.pk, RESULTS_SHOWN),
        "packages": "" if job.state in FINAL and "lock" not in job.packages else packages_line(job.packages),
        "attempts": [
            (one, job_events.outcome(one), _ran(one), repeated_steps(one), counts_again(one))
            for one in attempts
        ],
        "steps_continue": _steps_continue(attempts),
        **log_context(job, request),
    }


def _steps_continue(attempts: list[Attempt]) -> bool:
    """Whether every attempt after the first continues the steps, of those that have reported or still may."""
    later = [
        one for one in attempts if one.n > 1 and (one.held or getattr(one, "first_step", None) is not None)
    ]
    return bool(later) and all(map(continues, later))


def outdated_of(job: Job) -> str:
    """Why nothing changes for a job that waits for a pass or for the cluster; "" while both work."""
    if job.state == State.QUEUED:
        return passes.outdated()
    if job.state not in NEEDS_CLUSTER:
        return ""
    text = "Until it responds, processes of this job can be neither started nor removed."
    return passes.outdated(text, of_cluster=True)


def _ran(attempt: Attempt) -> float | None:
    began, ended = attempt.processing_at, attempt.closed_at
    return (
        accounting.ran_s(began, accounting.counts_until(attempt.known_at, ended, ended))
        if began and ended
        else None
    )


def _saved(job: Job) -> tuple[list[Checkpoint], list[Checkpoint]]:
    """The checkpoints that count, and those that the live attempt still uploads; the one saved last is first."""
    saved = checkpoint_list(job.pk)
    kept = [one for one in saved if one.state == Checkpoint.State.COMMITTED]
    of_live = job.attempt if job.state in HOLDS_GPUS else 0
    return kept, [one for one in saved if (one.state, one.attempt) == (Checkpoint.State.UPLOADING, of_live)]


def _newest_attempts(job: Job) -> list[Attempt]:
    newest = Attempt.objects.filter(job=job).select_related("resume_from").order_by("-n")[:BORDERS]
    return list(reversed(newest))


def log_context(job: Job, request: HttpRequest, tail: int = TAIL_LINES) -> dict[str, Any]:
    """The log's first paint: the last lines of one learner, and the cursor from which the socket goes on."""
    attempt = _number(request.GET.get("attempt")) or max(1, job.attempt)
    requested = request.GET.get("learner")
    rank = _number(requested) or 0
    found = logs.read_lines((job.pk, attempt, rank), tail=tail)
    known = found.head is not None
    return {
        "log": {
            "attempt": attempt,
            # all: the viewer chains them; without script the newest stands for them
            "chosen": "all" if request.GET.get("attempt") == "all" and job.attempt > 1 else attempt,
            "rank": rank,
            "shown": "all"
            if requested == "all" and size_range(job).max > 1
            else rank,  # the viewer puts them in order of time
            "lines": found.lines,
            "cursor": found.next if known else 0,
            "total": found.head.lines if found.head else 0,
            "sealed": bool(found.head and found.head.sealed),
            "known": known,
            # No more will come, whether or not its learner could say so.
            "over": attempt < job.attempt
            or State(job.state) in FINAL | {State.HALTED}
            or (job.state == State.QUEUED and job.attempt > 0),
            "started": bool(found.lines)
            or Attempt.objects.filter(job=job, n=attempt, processing_at__isnull=False).exists(),
        }
    }


def _metrics(request: HttpRequest, job: Job) -> dict[str, Any]:
    shown, sought, of = sorted(job.progress.metrics), request.GET.get("m", "").strip()[:200], None
    if len(shown) >= metrics.MAX_SERIES and (total := len(metrics.names(job.pk))) > len(shown):
        found = metrics.names(job.pk, q=sought) if sought else []
        shown = found[: metrics.MAX_SERIES] if sought else shown
        of = {"shown": len(shown), "found": len(found), "total": total, "sought": sought}
    groups: dict[str, list[str]] = {}
    for name in shown:
        groups.setdefault(name.split("/")[0] if "/" in name else "", []).append(name)
    return {
        "groups": sorted(groups.items()),
        "of": of,
        "metric_values": newest_values(job, shown),
        "points_lost": job.progress.metric_lost,
        "slow_rules": _slow_rules(job),
        "rules_found_nothing": _rules_found_nothing(job),
    }


def newest_values(job: Job, names: list[str]) -> str:
    """The newest values of these metrics as the scripts take them over, with the number of the newest point in them."""
    known = job.progress.metrics
    values = {name: known[name] for name in names if name in known}
    return json.dumps({"seq": job.progress.metric_seq, "values": values})


def _rules_found_nothing(job: Job) -> bool:
    """Whether its program ran, it has ended, and its metric rules found no point in what was printed."""
    progress = job.progress
    if (
        State(job.state) not in FINAL
        or not job.spec.get("metrics")
        or progress.metrics
        or progress.metric_lost
    ):
        return False
    return Learner.objects.filter(job=job, processing_at__isnull=False).exists()


def _slow_rules(job: Job) -> list[Learner]:
    """Learners of the newest attempt of which a metric rule worked too long and was switched off."""
    rows = Learner.objects.filter(job=job, attempt=max(1, job.attempt), error_code="rule_too_slow")
    return list(rows.order_by("rank")[:8])


def _logs(request: HttpRequest, job: Job) -> dict[str, Any]:
    return log_context(job, request) | {
        "ranks": range(size_range(job).max),
        "attempt_numbers": range(max(1, job.attempt), 0, -1),
    }


def _learner_tab(request: HttpRequest, job: Job) -> dict[str, Any]:
    n = _number(request.GET.get("attempt")) or max(1, job.attempt)
    return job_learners.panel(job, JobSerializer.render(job), n, timezone.now())


def _event_tab(request: HttpRequest, job: Job) -> dict[str, Any]:
    before, sought = _number(request.GET.get("before")), request.GET.get("q", "").strip()[:200]
    return job_events.tab(request.user, job, before=before, kind=request.GET.get("show", ""), sought=sought)


def _checkpoint_tab(request: HttpRequest, job: Job) -> dict[str, Any]:
    rows = checkpoint_list(job.pk)
    kept = [one for one in rows if one.state == Checkpoint.State.COMMITTED]
    gone = [one for one in rows if one.state == Checkpoint.State.DROPPED]
    hidden = {one.pk for one in gone[GONE_SHOWN:]}
    began = Attempt.objects.filter(job=job, resume_from__isnull=False).order_by("n")
    asked = _number(request.GET.get("files"))
    opened = next((one for one in kept if one.n == asked), next(iter(kept), None))
    return {
        "opened": opened,
        "files": checkpoint_files(opened, first=FILES_SHOWN) if opened else [],
        "more_files": max(0, opened.files.count() - FILES_SHOWN) if opened else 0,
        "checkpoints": [one for one in rows if one.pk not in hidden],
        "more_gone": len(hidden),
        "over": set(Attempt.objects.filter(job=job, held=False).values_list("n", flat=True)),
        "began": dict(began.values_list("resume_from", "n")),
        "kept_bytes": sum(one.bytes for one in kept),
        "kept": len(kept),
        "policy": job.spec.get("checkpoint") or {},
        "saved": len(kept) + sum(not one.is_given_up for one in gone),
        "of_tenant": kept_bytes(job.tenant_id),
    }


def _spec_tab(request: HttpRequest, job: Job) -> dict[str, Any]:
    return {
        "submitted": job.spec_text,
        "as_yaml": to_yaml(job.spec),
        "as_json": json.dumps(in_order(job.spec), indent=2, ensure_ascii=False),
        "origin": request.build_absolute_uri("/").rstrip("/"),
    }


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 9 else None


PARTS = {
    "": _overview,
    "metrics": _metrics,
    "logs": _logs,
    "learners": _learner_tab,
    "events": _event_tab,
    "checkpoints": _checkpoint_tab,
    "spec": _spec_tab,
}
