"""The answer when nothing else answered: 503 while the database is away or a crowd waits, 500 for a fault of ours.

Programs get problem details (RFC 9457), people a page. No trace ever leaves the server.
"""

import logging
import sys
import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse

from jobs.retries import database_away
from portal.pages.errors import error_page
from tenants.audit import request_id

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 2
PROGRAMS = ("/api/", "/agent/")
OUTAGE = "The database does not answer. Running jobs go on; try again in a moment."
CROWD = "More requests came at once than are worked on. Running jobs go on; try again in a moment."
FAULT = "Something broke on our side. It was recorded."


def broken(request: HttpRequest) -> HttpResponse:
    """Django's handler500; the exception is the one being handled right now."""
    if database_away(sys.exc_info()[1]):
        return _later(request, "database_unavailable", OUTAGE)
    if request.path.startswith(PROGRAMS):
        return _problem(500, "Internal Server Error", "internal_error", FAULT)
    number = request_id.get() or uuid.uuid4().hex
    logger.error("page failed", extra={"request_id": number, "path": request.path})
    return error_page(request, 500, number=number)


def crowded(request: HttpRequest) -> HttpResponse:
    """For a request whose turn did not come."""
    logger.warning("too many requests at once", extra={"path": request.path})
    return _later(request, "overloaded", CROWD, texts=("Too many at once", CROWD))


def _later(request: HttpRequest, code: str, detail: str, **facts: Any) -> HttpResponse:
    if request.path.startswith(PROGRAMS):
        response = _problem(503, "Service Unavailable", code, detail)
    else:
        response = error_page(request, 503, **facts)
    response["Retry-After"] = str(RETRY_AFTER_S)
    return response


def _problem(status: int, title: str, code: str, detail: str) -> HttpResponse:
    problem = {
        "type": "about:blank",
        "title": title,
        "status": status,
        "code": code,
        "detail": detail,
        "errors": [],
    }
    return JsonResponse(problem, status=status, content_type="application/problem+json")
