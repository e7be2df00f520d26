"""Code sent before its job: an archive, looked through while it is read, kept as it came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from django.db import transaction

from jobs import archives, blobs
from jobs.errors import CodeNotStored, JobForbidden, TenantSuspended, UploadInvalid
from jobs.failpoints import fp
from jobs.models import Blob, Upload
from jobs.services.submit import require_disk
from jobs.spec.problems import Problem
from jobs.storage import NoRoom
from tenants import access
from tenants.models import Tenant, User
from tenants.roles import Permission


@dataclass(frozen=True)
class PreparedUpload:
    """An archive whose bytes are stored."""

    blob: Blob
    files: int
    bytes: int


def upload_store(*, user: User, tenant: Tenant, archive: IO[bytes]) -> Upload:
    """Keep a zip or tar.gz for a job to name in code.upload. archive: seekable.

    Raises UploadInvalid with the archive's own code (archive_too_large, archive_unsafe_path …) and all its faults,
    or with storage_full, and DiskIsFull; nothing is kept then.
    """
    prepared = upload_prepare(user=user, tenant=tenant, archive=archive)
    return upload_accept(user=user, tenant=tenant, prepared=prepared)


def upload_prepare(*, user: User, tenant: Tenant, archive: IO[bytes]) -> PreparedUpload:
    """Look through an archive and store it, outside of a transaction. Raises as upload_store."""
    _require(user, tenant)
    require_disk()
    archive.seek(0)
    try:
        found = archives.inspect(archive)
    except archives.ArchiveError as error:
        raise _invalid(error) from error
    archive.seek(0)
    try:
        blob = blobs.put(tenant.pk, archive)
    except NoRoom as full:
        problem = Problem("archive", full.reason, str(full)).as_dict()
        raise UploadInvalid(full.reason, f"The archive was rejected: {full}", [problem]) from full
    fp("upload.after_blob")
    return PreparedUpload(blob, found.files, found.bytes)


def upload_accept(*, user: User, tenant: Tenant, prepared: PreparedUpload) -> Upload:
    """Write the row of a stored archive. Raises CodeNotStored if its bytes were removed just now."""
    _require(user, tenant)
    with transaction.atomic():
        if (blob := blobs.hold(prepared.blob)) is None:
            raise CodeNotStored
        made = Upload.objects.create(
            tenant=tenant, owner=user, blob=blob, files=prepared.files, bytes=prepared.bytes
        )
        fp("upload.before_commit")
    return made


def _require(user: User, tenant: Tenant) -> None:
    if not access.may(user, Permission.SUBMIT, tenant.pk):
        raise JobForbidden(access.needs(Permission.SUBMIT, tenant))
    if tenant.state == Tenant.State.SUSPENDED:
        raise TenantSuspended


def _invalid(found: archives.ArchiveError) -> UploadInvalid:
    faults = (found, *found.others)
    more = f" ({len(faults)} problems in total)" if found.others else ""
    return UploadInvalid(
        found.code,
        f"The archive was rejected: {found}{more}.",
        [Problem("archive", one.code, one.message, one.entry).as_dict() for one in faults],
    )
