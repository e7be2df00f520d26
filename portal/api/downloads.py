"""Downloads: always attachments, never sniffed, with Range support, streamed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any
from zipfile import ZipFile, ZipInfo

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponseBase, StreamingHttpResponse
from django.utils.http import content_disposition_header

from jobs import archives, blobs
from jobs.models import Blob
from portal.api.errors import RangeNotSatisfiable, StreamsBusy, TooManyStreams
from portal.api.operations import Call
from portal.database.threads import DatabaseThreads
from portal.streaming import FILES, STREAMS, Blocks, Download, TooManyDownloads

RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
Read = Callable[[int, int], Blocks]
MAX_PATH_CHARS = 1024


def code_file_download(call: Call, archive: Blob, path: str) -> HttpResponseBase | None:
    """One file of an archive of code; None if it has none of this path."""
    with blobs.open(archive) as source:
        found = archives.open_file(source, path)
        if found is None:
            return None
        size = found[0]

    def read(start: int, stop: int) -> Blocks:
        with blobs.open(archive, streamed=True) as source:
            found = archives.open_file(source, path)
            if found is None:
                return
            with found[1] as content:
                content.seek(start)
                while start < stop and (block := content.read(min(blobs.BLOCK, stop - start))):
                    start += len(block)
                    yield block

    return download(call, size=size, read=read, name=path.rpartition("/")[2])


def blob_download(call: Call, blob: Blob, path: str) -> HttpResponseBase:
    """A file of the blob store, named by the last part of its path. Raises BlobGone or StoreUnavailable: once the
    response has begun, only its end could say so."""
    if not blobs.is_there(blob):
        raise blobs.BlobGone(f"Blob {blob.pk} is not in the store.")

    def read(start: int, stop: int) -> Blocks:
        with blobs.open(blob, start, streamed=True) as source:
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
    response = _attachment(call, read(start, stop), name, threads=FILES)
    response["Content-Length"] = str(stop - start)
    response["Accept-Ranges"] = "bytes"
    if span:
        response.status_code = HTTPStatus.PARTIAL_CONTENT
        response["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    if etag:
        response["ETag"] = etag
    return response


def csv_download(call: Call, blocks: Blocks, name: str) -> HttpResponseBase:
    """Lines of CSV, made while they are sent."""
    return _attachment(call, blocks, name, "text/csv; charset=utf-8", threads=STREAMS)


def _attachment(
    call: Call,
    blocks: Blocks,
    name: str,
    content_type: str = "application/octet-stream",
    *,
    threads: DatabaseThreads,
) -> HttpResponseBase:
    response = _streamed(call, blocks, threads, content_type=content_type)
    response["Content-Disposition"] = content_disposition_header(True, name) or "attachment"
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    return response


def zip_download(call: Call, files: Sequence[tuple[str, Blob]], name: str) -> HttpResponseBase:
    """One zip of these paths, uncompressed and made while it is sent: its size is not known before. Files whose bytes
    are gone are left out."""
    return _attachment(call, _zipped(files), name, threads=FILES)


def _zipped(files: Sequence[tuple[str, Blob]]) -> Blocks:
    written = _Written()
    with ZipFile(written, "w") as archive:  # type: ignore[call-overload]  # it only writes
        for path, blob in files:
            entry = ZipInfo(path)
            entry.external_attr = 0o644 << 16
            entry.file_size = blob.size  # so that a large one gets a large one's header
            try:
                source = blobs.open(blob, streamed=True)
            except blobs.BlobGone:
                continue
            with source, archive.open(entry, "w") as target:
                while block := source.read(blobs.BLOCK):
                    target.write(block)
                    yield written.take()
    yield written.take()


class _Written:
    """What was written since the last take; a stream without positions."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, part: bytes) -> int:
        self._parts.append(bytes(part))
        return len(part)

    def flush(self) -> None: ...

    def take(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken


def _streamed(call: Call, blocks: Blocks, threads: DatabaseThreads, **options: Any) -> StreamingHttpResponse:
    if not isinstance(call.request._request, ASGIRequest):
        return StreamingHttpResponse(blocks, **options)
    try:
        return Download(call.user.pk, blocks, threads, **options)
    except TooManyDownloads as error:
        raise (TooManyStreams(error.most) if error.own else StreamsBusy()) from None


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
