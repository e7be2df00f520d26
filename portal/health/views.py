"""/healthz and /readyz, for supervisors, load balancers and people."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from jobs.serialization import rfc3339
from portal.health import checks
from portal.problem_details import RETRY_AFTER_S


@require_safe
def alive(request: HttpRequest) -> HttpResponse:
    """200 as long as this process responds; checks nothing else. Runs in the event loop."""
    return JsonResponse({"status": "alive"})


@require_safe
def ready(request: HttpRequest) -> HttpResponse:
    """200 if the database, the workers, the scheduler and the cluster work, otherwise 503 with each reason. A store of
    files that is away or slow is a warning."""
    checked_at, found = checks.shared_checks()
    good = all(part.ready for part in found)
    answer = {
        "status": "ready" if good else "not ready",
        "checked_at": rfc3339(checked_at),
        "parts": {
            part.name: {"ready": part.ready, "found": part.found}
            | ({"reason": part.reason} if part.reason else {})
            | ({"warnings": list(part.warnings)} if part.warnings else {})
            for part in found
        },
    }
    headers = {"Cache-Control": "no-store"} | ({} if good else {"Retry-After": str(RETRY_AFTER_S)})
    return JsonResponse(answer, status=200 if good else 503, headers=headers)
