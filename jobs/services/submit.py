"""Accept a job spec: check it and store its code, then write the row of the waiting job in one short transaction.

Hashing and storing take as long as the code is large, so they come before the transaction, and the check before them.
What may have changed since (the role, the tenant, what the installation offers) is checked again within it. Of code
that is stored already, as that of a sweep, this is the only check.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from gpu_scheduler.model import Priority, WaitReason
from jobs import archives, blobs, events, storage, wake
from jobs.disk import DISK_FULL, low_disk
from jobs.errors import (
    CodeInvalid,
    CodeNotStored,
    DiskIsFull,
    JobError,
    JobForbidden,
    SpecInvalid,
    SpecUnreadable,
    TenantSuspended,
    UploadNotFound,
)
from jobs.failpoints import fp
from jobs.models import Blob, Job, JobEvent, Progress, Upload
from jobs.retries import retry_on_serialization_failure
from jobs.selectors.installation import spec_context
from jobs.selectors.programs import measured_before
from jobs.services import packages
from jobs.spec import Findings, Spec, SpecError, check, codes, parse, sound_part
from jobs.spec.model import Code
from jobs.spec.problems import Problem, printable
from jobs.states import EventCode
from jobs.storage import SPEC_FREE_BYTES, NoRoom
from tenants import access, rows
from tenants.errors import NotAllowed, NotFound
from tenants.models import Tenant, User
from tenants.roles import Permission

FIRST_LOOK = Now() + timedelta(seconds=30)
"""The scheduling cycle handles waiting jobs; the single job's reconciliation only makes sure that none is forgotten."""
TO_CHOOSE = Now() + timedelta(seconds=1)
"""Then the versions of its packages are chosen, unless it has started: what prepares it chooses them, too."""

TEXT_BYTES = 32 * 1024
"""Of a spec as submitted: what is kept at most beyond twice the spec itself, of comments and blank lines."""

Source = str | bytes | Mapping[str, Any]


@dataclass(frozen=True)
class Checked:
    """A spec that may be submitted, and the warnings for its author."""

    spec: Spec
    findings: Findings
    requirements: tuple[str, ...] = ()
    """Of packages, one per entry, wherever the spec lists them."""


@dataclass(frozen=True)
class Prepared:
    """A checked submission whose code is stored: what is left is one short transaction."""

    user: User
    tenant: Tenant
    checked: Checked
    source: Source
    code: Blob | None
    """Of inline files; an upload's is looked up when the job is accepted."""


@dataclass(frozen=True)
class Kept:
    """Code whose bytes are there whatever became of its upload, that of the job which is cloned: as its spec names it,
    and its archive (None: the job has no code)."""

    named: Mapping[str, Any] | None
    archive: Blob | None

    @classmethod
    def of(cls, job: Job) -> Kept:
        return cls(job.spec.get("code"), job.code)


def require_submit(user: User, tenant: Tenant) -> None:
    """Raise JobForbidden unless the caller may submit here; a guest of a shared job may not."""
    if not access.may(user, Permission.SUBMIT, tenant.pk):
        raise JobForbidden(access.needs(Permission.SUBMIT, tenant))


def require_disk() -> None:
    """Raise DiskIsFull while a disk has less free than its minimum: a job's row takes room in the database, too."""
    try:
        low = low_disk()
    except OSError:
        return  # unknown; what needs the folder says so itself
    if low is not None:
        raise DiskIsFull(f"{DiskIsFull()} ({low.text}.) Ask an operator of this installation to make room.")


def job_check(
    *,
    user: User,
    tenant: Tenant,
    source: Source,
    content_type: str | None = None,
    kept: Kept | None = None,
) -> Checked:
    """Check a spec as submitting it would, and change nothing.

    Raises JobForbidden, TenantSuspended, UploadNotFound, or SpecInvalid with all errors at once.
    """
    spec = _spec_of(user, tenant, source, content_type, kept)
    checked = _checked(spec, user, tenant, kept)
    _require_room(tenant, spec, source)
    return checked


def _spec_of(
    user: User,
    tenant: Tenant,
    source: Source,
    content_type: str | None,
    kept: Kept | None = None,
) -> Spec:
    require_submit(user, tenant)
    if tenant.state == Tenant.State.SUSPENDED:
        raise TenantSuspended
    try:
        return _parsed(source, content_type)
    except SpecError as error:
        known = error
        if sound := sound_part(error):
            findings, beside, _ = _installation(sound.spec, user, tenant, kept, refused=True)
            known = SpecError((*error.problems, *sound.judged((*findings.errors, *beside))))
        raise _refused(known) from error


def _checked(
    spec: Spec,
    user: User,
    tenant: Tenant,
    kept: Kept | None = None,
) -> Checked:
    findings, beside, asked = _installation(spec, user, tenant, kept)
    if errors := SpecError((*findings.errors, *beside)).as_list():
        only_upload = [error["code"] for error in errors] == [UploadNotFound.code]
        raise UploadNotFound(errors=errors) if only_upload else SpecInvalid(errors=errors)
    return Checked(spec, Findings((), (*spec.warnings, *findings.warnings)), asked)


def _installation(
    spec: Spec,
    user: User,
    tenant: Tenant,
    kept: Kept | None,
    *,
    refused: bool = False,
) -> tuple[Findings, tuple[Problem, ...], tuple[str, ...]]:
    """What the installation says of a spec, what is wrong beside that with its code and the packages listed there, and
    the packages. refused: other errors are known already."""
    findings, code = check(spec, spec_context(tenant, spec, user)), kept.archive if kept else None
    beside: tuple[Problem, ...] = ()
    if spec.code is not None and not (kept and spec.normalized.get("code") == kept.named):
        beside, upload = _too_large(spec.code, tenant), spec.code.upload
        uploaded = _uploads(upload, tenant).select_related("blob").first() if upload else None
        if upload and uploaded is None:
            return findings, (*beside, _not_uploaded(upload)), ()
        code = None if uploaded is None else uploaded.blob
    try:
        asked, faults = packages.requirements(spec, code)
    except (blobs.BlobGone, blobs.StoreUnavailable, OSError):
        if not (refused or findings.errors or beside):
            raise
        asked, faults = (), ()  # what is known to be wrong is said first
    return findings, (*beside, *faults), asked


def job_submit(*, user: User, tenant: Tenant, source: Source, content_type: str | None = None) -> Job:
    """Accept a job: durable and QUEUED when this returns. Raises as job_check, and CodeInvalid."""
    return job_accept(job_prepare(user=user, tenant=tenant, source=source, content_type=content_type))


def job_prepare(*, user: User, tenant: Tenant, source: Source, content_type: str | None = None) -> Prepared:
    """Check a job and store its code, outside of a transaction. Raises as job_submit, here or where it is accepted."""
    spec = _spec_of(user, tenant, source, content_type)
    require_disk()
    try:
        stored = _stored(spec, tenant)
    except CodeNotStored:
        _checked(spec, user, tenant)  # what is wrong with the spec is said first
        raise
    if stored is not None:
        return Prepared(user, tenant, Checked(spec, Findings((), ()), spec.requirements), source, stored)
    checked = _checked(spec, user, tenant)
    return Prepared(user, tenant, checked, source, store_code(checked.spec, tenant))


def _stored(spec: Spec, tenant: Tenant) -> Blob | None:
    """The archive of inline files, if nothing of the job is left to be stored, read or counted before that.

    Raises CodeNotStored: a store that does not respond is not asked again.
    """
    if spec.code is None or spec.code.upload or spec.requirements_file or tenant.storage_limit is not None:
        return None
    try:
        return blobs.known(tenant.pk, archives.pack(list(spec.code.files)))
    except archives.ArchiveError:
        return None  # said along with everything else that is wrong
    except (blobs.StoreUnavailable, OSError) as error:
        raise not_stored(error) from error


def not_stored(error: Exception) -> JobError:
    """What to say of a store that could not be asked or written."""
    return DiskIsFull() if isinstance(error, OSError) and error.errno in DISK_FULL else CodeNotStored()


@retry_on_serialization_failure
def job_accept(prepared: Prepared, *, warnings: list[Problem] | None = None) -> Job:
    """Write the job: durable and QUEUED when this returns. Raises as job_check, if something has changed since or it
    was not checked. warnings: gets what its author may want to change."""
    user, tenant, spec = prepared.user, prepared.tenant, prepared.checked.spec
    job, refused = None, None
    with transaction.atomic(savepoint=False):  # what fails in here fails whole, also within an answer_once
        try:
            project, found = check_again(user, tenant, spec, prepared.source)
        except JobError as error:
            # Raised outside: nothing was written, so a transaction around this one stays usable.
            refused = error
        else:
            job = _write(prepared, project)
    if job is None:
        assert refused is not None
        raise refused
    if warnings is not None:
        warnings[:] = [*spec.warnings, *found]
    return job


def _write(prepared: Prepared, project: str) -> Job:
    spec = prepared.checked.spec
    code = hold_code(spec, prepared.tenant, prepared.code)
    fp("submit.after_code")
    job = create_job(
        user=prepared.user,
        tenant=prepared.tenant,
        spec=spec,
        project=project,
        code=code,
        requirements=prepared.checked.requirements,
        source=prepared.source,
    )
    wake.cycle()
    fp("submit.before_commit")
    return job


def check_again(user: User, tenant: Tenant, spec: Spec, source: Source) -> tuple[str, Sequence[Problem]]:
    """Raise as job_check where the role, the tenant or the installation does not allow the job. In a transaction.

    Returns the project that it is in ("": none), and what its author may want to change.
    """
    try:
        tenant = access.tenant_get(user, tenant.slug, Permission.SUBMIT)
    except (NotFound, NotAllowed) as error:
        raise JobForbidden(access.needs(Permission.SUBMIT, tenant)) from error
    if tenant.state == Tenant.State.SUSPENDED:
        raise TenantSuspended
    context = spec_context(tenant, spec, user)
    findings = check(spec, context)
    if errors := SpecError(findings.errors).as_list():
        raise SpecInvalid(errors=errors)
    _require_room(tenant, spec, source, lock=True)
    return context.project_of(spec), findings.warnings


def _require_room(tenant: Tenant, spec: Spec, source: Source, *, lock: bool = False) -> None:
    """Raise SpecInvalid if the tenant may not store the job's row. lock: within the transaction that writes it."""
    row = json.dumps(spec.normalized, ensure_ascii=False) + _text(source, spec)
    size = len(row.encode()) + sum(map(len, spec.requirements)) - SPEC_FREE_BYTES
    if size <= 0:
        return
    try:
        limit = storage.locked_limit(tenant.pk) if lock else tenant.storage_limit
        storage.require_room(tenant.pk, limit, size)
    except NoRoom as full:
        raise SpecInvalid(errors=[Problem("", full.reason, str(full)).as_dict()]) from full


def parse_spec(source: Source, content_type: str | None = None) -> Spec:
    """The spec, or SpecInvalid with every problem."""
    try:
        return _parsed(source, content_type)
    except SpecError as error:
        raise _refused(error) from error


def _refused(error: SpecError) -> SpecInvalid:
    """What is wrong with the document as such has its own code, wherever in it; errors of fields are listed anyway."""
    errors = error.as_list()
    code = next((code for code in error.codes if code in codes.DOCUMENT), None)
    return SpecUnreadable(code, errors) if code else SpecInvalid(errors=errors)


def _parsed(source: Source, content_type: str | None) -> Spec:
    return parse(source if isinstance(source, str | bytes) else dict(source), content_type)


def hold_code(spec: Spec, tenant: Tenant, stored: Blob | None) -> Blob | None:
    """The archive of the job's code, kept from removal until the end of the transaction: what was stored of inline
    files, or the upload that the spec names."""
    if spec.code is not None and spec.code.upload:
        uploads = _uploads(spec.code.upload, tenant).select_related("blob")
        # Locked: the periodic task may be about to remove it, and its blob with it.
        upload = uploads.select_for_update(of=("self",), no_key=True).first()
        if upload is None:
            raise UploadNotFound(errors=[_not_uploaded(spec.code.upload).as_dict()])
        return upload.blob
    return stored and (blobs.hold(stored) or store_code(spec, tenant))  # it was removed just now


def store_code(spec: Spec, tenant: Tenant) -> Blob | None:
    """Store the archive of inline files; None for other code. Raises CodeInvalid, CodeNotStored or SpecInvalid."""
    if spec.code is None or spec.code.upload:
        return None
    try:
        return blobs.put(tenant.pk, archives.pack(list(spec.code.files)))
    except archives.ArchiveError as error:
        raise CodeInvalid(error.message, archive_code=error.code, entry=error.entry) from error
    except NoRoom as full:
        raise SpecInvalid(errors=[_no_room(full).as_dict()]) from full
    except (blobs.StoreUnavailable, OSError) as error:
        raise not_stored(error) from error


def _too_large(code: Code, tenant: Tenant) -> tuple[Problem, ...]:
    """What is wrong if the tenant may not store files of this size, to be said along with other errors. What counts is
    the archive of them, when it is stored."""
    size = sum(len(text.encode()) for _, text in code.files)
    try:
        storage.require_room(tenant.pk, tenant.storage_limit, size)
    except NoRoom as full:
        return (_no_room(full),)
    return ()


def _no_room(full: NoRoom) -> Problem:
    return Problem("code", full.reason, str(full))


def _uploads(upload: str, tenant: Tenant) -> QuerySet[Upload]:
    return Upload.objects.filter(pk=upload, tenant=tenant)


def _not_uploaded(upload: str) -> Problem:
    text = "There is no such upload in this tenant, or it has expired (24 h)"
    return Problem("code.upload", UploadNotFound.code, text, printable(upload))


def create_job(
    *,
    user: User,
    tenant: Tenant,
    spec: Spec,
    project: str,
    code: Blob | None,
    requirements: Sequence[str] = (),
    lock: Sequence[str] = (),
    source: Source = "",
    cloned_from: Job | None = None,
    message: str = "",
) -> Job:
    """Write the row of the waiting job, its progress and its first event."""
    normalized = spec.normalized
    job = Job(
        tenant=tenant,
        owner=user,
        name=spec.name,
        tags=list(spec.tags),
        spec=normalized,
        spec_text=_text(source, spec),
        code=code,
        packages={
            name: list(lines) for name, lines in (("requirements", requirements), ("lock", lock)) if lines
        },
        cloned_from=cloned_from,
        framework=spec.framework or spec.image or f"python {spec.python}",
        learners=spec.resources.learners.min,
        gpus=spec.resources.gpus,
        gpu_type=spec.resources.gpu_type or "",
        slots=spec.slots_per_learner,
        resources=json.dumps(normalized["resources"]),
        placement=spec.placement,
        topology=str(spec.topology or ""),
        project=project,
        priority=spec.priority,
        priority_rank=Priority[spec.priority.upper()],
        opportunistic=spec.opportunistic,
        max_restarts=spec.max_restarts,
        time_limit_s=spec.time_limit_s,
        grace_s=spec.checkpoint.grace_s,
        intent_by=user,
        next_reconcile_at=TO_CHOOSE if requirements and not lock else FIRST_LOOK,
        reason_code=WaitReason.NOT_EVALUATED.value,
        reason_message="Waits for the next scheduling cycle, usually within a second.",
        event_seq=1,
    )
    if not spec.resources.learners.is_fixed:
        job.measured = measured_before(job)
    Job._meta.get_field("estimate").set_cached_value(job, None)  # saves a query
    first = JobEvent(
        job=job,
        tenant=tenant,
        n=job.event_seq,
        code=EventCode.SUBMITTED,
        message=message or f"Submitted by {user.get_username()}",
        numbers={"intent": "RUN", "generation": 1},
        actor=user,
        source="user",
        to_state="QUEUED",
    )
    rows.insert(job, Progress(job=job), first)
    events.publish_later(job.pk, tenant.pk, first.n)
    return job


def _text(source: Source, spec: Spec) -> str:
    """The spec as submitted, without what is beyond TEXT_BYTES of it; its last line then says so."""
    if isinstance(source, Mapping):
        return ""
    text = source if isinstance(source, str) else source.decode("utf-8", "replace")
    if len(text) <= TEXT_BYTES:
        return text
    most = 2 * len(json.dumps(spec.normalized, ensure_ascii=False)) + TEXT_BYTES
    if len(text) <= most:
        return text
    return f"{text[:most]}\n# The rest, {len(text) - most:,} characters, is not kept.\n"
