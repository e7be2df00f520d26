"""API tokens of the caller and, for managers, of the tenant's service accounts.

Who has a password gives it in the form; who has none confirms first, and the form is held meanwhile.

A secret is shown once, on the list to which the POST that made it leads (portal.pages.shown_once). A repeat of the form
gets the secret of the first token from an outcome that only the form's key opens, which the server does not have.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from portal import passwords, proof
from portal.pages import confirm, shown_once
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import act_and_redirect, problems_of, sentence
from portal.pages.guard import in_tenant, person
from portal.pages.members import ROLES
from portal.pages.shell import frame
from tenants import access, tokens
from tenants.errors import NotAllowed, NotFound, ServiceError
from tenants.models import Tenant, Token
from tenants.roles import Permission, Role
from tenants.services import accounts

PERIODS = ((7, "7 days"), (30, "30 days"), (90, "90 days"), (365, "1 year"))
SOON = timedelta(days=14)
LAST_PART = 5
"""A token ends soon in the last fifth of its time at most: one made for a week is not late on its first day."""


MADE = "made-token"


@require_GET
@in_tenant
@never_cache
def listing(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """The tokens, and the secret of the one that this browser has just made."""
    made = _made(request)
    if made is None:
        return _page(request, tenant)
    answer = _page(request, tenant, made=made)
    answer.delete_cookie(MADE, path=_base(tenant))
    return answer


@require_http_methods(["GET", "POST"])
@in_tenant
@never_cache
def create(request: HttpRequest, tenant: Tenant) -> HttpResponseBase:
    """The form of who has a password takes it, and has to be of a session that has shown the second factor, too."""
    account = (request.GET if request.method == "GET" else request.POST).get("account", "")
    if not passwords.asked_of(person(request)):
        return _create_without_password(request, tenant, account)
    if proof.lacks_factor(request, person(request)):
        of = f"?{urlencode({'account': account})}" if account else ""
        return confirm.first(request, to=f"{_base(tenant)}/new{of}")
    return _create(request, tenant, account)


@confirm.proved("Create the token")
def _create_without_password(request: HttpRequest, tenant: Tenant, account: str) -> HttpResponse:
    return _create(request, tenant, account)


def _create(request: HttpRequest, tenant: Tenant, account: str) -> HttpResponse:
    """GET: the form. POST: make a token of the caller, or of an account; a cookie takes its secret to the list."""
    who: Any = request.user
    if request.method == "GET":
        return _page(request, tenant, form=True, account=account)
    values, problems = _read(request, who)
    if problems:
        return _page(
            request, tenant, form=True, account=account, problems=problems, values=values, status=422
        )

    def make() -> Outcome:
        if account:
            token, secret = accounts.account_token_create(
                user=who, tenant=tenant, name=account, token_name=values["name"], days=values["days"]
            )
        else:
            token, secret = tokens.token_create(
                user=who,
                owner=who,
                name=values["name"],
                tenant=tenant if values["bound"] else None,
                role=values["role"],
                days=values["days"],
            )
        return {"shown": _shown(token, secret, account)}

    try:
        made = once(
            request,
            make,
            proof=lambda: passwords.confirm(request, who, request.POST.get("password", "")),
            sealed=("shown",),
        )
    except NotAllowed as error:
        raise PermissionDenied(error.message) from error
    except NotFound as error:
        raise Http404 from error
    except ServiceError as error:
        return _page(
            request, tenant, form=True, account=account, problems=_by_field(error), values=values, status=422
        )
    answer = HttpResponseRedirect(_base(tenant))
    shown_once.give(request, answer, MADE, made["shown"], path=_base(tenant))
    return answer


@require_POST
@in_tenant
def revoke(request: HttpRequest, tenant: Tenant, token_id: str) -> HttpResponse:
    """End one of the caller's tokens."""
    who: Any = request.user
    return act_and_redirect(
        request,
        lambda: tokens.token_revoke(user=who, owner=who, token_id=token_id),
        to=f"/t/{tenant.slug}/tokens",
        done="Token revoked. It no longer works.",
    )


@require_POST
@in_tenant
def account_add(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """A new service account; its first token is another step. A form that is wrong comes back as it was sent."""
    who: Any = request.user
    name = request.POST.get("name", "").strip()
    role = Role.VIEWER if request.POST.get("role") == Role.VIEWER else Role.RESEARCHER

    def make() -> Outcome:
        accounts.account_create(user=who, tenant=tenant, name=name, role=role)
        return {}

    try:
        once(request, make)
    except NotAllowed as error:
        raise PermissionDenied(error.message) from error
    except ServiceError as error:
        refused = {"problems": problems_of(error), "name": name, "role": role}
        return _page(request, tenant, refused=refused, status=422)
    say(request, f"{name} created. Create a token for it next.")
    return HttpResponseRedirect(f"{_base(tenant)}#accounts")


@require_POST
@in_tenant
def account_close(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    who: Any = request.user
    return act_and_redirect(
        request,
        lambda: accounts.account_remove(user=who, tenant=tenant, name=name),
        to=f"/t/{tenant.slug}/tokens#accounts",
        done=f"{name} is closed and its tokens are revoked. Its jobs stay.",
    )


def _base(tenant: Tenant) -> str:
    return f"/t/{tenant.slug}/tokens"


def _shown(token: Token, secret: str, account: str) -> str:
    """What the list shows of a new token, once."""
    expiry = token.expiry.isoformat() if token.expiry else ""
    shown = {"name": token.name, "role": token.role_ceiling, "expiry": expiry}
    return shown_once.packed(shown | {"secret": secret, "account": account})


def _made(request: HttpRequest) -> dict[str, Any] | None:
    """The token that this browser has just made, if any."""
    made = shown_once.taken(request, MADE)
    if made is None:
        return None
    return made | {"expiry": datetime.fromisoformat(made["expiry"]) if made["expiry"] else None}


def _read(request: HttpRequest, user: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The form's values, and what is wrong with them by field."""
    name = request.POST.get("name", "").strip()
    problems: dict[str, str] = {}
    if not 1 <= len(name) <= 80:
        problems["name"] = "Enter a name of at most 80 characters, so that you can recognize the token later."
    role = request.POST.get("role", Role.RESEARCHER)
    if role not in set(Role):
        problems["role"] = "Choose viewer, researcher or manager."
        role = Role.RESEARCHER
    days = request.POST.get("days", str(tokens.DEFAULT_DAYS))
    if days not in {str(count) for count, _ in PERIODS}:
        problems["days"] = "Choose one of the periods."
        days = str(tokens.DEFAULT_DAYS)
    if passwords.asked_of(user) and not request.POST.get("password"):
        problems |= {"password": "Enter your password."}
    bound = request.POST.get("bound", "yes") == "yes"
    return {"name": name, "role": Role(role), "days": int(days), "bound": bound}, problems


def _by_field(error: ServiceError) -> dict[str, str]:
    """What is wrong with the password beside it, the rest above the form."""
    wrong = error.details.get("errors") or []
    if [each["path"] for each in wrong] == ["password"]:
        return {"password": sentence(f"This {wrong[0]['message']}")}
    return {"": " ".join(problems_of(error))}


def _page(request: HttpRequest, tenant: Tenant, *, status: int = 200, **more: Any) -> HttpResponse:
    who: Any = request.user
    manages = access.may(who, Permission.MANAGE_MEMBERS, tenant.pk)
    mine = [_view(token) for token in tokens.tokens_of(who)]
    base = settings.LUTHIER_PUBLIC_URL.rstrip("/")
    context = frame(request, tenant, "tokens") | {
        "mine": mine,
        "valid": sum(not row["expired"] for row in mine),
        "expired": sum(row["expired"] for row in mine),
        "soon": [row for row in mine if row["soon"]],
        "accounts": _accounts(who, tenant) if manages else [],
        "manages": manages,
        "has_password": passwords.asked_of(who),
        "asks_first": passwords.asked_of(who) and proof.lacks_factor(request, who),
        "roles": ROLES,
        "periods": [(days, text, timezone.now() + timedelta(days=days)) for days, text in PERIODS],
        "base": base,
        "command": f"export LUTHIER_URL={base} LUTHIER_TOKEN=lut_…\n"
        'curl -H "Authorization: Bearer $LUTHIER_TOKEN" \\\n'
        f'  "$LUTHIER_URL/api/v1/jobs?tenant={tenant.slug}"',
        "values": {"name": "", "role": Role.RESEARCHER, "days": tokens.DEFAULT_DAYS, "bound": True},
    }
    return render(request, "tenant/tokens.html", context | more, status=status)


def _view(token: Token) -> dict[str, Any]:
    now = timezone.now()
    left = token.expiry - now if token.expiry else None
    soon = min(SOON, (token.expiry - token.created) / LAST_PART) if token.expiry else None
    return {
        "id": tokens.public_id(token),
        "name": token.name,
        "prefix": tokens.shown_prefix(token),
        "tenant": token.tenant.slug if token.tenant else "",
        "role": token.role_ceiling,
        "created": token.created,
        "used": token.last_used_at,
        "expiry": token.expiry,
        "days_left": (token.expiry.date() - now.date()).days if token.expiry else None,
        "expired": left is not None and left.total_seconds() <= 0,
        "soon": left is not None and soon is not None and timedelta() < left < soon,
    }


def _accounts(who: Any, tenant: Tenant) -> list[dict[str, Any]]:
    rows = accounts.accounts(user=who, tenant=tenant)
    prefix = len(accounts.username_of(tenant, ""))
    by_owner: dict[int, list[Token]] = {}
    for token in (
        Token.objects.filter(user__in=rows.values("user")).select_related("tenant").order_by("expiry")
    ):
        by_owner.setdefault(token.user_id, []).append(token)
    return [
        {
            "name": row.user.get_username()[prefix:],
            "role": row.role,
            "tokens": len(by_owner.get(row.user_id, [])),
            "used": max(
                (t.last_used_at for t in by_owner.get(row.user_id, []) if t.last_used_at), default=None
            ),
            "next": next((t.expiry for t in by_owner.get(row.user_id, []) if t.expiry), None),
            "since": row.created_at,
        }
        for row in rows
    ]
