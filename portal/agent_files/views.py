"""A learner's HTTP requests. The secret in the header identifies the job, the attempt and the rank.

Responses are short JSON or at most one piece of bytes, so that they need little memory.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import Error as DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from jobs import blobs, clusters, tokens
from jobs.blobs import direct
from jobs.ingest import checkpoints
from jobs.ingest.intents import note_stored
from jobs.models import Attempt, Blob, Checkpoint, CheckpointFile, Job, ResultFile
from jobs.retries import database_away
from jobs.selectors.metrics import ends_in_order
from jobs.tokens import Grant
from learner_agent.wire_fields import BEING_FINISHED
from portal.problem_details import RETRY_AFTER_S, problem

if TYPE_CHECKING:
    from jobs.blobs.s3 import S3Store

logger = logging.getLogger(__name__)

RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})\Z")
CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18})\Z")
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
INLINE_BYTES = 16 * 1024
MAX_JSON_BYTES = 1024 * 1024
"""The hashes of all parts of the largest file take 600 kB."""

View = Callable[..., HttpResponse]


def for_learner(*methods: str) -> Callable[[View], View]:
    """Authenticate by a live learner's secret and pass its grant to the view; otherwise 401, or 409 if fenced."""

    def decorate(view: View) -> View:
        @csrf_exempt
        @require_http_methods(list(methods))
        @wraps(view)
        def guarded(request: HttpRequest, **arguments: Any) -> HttpResponse:
            try:
                secret = tokens.bearer(request.headers.get("Authorization"))
                grant = tokens.grant_of(secret) if secret else None
                if grant is None:
                    return problem(401, "unauthorized", "This secret is unknown or its attempt is over.")
                if not grant.live:
                    return problem(409, "fenced", "A newer attempt has taken over, or this one is closed.")
                return view(request, grant, **arguments)
            except blobs.StoreUnavailable as error:
                logger.warning("learner request failed: no blob store", extra={"error": str(error)[:200]})
                return _later("store_unavailable", "The blob store is not responding; try again.")
            except DatabaseError as error:
                if not database_away(error):
                    raise
                logger.warning(
                    "learner request failed: no database",
                    extra={"path": request.path, "error": str(error)[:200]},
                )
                return _later("database_unavailable", "The database is not responding; try again.")

        return guarded

    return decorate


def _later(code: str, message: str) -> HttpResponse:
    answer = problem(503, code, message)
    answer["Retry-After"] = str(RETRY_AFTER_S)
    return answer


@for_learner("GET")
def job(request: HttpRequest, grant: Grant) -> HttpResponse:
    """What to run and with what: code, data, rules for metrics and steps, the checkpoint to resume from, results."""
    row = Job.objects.select_related("code").get(pk=grant.job_id)
    attempt = Attempt.objects.get(job=row, n=grant.attempt)
    saved = checkpoints.pinned(grant)
    if saved is not None and saved.state != Checkpoint.State.COMMITTED:
        return _checkpoint_invalid(saved)
    return JsonResponse(
        {
            "job": row.pk,
            "attempt": grant.attempt,
            "rank": grant.rank,
            "learners": attempt.learners,
            "code": None if row.code is None else _code(row.code),
            "data": _data_to_link(row, attempt),
            "metrics": [_rule(rule) for rule in row.spec.get("metrics") or []],
            "keep": row.spec.get("keep") or [],
            "in_order": ends_in_order(row.pk),
            "checkpoint_step": row.spec["checkpoint"].get("step"),
            "restore": _restore(saved) if saved is not None else None,
            "results": [_result(entry) for entry in checkpoints.results_of(grant)],
            "log_job_max_bytes": settings.LUTHIER_LOG_JOB_MAX_BYTES,
            "direct_from": direct.LARGE if direct.direct() else None,
        }
    )


def _code(archive: Blob) -> dict[str, Any]:
    """Where the code is. A small archive comes along: most code is, and a request costs both sides more than that. Not
    from an object store: the description of a job does not wait for one."""
    entry = {"url": "/agent/v1/code", "size": archive.size, "sha256": archive.sha256}
    if archive.size <= INLINE_BYTES and direct.direct() is None:
        with suppress(blobs.BlobGone, blobs.StoreUnavailable, OSError):  # a request for it gets the error
            entry["content"] = base64.b64encode(blobs.read(archive, 0, archive.size)).decode()
    return entry


def _data_to_link(row: Job, attempt: Attempt) -> list[dict[str, str]]:
    mounts: list[dict[str, str]] = row.spec.get("data") or []
    return mounts if mounts and clusters.has_data_folders(attempt.cluster) else []


def _rule(rule: Any) -> dict[str, str]:
    return {"pattern": rule["pattern"] if isinstance(rule, dict) else str(rule)}


def _checkpoint_invalid(saved: Checkpoint) -> HttpResponse:
    """All learners resume from one checkpoint, so this attempt cannot; the next one resumes from an older one."""
    if not Checkpoint.objects.filter(job=saved.job_id, state=Checkpoint.State.COMMITTED).exists():
        return problem(422, "no_valid_checkpoint", "The job has no valid checkpoint to resume from.")
    text = f"Checkpoint {saved.n} cannot be read back; the next attempt resumes from the newest valid one."
    return problem(422, "checkpoint_invalid", text)


def _restore(saved: Checkpoint) -> dict[str, Any]:
    entries = CheckpointFile.objects.filter(checkpoint=saved).select_related("blob").order_by("part", "path")
    return {
        "n": saved.n,
        "step": saved.step,
        "implicit": saved.implicit,
        "parts": saved.parts,
        "files": [
            {
                "part": entry.part,
                "path": entry.path,
                "size": entry.blob.size,
                "sha256": entry.blob.sha256,
                "url": f"/agent/v1/checkpoints/{saved.n}/files/{entry.pk}",
            }
            for entry in entries
        ],
    }


def _result(entry: ResultFile) -> dict[str, Any]:
    return {
        "path": entry.path,
        "size": entry.blob.size,
        "sha256": entry.blob.sha256,
        "in_code": entry.in_code,
        "archive": entry.archive,
        "url": f"/agent/v1/results/{entry.pk}",
    }


@for_learner("GET")
def code(request: HttpRequest, grant: Grant) -> HttpResponse:
    """One piece of the code archive."""
    row = Job.objects.select_related("code").get(pk=grant.job_id)
    if row.code is None:
        return problem(404, "not_found", "This job has no code archive.")
    return _piece(request, row.code)


@for_learner("GET")
def checkpoint_file(request: HttpRequest, grant: Grant, n: int, file_id: int) -> HttpResponse:
    """One piece of a file of the checkpoint from which this attempt resumes."""
    saved = checkpoints.restorable(grant)
    entry = None
    if saved is not None and saved.n == n:
        entry = CheckpointFile.objects.select_related("blob").filter(checkpoint=saved, pk=file_id).first()
    if entry is None:
        return problem(404, "not_found", "This attempt does not resume from a checkpoint with this file.")
    return _piece(request, entry.blob)


@for_learner("GET")
def result_file(request: HttpRequest, grant: Grant, file_id: int) -> HttpResponse:
    """One piece of a result that this learner stored at its most recent end."""
    entry = checkpoints.results_of(grant).filter(pk=file_id).first()
    if entry is None:
        return problem(404, "not_found", "This learner has no result with this number.")
    return _piece(request, entry.blob)


@for_learner("POST")
def checkpoint_verify(request: HttpRequest, grant: Grant, n: int) -> HttpResponse:
    """A learner reports a corrupt file: hash the stored copy, and mark the checkpoint if it is corrupt."""
    return JsonResponse({"sound": checkpoints.verify(grant, n)})


def _piece(request: HttpRequest, blob: Blob) -> HttpResponse:
    """Respond with one range of at most MAX_PIECE bytes; without a Range header, with the first of them.

    A large file that the store itself sends is a redirect.
    """
    if blob.size >= direct.LARGE and (place := direct.direct()):
        moved = HttpResponse(status=307)
        moved["Location"] = place.link(blobs.key_of(blob.tenant_id, blob.pk)).url
        moved["Cache-Control"] = "no-store"
        return moved
    match = RANGE.match(request.headers.get("Range", "") or f"bytes=0-{max(0, blob.size - 1)}")
    if match is None:
        return problem(416, "range_invalid", "Range must be 'bytes=first-last'.")
    first, last = int(match[1]), min(int(match[2]), blob.size - 1)
    if first > last and blob.size:
        return problem(416, "range_invalid", f"The file has {blob.size} bytes.")
    try:
        content = blobs.read(blob, first, min(last - first + 1, blobs.MAX_PIECE))
    except blobs.BlobGone as error:
        return problem(410, "blob_gone", str(error))
    answer = HttpResponse(content, content_type="application/octet-stream", status=206)
    answer["Content-Range"] = f"bytes {first}-{first + len(content) - 1}/{blob.size}"
    answer["X-Content-Type-Options"] = "nosniff"
    return answer


def for_upload(view: Callable[[HttpRequest, Grant, Blob], HttpResponse]) -> View:
    """Pass the row of a file that learners of this job were asked to send; otherwise 404, as for one that does not
    exist."""

    @wraps(view)
    def found(request: HttpRequest, grant: Grant, blob_id: int) -> HttpResponse:
        blob = Blob.objects.filter(pk=blob_id, tenant_id=grant.tenant_id).first()
        try:
            if blob is None or not blob.is_requested_from(grant.job_id):
                raise Blob.DoesNotExist
            return view(request, grant, blob)
        except Blob.DoesNotExist:  # or removed since the query
            return problem(404, "not_found", "No upload with this number is expected from you.")
        except blobs.BeingFinished as error:
            note_stored(grant.learner_id)  # for as long as `jobs.blobs.direct` waits, it counts as progress
            return _later(BEING_FINISHED, str(error))

    return found


def for_direct_upload(view: Callable[[HttpRequest, Grant, Blob, S3Store], HttpResponse]) -> View:
    """As for_upload, with the store, if that takes large files from learners itself; otherwise 409."""

    @for_upload
    @wraps(view)
    def direct_only(request: HttpRequest, grant: Grant, blob: Blob) -> HttpResponse:
        if (place := direct.direct()) is not None:
            return view(request, grant, blob, place)
        return problem(
            409, "not_direct", "This installation's store takes files in pieces, through this server."
        )

    return direct_only


@for_learner("PUT")
@for_upload
def upload(request: HttpRequest, grant: Grant, blob: Blob) -> HttpResponse:
    """Store one piece of a file that was offered on the socket: bytes first-last/total in Content-Range.

    `bytes */total` has none: it is an empty file, or asks for the verification of a whole one.
    """
    match = CONTENT_RANGE.match(request.headers.get("Content-Range", ""))
    if match is None:
        return problem(400, "content_range_invalid", "Content-Range must be 'bytes first-last/total'.")
    length = int(request.headers.get("Content-Length") or 0)
    if length > blobs.MAX_PIECE:
        return problem(413, "piece_too_large", f"A piece can have at most {blobs.MAX_PIECE} bytes.")
    before, was_verified = blob.received, blob.verified
    try:
        blob = blobs.append(blob.pk, int(match[1] or match[3]), request.read(blobs.MAX_PIECE))
    except blobs.WrongOffset as error:
        return problem(409, "wrong_offset", str(error), received=error.received)
    except blobs.SendDirectly as error:
        return problem(409, "send_directly", str(error))
    except blobs.PieceTooLarge as error:
        return problem(400, "too_large", str(error), received=blob.received)
    except blobs.HashMismatch as error:
        checkpoints.note_corrupt(grant, blob, str(error))
        return problem(422, "hash_mismatch", str(error), received=0)
    except OSError as error:
        return problem(503, "store_full", f"The blob store cannot store this now: {error.strerror}")
    if blob.received > before or blob.verified > was_verified or match[1] is None:
        note_stored(grant.learner_id)
    return _progress(blob)


@for_learner("GET", "POST")
@for_direct_upload
def upload_parts(request: HttpRequest, grant: Grant, blob: Blob, place: S3Store) -> HttpResponse:
    """GET: which parts of a large file the store has. POST number, size, sha256: where to send one."""
    if request.method == "GET":
        have = [] if blob.verified else direct.arrived(place, blob)
        if direct.note_arrived(blob, have, grant.learner_id):
            note_stored(grant.learner_id)
        parts = [[part.number, part.size, part.sha256] for part in have]
        return JsonResponse(
            {"part_bytes": direct.part_bytes(blob.size), "parts": parts, "verified": blob.verified}
        )
    body = _object(request)
    number, size, sha256 = (body.get(name) for name in ("number", "size", "sha256"))
    if (
        type(number) is not int
        or type(size) is not int
        or not isinstance(sha256, str)
        or not SHA256.match(sha256)
    ):
        return problem(
            400, "part_invalid", "number and size must be whole numbers, sha256 64 hexadecimal digits."
        )
    try:
        link = direct.link(place, blob, direct.Part(number, size, sha256))
    except blobs.PartsWrong as error:
        return problem(409, "parts_wrong", str(error))
    if direct.advances(blob, number, grant.learner_id):
        note_stored(grant.learner_id)
    return JsonResponse({"url": link.url, "headers": link.headers})


@for_learner("POST")
@for_direct_upload
def upload_finish(request: HttpRequest, grant: Grant, blob: Blob, place: S3Store) -> HttpResponse:
    """All parts are in the store: make them one file. parts: the SHA-256 of each, in order."""
    wanted = _object(request).get("parts")
    if not isinstance(wanted, list) or not all(isinstance(one, str) and SHA256.match(one) for one in wanted):
        return problem(
            400, "parts_invalid", "parts must be a list of SHA-256 values, 64 hexadecimal digits each."
        )
    try:
        return _progress(direct.finish(place, blob, wanted))
    except (blobs.PartsWrong, FileNotFoundError) as error:
        return problem(409, "parts_wrong", str(error))


def _progress(blob: Blob) -> HttpResponse:
    return JsonResponse({"received": blob.received, "verified": blob.verified})


def _object(request: HttpRequest) -> dict[str, Any]:
    """The JSON object in the body; an empty one for anything else."""
    try:
        body = json.loads(request.read(MAX_JSON_BYTES))
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
