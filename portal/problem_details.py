"""Errors for programs: problem details as RFC 9457 defines them, the same for REST, learners and failed requests."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Any

from django.http import HttpResponse

from jobs.serialization import json_bytes
from tenants.audit import request_id

CONTENT_TYPE = "application/problem+json"
PROGRAMS = ("/api/", "/agent/")
"""Paths that programs request: their errors are problem details, those of all others a page."""
RETRY_AFTER_S = 2
"""What a 503 asks for in Retry-After."""


def problem(status: int, code: str, detail: str, **members: Any) -> HttpResponse:
    """A response with one problem document.

    code: stable, for programs to act on. members: further ones, such as errors, etag or allowed_actions.
    """
    number = request_id.get() or secrets.token_hex(8)  # refused before the request had one
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": int(status),
        "code": code,
        "detail": detail,
        "errors": [],
        "request_id": number,
    }
    response = HttpResponse(json_bytes(body | members), status=int(status), content_type=CONTENT_TYPE)
    response["X-Request-ID"] = number
    return response
