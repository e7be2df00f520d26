"""Offers of files: checkpoints part by part, and results. What the server lacks is asked for; what it has hashed
itself counts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.db import IntegrityError, transaction
from django.db.models import Max, QuerySet, Sum
from django.db.models.functions import Now

from jobs import blobs, events, wake
from jobs.failpoints import fp
from jobs.models import Attempt, Blob, Checkpoint, CheckpointFile, Job, Learner, Progress, ResultFile
from jobs.states import EventCode
from jobs.tokens import Grant
from learner_agent.wire import Ckpt, File, UploadState

logger = logging.getLogger(__name__)

DEFAULT_KEEP = 3


def offer(grant: Grant, asked: Ckpt) -> Ckpt:
    """Answer one offer: COMMITTED, or what is still needed, or REFUSED with the reason. Repeats are harmless."""
    for _ in range(3):
        try:
            if not _is_live(grant):
                return _refuse(asked, "This attempt is over; nothing more of it is kept.")
            if asked.what == "results":
                return _offer_results(grant, asked)
            return _offer_checkpoint(grant, asked)
        except IntegrityError as error:  # a blob was released, or a sister made the row, in between
            logger.info("offer again", extra={"job": grant.job_id, "error": str(error)[:200]})
    return _answer(asked, "UPLOADING", [])


def _is_live(grant: Grant) -> bool:
    return Attempt.objects.filter(
        job_id=grant.job_id, n=grant.attempt, closed_at=None, job__attempt=grant.attempt
    ).exists()


def _answer(asked: Ckpt, state: UploadState, need: list[tuple[int, int, int]], message: str = "") -> Ckpt:
    return Ckpt(
        asked.key, what=asked.what, step=asked.step, part=asked.part, of=asked.of, world=asked.world, state=state,
        need=need, message=message,
    )  # fmt: skip


def _refuse(asked: Ckpt, message: str) -> Ckpt:
    return _answer(asked, "REFUSED", [], message)


def _begin_blobs(grant: Grant, files: Sequence[File]) -> list[Blob]:
    return [blobs.begin(grant.tenant_id, sha256, size) for _, size, sha256 in files]


def _needed(found: Sequence[Blob]) -> list[tuple[int, int, int]]:
    """Each missing blob once, with where to go on."""
    missing: dict[int, tuple[int, int, int]] = {}
    for index, blob in enumerate(found):
        if not blob.verified:
            missing.setdefault(blob.pk, (index, blob.pk, blob.received))
    return list(missing.values())


# --- results


def _offer_results(grant: Grant, asked: Ckpt) -> Ckpt:
    found = _begin_blobs(grant, asked.files)
    need = _needed(found)
    if need:
        return _answer(asked, "UPLOADING", need)
    fp("results.after_bytes")
    with transaction.atomic():
        kept = ResultFile.objects.filter(job_id=grant.job_id, attempt=grant.attempt, rank=grant.rank)
        kept.delete()
        ResultFile.objects.bulk_create(
            ResultFile(
                job_id=grant.job_id, tenant_id=grant.tenant_id, attempt=grant.attempt, rank=grant.rank, path=path,
                blob=blob,
            )
            for (path, _, _), blob in zip(asked.files, found, strict=True)
        )  # fmt: skip
        fp("results.before_commit")
    fp("results.after_commit")
    return _answer(asked, "COMMITTED", [])


# --- checkpoints


def _offer_checkpoint(grant: Grant, asked: Ckpt) -> Ckpt:
    if not asked.files:
        return _refuse(asked, "A checkpoint without files cannot be gone on from.")
    found = _begin_blobs(grant, asked.files)
    fp("checkpoint.after_blobs")
    with transaction.atomic():
        saved = _checkpoint_row(grant, asked, found)
        if saved.state in (Checkpoint.State.COMMITTED, Checkpoint.State.DROPPED):
            return _answer(asked, "COMMITTED", [])
        if saved.parts != asked.of:
            return _refuse(
                asked, f"Other learners save step {asked.step} in {saved.parts} parts, not {asked.of}."
            )
        replaced = _set_part(saved, asked, found)
        fp("checkpoint.after_part")
        need = _needed(found)
        committed = not need and _is_whole(saved)
        freed = _commit(saved) if committed else []
        fp("checkpoint.before_commit")
    if committed:
        fp("checkpoint.after_commit")
        blobs.release(freed)  # whoever dies before leaves them to the sweep
        fp("checkpoint.after_release")
        wake.reconcile(grant.job_id)
    if replaced and (
        asked.of > 1 or _is_alone(grant)
    ):  # else it may be another learner's, who still sends it
        blobs.release(replaced)
    return _answer(asked, "COMMITTED" if committed else "UPLOADING", need)


def _checkpoint_row(grant: Grant, asked: Ckpt, found: Sequence[Blob]) -> Checkpoint:
    """Find or make the row, numbered per job. The job's progress row is the lock for numbering.

    A step that is saved again with other bytes gets a row of its own, and the one that counts stays until it is whole.
    """
    Progress.objects.select_for_update(no_key=True).get(pk=grant.job_id)
    implicit = asked.what == "implicit"
    step = asked.step
    if step is None:
        step = Learner.objects.values_list("last_step", flat=True).get(pk=grant.learner_id)
    known = Checkpoint.objects.select_for_update(no_key=True).filter(
        job_id=grant.job_id, attempt=grant.attempt, step=step, implicit=implicit
    )
    if asked.of > 1 and (whole := _with_this_part(known, asked, found)) is not None:
        return whole
    saved = known.order_by("-n").first()
    if saved is not None and _is_saved_anew(saved, grant, asked, found):
        saved = None
    if saved is not None and saved.state == Checkpoint.State.CORRUPT:  # a second, sound try at the same step
        CheckpointFile.objects.filter(checkpoint=saved).delete()
        saved.state = Checkpoint.State.UPLOADING
        saved.parts = asked.of
        saved.save(update_fields=["state", "parts"])
    if saved is not None:
        return saved
    newest = Checkpoint.objects.filter(job_id=grant.job_id).aggregate(n=Max("n"))["n"] or 0
    return Checkpoint.objects.create(
        job_id=grant.job_id, tenant_id=grant.tenant_id, n=newest + 1, attempt=grant.attempt, step=step,
        implicit=implicit, parts=asked.of, world_size=asked.world,
    )  # fmt: skip


def _is_saved_anew(saved: Checkpoint, grant: Grant, asked: Ckpt, found: Sequence[Blob]) -> bool:
    """Whether these are other bytes than those of a whole checkpoint of this step. Where each learner saves everything
    (one part), those of another rank are the same checkpoint, and learner 0's outrank theirs."""
    if saved.state != Checkpoint.State.COMMITTED or (asked.of == 1 and grant.rank):
        return False
    return saved.parts != asked.of or _part(saved, asked.part) != _wanted(asked, found)


def _with_this_part(known: QuerySet[Checkpoint], asked: Ckpt, found: Sequence[Blob]) -> Checkpoint | None:
    """The whole checkpoint that this part is of. A learner that repeats it, as it has not heard the answer, must not
    put it into the one that another learner has begun meanwhile."""
    whole = known.filter(state=Checkpoint.State.COMMITTED, parts=asked.of).order_by("-n")
    return next((saved for saved in whole if _part(saved, asked.part) == _wanted(asked, found)), None)


def _is_alone(grant: Grant) -> bool:
    return Job.objects.filter(pk=grant.job_id, learners=1).exists()


def _part(saved: Checkpoint, part: int) -> dict[str, int]:
    files = CheckpointFile.objects.filter(checkpoint=saved, part=part)
    return dict(files.values_list("path", "blob_id"))


def _wanted(asked: Ckpt, found: Sequence[Blob]) -> dict[str, int]:
    return {path: blob.pk for (path, _, _), blob in zip(asked.files, found, strict=True)}


def _set_part(saved: Checkpoint, asked: Ckpt, found: Sequence[Blob]) -> list[int]:
    """Write down what the part consists of; the blobs of a save that gave way to this one before it was whole."""
    wanted, before = _wanted(asked, found), _part(saved, asked.part)
    if before == wanted:
        return []
    CheckpointFile.objects.filter(checkpoint=saved, part=asked.part).delete()
    CheckpointFile.objects.bulk_create(
        CheckpointFile(
            checkpoint=saved, tenant_id=saved.tenant_id, part=asked.part, path=path, blob_id=blob_id
        )
        for path, blob_id in wanted.items()
    )
    return [blob_id for blob_id in before.values() if blob_id not in wanted.values()]


def _is_whole(saved: Checkpoint) -> bool:
    """Say whether every declared part is there and every byte of it was hashed here."""
    files = CheckpointFile.objects.filter(checkpoint=saved)
    parts = files.values("part").distinct().count()
    return parts == saved.parts and not files.filter(blob__verified=False).exists()


def _commit(saved: Checkpoint) -> list[int]:
    """Let it count, and drop older ones; the blobs that may be free by that."""
    files = CheckpointFile.objects.filter(checkpoint=saved)
    saved.bytes = files.aggregate(total=Sum("blob__size"))["total"] or 0
    saved.state = Checkpoint.State.COMMITTED
    saved.committed_at = Now()
    saved.save(update_fields=["bytes", "state", "committed_at"])
    freed = _drop_old(saved.job_id)
    fp("checkpoint.after_drop")
    at = f"step {saved.step}" if saved.step is not None else "an unknown step"
    events.append(
        job_id=saved.job_id,
        tenant_id=saved.tenant_id,
        code=EventCode.CHECKPOINT_STORED,
        attempt=saved.attempt,
        message=f"Checkpoint {saved.n} at {at} is stored and verified.",
        numbers={"checkpoint": saved.n, "step": saved.step, "bytes": saved.bytes, "implicit": saved.implicit},
        source="learner",
    )
    return freed


def note_corrupt(grant: Grant, blob: Blob, message: str) -> None:
    """Write down that bytes of a checkpoint arrived damaged, if this learner's job has one that needs them."""
    saved = Checkpoint.objects.filter(
        job_id=grant.job_id, state=Checkpoint.State.UPLOADING, files__blob_id=blob.pk
    ).first()
    if saved is not None:
        _note_corrupt(saved, message)


def _note_corrupt(saved: Checkpoint, message: str) -> None:
    events.append(
        job_id=saved.job_id,
        tenant_id=saved.tenant_id,
        code=EventCode.CHECKPOINT_CORRUPT,
        attempt=saved.attempt,
        message=f"Checkpoint {saved.n}: {message}",
        numbers={"checkpoint": saved.n, "step": saved.step},
        source="learner",
    )


def verify(grant: Grant, n: int) -> bool:
    """Hash a checkpoint's files again after a learner found them damaged; a bad one is CORRUPT from now on.

    Only what this server reads from its own disk counts, never the learner's word.
    """
    saved = restorable(grant)
    if saved is None or saved.n != n:
        return True
    sound = [_verify_file(entry) for entry in saved.files.select_related("blob").order_by("path")]
    return all(sound)


def _verify_file(entry: CheckpointFile) -> bool:
    """A damaged file takes its mark from every checkpoint that needs it, in the same transaction."""
    with transaction.atomic():
        if blobs.recheck(entry.blob):
            return True
        fp("verify.after_blob")
        holders = Checkpoint.objects.filter(state=Checkpoint.State.COMMITTED, files__blob=entry.blob_id)
        for saved in list(holders.order_by("job_id", "pk").distinct()):
            Checkpoint.objects.filter(pk=saved.pk).update(state=Checkpoint.State.CORRUPT)
            _note_corrupt(saved, f"{entry.path} is damaged in the store.")
    return False


def restorable(grant: Grant) -> Checkpoint | None:
    """The checkpoint this attempt goes on from: the one it was started with, or if that is damaged the next older."""
    attempt = Attempt.objects.select_related("resume_from").get(job_id=grant.job_id, n=grant.attempt)
    wished = attempt.resume_from
    if wished is None or wished.state == Checkpoint.State.COMMITTED:
        return wished
    older = Checkpoint.objects.filter(job_id=wished.job_id, state=Checkpoint.State.COMMITTED)
    return older.order_by(*Checkpoint.NEWEST_FIRST).first()


def _drop_old(job_id: str) -> list[int]:
    """Keep the newest of a job's checkpoints, as many as its spec says; never fewer than one, nor one in use.

    The blobs of those that went.
    """
    spec = Job.objects.values_list("spec", flat=True).get(pk=job_id)
    keep = max(1, int((spec.get("checkpoint") or {}).get("keep") or DEFAULT_KEEP))
    committed = Checkpoint.objects.filter(job_id=job_id, state=Checkpoint.State.COMMITTED).order_by(
        *Checkpoint.NEWEST_FIRST
    )
    # Whoever picks one of these to go on from holds its row: wait for him before asking what is in use.
    surplus = [saved.pk for saved in committed[keep:]]
    held = Checkpoint.objects.select_for_update(no_key=True).filter(
        pk__in=surplus, state=Checkpoint.State.COMMITTED
    )
    locked = [saved.pk for saved in held.order_by("pk")]
    in_use = set(
        Attempt.objects.filter(closed_at=None, resume_from__job_id=job_id).values_list(
            "resume_from", flat=True
        )
    )
    in_use |= set(Job.objects.filter(resume_from__job_id=job_id).values_list("resume_from", flat=True))
    old = [pk for pk in locked if pk not in in_use]
    if not old:
        return []
    files = CheckpointFile.objects.filter(checkpoint_id__in=old)
    blob_ids = list(files.values_list("blob_id", flat=True))
    Checkpoint.objects.filter(pk__in=old).update(state=Checkpoint.State.DROPPED)
    files.delete()
    return blob_ids
