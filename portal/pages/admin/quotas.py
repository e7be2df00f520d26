"""Limits and terms: a draft over the matrix, its effects before it counts, applied all or none."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from jobs import storage
from jobs.selectors import usage
from jobs.selectors.project_effects import projects_of_all
from jobs.selectors.quota_effects import QuotaEffects, tried
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
from portal.pages.admin.terms import LABELS, TermsDraft, problems, said
from portal.pages.admin.terms import Key as TermKey
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import sentence
from portal.pages.guard import admins_only, person
from tenants.errors import LimitChanged, ServiceError, TenantError
from tenants.models import QuotaChange, Tenant
from tenants.services.quotas import WHOLE, Change

REASON_MAX = 500
OUTDATED = "You saw {saw}, but {what} is now {now}. Apply again to overwrite it."
SUPERSEDED = "The change to revert left {saw}, but {what} is now {now}. Apply it to overwrite that."


@dataclass(frozen=True, slots=True)
class Review:
    """A draft that was looked at: its effects, or everything that is wrong with it, by field."""

    effects: QuotaEffects | None = None
    limits: Mapping[Key, str] = field(default_factory=dict)
    terms: Mapping[TermKey, str] = field(default_factory=dict)
    reason: str = ""
    whole: tuple[str, ...] = ()
    """Sentences that belong to no field."""

    @property
    def refused(self) -> bool:
        return bool(self.limits or self.terms or self.reason or self.whole)

    @property
    def listed(self) -> list[tuple[str, str, str]]:
        """Of each field with a problem: its id, what it is, and the sentence."""
        limits = [
            (f"limit-{tenant}-{kind}", f"{tenant} {kind}", text)
            for (tenant, kind), text in self.limits.items()
        ]
        return limits + [
            ("-".join(filter(None, (name, tenant, kind))), f"{tenant} {kind} {LABELS[name][0]}", text)
            for (tenant, kind, name), text in self.terms.items()
        ]


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
        reason, draft = _revert(request.GET.get("revert", ""))
        drawn = matrix(person(request), draft)
        review = _review(request, draft, changes_of(drawn, draft), outdated=SUPERSEDED)
        return _page(request, drawn, review, reason)
    draft = read_limits(request.POST)
    drawn = matrix(person(request), draft)
    changes = changes_of(drawn, draft)
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
    loans, divided = usage.all_loans(), projects_of_all()
    context = frame(request, "quotas") | {
        "matrix": drawn,
        "review": review,
        "reason": reason,
        "applies": applies,
        "overcommit": settings.LUTHIER_OVERCOMMIT_MAX,
        "stored": _stored(drawn),
        "loans": loans,
        "lent": _lent(loans),
        "divided": [
            (row.tenant, divided[row.tenant.slug]) for row in drawn.rows if row.tenant.slug in divided
        ],
    }
    return render(request, "console/quotas.html", context, status=422 if review.refused else 200)


def _lent(loans: Iterable[usage.Loan]) -> list[dict[str, Any]]:
    """What is lent in all, by cohort and type."""
    sums: Counter[tuple[str, str]] = Counter()
    for loan in loans:
        sums[loan.cohort, loan.slot_type] += loan.slots
    return [
        {"cohort": cohort, "slot_type": kind, "slots": slots}
        for (cohort, kind), slots in sorted(sums.items())
    ]


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
    request: HttpRequest,
    draft: LimitsDraft,
    changes: list[Change],
    reason: str | None = None,
    outdated: str = OUTDATED,
) -> Review:
    """The effects of the draft, or all that is wrong with it at once. reason: None while it is not to be applied."""
    limits = {key: not_a_limit(text) for key, text in draft.wrong.items()}
    terms = dict(problems(draft.terms))
    why = "A reason is required; tenants see it." if reason == "" else ""
    whole: tuple[str, ...] = ()
    if not changes:
        if reason is not None and not (limits or terms):
            whole = ("Change at least one limit first.",)
        return Review(None, limits, terms, why, whole)
    found: QuotaEffects | None = None
    # An outdated limit hides the sums from the service, so it is asked again without what was seen.
    for asked in (changes, [replace(change, if_limit=None, if_terms={}) for change in changes]):
        try:
            made = quotas_change(user=person(request), changes=asked, reason=reason or "draft", dry_run=True)
        except TenantError as error:
            refused = _refused(error, changes, outdated)
            limits, terms = {**refused.limits, **limits}, {**refused.terms, **terms}
            why, whole = why or refused.reason, whole + refused.whole
            if not isinstance(error, LimitChanged):
                break
        else:
            found = tried(made).effects
            break
    review = Review(None, limits, terms, why, whole)
    return review if limits or terms or whole else replace(review, effects=found)


def _refused(error: TenantError, changes: list[Change], outdated: str = OUTDATED) -> Review:
    """Every sentence of the service beside the field that it is about."""
    limits: dict[Key, str] = {}
    terms: dict[TermKey, str] = {}
    reason, whole = "", []
    for each in error.details.get("errors") or [{"path": "", "message": error.message}]:
        text = sentence(each["message"])
        if found := CHANGE.match(each["path"]):
            change = changes[int(found[1])]
            name = each["path"].rpartition(".")[2]
            if each["code"] == "limit_changed":
                what = "the limit" if name == "if_limit" else "it"
                saw, now = said(name, change.if_terms.get(name, each["got"])), said(name, each["allowed"])
                text = outdated.format(saw=saw, what=what, now=now)
            if name in LABELS:
                terms[change.tenant, change.gpu_type, name] = text
            else:
                limits[change.tenant, change.gpu_type] = text
        elif each["path"] == "reason":
            reason = text
        else:
            whole.append(text)
    return Review(None, limits, terms, reason, tuple(whole))


def _revert(text: str) -> tuple[str, LimitsDraft]:
    """A draft that sets every limit and term of a change set back, and a reason to start from. It was made from
    what the set left, so that what has changed since is pointed out."""
    if not text:
        return "", LimitsDraft()
    try:
        rows = list(QuotaChange.objects.filter(change_set=uuid.UUID(text)).select_related("tenant"))
    except ValueError:
        rows = []
    if not rows:
        raise Http404
    limits = {
        (row.tenant.slug, row.gpu_type): (row.old_limit, row.new_limit)
        for row in rows
        if row.gpu_type != WHOLE
    }
    terms = {(row.tenant.slug, row.gpu_type, name): both for row in rows for name, both in row.terms.items()}
    draft = LimitsDraft(
        {key: before for key, (before, _) in limits.items()},
        {key: after for key, (_, after) in limits.items()},
        terms=TermsDraft(
            {key: before for key, (before, _) in terms.items()},
            {key: after for key, (_, after) in terms.items()},
        ),
    )
    return f"Revert: {rows[0].reason}"[:REASON_MAX], draft
