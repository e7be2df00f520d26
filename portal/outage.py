"""The answer when nothing else answered: 503 while the database is away, 500 for a fault of ours.

Programs get problem details (RFC 9457), people a page. No trace ever leaves the server.
"""

import logging
import sys
import uuid

from django.http import HttpRequest, HttpResponse, JsonResponse

from jobs.retries import database_away
from portal.pages.errors import error_page
from tenants.audit import request_id

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 2
PROGRAMS = ("/api/", "/agent/")
OUTAGE = "The database does not answer. Running jobs go on; try again in a moment."
FAULT = "Something broke on our side. It was recorded."


def broken(request: HttpRequest) -> HttpResponse:
    """Django's handler500; the exception is the one being handled right now."""
    away = database_away(sys.exc_info()[1])
    status = 503 if away else 500
    if request.path.startswith(PROGRAMS):
        problem: dict[str, object] = {
            "type": "about:blank",
            "title": "Service Unavailable" if away else "Internal Server Error",
            "status": status,
            "code": "database_unavailable" if away else "internal_error",
            "detail": OUTAGE if away else FAULT,
            "errors": [],
        }
        response: HttpResponse = JsonResponse(problem, status=status, content_type="application/problem+json")
    else:
        number = request_id.get() or uuid.uuid4().hex
        if not away:
            logger.error("page failed", extra={"request_id": number, "path": request.path})
        response = error_page(request, status, number="" if away else number)
    if away:
        response["Retry-After"] = str(RETRY_AFTER_S)
    return response
