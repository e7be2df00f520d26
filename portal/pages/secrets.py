"""Secrets of a tenant, which its managers set, and a user's own. A value is sent to these pages and never shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables
from django.views.decorators.http import require_GET, require_POST

from jobs.selectors.secrets import Users, users_of_own, users_of_tenant
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import act_and_redirect, problems_of
from portal.pages.guard import in_tenant, person, signed_in
from portal.pages.shell import frame, last_tenant
from tenants import access
from tenants.errors import NotAllowed, ServiceError
from tenants.models import Secret, Tenant, User
from tenants.roles import Permission
from tenants.services import secrets

OF_TENANT = (
    "Everyone who may submit jobs in this tenant may use its secrets, so their programs can read the values."
)
OWN = (
    "Only your own jobs use your secrets, in every tenant that you belong to. Yours wins over a tenant's of the same"
    " name. A manager may halt and resume your job, but can't change its program."
)


@dataclass(frozen=True)
class Place:
    """Whose secrets a page shows. tenant: None for the user's own."""

    user: User
    tenant: Tenant | None

    @property
    def base(self) -> str:
        return f"/t/{self.tenant.slug}/secrets" if self.tenant else "/me/secrets"

    @property
    def may_change(self) -> bool:
        return self.tenant is None or access.may(self.user, Permission.MANAGE_SECRETS, self.tenant.pk)

    def rows(self) -> QuerySet[Secret]:
        return secrets.secrets_of(self.user, self.tenant) if self.tenant else secrets.own_secrets(self.user)

    def users(self) -> Users:
        return users_of_tenant(self.tenant) if self.tenant else users_of_own(self.user)


@require_GET
@in_tenant
def listing(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    return _page(request, Place(person(request), tenant))


@require_GET
@signed_in
def own(request: HttpRequest) -> HttpResponse:
    return _page(request, Place(person(request), None))


@sensitive_post_parameters()
@require_POST
@in_tenant
@never_cache
def put(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    return _put(request, Place(person(request), tenant))


@sensitive_post_parameters()
@require_POST
@signed_in
@never_cache
def own_put(request: HttpRequest) -> HttpResponse:
    return _put(request, Place(person(request), None))


@require_POST
@in_tenant
def delete(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    return _delete(request, Place(person(request), tenant))


@require_POST
@signed_in
def own_delete(request: HttpRequest) -> HttpResponse:
    return _delete(request, Place(person(request), None))


@sensitive_variables()
def _put(request: HttpRequest, place: Place) -> HttpResponse:
    """A form that is wrong comes back with what is wrong and without the value."""
    name, value = request.POST.get("name", "").strip(), _read(request.POST.get("value", ""))

    def put() -> Outcome:
        secrets.secret_set(user=place.user, tenant=place.tenant, name=name, value=value)
        return {}

    try:
        once(request, put)
    except NotAllowed as error:
        raise PermissionDenied(error.message) from error
    except ServiceError as error:
        return _page(request, place, problems=problems_of(error), typed=name)
    say(request, f"Secret {name} is set. Jobs that start from now on get this value.")
    return HttpResponseRedirect(place.base)


def _read(text: str) -> str:
    """The value as it was pasted: browsers send line ends of their own, and one line often comes with a stray space."""
    value = text.replace("\r\n", "\n")
    return value if "\n" in value.strip() else value.strip()


def _delete(request: HttpRequest, place: Place) -> HttpResponse:
    name = request.POST.get("name", "")
    return act_and_redirect(
        request,
        lambda: secrets.secret_delete(user=place.user, tenant=place.tenant, name=name),
        to=place.base,
        done=f"Secret {name} is deleted.",
    )


def _page(
    request: HttpRequest, place: Place, *, problems: Sequence[str] = (), typed: str = ""
) -> HttpResponse:
    try:
        rows: Any = list(place.rows())
    except NotAllowed as error:
        raise PermissionDenied(error.message) from error
    users = place.users()
    for row in rows:
        row.jobs = users.get(row.name, ())
    tenant = place.tenant
    context = frame(request, tenant or last_tenant(request), "secrets" if tenant else "me") | {
        "rows": rows,
        "may_change": place.may_change,
        "of_tenant": tenant is not None,
        "base": place.base,
        "whose": tenant.name if tenant else "Profile",
        "parent": f"/t/{tenant.slug}/" if tenant else "/me",
        "title": f"Secrets of {tenant.name}" if tenant else "Your secrets",
        "note": OF_TENANT if tenant else OWN,
        "example": rows[0].name if rows else "wandb",
        "least": secrets.LEAST_BYTES,
        "most": secrets.MOST_BYTES,
        "problems": problems,
        "typed": typed,
    }
    return render(request, "secrets/page.html", context, status=422 if problems else 200)
