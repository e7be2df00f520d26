"""GET /.well-known/security.txt (RFC 9116): where to report a vulnerability of this installation."""

from datetime import timedelta

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

VALID = timedelta(days=180)
"""The setting is this installation's own, so what is served now is current."""


@require_safe
def security_txt(request: HttpRequest) -> HttpResponse:
    """The contact in LUTHIER_SECURITY_CONTACT; 404 while the installation has none."""
    if not settings.LUTHIER_SECURITY_CONTACT:
        raise Http404
    lines = {
        "Contact": settings.LUTHIER_SECURITY_CONTACT,
        "Expires": (timezone.now() + VALID).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "Canonical": f"{settings.LUTHIER_PUBLIC_URL}/.well-known/security.txt",
        "Preferred-Languages": "en",
    }
    text = "".join(f"{name}: {value}\n" for name, value in lines.items())
    return HttpResponse(text, content_type="text/plain; charset=utf-8")
