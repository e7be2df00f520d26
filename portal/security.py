"""Headers that every answer carries: what a page may load, and from where."""

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

POLICY = "; ".join(
    [
        "default-src 'self'",
        "connect-src 'self'",  # covers the page's own websocket
        "img-src 'self' data: blob:",
        # Charts and virtual lists place elements through the style attribute; no style element is allowed.
        "style-src 'self'",
        "style-src-attr 'unsafe-inline'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    ]
)
# The Django admin's theme sets style elements and evaluates its own small expressions; platform admins only.
STAFF_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'").replace(
    "default-src 'self'", "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'"
)
PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"


class ContentSecurityPolicyMiddleware(MiddlewareMixin):
    """Add the policy unless a view has set a stricter one of its own."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        policy = STAFF_POLICY if request.path.startswith("/staff/") else POLICY
        response.headers.setdefault("Content-Security-Policy", policy)
        response.headers.setdefault("Permissions-Policy", PERMISSIONS)
        return response
