"""The address at which a browser reaches the platform, to which passkeys are bound, and the challenge it was given."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse

from tenants.passkeys import Begun, Site

CHALLENGE = "passkey_challenge"
"""Key of a browser's session: the id of the challenge that it was given last."""
DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def site_of(request: HttpRequest) -> Site:
    """As the browser writes it, also where a proxy adds the port that goes without saying."""
    scheme = request.scheme or "http"
    return Site(f"{scheme}://{request.get_host().lower().removesuffix(DEFAULT_PORTS[scheme])}")


def given(request: HttpRequest, begun: Begun) -> HttpResponse:
    """The options for the browser's script. Only this session may answer the challenge."""
    request.session[CHALLENGE] = begun.challenge_id
    return JsonResponse(begun.options)


def refused(text: str) -> HttpResponse:
    """What is wrong, for the browser's script to show."""
    return HttpResponse(text, status=422, content_type="text/plain")
