"""Offers of files: what counts as a whole checkpoint, and of whom nothing is taken any more."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from msgspec.structs import replace

from jobs import blobs
from jobs.ingest import checkpoints
from jobs.models import Blob, Checkpoint, Job, ResultFile
from jobs.selectors.checkpoints import checkpoint_for, checkpoint_list
from jobs.states import State
from jobs.tokens import Grant, grant_of
from learner_agent.wire import Ckpt, decode, encode
from learner_agent.wire_fields import MAX_FILES
from tests import factories

pytestmark = pytest.mark.django_db


def grant(job: Job, rank: int = 0) -> Grant:
    found = grant_of(factories.secret(job, job.attempt, rank))
    assert found is not None
    return found


def part_of(part: int, content: bytes, *, of: int = 2) -> Ckpt:
    listed = [(f"w-{part}", len(content), hashlib.sha256(content).hexdigest())]
    return Ckpt(f"step-5-{part}", what="checkpoint", step=5, part=part, of=of, files=listed)


def send(who: Grant, asked: Ckpt, content: bytes) -> Ckpt:
    for _, blob_id, start in checkpoints.offer(who, asked).need:
        blobs.append(blob_id, start, content[start:])
    return checkpoints.offer(who, asked)


def state_of(job: Job) -> str:
    return job.checkpoints.values_list("state", flat=True).get()


def test_a_part_that_is_there_does_not_count_for_a_sister_whose_bytes_are_not() -> None:
    """Both parts are declared, and one learner has sent all of its own: a resume would find half a model."""
    job = factories.job(state=State.PROCESSING, learners=2)
    first, second = grant(job, 0), grant(job, 1)
    assert checkpoints.offer(second, part_of(1, b"second half")).state == "UPLOADING"

    assert send(first, part_of(0, b"first half"), b"first half").state == "UPLOADING"
    assert state_of(job) == "UPLOADING"

    assert send(second, part_of(1, b"second half"), b"second half").state == "COMMITTED"
    assert state_of(job) == "COMMITTED"
    assert checkpoints.offer(first, part_of(0, b"first half")).state == "COMMITTED"


def kept(job: Job) -> list[tuple[int, str, list[bytes]]]:
    """Number, state and content of each checkpoint of step 5."""
    return [
        (saved.n, saved.state, [blobs.read(file.blob, 0, 99) for file in saved.files.order_by("part")])
        for saved in job.checkpoints.order_by("n")
    ]


def test_a_step_that_is_saved_again_with_other_bytes_is_a_checkpoint_of_its_own() -> None:
    """A program that saves within an epoch, or names no steps: what it saved last must be what a resume finds."""
    job = factories.job(state=State.PROCESSING)
    who = grant(job)
    send(who, part_of(0, b"first", of=1), b"first")
    again = part_of(0, b"again", of=1)

    assert checkpoints.offer(who, again).state == "UPLOADING"
    assert checkpoint_for(job) == job.checkpoints.get(n=1), "it counts until the other is whole"
    assert send(who, again, b"again").state == "COMMITTED"
    assert checkpoints.offer(who, again).state == "COMMITTED", "a repeat is the same"

    assert kept(job) == [(1, "COMMITTED", [b"first"]), (2, "COMMITTED", [b"again"])]
    assert checkpoint_for(job) == job.checkpoints.get(n=2)


def test_what_had_come_of_a_save_that_gave_way_to_another_is_not_kept_for_ever() -> None:
    """The sweep spares what is younger than the attempt, which may run for weeks."""
    job = factories.job(state=State.PROCESSING)
    who = grant(job)
    ((_, blob_id, _),) = checkpoints.offer(who, part_of(0, b"half of it", of=1)).need
    blobs.append(blob_id, 0, b"half")

    assert send(who, part_of(0, b"another", of=1), b"another").state == "COMMITTED"

    blobs.sweep(timedelta(days=1))
    assert [blob.size for blob in Blob.objects.all()] == [7]


def test_a_gang_that_saves_a_step_again_fills_the_new_one_together() -> None:
    job = factories.job(state=State.PROCESSING, learners=2)
    for word in (b"old", b"new"):
        for rank in (0, 1):
            send(grant(job, rank), part_of(rank, word + b"%d" % rank), word + b"%d" % rank)

    assert kept(job) == [(1, "COMMITTED", [b"old0", b"old1"]), (2, "COMMITTED", [b"new0", b"new1"])]


def test_a_part_that_is_sent_twice_does_not_get_into_the_save_after_it() -> None:
    """Learner 1 did not receive the response to its part, and learner 0 saves the step again: a mix is neither."""
    job = factories.job(state=State.PROCESSING, learners=2)
    for rank in (0, 1):
        send(grant(job, rank), part_of(rank, b"old%d" % rank), b"old%d" % rank)
    send(grant(job, 0), part_of(0, b"new0"), b"new0")

    assert checkpoints.offer(grant(job, 1), part_of(1, b"old1")).state == "COMMITTED"

    assert kept(job) == [(1, "COMMITTED", [b"old0", b"old1"]), (2, "UPLOADING", [b"new0"])]


def save(job: Job, rank: int, ordinal: int, content: bytes) -> str:
    """Send learner rank's part of that save of step 5; the state in the response."""
    asked = replace(part_of(rank, content), key=f"step-5-{rank}-{ordinal}", ordinal=ordinal)
    return str(send(grant(job, rank), asked, content).state)


def test_parts_of_two_saves_of_one_step_never_become_one_checkpoint() -> None:
    """Learner 0 saves step 5 again before learner 1 has sent its part of the first save."""
    job = factories.job(state=State.PROCESSING, learners=2)
    assert save(job, 0, 0, b"old0") == "UPLOADING"
    assert save(job, 0, 1, b"new0") == "UPLOADING"
    assert save(job, 1, 0, b"old1") == "COMMITTED"
    assert kept(job) == [(1, "COMMITTED", [b"old0", b"old1"]), (2, "UPLOADING", [b"new0"])]

    assert save(job, 1, 1, b"new1") == "COMMITTED"

    assert kept(job)[1] == (2, "COMMITTED", [b"new0", b"new1"])
    assert checkpoint_for(job) == job.checkpoints.get(n=2)


def test_a_part_that_did_not_change_completes_the_next_save() -> None:
    """Learner 1's part of both saves has the same bytes, such as a frozen layer's."""
    job = factories.job(state=State.PROCESSING, learners=2)
    for ordinal in (0, 1):
        save(job, 0, ordinal, b"%d" % ordinal)
        assert save(job, 1, ordinal, b"same") == "COMMITTED"

    assert kept(job) == [(1, "COMMITTED", [b"0", b"same"]), (2, "COMMITTED", [b"1", b"same"])]


def test_a_save_of_which_a_part_was_never_sent_gives_way_to_the_next_one() -> None:
    job = factories.job(state=State.PROCESSING, learners=2)
    save(job, 1, 0, b"old1")
    save(job, 0, 1, b"new0")
    assert save(job, 1, 1, b"new1") == "COMMITTED"

    assert kept(job) == [(1, "DROPPED", []), (2, "COMMITTED", [b"new0", b"new1"])]
    blobs.sweep(timedelta(days=1))
    assert Blob.objects.count() == 2
    assert save(job, 1, 0, b"old1") == "COMMITTED", "a repeat, of which nothing more is needed"


def test_other_bytes_for_a_part_that_is_there_are_refused() -> None:
    job = factories.job(state=State.PROCESSING, learners=2)
    for rank in (0, 1):
        save(job, rank, 0, b"old%d" % rank)
    answer = checkpoints.offer(grant(job, 1), replace(part_of(1, b"other"), ordinal=0))
    assert (answer.state, answer.message) == (
        "REFUSED",
        "Part 1 of this save of step 5 has other files already.",
    )
    assert kept(job) == [(1, "COMMITTED", [b"old0", b"old1"])]


def test_of_a_gang_no_learner_takes_back_what_another_still_sends() -> None:
    """Their manifests say nothing of the world, or something untrue."""
    job = factories.job(state=State.PROCESSING, learners=2)
    first, second = part_of(0, b"first", of=1), part_of(0, b"other", of=1)
    ((_, blob_id, _),) = checkpoints.offer(grant(job, 0), first).need
    checkpoints.offer(grant(job, 1), second)
    assert Blob.objects.filter(pk=blob_id).exists()


def test_where_each_learner_saves_everything_those_of_the_first_count() -> None:
    job = factories.job(state=State.PROCESSING, learners=2)
    for rank, word in ((1, b"rank 1"), (0, b"rank 0"), (1, b"later")):
        assert send(grant(job, rank), part_of(0, word, of=1), word).state == "COMMITTED"

    assert kept(job) == [(1, "COMMITTED", [b"rank 1"]), (2, "COMMITTED", [b"rank 0"])]


def test_a_checkpoint_waits_for_a_part_that_was_not_offered_yet() -> None:
    job = factories.job(state=State.PROCESSING, learners=2)

    assert send(grant(job, 0), part_of(0, b"first half"), b"first half").state == "UPLOADING"

    assert state_of(job) == "UPLOADING"


def at(step: int, saved_ns: int | None, *, part: int = 0, of: int = 1) -> tuple[Ckpt, bytes]:
    """An offer of a save that was put in place then, and its content."""
    content = b"%d at %d, part %d" % (step, saved_ns or 0, part)
    listed = [("w", len(content), hashlib.sha256(content).hexdigest())]
    return Ckpt(
        f"{step}-{saved_ns}-{part}", step=step, part=part, of=of, files=listed, saved_ns=saved_ns
    ), content


def steps_kept(job: Job) -> list[int | None]:
    """Steps of what is kept, in the order of pages and API."""
    kept = [saved for saved in checkpoint_list(job.pk) if saved.state == Checkpoint.State.COMMITTED]
    return [saved.step for saved in kept]


def test_a_program_that_counts_from_the_beginning_again_keeps_what_it_saved_last() -> None:
    """As one that trains in folds, or first in general and then for a task."""
    job = factories.job(state=State.PROCESSING)  # keeps 3
    for place, step in enumerate((1000, 2000, 3000, 10, 500, 600)):
        assert send(grant(job), *at(step, 100 + place)).state == "COMMITTED"

    assert steps_kept(job) == [600, 500, 10]
    assert checkpoint_for(job) == job.checkpoints.get(step=600)
    states = job.checkpoints.order_by("n").values_list("state", flat=True)
    assert list(states) == ["DROPPED"] * 3 + ["COMMITTED"] * 3, "none was dropped as it was committed"


def test_saves_that_are_sent_newest_first_are_kept_in_the_order_in_which_they_were_made() -> None:
    job = factories.job(state=State.PROCESSING)
    for step, saved_ns in (
        (3000, 3),
        (600, 6),
        (500, 5),
        (10, 4),
    ):  # the last three are sent from the newest on
        send(grant(job), *at(step, saved_ns))

    assert steps_kept(job) == [600, 500, 10]


def test_without_the_time_of_a_save_the_highest_step_is_the_newest() -> None:
    job = factories.job(state=State.PROCESSING)
    for step in (3000, 10, 2000):
        send(grant(job), *at(step, None))

    assert steps_kept(job) == [3000, 2000, 10]
    send(grant(job), *at(500, 1))
    assert steps_kept(job) == [500, 3000, 2000], "a shipper of a newer version has taken over"


def test_what_an_earlier_attempt_saved_is_older_whatever_its_clock_said() -> None:
    job = factories.job(state=State.PROCESSING, attempt=2)
    factories.checkpoint(job, step=9, attempt=1, saved_ns=2**62)

    send(grant(job), *at(3, 1))

    assert steps_kept(job) == [3, 9]


def test_the_order_of_a_gangs_save_is_that_of_its_part_0() -> None:
    """Learner 1's clock is far ahead in the first save, and was set back before the second."""
    job = factories.job(state=State.PROCESSING, learners=2)
    for step, mine, theirs in ((3000, 10, 999), (10, 20, 5)):
        send(grant(job, 1), *at(step, theirs, part=1, of=2))
        assert send(grant(job, 0), *at(step, mine, part=0, of=2)).state == "COMMITTED"

    assert list(job.checkpoints.order_by("n").values_list("saved_ns", flat=True)) == [10, 20]
    assert steps_kept(job) == [10, 3000]


def test_where_each_learner_saves_everything_the_first_one_says_when() -> None:
    job = factories.job(state=State.PROCESSING, learners=2)
    offer, content = at(7, 50)
    send(grant(job, 1), replace(offer, saved_ns=900), content)
    assert job.checkpoints.get().saved_ns == 900
    send(grant(job, 0), offer, content)
    send(grant(job, 1), replace(offer, saved_ns=900), content)

    assert job.checkpoints.get().saved_ns == 50


def test_a_step_is_stored_again_though_its_earlier_save_is_no_longer_kept() -> None:
    """Of a program that writes manifests without ordinals, and counts from the beginning again."""
    job = factories.job(state=State.PROCESSING)
    for saved_ns, step in enumerate((10, 20, 30, 40), start=1):
        send(grant(job), *at(step, saved_ns))
    first, content = at(10, 1)
    assert send(grant(job), first, content).state == "COMMITTED", "a repeat is the same"
    assert steps_kept(job) == [40, 30, 20]

    assert send(grant(job), *at(10, 5)).state == "COMMITTED"

    assert steps_kept(job) == [10, 40, 30]


def many(count: int, *, what: str, salt: str) -> Ckpt:
    listed = [(f"file-{n}", 5, hashlib.sha256(f"{salt}-{n}".encode()).hexdigest()) for n in range(count)]
    return replace(part_of(0, b"", of=1), what=what, key=f"{what}-{salt}", files=listed)


@pytest.mark.parametrize("what", ["checkpoint", "results"])
def test_an_offer_of_many_files_takes_no_more_statements_than_one_of_few(what: str) -> None:
    job = factories.job(state=State.PROCESSING)
    who = grant(job)
    counts = {}
    for count in (3, 300):
        offered = many(count, what=what, salt=f"{what}{count}")
        with CaptureQueriesContext(connection) as first:
            needed = checkpoints.offer(who, offered).need
        assert len(needed) == count
        Blob.objects.update(verified=True)
        with CaptureQueriesContext(connection) as second:
            assert checkpoints.offer(who, offered).state == "COMMITTED"
        counts[count] = (len(first), len(second))
    assert counts[300][0] <= counts[3][0] + 2, "a new offer"
    assert counts[300][1] <= counts[3][1] + 15, "all is there; the checkpoint before it is dropped"


@pytest.mark.parametrize("what", ["checkpoint", "results"])
def test_an_offer_of_as_many_files_as_may_be_is_answered_in_frames_that_can_be_sent(what: str) -> None:
    """What one cannot hold is requested when the learner has sent the rest and offers again, as it always does."""
    who = grant(factories.job(state=State.PROCESSING))
    offered = many(MAX_FILES, what=what, salt=what)
    asked: list[int] = []
    while (answer := checkpoints.offer(who, offered)).need:
        received = decode(encode(answer))
        assert isinstance(received, Ckpt)
        Blob.objects.filter(pk__in=[upload for _, upload, _ in received.need]).update(verified=True)
        asked += [index for index, _, _ in received.need]
    assert answer.state == "COMMITTED"
    assert asked == [*range(MAX_FILES)]


def test_blobs_that_are_released_together_take_no_more_statements_than_one() -> None:
    tenant = factories.tenant()
    counts = []
    for count in (1, 100):
        made = blobs.begin_all(
            tenant.pk, [(hashlib.sha256(f"{count}-{n}".encode()).hexdigest(), 1) for n in range(count)]
        )
        with CaptureQueriesContext(connection) as queries:
            assert blobs.release([blob.pk for blob in made]) == count
        counts.append(len(queries))
    assert counts[0] == counts[1]
    blobs.sweep(timedelta(days=1))
    assert not Blob.objects.exists()


@pytest.mark.parametrize("what", ["checkpoint", "implicit", "results"])
@pytest.mark.parametrize("over", ["closed", "followed"])
def test_nothing_of_an_attempt_that_is_over_is_taken(what: str, over: str) -> None:
    """Its learner may still run on a node that is unreachable: it must not save over what its successor does."""
    job = factories.job(state=State.PROCESSING)
    who = grant(job)
    if over == "closed":
        job.attempts.update(held=False, closed_at=timezone.now())
    else:
        Job.objects.filter(pk=job.pk).update(attempt=job.attempt + 1)
    asked = replace(part_of(0, b"late", of=1), what=what)

    answer = checkpoints.offer(who, asked)

    assert (answer.state, answer.need) == ("REFUSED", [])
    assert "This attempt is over" in answer.message
    kept = [model for model in (Checkpoint, ResultFile, Blob) if model.objects.exists()]
    assert kept == []
