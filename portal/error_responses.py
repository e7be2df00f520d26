"""Responses to requests that failed: 503 while the database is away or too many requests wait, 500 for a server error.

Programs get problem details (RFC 9457), people a page. No stack trace leaves the server.
"""

import logging
import sys
import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse

from jobs.retries import database_away
from portal.pages.errors import error_page
from portal.problem_details import PROGRAMS, RETRY_AFTER_S, problem
from tenants.audit import request_id

logger = logging.getLogger(__name__)

OUTAGE = "The database is not responding. Running jobs continue; try again in a moment."
CROWD = "The server is handling too many requests. Running jobs continue; try again in a moment."
FAULT = "Something went wrong on the server. The error was recorded."


def broken(request: HttpRequest) -> HttpResponse:
    """Django's handler500, called while the exception is being handled."""
    if database_away(sys.exc_info()[1]):
        return _later(request, "database_unavailable", OUTAGE)
    if request.path.startswith(PROGRAMS):
        return problem(500, "internal_error", FAULT)
    number = request_id.get() or uuid.uuid4().hex
    logger.error("page failed", extra={"request_id": number, "path": request.path})
    return error_page(request, 500, number=number)


def crowded(request: HttpRequest) -> HttpResponse:
    """The response to a request that waited too long for a thread."""
    logger.warning("too many requests at once", extra={"path": request.path})
    return _later(request, "overloaded", CROWD, texts=("Too many requests", CROWD))


def _later(request: HttpRequest, code: str, detail: str, **facts: Any) -> HttpResponse:
    is_program = request.path.startswith(PROGRAMS)
    response = problem(503, code, detail) if is_program else error_page(request, 503, **facts)
    response["Retry-After"] = str(RETRY_AFTER_S)
    return response
