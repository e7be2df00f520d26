"""Checkpoints, results and code of a job, and uploads of code for a job."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpResponseBase
from rest_framework import serializers

from jobs import blobs
from jobs.archives import kind_of
from jobs.models import Blob, Checkpoint, Job, Upload
from jobs.selectors import checkpoints, results
from jobs.selectors.retention import refuse_removed
from jobs.selectors.serializers import CheckpointManifestSerializer, CheckpointSerializer, FileSerializer
from jobs.serialization import ReadSerializer, TimestampField
from jobs.services.uploads import PreparedUpload, upload_accept, upload_prepare
from portal import submissions
from portal.api import bodies, paging, permissions
from portal.api.downloads import MAX_PATH_CHARS, blob_download, code_file_download, zip_download
from portal.api.errors import NoSuchFile, NotFoundError
from portal.api.fields import PagedQuery, ShortListQuery, StrictSerializer, checked
from portal.api.openapi import BYTES
from portal.api.operations import Call, operation
from tenants.retention import Kind
from tenants.roles import Permission


@operation(Out=CheckpointSerializer, Query=PagedQuery, many=True)
def checkpoint_list(call: Call, job_id: str) -> dict[str, Any]:
    """A job's checkpoints, the newest first."""
    rows = checkpoints.checkpoints_of(permissions.job(call, job_id).pk)
    return paging.page(call, rows, CheckpointSerializer.render, keys=("-n",))


@operation(Out=CheckpointManifestSerializer)
def checkpoint_manifest(call: Call, job_id: str, n: int) -> dict[str, Any]:
    """One checkpoint with the path, size and SHA-256 of every file."""
    return CheckpointManifestSerializer.render(_checkpoint(call, job_id, n))


@operation(Out=BYTES, fails=(410, 416, 429))
def checkpoint_file(call: Call, job_id: str, n: int, path: str) -> HttpResponseBase:
    """One file of a checkpoint, as an attachment; supports Range."""
    saved = _checkpoint(call, job_id, n, "checkpoint.download")
    blob = checkpoints.checkpoint_file(saved, path) if len(path) <= MAX_PATH_CHARS else None
    if blob is None:
        refuse_removed(saved.job_id, Kind.CHECKPOINTS)
        raise NoSuchFile
    return blob_download(call, blob, path)


def _checkpoint(call: Call, job_id: str, n: int, what: str = "job.read") -> Checkpoint:
    job = permissions.job(call, job_id, what)
    saved = checkpoints.checkpoint_find(job.pk, n) if n < 2**31 else None
    if saved is None:
        raise NotFoundError
    return saved


class ResultSerializer(FileSerializer):
    rank = serializers.IntegerField()
    attempt = serializers.IntegerField(help_text="at whose end it was stored")
    etag = serializers.CharField()


@operation(
    Out=ResultSerializer,
    Query=ShortListQuery,
    many=True,
    response_example={
        "path": "model.pt",
        "rank": 0,
        "attempt": 1,
        "size": 4096,
        "sha256": "9f86d081…",
        "etag": '"9f86d081…"',
    },
    fails=(410,),
)
def result_list(call: Call, job_id: str) -> dict[str, Any]:
    """The job's results: RESULT_DIR and what the spec keeps, from the most recent end, however that was."""
    job = permissions.job(call, job_id)
    refuse_removed(job.pk, Kind.RESULTS)
    found = [ResultSerializer.render(file) for file in results.result_list(job.pk)]
    return paging.whole(call, found, keys=("path", "rank"))


@operation(Out=BYTES, fails=(410, 416, 429))
def result_file(call: Call, job_id: str, path: str) -> HttpResponseBase:
    """One result, as an attachment; supports Range."""
    job = permissions.job(call, job_id, "result.download")
    refuse_removed(job.pk, Kind.RESULTS)
    blob = results.result_file(job.pk, path) if len(path) <= MAX_PATH_CHARS else None
    if blob is None:
        raise NoSuchFile
    return blob_download(call, blob, path)


@operation(Out=BYTES, fails=(410, 429))
def result_zip(call: Call, job_id: str) -> HttpResponseBase:
    """All results as one zip, under the paths that the list shows; those that are damaged are left out."""
    job = permissions.job(call, job_id, "result.download")
    refuse_removed(job.pk, Kind.RESULTS)
    files = [(path, blob) for path, blob in results.result_blobs(job.pk) if blob.verified]
    first = next((n for n, (_, blob) in enumerate(files) if blobs.is_there(blob)), None)
    if first is None:
        raise NoSuchFile
    return zip_download(call, files[first:], f"{_file_name(job)}-results.zip")


@operation(Out=BYTES, fails=(416, 429))
def code_archive(call: Call, job_id: str) -> HttpResponseBase:
    """The job's code as the archive that its learners unpack, zip or tar.gz; supports Range."""
    job, code = _code(call, job_id)
    with blobs.open(code) as source:
        kind = kind_of(source)
    return blob_download(call, code, f"{_file_name(job)}-code.{kind}")


@operation(Out=BYTES, fails=(416, 429))
def code_file(call: Call, job_id: str, path: str) -> HttpResponseBase:
    """One file of the job's code, as an attachment; supports Range."""
    _, code = _code(call, job_id)
    found = code_file_download(call, code, path) if len(path) <= MAX_PATH_CHARS else None
    if found is None:
        raise NoSuchFile
    return found


def _file_name(job: Job) -> str:
    return job.name.replace("/", "-")


def _code(call: Call, job_id: str) -> tuple[Job, Blob]:
    """The job and its archive; NoSuchFile without one, such as where the image has the code."""
    job = permissions.job(call, job_id, "code.download")
    if job.code is None or not blobs.is_there(job.code):
        raise NoSuchFile
    return job, job.code


class UploadRequest(StrictSerializer):
    archive = serializers.FileField(
        help_text="zip or tar.gz; a part named `file` is taken for it", allow_empty_file=True
    )


class UploadSerializer(ReadSerializer):
    id = serializers.CharField(source="pk")
    files = serializers.IntegerField()
    bytes = serializers.IntegerField(help_text="unpacked")
    sha256 = serializers.CharField(source="blob.sha256", help_text="of the archive")
    expires_at = TimestampField()

    @staticmethod
    def get_expires_at(upload: Upload, context: object) -> datetime:
        return upload.created_at + Upload.KEPT_FOR


def _stored(call: Call, t: str) -> PreparedUpload:
    submissions.spend(call.user, submissions.What.UPLOADS)
    form = bodies.form(call.request)
    if "archive" not in form and "file" in form:  # the name that most tools give to the only part
        form["archive"] = form.pop("file")
    sent = checked(UploadRequest(data=form))
    return upload_prepare(user=call.user, tenant=call.found, archive=sent["archive"])


@operation(
    authorize=permissions.into_tenant(Permission.SUBMIT),
    prepare=_stored,
    In=UploadRequest,
    Out=UploadSerializer,
    status=201,
    kinds=(bodies.MULTIPART,),
    response_example={
        "id": "3f9k2m7qx4ta",
        "files": 3,
        "bytes": 4096,
        "sha256": "9f86d081…",
        "expires_at": "2026-11-22T09:00:00.000Z",
    },
)
def upload_create(call: Call, t: str) -> dict[str, Any]:
    """Upload code for a job; for researchers and managers. Use its id as code.upload of a spec within 24 hours."""
    return UploadSerializer.render(upload_accept(user=call.user, tenant=call.found, prepared=call.prepared))
