"""A tenant's projects: what they have and use, changes with a preview of their effects, the history, and its undo."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Max
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_POST

from jobs.selectors.project_effects import (
    ProjectEffects,
    projects_status,
    tried,
)
from jobs.services.projects import projects_change, projects_undo
from portal import budgets
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import act_and_redirect, problems_of
from portal.pages.guard import in_tenant, person
from portal.pages.shell import frame
from tenants import access
from tenants.errors import NotAllowed, ServiceError
from tenants.models import ProjectChange, Tenant
from tenants.roles import Permission
from tenants.services.projects import WHOLE, Change, projects_of, usual

SETS_SHOWN = 30
PREVIEWS_A_MINUTE = 30
"""Of one user: each may plan the whole queue of the installation twice."""
NEW = "+"
"""In place of a project's name in fields of the row for a new one."""
Seen = dict[tuple[str, str], dict[str, int | None]]


@dataclass(frozen=True, slots=True)
class Draft:
    """What a form asks for. fields: as they were typed, by name. effects: of a preview."""

    changes: Sequence[Change] = ()
    problems: Sequence[str] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    effects: ProjectEffects | None = None
    listed: Sequence[Mapping[str, Any]] = ()


@require_GET
@in_tenant
def page(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    return _page(request, tenant, Draft())


@require_POST
@in_tenant
def change(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Show what the changed fields would do, or with do=apply set them. What is wrong leaves them as typed."""
    fields = {name: value.strip() for name, value in request.POST.items() if isinstance(value, str)}
    if not access.may(request.user, Permission.MANAGE_PROJECTS, tenant.pk):
        raise PermissionDenied(access.needs(Permission.MANAGE_PROJECTS, tenant))
    changes, wrong = _changes(fields, _kinds(tenant))
    if wrong:
        return _page(request, tenant, Draft(problems=wrong, fields=fields))
    if not changes:
        return _page(request, tenant, Draft(problems=["No field was changed."], fields=fields))
    applies, reason = fields.get("do") == "apply", fields.get("reason", "")
    try:
        if not applies:
            if not budgets.within(f"project_preview:{person(request).pk}", PREVIEWS_A_MINUTE):
                text = f"More than {PREVIEWS_A_MINUTE} previews within a minute. Try again in a minute."
                return _page(request, tenant, Draft(changes, [text], fields))
            made = projects_change(
                user=person(request), tenant=tenant, changes=changes, reason=reason or "preview", dry_run=True
            )
            effects = tried(tenant, made).effects
            listed = [_line(one.project, one.gpu_type, one.terms) for one in made.changes]
            return _page(request, tenant, Draft(changes, (), fields, effects, listed))

        def apply() -> Outcome:
            projects_change(user=person(request), tenant=tenant, changes=changes, reason=reason)
            return {}

        once(request, apply)
    except NotAllowed as error:
        raise PermissionDenied(error.message) from error
    except ServiceError as error:
        named = list(dict.fromkeys(_named(line, changes) for line in problems_of(error)))
        return _page(request, tenant, Draft(changes, named, fields))
    say(request, "The projects are changed; the next plan is made with them.")
    return HttpResponseRedirect(f"/t/{tenant.slug}/projects")


@require_POST
@in_tenant
def undo(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    try:
        change_set = uuid.UUID(request.POST.get("change_set", ""))
    except ValueError:
        raise Http404 from None
    return act_and_redirect(
        request,
        lambda: projects_undo(
            user=person(request),
            tenant=tenant,
            change_set=change_set,
            reason=f"Undo of set {str(change_set)[:8]}",
        ),
        to=f"/t/{tenant.slug}/projects",
        done="The set is undone.",
    )


def _changes(fields: Mapping[str, str], kinds: Sequence[str]) -> tuple[list[Change], list[str]]:
    """What differs from what the form was made of, and a sentence for each field that cannot be read."""
    try:
        seen = _seen(fields.get("seen", ""))
    except ValueError as error:
        return [], [str(error)]
    changes: list[Change] = []
    wrong: list[str] = []
    for slug in [*dict.fromkeys(name for name, kind in seen if kind == WHOLE), NEW]:
        name = fields.get("new", "") if slug == NEW else slug
        if not name:
            continue
        if fields.get(f"remove:{slug}"):
            changes.append(Change(name, WHOLE, {"weight": None}, seen.get((slug, WHOLE), {})))
            continue
        for kind in (WHOLE, *kinds):
            before, terms = seen.get((slug, kind), usual(kind)), {}
            for term in usual(kind):
                try:
                    value = _number(fields.get(f"{term}:{slug}:{kind}", ""), term)
                except ValueError as error:
                    wrong.append(f"{name} {kind}".rstrip() + f", {term}: {error}")
                    continue
                if value != before.get(term):
                    terms[term] = value
            if terms:
                changes.append(Change(name, kind, terms, {term: before.get(term) for term in terms}))
    return changes, wrong


def _number(text: str, term: str) -> int | None:
    """The number in a field; an empty one means the usual value, and no limit. Raises ValueError with what to enter."""
    if not text:
        return None if term == "limit" else int(term == "weight")
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError("enter a whole number.")
    return int(text)


def _seen(text: str) -> Seen:
    """What the form was made of, as it came back. Raises ValueError if that is not what these pages send."""
    wrong = ValueError("The form is not complete. Reload the page, and enter the changes again.")
    try:
        found = {
            (str(project), str(kind)): {
                str(term): None if value is None else int(value) for term, value in terms.items()
            }
            for project, kind, terms in json.loads(text)
        }
    except (ArithmeticError, AttributeError, TypeError, ValueError, RecursionError):
        raise wrong from None
    if any(terms.keys() != set(usual(kind)) for (_, kind), terms in found.items()):
        raise wrong
    return found


def _named(line: str, changes: Sequence[Change]) -> str:
    """A service's line about "Changes 0 …" with the project and the type in place of the number."""
    words = line.split(" ", 2)
    if len(words) == 3 and words[0] == "Changes" and words[1].isdigit() and int(words[1]) < len(changes):
        one = changes[int(words[1])]
        whose = one.project if words[2].startswith("project:") else f"{one.project} {one.gpu_type}".rstrip()
        return f"{whose}, {words[2]}"
    return line


def _line(project: str, gpu_type: str, terms: Mapping[str, Any]) -> dict[str, Any]:
    """One change in words."""
    if gpu_type == WHOLE:
        before, after = terms["weight"]
        if before is None or after is None:
            return {"project": project, "text": "added" if before is None else "removed"}
    parts = [f"{name} {_shown(name, old)} → {_shown(name, new)}" for name, (old, new) in terms.items()]
    return {"project": project, "text": " ".join(filter(None, (gpu_type, ", ".join(parts))))}


def _shown(name: str, value: int | None) -> str:
    return "none" if value is None and name == "limit" else str(value)


def _kinds(tenant: Tenant) -> list[str]:
    """The slot types that a project can have something of."""
    own = set(tenant.quotas.filter(limit__gt=0).values_list("gpu_type", flat=True))
    return sorted(own | {kind for _, kind in projects_of(tenant) if kind != WHOLE})


def _page(request: HttpRequest, tenant: Tenant, draft: Draft) -> HttpResponse:
    kinds, state, may_change = (
        _kinds(tenant),
        projects_of(tenant),
        access.may(request.user, Permission.MANAGE_PROJECTS, tenant.pk),
    )
    rows = []
    for project in projects_status(tenant):
        shares = {share.gpu_type: share for share in project.shares}
        rows.append(
            _row(project.slug, project.weight, [(kind, shares.get(kind)) for kind in kinds], draft.fields)
        )
    new = _row(NEW, "", [(kind, None) for kind in kinds], draft.fields)
    seen = [[*key, terms] for key, terms in state.items()]
    context = frame(request, tenant, "projects") | {
        "kinds": kinds,
        "rows": rows,
        "new": new,
        "new_name": draft.fields.get("new", ""),
        "reason": draft.fields.get("reason", ""),
        "seen": draft.fields.get("seen") or json.dumps(seen),
        "draft": draft,
        "may_change": may_change,
        "sets": _sets(tenant),
        "limits": {quota.gpu_type: quota.limit for quota in tenant.quotas.all()},
    }
    return render(request, "tenant/projects.html", context, status=422 if draft.problems else 200)


def _row(slug: str, weight: int | str, shares: Any, fields: Mapping[str, str]) -> dict[str, Any]:
    return {
        "slug": slug,
        "weight": fields.get(f"weight:{slug}:", weight),
        "remove": bool(fields.get(f"remove:{slug}")),
        "shares": [
            {
                "kind": kind,
                "used": share.used if share else 0,
                "guarantee": fields.get(f"guarantee:{slug}:{kind}", share.guarantee if share else ""),
                "limit": fields.get(
                    f"limit:{slug}:{kind}", share.limit if share and share.limit is not None else ""
                ),
            }
            for kind, share in shares
        ],
    }


def _sets(tenant: Tenant) -> list[dict[str, Any]]:
    """The newest sets with their changes, each one whole."""
    changes = ProjectChange.objects.filter(tenant=tenant)
    newest = changes.values("change_set").annotate(last=Max("pk")).order_by("-last")[:SETS_SHOWN]
    rows = changes.filter(change_set__in=newest.values("change_set")).select_related("actor").order_by("-pk")
    found = []
    for change_set, lines in groupby(rows, key=lambda row: row.change_set):
        each = list(lines)
        found.append(
            {
                "id": str(change_set),
                "at": each[0].at,
                "actor": each[0].actor,
                "reason": each[0].reason,
                "lines": [_line(row.project, row.gpu_type, row.terms) for row in reversed(each)],
            }
        )
    return found
