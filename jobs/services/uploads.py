"""Code sent before its job: an archive, looked through while it is read, kept as it came."""

from __future__ import annotations

from typing import IO

from django.db import transaction

from jobs import archives, blobs
from jobs.errors import JobForbidden, TenantSuspended, UploadInvalid
from jobs.failpoints import fp
from jobs.models import Upload
from jobs.spec.problems import Problem
from tenants import access
from tenants.models import Tenant, User
from tenants.roles import Permission


def upload_store(*, user: User, tenant: Tenant, archive: IO[bytes]) -> Upload:
    """Keep a zip or tar.gz for a job to name in code.upload. archive: seekable, at its beginning.

    Raises UploadInvalid with the archive's own code (archive_too_large, archive_unsafe_path …) and all its faults;
    nothing is kept then.
    """
    if not access.may(user, Permission.SUBMIT, tenant.pk):
        raise JobForbidden(access.needs(Permission.SUBMIT, tenant))
    if tenant.state == Tenant.State.SUSPENDED:
        raise TenantSuspended
    archive.seek(0)
    try:
        found = archives.inspect(archive)
    except archives.ArchiveError as error:
        raise _invalid(error) from error
    archive.seek(0)
    with transaction.atomic():
        blob = blobs.put(tenant.pk, archive)
        fp("upload.after_blob")
        made = Upload.objects.create(
            tenant=tenant, owner=user, blob=blob, files=found.files, bytes=found.bytes
        )
        fp("upload.before_commit")
    return made


def _invalid(found: archives.ArchiveError) -> UploadInvalid:
    faults = (found, *found.others)
    more = f" ({len(faults)} problems in total)" if found.others else ""
    return UploadInvalid(
        found.code,
        f"The archive was rejected: {found}{more}.",
        [Problem("archive", one.code, one.message, one.entry).as_dict() for one in faults],
    )
