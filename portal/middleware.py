"""What every request passes: the refusal of NUL characters, the page for a wrong method, and the security headers."""

import logging
import secrets
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.http.response import HttpResponseBase
from django.middleware.security import SecurityMiddleware
from django.utils.deprecation import MiddlewareMixin

from portal.forwarded import learners_need_tls
from portal.pages.errors import NUL, error_page
from portal.pages.form_responses import FORM_HEADER, by_fetch
from portal.problem_details import PROGRAMS, problem
from tenants.audit import source_address

logger = logging.getLogger(__name__)

POLICY = "; ".join(
    [
        "default-src 'self'",
        "connect-src 'self'",  # covers the page's own websocket
        "img-src 'self' data: blob:",
        # Charts and virtual lists place elements through the style attribute.
        # The spec editor writes its own style element; only with the page's nonce.
        "style-src 'self' 'nonce-{nonce}'",
        "style-src-attr 'unsafe-inline'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    ]
)
PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"


class SourceAddressMiddleware:
    """Note for the audit log where a request comes from."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        token = source_address.set(request.META.get("REMOTE_ADDR") or None)
        try:
            return self.get_response(request)
        finally:
            source_address.reset(token)


class SessionUseMiddleware(MiddlewareMixin):
    """Take for use of a session what its user does: pages that they open and forms that they send.

    Reads by a page's scripts are none: they also refresh a page that no one looks at.
    """

    def process_request(self, request: HttpRequest) -> None:
        by_script = request.headers.get("Sec-Fetch-Mode", "navigate") != "navigate"
        request.session.in_use = not (by_script and request.method in ("GET", "HEAD"))  # type: ignore[attr-defined]  # tenants.sessions


class EndedSessionMiddleware(MiddlewareMixin):
    """With its session goes what pages kept in the browser, such as a draft: the next user would find it.

    A browser drops the key of a session that has reached its age by itself: then the sign-in page clears.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        name = settings.SESSION_COOKIE_NAME
        if name in request.COOKIES:
            ended = _removes(response, name) or _is_shut_out(request)
        else:
            ended = request.method == "GET" and request.path == settings.LOGIN_URL
        if ended:
            response.headers["Clear-Site-Data"] = '"storage"'
        return response


def _removes(response: HttpResponseBase, cookie: str) -> bool:
    """What Django does at a sign-out, and where a session has ended since."""
    return cookie in response.cookies and not response.cookies[cookie].value


def _is_shut_out(request: HttpRequest) -> bool:
    """Whether the session is one of a user who has been disabled. Asks for nothing that the view has not asked for."""
    return (
        hasattr(request, "_cached_user")
        and not request.user.is_authenticated
        and SESSION_KEY in request.session
    )


class ContentSecurityPolicyMiddleware(MiddlewareMixin):
    """Add the policy unless a view has set a stricter one of its own."""

    def process_request(self, request: HttpRequest) -> None:
        request.style_nonce = secrets.token_urlsafe(16)  # type: ignore[attr-defined]  # read by the templates

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        nonce = getattr(request, "style_nonce", "none")
        response.headers.setdefault("Content-Security-Policy", POLICY.replace("{nonce}", nonce))
        response.headers.setdefault("Permissions-Policy", PERMISSIONS)
        # Pages and tables are personal: no cache and no disk keeps them, and after signing out Back shows none.
        response.headers.setdefault("Cache-Control", "no-store")
        return response


class PlainApiMiddleware:
    """Where browsers are redirected to https, programs are not: who sent a token in the clear has to notice.

    Programs are those that use REST, and learners unless they are given a ws:// address.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if (
            not settings.SECURE_SSL_REDIRECT
            or request.is_secure()
            or not request.path.startswith(_by_tls_only())
        ):
            return self.get_response(request)
        where = {"path": request.path, "address": request.META.get("REMOTE_ADDR", "")}
        logger.warning("request without TLS refused", extra=where)
        text = (
            f"Use {settings.LUTHIER_PUBLIC_URL}. A token that was sent without TLS may be known: replace it."
        )
        return with_security_headers(request, problem(403, "https_required", text))


def _by_tls_only() -> tuple[str, ...]:
    return ("/api/", "/agent/") if learners_need_tls() else ("/api/",)


def with_security_headers(request: HttpRequest, response: HttpResponse) -> HttpResponseBase:
    """For responses that pass no middleware: probes, refused bodies, too many requests at once."""
    secured = SecurityMiddleware(_none).process_response(request, response)
    return ContentSecurityPolicyMiddleware(_none).process_response(request, secured)


def _none(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class FetchedFormMiddleware(MiddlewareMixin):
    """Forms that a script submits: where to go next comes as 204 with Location, which a script can read and follow.

    After the user is known: a page must not act for another user who signed in with the same browser meanwhile.
    """

    def process_view(self, request: HttpRequest, *view: Any) -> HttpResponse | None:
        owner = request.headers.get(FORM_HEADER)
        name = request.user.get_username() if owner else ""
        if not name or name == owner:
            return None
        text = f"You are now signed in as {name}. Sign in as {owner} to submit this form."
        return HttpResponse(text, status=409, content_type="text/plain")

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if by_fetch(request) and response.status_code in (301, 302, 303):
            response.status_code = 204
        return response


class WrongMethodMiddleware(MiddlewareMixin):
    """A form's address opened like a page gets a page, not an empty answer. No view is for TRACE, which would
    echo what a page's scripts may not read, or for CONNECT."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        if request.method in ("TRACE", "CONNECT") and not request.path.startswith(PROGRAMS):
            return HttpResponseNotAllowed(["GET", "POST"])
        return None

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if response.status_code != 405 or request.path.startswith(PROGRAMS):
            return response
        page = error_page(request, 405)
        page["Allow"] = response.get("Allow", "")
        return page


class NoNulMiddleware(MiddlewareMixin):
    """No row can hold a NUL, so no page has to look for one: address, query and form are refused before the view.

    After the check of the form's token. The API and the agents' addresses have answers of their own.
    """

    def process_view(self, request: HttpRequest, *view: Any) -> HttpResponse | None:
        if request.path.startswith(PROGRAMS):
            return None
        given = [request.path]
        for name, values in (*request.GET.lists(), *request.POST.lists()):
            given += [name, *values]
        return error_page(request, 400, texts=NUL) if any("\0" in text for text in given) else None
