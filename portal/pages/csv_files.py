"""Tables as CSV files, sent while they are written: the first lines leave before the last row is read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus
from itertools import islice

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from portal.pages.guard import person
from portal.problem_details import RETRY_AFTER_S
from portal.streaming import Blocks, Download, TooManyDownloads

LINES = 1_000
"""Of one block: so many are in memory at a time."""


def csv_file(request: HttpRequest, name: str, rows: Iterable[Sequence[object]]) -> HttpResponseBase:
    """The rows as a download of this name; the first one is sent alone, before the next is asked for."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    kind = "text/csv; charset=utf-8"
    if not isinstance(request, ASGIRequest):
        return StreamingHttpResponse(_blocks(iter(rows)), headers=headers, content_type=kind)
    try:
        return Download(person(request).pk, _blocks(iter(rows)), headers=headers, content_type=kind)
    except TooManyDownloads as error:
        return _refusal(own=error.own)


def _refusal(*, own: bool) -> HttpResponse:
    if own:
        text = "You have too many downloads under way. Wait until one of them is complete, then try again.\n"
    else:
        text = "As many downloads are under way as this server can send. Try again in a moment.\n"
    status = HTTPStatus.TOO_MANY_REQUESTS if own else HTTPStatus.SERVICE_UNAVAILABLE
    response = HttpResponse(text, status=status, content_type="text/plain; charset=utf-8")
    response["Retry-After"] = str(RETRY_AFTER_S)
    return response


def _blocks(rows: Iterator[Sequence[object]]) -> Blocks:
    count = 1
    while some := list(islice(rows, count)):
        text = io.StringIO()
        csv.writer(text).writerows(some)
        yield text.getvalue().encode()
        count = LINES
