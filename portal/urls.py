"""The URL map: where the URLs of the pages, the API and the learners' endpoints are mounted."""

from django.urls import URLPattern, URLResolver, include, path

from portal.api import schema
from portal.health import views
from portal.monitoring.views import metrics
from portal.security_txt import security_txt

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", views.alive, name="healthz"),
    path("readyz", views.ready, name="readyz"),
    path(".well-known/security.txt", security_txt, name="security-txt"),
    path("metrics", metrics, name="metrics"),
    path("agent/v1/", include("portal.agent_files.urls")),
    path("docs/api", schema.docs, name="api-docs"),
    path("api/v1/", include("portal.api.urls")),
    path("", include("portal.pages.urls")),
]

handler400 = "portal.pages.errors.bad_request"
handler403 = "portal.pages.errors.forbidden"
handler404 = "portal.pages.errors.not_found"
handler500 = "portal.error_responses.broken"
