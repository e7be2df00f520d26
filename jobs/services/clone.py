"""A new job made of an old one: the same spec except for the changes, the same code, a checkpoint to start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from jobs import events, wake
from jobs.errors import JobNotFound
from jobs.failpoints import fp
from jobs.models import Checkpoint, CheckpointFile, Job
from jobs.retries import retry_on_serialization_failure
from jobs.selectors.jobs import job_get
from jobs.services.intents import checkpoint_of
from jobs.services.locking import reload
from jobs.services.submit import (
    Checked,
    Kept,
    Prepared,
    check_again,
    create_job,
    hold_code,
    job_check,
    require_disk,
    require_submit,
    store_code,
)
from jobs.spec import Spec
from jobs.spec.definition import RUNTIME_KEYS
from jobs.states import EventCode
from tenants.models import User

MERGED = ("resources", "checkpoint")
"""Parts of a spec of which a single key may be changed; anything else is replaced as a whole."""


@dataclass(frozen=True)
class PreparedClone:
    """A checked clone whose code is stored. checkpoint: which one of the source it starts from; None: from scratch."""

    source: Job
    submission: Prepared
    checkpoint: int | None


def job_clone(
    *, user: User, job_id: str, changes: Mapping[str, Any] | None = None, checkpoint: int | None = None
) -> Job:
    """Submit a copy with these fields of the spec changed (None removes one), started from checkpoint n if given.

    Raises as job_submit and CheckpointNotFound.
    """
    return clone_accept(clone_prepare(user=user, job_id=job_id, changes=changes, checkpoint=checkpoint))


def clone_prepare(
    *,
    user: User,
    job_id: str,
    changes: Mapping[str, Any] | None = None,
    text: str | None = None,
    checkpoint: int | None = None,
) -> PreparedClone:
    """Check a clone and store its code, outside of a transaction. text: its spec as a whole, in YAML, in place of
    changes. Raises as job_submit."""
    source = job_get(user=user, job_id=job_id)
    require_submit(user, source.tenant)
    require_disk()
    checked = job_check(
        user=user,
        tenant=source.tenant,
        source=changed(source.spec, dict(changes or {})) if text is None else text,
        content_type=None if text is None else "application/yaml",
        kept=Kept.of(source),
    )
    code = None if _same_code(source, checked.spec) else store_code(checked.spec, source.tenant)
    return PreparedClone(source, Prepared(user, source.tenant, checked, text or "", code), checkpoint)


@retry_on_serialization_failure
def clone_accept(prepared: PreparedClone) -> Job:
    """Write the clone. Raises as job_clone if something has changed since it was prepared."""
    source, submission, checked = prepared.source, prepared.submission, prepared.submission.checked
    user, spec = submission.user, checked.spec
    with transaction.atomic():
        project, _ = check_again(user, source.tenant, spec, submission.source)
        # An upload's id is valid only for a day, the source's own archive longer.
        code = source.code if _same_code(source, spec) else hold_code(spec, source.tenant, submission.code)
        chosen = checkpoint_of(source, prepared.checkpoint, keep=True)
        _hold(source)
        clone = create_job(
            user=user,
            tenant=source.tenant,
            spec=spec,
            project=project,
            code=code,
            requirements=checked.requirements,
            lock=_lock(source, checked),
            source=submission.source,
            cloned_from=source,
            message=f"Cloned by {user.get_username()} from {source.name} ({source.pk})"
            + (f", checkpoint {chosen.n}" if chosen else ""),
        )
        fp("clone.after_job")
        if chosen:
            Job.objects.filter(pk=clone.pk).update(resume_from=_copy_checkpoint(chosen, clone))
        fp("clone.after_checkpoint")
        _record_clone(source, clone, user)
        wake.cycle()
        fp("clone.before_commit")
    return reload(clone.pk)


def changed(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with the changes in it. Naming a framework takes the place of an image or a plain Python, and so on."""
    merged = dict(spec)
    for key, value in changes.items():
        if key in MERGED and isinstance(value, Mapping):
            value = {**spec.get(key, {}), **value}
            value = {name: part for name, part in value.items() if part is not None}
            if not isinstance(value.get("learners"), Mapping) and "batch" not in changes[key]:
                value.pop("batch", None)  # only an elastic job has one
        merged[key] = value
    for key, other in permutations(RUNTIME_KEYS, 2):
        if changes.get(key) and other not in changes:
            merged.pop(other, None)
    return {key: value for key, value in merged.items() if value is not None}


def _same_code(source: Job, spec: Spec) -> bool:
    """Whether the clone's code is the source's, whose bytes are there."""
    return bool(spec.normalized.get("code") == source.spec.get("code"))


def _lock(source: Job, checked: Checked) -> Sequence[str]:
    """The versions of the source's packages, where the clone asks for the same ones on the same Python."""
    spec = checked.spec.normalized
    same = all(source.spec.get(key) == spec.get(key) for key in ("framework", "python"))
    asked_before = source.packages.get("requirements", [])
    return source.packages.get("lock", ()) if same and asked_before == list(checked.requirements) else ()


def _hold(source: Job) -> None:
    """Keep the source, and with it the bytes of its code, from being purged before the clone exists."""
    row = Job.objects.select_for_update(no_key=True).filter(pk=source.pk, deleted_at=None)
    if row.first() is None:
        raise JobNotFound


def _copy_checkpoint(chosen: Checkpoint, clone: Job) -> Checkpoint:
    """The clone's checkpoint 1: its own row over the same bytes, so the source may be deleted."""
    copy = Checkpoint.objects.create(
        job=clone,
        tenant_id=clone.tenant_id,
        n=1,
        attempt=0,
        step=chosen.step,
        state=Checkpoint.State.COMMITTED,
        implicit=chosen.implicit,
        parts=chosen.parts,
        world_size=chosen.world_size,
        bytes=chosen.bytes,
        committed_at=Now(),
    )
    CheckpointFile.objects.bulk_create(
        CheckpointFile(
            checkpoint=copy, tenant_id=clone.tenant_id, part=file.part, path=file.path, blob_id=file.blob_id
        )
        for file in chosen.files.all()
    )
    return copy


def _record_clone(source: Job, clone: Job, user: User) -> None:
    events.append(
        job_id=source.pk,
        tenant_id=source.tenant_id,
        code=EventCode.CLONED,
        attempt=source.attempt,
        message=f"Cloned by {user.get_username()} as {clone.name} ({clone.pk})",
        numbers={"clone": clone.pk},
        actor_id=user.pk,
        source="user",
    )
