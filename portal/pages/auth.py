"""Signing in and out, and where a person lands. Brute force is held off by django-axes."""

from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render

from portal.pages.errors import error_page
from portal.pages.guard import signed_in
from tenants import access


class Login(LoginView):
    """One text for every wrong pair, so that nobody learns which names exist."""

    template_name = "login.html"
    redirect_authenticated_user = True


class Logout(LogoutView):
    """POST only: a link cannot sign anybody out."""


def locked_out(request: HttpRequest, *_: object, **__: object) -> HttpResponse:
    """What axes answers after too many wrong passwords."""
    return error_page(request, 429)


@signed_in
def home(request: HttpRequest) -> HttpResponse:
    """To the tenant used last, else to the first one; a platform admin without tenants to the console."""
    rows = access.memberships(request.user).select_related("tenant").order_by("tenant__name")
    slugs = [row.tenant.slug for row in rows]
    last = request.user.last_tenant.slug if request.user.last_tenant else None  # type: ignore[union-attr]
    if slugs:
        return HttpResponseRedirect(f"/t/{last if last in slugs else slugs[0]}/")
    if access.is_platform_admin(request.user):
        return HttpResponseRedirect("/admin-console/")
    return render(request, "no_tenant.html")
