"""Downloads: always attachments, never sniffed, with Range support, streamed."""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponseBase, StreamingHttpResponse
from django.utils.http import content_disposition_header

from jobs import blobs
from jobs.models import Blob
from portal.api.errors import RangeNotSatisfiable
from portal.api.operations import Call
from portal.streaming import Blocks, in_thread

RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
Read = Callable[[int, int], Blocks]
MAX_PATH_CHARS = 1024


def blob_download(call: Call, blob: Blob, path: str) -> HttpResponseBase:
    """A file of the blob store, named by the last part of its path."""

    def read(start: int, stop: int) -> Blocks:
        with blobs.open(blob, start) as source:
            while start < stop and (block := source.read(min(blobs.BLOCK, stop - start))):
                start += len(block)
                yield block

    return download(call, size=blob.size, read=read, name=path.rpartition("/")[2], etag=f'"{blob.sha256}"')


def download(call: Call, *, size: int, read: Read, name: str, etag: str = "") -> HttpResponseBase:
    """A download of size bytes, of which read(start, stop) yields a part. Several ranges get the whole file."""
    span = _span(call.request.headers.get("Range", ""), size)
    if (condition := call.request.headers.get("If-Range")) and condition != etag:
        span = None
    start, stop = span or (0, size)
    blocks = read(start, stop)
    response = StreamingHttpResponse(
        in_thread(blocks) if isinstance(call.request._request, ASGIRequest) else blocks,
        status=HTTPStatus.PARTIAL_CONTENT if span else HTTPStatus.OK,
        content_type="application/octet-stream",
    )
    response["Content-Length"] = str(stop - start)
    response["Accept-Ranges"] = "bytes"
    response["Content-Disposition"] = content_disposition_header(True, name) or "attachment"
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    if span:
        response["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    if etag:
        response["ETag"] = etag
    return response


def _span(header: str, size: int) -> tuple[int, int] | None:
    """start and stop of a single requested range; None for the whole file. Raises RangeNotSatisfiable."""
    found = RANGE.fullmatch(header.replace(" ", ""))
    if not found or not any(found.groups()):
        return None
    first, last = found.groups()
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            return None
    if start >= size or stop <= start:
        raise RangeNotSatisfiable(size)
    return start, stop
