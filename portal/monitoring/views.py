"""GET /metrics, for those who have the installation's metrics token."""

import hmac

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from portal.monitoring.collector import Disks, Facts, OfThisProcess

REGISTRY = CollectorRegistry()
REGISTRY.register(Facts())
REGISTRY.register(Disks())
REGISTRY.register(OfThisProcess())
NO_STORE = {"Cache-Control": "no-store"}


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The metrics as text; 401 without the token, 404 while the installation has none.

    The token is a setting rather than a user's, so that metrics are served while the database is away.
    """
    token = settings.LUTHIER_METRICS_TOKEN
    if not token:
        return _plain("Not found.", 404)
    if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), f"Bearer {token}".encode()):
        refused = _plain("A bearer token is required: LUTHIER_METRICS_TOKEN of this installation.", 401)
        refused["WWW-Authenticate"] = "Bearer"
        return refused
    return HttpResponse(generate_latest(REGISTRY), content_type=CONTENT_TYPE_LATEST, headers=NO_STORE)


def _plain(text: str, status: int) -> HttpResponse:
    return HttpResponse(
        text + "\n", status=status, content_type="text/plain; charset=utf-8", headers=NO_STORE
    )
