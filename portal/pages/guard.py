"""Who may open a page: signed in, and in the tenant whose address it is. Strangers get the page of a missing thing."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBase

from jobs.models import Job
from tenants import access, audit
from tenants.models import Tenant, User

P = ParamSpec("P")
View = Callable[..., HttpResponseBase]

signed_in = login_required


def in_tenant(view: Callable[Concatenate[HttpRequest, Tenant, P], HttpResponseBase]) -> View:
    """Turn the slug of the address into the tenant; 404 to strangers, and remember it as the one used last.

    A platform admin's reading is recorded where the tenant's managers see it.
    """

    @wraps(view)
    @login_required
    def guarded(request: HttpRequest, slug: str, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        tenant = access.find_tenant(request.user, slug)
        if tenant is None:
            raise Http404
        audit.admin_read(
            user=request.user,
            tenant_id=tenant.pk,
            action="tenant.read",
            target=slug,
            reason=access_reason(request),
        )
        remember(request, tenant)
        return view(request, tenant, *args, **kwargs)

    return guarded


def note_read(request: HttpRequest, job: Job) -> None:
    """Record that a platform admin reads a job of others, where its tenant's managers see it."""
    audit.admin_read(
        user=request.user,
        tenant_id=job.tenant_id,
        action="job.read",
        target=job.pk,
        reason=access_reason(request),
    )


def access_reason(request: HttpRequest) -> str:
    """The reason that a platform admin gave for reading a tenant of others, fit to be stored."""
    return audit.reason_given(
        request.headers.get(audit.REASON_HEADER), request.GET.get(audit.REASON_PARAMETER)
    )


def admins_only(view: View) -> View:
    """The admin console does not exist for anybody else."""

    @wraps(view)
    @login_required
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not access.is_platform_admin(request.user):
            raise Http404
        return view(request, *args, **kwargs)

    return guarded


def remember(request: HttpRequest, tenant: Tenant) -> None:
    if isinstance(request.user, User) and request.user.last_tenant_id != tenant.pk:
        User.objects.filter(pk=request.user.pk).update(last_tenant=tenant)


def person(request: HttpRequest) -> User:
    """The caller of a guarded view, who is signed in."""
    assert isinstance(request.user, User)
    return request.user
