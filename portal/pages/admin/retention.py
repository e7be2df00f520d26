"""For how long a tenant's data is kept: the rules as a form, and what they would remove, before they act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from jobs.selectors.retention import Effect, effects
from portal.pages.admin.shell import REASON_REQUIRED, frame
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import sentence
from portal.pages.guard import admins_only, person
from tenants.errors import FieldsInvalid, ServiceError
from tenants.models import Tenant
from tenants.retention import BY_AGE_ALONE, OF_TENANTS, UNITS, Kind, Rule, read_size
from tenants.services import retention as services

LIMITS = ("days", "size")
NOT_A_NUMBER = "Enter a whole number, or leave it empty."
NOT_A_SIZE = "Enter a size such as 500Gi, or leave it empty."


@dataclass(frozen=True)
class KindRow:
    """One kind in the form: what was typed, what is wrong with it, and what the rule would remove."""

    kind: Kind
    own: bool
    days: str
    size: str
    problems: dict[str, str]
    default: Rule
    effect: Effect | None
    unlimited: bool

    @property
    def sized(self) -> bool:
        return self.kind not in BY_AGE_ALONE


@require_http_methods(["GET", "POST"])
@admins_only
def page(request: HttpRequest, slug: str) -> HttpResponse:
    """GET shows the rules. POST previews what typed ones would remove, which reads all that the tenant has of these
    kinds, or, with verb=apply, sets them."""
    tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        raise Http404
    typed = _typed(request.POST) if request.method == "POST" else _stored(services.own_rules(tenant))
    wanted, problems = _read(typed)
    reason = request.POST.get("reason", "").strip()
    apply = request.POST.get("verb") == "apply"
    if apply and not reason:
        problems["reason"] = REASON_REQUIRED
    if apply and not problems:
        seen = frozenset({request.POST.get("etag", "")})

        def set_rules() -> Outcome:
            services.retention_set(
                user=person(request), slug=slug, rules=wanted, reason=reason, if_match=seen
            )
            return {}

        try:
            once(request, set_rules)
        except ServiceError as error:
            problems["reason"] = sentence(error.message)
        else:
            say(request, "Retention rules updated. They act within minutes.")
            return HttpResponseRedirect(f"/admin-console/tenants/{slug}/retention")
    context = frame(request, "tenants") | {
        "tenant": tenant,
        "rows": _rows(tenant, typed, wanted, problems, preview=request.method == "POST"),
        "previewed": request.method == "POST",
        "reason": reason,
        "reason_problem": problems.get("reason", ""),
        "etag": request.POST.get("etag") or services.etag(tenant),
    }
    return render(request, "console/retention.html", context, status=422 if problems else 200)


Typed = dict[Kind, dict[str, str]]


def _typed(sent: Any) -> Typed:
    """The kinds that have a rule of their own, with their limits as text."""
    return {
        kind: {limit: sent.get(f"{kind}-{limit}", "").strip() for limit in LIMITS}
        for kind in OF_TENANTS
        if sent.get(f"{kind}-own")
    }


def _stored(rules: dict[Kind, Rule]) -> Typed:
    return {
        kind: {"days": "" if rule.days is None else str(rule.days), "size": _size_text(rule.bytes)}
        for kind, rule in rules.items()
    }


def _size_text(size: int | None) -> str:
    """As it is typed: 500Gi, or plain bytes where no unit fits."""
    if size is None:
        return ""
    fitting = [(unit, each) for unit, each in UNITS.items() if size % each == 0]
    return f"{size // fitting[-1][1]}{fitting[-1][0]}" if fitting else str(size)


def _read(typed: Typed) -> tuple[dict[str, dict[str, int | None]], dict[str, str]]:
    """The rules as services take them, and a sentence for each field that is wrong."""
    rules: dict[str, dict[str, int | None]] = {}
    problems: dict[str, str] = {}
    for kind, limits in typed.items():
        days, size = limits["days"], limits["size"]
        if days and not (days.isascii() and days.isdecimal() and len(days) < 10):
            problems[f"{kind}-days"] = NOT_A_NUMBER
        if size and read_size(size) is None:
            problems[f"{kind}-size"] = NOT_A_SIZE
        valid = not {f"{kind}-days", f"{kind}-size"} & problems.keys()
        rules[kind] = {
            "days": int(days) if days and valid else None,
            "bytes": read_size(size) if valid else None,
        }
    try:
        services.checked_rules(rules)
    except FieldsInvalid as error:
        for each in error.details["errors"]:
            _, kind, limit = each["path"].split(".")
            problems[f"{kind}-{'size' if limit == 'bytes' else limit}"] = sentence(each["message"])
    return rules, problems


def _rows(
    tenant: Tenant,
    typed: Typed,
    wanted: dict[str, dict[str, int | None]],
    problems: dict[str, str],
    *,
    preview: bool,
) -> list[KindRow]:
    """One per kind; in a preview without wrong fields, with what the rules would remove now."""
    found: dict[Kind, Effect] = {}
    unlimited: set[Kind] = set()
    if preview and not problems.keys() - {"reason"}:
        rules = services.effective_rules(tenant, services.checked_rules(wanted))
        unlimited = {kind for kind, rule in rules.items() if rule.keeps_all}
        limited = {kind: rule for kind, rule in rules.items() if not rule.keeps_all}
        found = {each.kind: each for each in effects(tenant, limited)}
    defaults = services.effective_rules(tenant, {})
    return [
        KindRow(
            kind,
            kind in typed,
            typed.get(kind, {}).get("days", ""),
            typed.get(kind, {}).get("size", ""),
            {limit: problems[f"{kind}-{limit}"] for limit in LIMITS if f"{kind}-{limit}" in problems},
            defaults[kind],
            found.get(kind),
            kind in unlimited,
        )
        for kind in OF_TENANTS
    ]
