"""Limits: a draft over the matrix, its effects before it counts, applied all or none."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from jobs import storage
from jobs.selectors import what_if
from jobs.selectors.quota_effects import QuotaEffects, quota_effects
from jobs.services.quotas import quotas_change
from portal.pages import meters
from portal.pages.admin.matrix import (
    CHANGE,
    Key,
    LimitsDraft,
    Matrix,
    changes_of,
    matrix,
    not_a_limit,
    read_limits,
)
from portal.pages.admin.shell import frame
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import sentence
from portal.pages.guard import admins_only, person
from tenants.errors import LimitChanged, ServiceError, TenantError
from tenants.models import QuotaChange, Tenant
from tenants.services.quotas import Change

REASON_MAX = 500


@dataclass(frozen=True, slots=True)
class Review:
    """A draft that was looked at: its effects, or everything that is wrong with it, by field."""

    effects: QuotaEffects | None = None
    limits: Mapping[Key, str] = field(default_factory=dict)
    reason: str = ""
    whole: tuple[str, ...] = ()
    """Sentences that belong to no field."""

    @property
    def refused(self) -> bool:
        return bool(self.limits or self.reason or self.whole)


class _NotApplied(Exception):
    """The draft was not applied. review: what is wrong with it."""

    def __init__(self, review: Review) -> None:
        super().__init__()
        self.review = review


@require_http_methods(["GET", "POST"])
@admins_only
def page(request: HttpRequest) -> HttpResponse:
    """GET: the matrix, or with ?revert=<set> a draft that undoes a change set. POST: review or apply a draft."""
    if request.method == "GET":
        reason, requested = _revert(request.GET.get("revert", ""))
        draft = LimitsDraft(requested)
        drawn = matrix(person(request), draft)
        return _page(request, drawn, _review(request, draft, _changes(drawn, draft)), reason)
    draft = read_limits(request.POST)
    drawn = matrix(person(request), draft)
    changes = _changes(drawn, draft)
    reason = request.POST.get("reason", "").strip()[:REASON_MAX]
    applies = request.POST.get("action") == "apply"
    if not applies:
        return _page(request, drawn, _review(request, draft, changes), reason)

    def apply() -> Outcome:
        review = _review(request, draft, changes, reason)
        if review.refused:
            raise _NotApplied(review)
        try:
            return {"count": len(quotas_change(user=person(request), changes=changes, reason=reason).changes)}
        except TenantError as error:  # another admin changed a limit after the review
            raise _NotApplied(_refused(error, changes)) from error

    try:
        count = once(request, apply)["count"]
    except _NotApplied as refused:
        return _page(request, drawn, refused.review, reason, applies=True)
    except ServiceError as error:
        return _page(request, drawn, Review(whole=(sentence(error.message),)), reason, applies=True)
    say(request, "Quota updated." if count == 1 else f"{count} quotas updated.")
    return HttpResponseRedirect("/admin-console/quota-history")


def _page(
    request: HttpRequest, drawn: Matrix, review: Review, reason: str, *, applies: bool = False
) -> HttpResponse:
    context = frame(request, "quotas") | {
        "matrix": drawn,
        "review": review,
        "reason": reason,
        "applies": applies,
        "overcommit": settings.LUTHIER_OVERCOMMIT_MAX,
        "stored": _stored(drawn),
    }
    return render(request, "console/quotas.html", context, status=422 if review.refused else 200)


def _stored(drawn: Matrix) -> list[tuple[Tenant, meters.MeterBars, int]]:
    """What each tenant stores, in one scale: the tenant, its meter, and its bytes."""
    used = storage.used_by_all()
    scale = max([*used.values(), *(row.tenant.storage_limit or 0 for row in drawn.rows)], default=0)
    return [
        (
            row.tenant,
            meters.stored(row.tenant.storage_limit, used.get(row.tenant.pk, 0), scale),
            used.get(row.tenant.pk, 0),
        )
        for row in drawn.rows
    ]


def _review(
    request: HttpRequest, draft: LimitsDraft, changes: list[Change], reason: str | None = None
) -> Review:
    """The effects of the draft, or all that is wrong with it at once. reason: None while it is not to be applied."""
    limits = {key: not_a_limit(text) for key, text in draft.wrong.items()}
    why = "A reason is required; tenants see it." if reason == "" else ""
    whole: tuple[str, ...] = ()
    if not changes:
        if reason is not None and not limits:
            whole = ("Change at least one limit first.",)
        return Review(None, limits, why, whole)
    found: QuotaEffects | None = None
    before = what_if.would_start({})
    # An outdated limit hides the sums from the service, so it is asked again without what was seen.
    for asked in (changes, [replace(change, if_limit=None) for change in changes]):
        try:
            made = quotas_change(user=person(request), changes=asked, reason=reason or "draft", dry_run=True)
        except TenantError as error:
            refused = _refused(error, changes)
            limits = {**refused.limits, **limits}
            why, whole = why or refused.reason, whole + refused.whole
            if not isinstance(error, LimitChanged):
                break
        else:
            found = quota_effects(made, before)
            break
    review = Review(None, limits, why, whole)
    return review if review.limits or review.whole else replace(review, effects=found)


def _refused(error: TenantError, changes: list[Change]) -> Review:
    """Every sentence of the service beside the field that it is about."""
    limits: dict[Key, str] = {}
    reason, whole = "", []
    for each in error.details.get("errors") or [{"path": "", "message": error.message}]:
        text = sentence(each["message"])
        if found := CHANGE.match(each["path"]):
            change = changes[int(found[1])]
            if each["code"] == "limit_changed":
                text = f"You saw {each['got']}, but the limit is now {each['allowed']}. Apply again to overwrite it."
            limits[change.tenant, change.gpu_type] = text
        elif each["path"] == "reason":
            reason = text
        else:
            whole.append(text)
    return Review(None, limits, reason, tuple(whole))


def _changes(drawn: Matrix, draft: LimitsDraft) -> list[Change]:
    """if_limit is what the admin saw when the page was drawn, not the current value."""
    return [
        replace(one, if_limit=draft.seen.get((one.tenant, one.gpu_type), one.if_limit))
        for one in changes_of(drawn)
    ]


def _revert(text: str) -> tuple[str, dict[Key, int]]:
    """A draft that sets every limit of a change set back, and a reason to start from."""
    if not text:
        return "", {}
    try:
        rows = list(QuotaChange.objects.filter(change_set=uuid.UUID(text)).select_related("tenant"))
    except ValueError:
        rows = []
    if not rows:
        raise Http404
    return f"Revert: {rows[0].reason}"[:REASON_MAX], dict(_old_limits(rows))


def _old_limits(rows: list[QuotaChange]) -> Iterator[tuple[Key, int]]:
    for row in rows:
        yield (row.tenant.slug, row.gpu_type), row.old_limit
