"""Offers of checkpoints, part by part, and of results. The server requests what it lacks; only bytes count that it has
hashed itself, or that its store has compared with their hashes (docs/adr/0039).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.db import IntegrityError, connection, transaction
from django.db.models import Max, Q, QuerySet, Sum
from django.db.models.functions import Now

from jobs import blobs, drops, events, wake
from jobs.failpoints import fp
from jobs.humanize import saved_step
from jobs.ingest import no_room
from jobs.ingest.intents import note_stored
from jobs.models import Attempt, Blob, Checkpoint, CheckpointFile, Job, Progress, ResultFile, StorageKind
from jobs.states import EventCode, Intent, State
from jobs.storage import NoRoom
from jobs.tokens import Grant
from learner_agent.wire import Ckpt, need_that_fits
from learner_agent.wire_fields import File, UploadState

logger = logging.getLogger(__name__)

ADD_PART = """
INSERT INTO jobs_checkpointfile (checkpoint_id, tenant_id, part, path, blob_id)
SELECT %s, %s, %s, file.path, file.blob_id FROM unnest(%s::text[], %s::bigint[]) AS file (path, blob_id)
"""
ADD_RESULTS = """
INSERT INTO jobs_resultfile (job_id, tenant_id, attempt, rank, path, blob_id, in_code, archive)
SELECT %s, %s, %s, %s, file.path, file.blob_id, file.in_code, file.archive
FROM unnest(%s::text[], %s::bigint[], %s::bool[], %s::bool[]) AS file (path, blob_id, in_code, archive)
"""
"""Neither by bulk_create, for the reason that jobs.blobs.arrival.MAKE names."""

OVER = "This attempt is over; nothing more of it is stored."


def offer(grant: Grant, offered: Ckpt) -> Ckpt:
    """Respond to one offer: COMMITTED, or what is still needed, or REFUSED with the reason. Repeats are harmless."""
    for _ in range(3):
        try:
            if not _is_live(grant):
                return _refuse(offered, OVER)
            try:
                answer = (_offer_results if offered.what == "results" else _offer_checkpoint)(grant, offered)
            except NoRoom as full:
                return _refuse(offered, no_room.note_offer(grant, offered, full))
            if answer.state == "COMMITTED":
                note_stored(grant.learner_id)
            return answer
        except IntegrityError as error:  # a blob was released, or another learner made the row, in between
            logger.info("offer repeated", extra={"job": grant.job_id, "error": str(error)[:200]})
    return _response(offered, "UPLOADING", [])


def _is_live(grant: Grant) -> bool:
    return Attempt.objects.filter(
        job_id=grant.job_id, n=grant.attempt, closed_at=None, job__attempt=grant.attempt
    ).exists()


def _response(offered: Ckpt, state: UploadState, need: list[tuple[int, int, int]], message: str = "") -> Ckpt:
    return Ckpt(
        offered.key, what=offered.what, step=offered.step, part=offered.part, of=offered.of, world=offered.world,
        state=state, need=need, message=message,
    )  # fmt: skip


def _refuse(offered: Ckpt, message: str) -> Ckpt:
    return _response(offered, "REFUSED", [], message)


def _begin_blobs(grant: Grant, files: Sequence[File], kind: StorageKind) -> list[Blob]:
    """Rows for all bytes, or NoRoom before any of them is requested."""
    wanted = [(sha256, size) for _, size, sha256 in files]
    halting = kind is StorageKind.CHECKPOINTS and _is_halting(grant)
    return blobs.begin_all(grant.tenant_id, wanted, kind, job_id=grant.job_id, halting=halting)


def _is_halting(grant: Grant) -> bool:
    """True if the job stops in order to be resumed, from what it saves now."""
    stopping = Job.objects.filter(Q(intent=Intent.HALT) | Q(state=State.STOPPING), pk=grant.job_id)
    return stopping.exclude(intent=Intent.CANCEL).exists()


def _needed(found: Sequence[Blob]) -> list[tuple[int, int, int]]:
    """Each missing blob once, with the offset to continue from; of thousands, as many as one frame holds."""
    missing: dict[int, tuple[int, int, int]] = {}
    for index, blob in enumerate(found):
        if not blob.verified:
            missing.setdefault(blob.pk, (index, blob.pk, blob.received))
    return need_that_fits(list(missing.values()))


# --- results


def _offer_results(grant: Grant, offered: Ckpt) -> Ckpt:
    found = _begin_blobs(grant, offered.files, StorageKind.RESULTS)
    need = _needed(found)
    if need:
        return _response(offered, "UPLOADING", need)
    fp("results.after_bytes")
    with transaction.atomic():
        # Closing the attempt waits for this lock, so a learner that was replaced never overwrites newer results.
        live = Attempt.objects.select_for_update(no_key=True).filter(
            job_id=grant.job_id, n=grant.attempt, closed_at=None
        )
        if live.first() is None:
            return _refuse(offered, OVER)
        freed = _replace_results(grant, offered, found)
        fp("results.before_commit")
    fp("results.after_commit")
    blobs.release(freed)  # after a crash before this the sweep removes them
    return _response(offered, "COMMITTED", [])


def _replace_results(grant: Grant, offered: Ckpt, found: Sequence[Blob]) -> list[int]:
    """Put a learner's results in the place of those that it had, except those that it could not restore. Returns the
    blobs that may be unused now."""
    stays = set(offered.unrestored) - {path for path, _, _ in offered.files}
    before = ResultFile.objects.filter(job_id=grant.job_id, rank=grant.rank).exclude(path__in=stays)
    held = set(before.values_list("blob_id", flat=True))
    before.delete()
    in_code_from = len(found) if offered.in_code_from is None else offered.in_code_from
    indices = range(len(found))
    with connection.cursor() as cursor:
        cursor.execute(
            ADD_RESULTS,
            [
                grant.job_id, grant.tenant_id, grant.attempt, grant.rank,
                [path for path, _, _ in offered.files], [blob.pk for blob in found],
                [index >= in_code_from for index in indices], [index in offered.archives for index in indices],
            ],
        )  # fmt: skip
    return sorted(held - {blob.pk for blob in found})


def results_of(grant: Grant) -> QuerySet[ResultFile]:
    """What this learner of the job stored at its most recent end, to be put back before its program begins."""
    mine = ResultFile.objects.filter(job_id=grant.job_id, rank=grant.rank, blob__verified=True)
    return mine.select_related("blob").order_by("path")


# --- checkpoints


def _offer_checkpoint(grant: Grant, offered: Ckpt) -> Ckpt:
    if not offered.files:
        return _refuse(offered, "A checkpoint without files cannot be resumed.")
    whole = offered.of == 1 and _is_alone(grant)
    stays = not whole or drops.would_stay(grant.job_id, grant.attempt, offered.saved_ns)
    wanted = {sha256 for _, _, sha256 in offered.files} if stays else set[str]()
    # First: their room may be what this one needs.
    drops.give_up(grant.job_id, _not_under_way(grant, offered, whole=whole), wanted)
    if not stays:
        return _response(offered, "COMMITTED", [])  # of a backlog, which is sent from the newest save on
    try:
        found = _begin_blobs(grant, offered.files, StorageKind.CHECKPOINTS)
    except NoRoom:
        if whole:  # it is not offered again, and what stayed for it holds room that is missing
            stayed = Blob.objects.filter(
                tenant=grant.tenant_id, sha256__in=wanted, verified=False, requested_from=[grant.job_id]
            )
            blobs.give_up(stayed.values_list("pk", flat=True), grant.job_id, ())
        raise
    fp("checkpoint.after_blobs")
    with transaction.atomic():
        saved = _checkpoint_row(grant, offered, found)
        if _is_other_part(saved, offered, found):
            return _refuse(
                offered, f"Part {offered.part} of this save of step {offered.step} has other files already."
            )
        _note_order(saved, grant, offered)
        if saved.state in (Checkpoint.State.COMMITTED, Checkpoint.State.DROPPED):
            return _response(offered, "COMMITTED", [])
        if saved.parts != offered.of:
            return _refuse(
                offered, f"Other learners save step {offered.step} in {saved.parts} parts, not {offered.of}."
            )
        replaced = _set_part(saved, offered, found)
        fp("checkpoint.after_part")
        need = _needed(found)
        committed = not need and _is_whole(saved)
        freed = _commit(saved) if committed else []
        fp("checkpoint.before_commit")
    if committed:
        fp("checkpoint.after_commit")
        blobs.release(freed)  # after a crash before this the sweep removes them
        fp("checkpoint.after_release")
        wake.reconcile(grant.job_id)
    if replaced and (
        offered.of > 1 or _is_alone(grant)
    ):  # otherwise it may be another learner's, which still sends it
        blobs.release(replaced)
    return _response(offered, "COMMITTED" if committed else "UPLOADING", need)


def _checkpoint_row(grant: Grant, offered: Ckpt, found: Sequence[Blob]) -> Checkpoint:
    """Find or make the row, numbered per job. The job's progress row is the lock for numbering.

    A step that is saved again gets a new row; the old one counts until the new one is complete. Which save a part is of
    says its ordinal. Without one, other bytes than those of a complete checkpoint are another save.
    """
    Progress.objects.select_for_update(no_key=True).get(pk=grant.job_id)
    implicit = offered.what == "implicit"
    known = Checkpoint.objects.select_for_update(no_key=True).filter(
        job_id=grant.job_id,
        attempt=grant.attempt,
        step=offered.step,
        implicit=implicit,
        ordinal=offered.ordinal,
    )
    if (
        offered.ordinal is None
        and offered.of > 1
        and (whole := _with_this_part(known, offered, found)) is not None
    ):
        return whole
    saved = known.order_by("-n").first()
    if saved is not None and _begins_again(saved, offered):
        CheckpointFile.objects.filter(checkpoint=saved).delete()
        saved.state = Checkpoint.State.UPLOADING
        saved.parts, saved.committed_at = offered.of, None
        saved.save(update_fields=["state", "parts", "committed_at"])
        return saved
    if saved is not None and not _is_another_save(saved, grant, offered, found):
        return saved
    newest = Checkpoint.objects.filter(job_id=grant.job_id).aggregate(n=Max("n"))["n"] or 0
    return Checkpoint.objects.create(
        job_id=grant.job_id, tenant_id=grant.tenant_id, n=newest + 1, attempt=grant.attempt, step=offered.step,
        ordinal=offered.ordinal, implicit=implicit, parts=offered.of, world_size=offered.world,
    )  # fmt: skip


def _not_under_way(grant: Grant, offered: Ckpt, *, whole: bool) -> Q:
    """Checkpoints that no learner sends now, by their state: uploads that earlier attempts began; and where one learner
    sends whole checkpoints, one after the other, all but the one that it offers."""
    over = Q(attempt__lt=grant.attempt)
    if whole:
        this = Q(step=offered.step, implicit=offered.what == "implicit", ordinal=offered.ordinal)
        over |= Q(attempt=grant.attempt, parts=1) & ~this
    return over


def _begins_again(saved: Checkpoint, offered: Ckpt) -> bool:
    """True for a second, valid save in the place of a damaged one, and for an upload that was given up and is offered
    again, as by a shipper that was restarted. Not if it has parts: the learners that sent theirs do not do so again."""
    if saved.state == Checkpoint.State.CORRUPT:
        return True
    return (
        saved.is_given_up
        and offered.of == saved.parts == 1
        and drops.would_stay(saved.job_id, saved.attempt, offered.saved_ns)
    )


def _note_order(saved: Checkpoint, grant: Grant, offered: Ckpt) -> None:
    """Record when it was saved. Learners have different clocks, so a set has one value: that of its part 0, which the
    same learner saves each time. Where each learner saves everything, learner 0's replaces that of any other."""
    counts = offered.part == 0 and (offered.of > 1 or not grant.rank or saved.saved_ns is None)
    if counts and offered.saved_ns is not None and offered.saved_ns != saved.saved_ns:
        saved.saved_ns = offered.saved_ns
        saved.save(update_fields=["saved_ns"])


def _is_later_than_dropped(saved: Checkpoint, grant: Grant, offered: Ckpt) -> bool:
    """True for a new save of a step of which an earlier save, without ordinals, is no longer kept. Not of parts: when
    those were saved was said by other learners."""
    if saved.state != Checkpoint.State.DROPPED or offered.ordinal is not None or offered.of > 1 or grant.rank:
        return False
    return (offered.saved_ns or 0) > (saved.saved_ns or offered.saved_ns or 0)


def _is_another_save(saved: Checkpoint, grant: Grant, offered: Ckpt, found: Sequence[Blob]) -> bool:
    """True if these bytes differ from those of a complete checkpoint of this step. Where each learner saves everything
    (one part), those of another rank are the same checkpoint, and learner 0's count."""
    if _is_later_than_dropped(saved, grant, offered):
        return True
    if saved.state != Checkpoint.State.COMMITTED or (offered.of == 1 and grant.rank):
        return False
    if offered.ordinal is not None and offered.of > 1:
        return False
    return saved.parts != offered.of or _part(saved, offered.part) != _wanted(offered, found)


def _is_other_part(saved: Checkpoint, offered: Ckpt, found: Sequence[Blob]) -> bool:
    """True if a save of several parts, named by its ordinal, has this part with other bytes: it would become a mix of
    two saves."""
    if offered.ordinal is None or offered.of == 1 or saved.state == Checkpoint.State.DROPPED:
        return False
    before = _part(saved, offered.part)
    return bool(before) and before != _wanted(offered, found)


def _with_this_part(known: QuerySet[Checkpoint], offered: Ckpt, found: Sequence[Blob]) -> Checkpoint | None:
    """The complete checkpoint that has this part. A learner that repeats its offer, because the response was lost, must
    not add it to one that another learner has begun meanwhile."""
    whole = known.filter(state=Checkpoint.State.COMMITTED, parts=offered.of).order_by("-n")
    return next((saved for saved in whole if _part(saved, offered.part) == _wanted(offered, found)), None)


def _is_alone(grant: Grant) -> bool:
    return Attempt.objects.filter(job_id=grant.job_id, n=grant.attempt, learners=1).exists()


def _part(saved: Checkpoint, part: int) -> dict[str, int]:
    files = CheckpointFile.objects.filter(checkpoint=saved, part=part)
    return dict(files.values_list("path", "blob_id"))


def _wanted(offered: Ckpt, found: Sequence[Blob]) -> dict[str, int]:
    return {path: blob.pk for (path, _, _), blob in zip(offered.files, found, strict=True)}


def _set_part(saved: Checkpoint, offered: Ckpt, found: Sequence[Blob]) -> list[int]:
    """Record the files of a part. Returns the blobs of an incomplete save that it replaces."""
    wanted, before = _wanted(offered, found), _part(saved, offered.part)
    if before == wanted:
        return []
    CheckpointFile.objects.filter(checkpoint=saved, part=offered.part).delete()
    with connection.cursor() as cursor:
        cursor.execute(
            ADD_PART, [saved.pk, saved.tenant_id, offered.part, list(wanted), list(wanted.values())]
        )
    return [blob_id for blob_id in before.values() if blob_id not in wanted.values()]


def _is_whole(saved: Checkpoint) -> bool:
    """True if every declared part is there and every byte of it was hashed by this server."""
    files = CheckpointFile.objects.filter(checkpoint=saved)
    parts = files.values("part").distinct().count()
    return parts == saved.parts and not files.filter(blob__verified=False).exists()


def _commit(saved: Checkpoint) -> list[int]:
    """Commit a checkpoint and drop older ones. Returns the blobs that may be unused now."""
    files = CheckpointFile.objects.filter(checkpoint=saved)
    saved.bytes = files.aggregate(total=Sum("blob__size"))["total"] or 0
    saved.state = Checkpoint.State.COMMITTED
    saved.committed_at = Now()
    saved.save(update_fields=["bytes", "state", "committed_at"])
    freed = drops.after_commit(saved)
    fp("checkpoint.after_drop")
    events.append(
        job_id=saved.job_id,
        tenant_id=saved.tenant_id,
        code=EventCode.CHECKPOINT_STORED,
        attempt=saved.attempt,
        message=f"Checkpoint {saved.n} ({_place(saved)}) is stored and verified.",
        numbers={"checkpoint": saved.n, "step": saved.step, "bytes": saved.bytes, "implicit": saved.implicit},
        source="learner",
    )
    return freed


def _place(saved: Checkpoint) -> str:
    reported = Progress.objects.values_list("step", flat=True).get(pk=saved.job_id)
    named = ", by its file names" if saved.implicit and saved.step is not None else ""
    return saved_step(saved.step, reported) + named


def note_corrupt(grant: Grant, blob: Blob, message: str) -> None:
    """Record that bytes of a checkpoint arrived damaged, if this learner's job has one that needs them."""
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
    """Hash a checkpoint's files again after a learner found one damaged; returns False if it is CORRUPT from now on.

    Only what this server reads from its own disk counts, never what the learner reports.
    """
    saved = pinned(grant)
    if saved is None or saved.n != n:
        return True
    if saved.state != Checkpoint.State.COMMITTED:
        return False
    valid = [_verify_file(entry) for entry in saved.files.select_related("blob").order_by("path")]
    return all(valid)


def _verify_file(entry: CheckpointFile) -> bool:
    """Hash one file. A damaged one is removed, and every checkpoint that needs it is CORRUPT, in one transaction."""
    if blobs.is_sound(entry.blob):
        return True
    with transaction.atomic():
        blobs.discard(entry.blob)
        fp("verify.after_blob")
        holders = Checkpoint.objects.filter(state=Checkpoint.State.COMMITTED, files__blob=entry.blob_id)
        for saved in list(holders.order_by("job_id", "pk").distinct()):
            Checkpoint.objects.filter(pk=saved.pk).update(state=Checkpoint.State.CORRUPT)
            _note_corrupt(saved, f"{entry.path} is damaged in the store.")
    return False


def pinned(grant: Grant) -> Checkpoint | None:
    """The checkpoint from which this attempt resumes, decided once for all its learners; None: it starts from scratch.

    If it proves damaged, no learner gets another one: the attempt ends, and the next one resumes from an older one.
    """
    attempt = Attempt.objects.select_related("resume_from").get(job_id=grant.job_id, n=grant.attempt)
    return attempt.resume_from


def restorable(grant: Grant) -> Checkpoint | None:
    """The attempt's checkpoint if it is still valid."""
    saved = pinned(grant)
    return saved if saved is not None and saved.state == Checkpoint.State.COMMITTED else None
