"""Security headers of every response: what a page may load, and from where."""

import secrets

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

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
# The Django admin's theme sets style elements and evaluates its own small expressions; platform admins only.
STAFF_POLICY = POLICY.replace("'nonce-{nonce}'", "'unsafe-inline'").replace(
    "default-src 'self'", "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'"
)
PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"


class ContentSecurityPolicyMiddleware(MiddlewareMixin):
    """Add the policy unless a view has set a stricter one of its own."""

    def process_request(self, request: HttpRequest) -> None:
        request.style_nonce = secrets.token_urlsafe(16)  # type: ignore[attr-defined]

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        policy = STAFF_POLICY if request.path.startswith("/staff/") else POLICY
        nonce = getattr(request, "style_nonce", "none")
        response.headers.setdefault("Content-Security-Policy", policy.replace("{nonce}", nonce))
        response.headers.setdefault("Permissions-Policy", PERMISSIONS)
        if response.get("Content-Type", "").startswith("text/html"):
            # Pages are personal: shared caches must not store them, and Back must revalidate after signing out.
            response.headers.setdefault("Cache-Control", "private, no-cache")
        return response
