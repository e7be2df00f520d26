"""Offers of results: one set per learner and job, from its most recent end."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta

import pytest
from django.utils import timezone

from jobs import blobs
from jobs.ingest import checkpoints
from jobs.models import Blob, Job, ResultFile
from jobs.selectors.results import result_list
from jobs.states import State
from jobs.tokens import Grant, grant_of
from learner_agent.wire import Ckpt
from tests import factories

pytestmark = pytest.mark.django_db


def grant(job: Job, rank: int = 0) -> Grant:
    found = grant_of(factories.secret(job, job.attempt, rank))
    assert found is not None
    return found


def offer_of(contents: dict[str, bytes], unrestored: Sequence[str] = ()) -> Ckpt:
    files = [(path, len(content), hashlib.sha256(content).hexdigest()) for path, content in contents.items()]
    return Ckpt("results", what="results", files=files, unrestored=list(unrestored))


def send(who: Grant, contents: dict[str, bytes]) -> tuple[Ckpt, int]:
    """The server's last response, and how many files it had to be sent."""
    offered = offer_of(contents)
    need = checkpoints.offer(who, offered).need
    for index, blob_id, start in need:
        blobs.append(blob_id, start, contents[offered.files[index][0]][start:])
    return checkpoints.offer(who, offered), len(need)


def next_attempt(job: Job) -> None:
    job.attempts.filter(closed_at=None).update(held=False, closed_at=timezone.now())
    job.attempt += 1
    job.save(update_fields=["attempt"])
    factories.add_attempt(job, job.attempt, held=True)


def paths(job: Job) -> set[str]:
    return {file["path"] for file in result_list(job.pk)}


def test_a_later_attempt_sends_only_what_changed_and_replaces_the_set() -> None:
    job = factories.job(state=State.PROCESSING)
    assert send(grant(job), {"same": b"same", "old": b"old"})[1] == 2
    next_attempt(job)

    response, sent = send(grant(job), {"same": b"same", "new": b"new"})

    assert (response.state, sent) == ("COMMITTED", 1)
    assert paths(job) == {"same", "new"}
    blobs.sweep(timedelta(days=1))
    assert set(Blob.objects.values_list("size", flat=True)) == {4, 3}
    assert Blob.objects.count() == 2  # the bytes of the one that is gone are released


def test_a_learner_that_was_replaced_never_overwrites_newer_results(monkeypatch: pytest.MonkeyPatch) -> None:
    job = factories.job(state=State.PROCESSING)
    stale = grant(job)
    send(stale, {"a": b"first"})
    next_attempt(job)
    send(grant(job), {"a": b"second"})
    assert checkpoints.offer(stale, offer_of({"a": b"first"})).state == "REFUSED"

    # Its attempt is closed between the first look and the write.
    monkeypatch.setattr(checkpoints, "_is_live", lambda grant: True)
    assert send(stale, {"a": b"first"})[0].state == "REFUSED"

    assert blobs.read(ResultFile.objects.get(job=job).blob, 0, 9) == b"second"


def test_a_learner_lost_with_its_node_keeps_the_results_of_its_last_end() -> None:
    job = factories.job(state=State.PROCESSING, learners=2)
    for rank in (0, 1):
        send(grant(job, rank), {"a": b"of rank %d" % rank})
    next_attempt(job)

    send(grant(job, 0), {"b": b"newer"})

    assert paths(job) == {"b", "learner-1/a"}


def test_an_offer_may_be_repeated() -> None:
    job = factories.job(state=State.PROCESSING)
    for _ in range(2):
        assert send(grant(job), {"a": b"one"})[0].state == "COMMITTED"
    assert paths(job) == {"a"}


def test_what_was_not_restored_stays_unless_the_program_wrote_it_again() -> None:
    job = factories.job(state=State.PROCESSING)
    send(grant(job), {"unread": b"first", "rewritten": b"old", "removed": b"gone"})
    next_attempt(job)

    contents = {"rewritten": b"new", "more": b"first"}
    offered = offer_of(contents, unrestored=["unread", "rewritten"])
    for index, blob_id, start in checkpoints.offer(grant(job), offered).need:
        blobs.append(blob_id, start, contents[offered.files[index][0]][start:])
    assert checkpoints.offer(grant(job), offered).state == "COMMITTED"

    stored = {file.path: blobs.read(file.blob, 0, 9) for file in ResultFile.objects.select_related("blob")}
    assert stored == {"unread": b"first", "rewritten": b"new", "more": b"first"}


def test_results_are_listed_in_the_order_of_their_numbers() -> None:
    job = factories.job(state=State.PROCESSING)
    names = ["epoch-2", "epoch-10", "epoch-1", "a/7.png", "a/11.png", "a/0012.png", "z"]
    send(grant(job), {name: name.encode() for name in names})

    listed = [file["path"] for file in result_list(job.pk)]

    assert listed == ["a/7.png", "a/11.png", "a/0012.png", "epoch-1", "epoch-2", "epoch-10", "z"]
