"""Offers of files: what counts as a whole checkpoint, and of whom nothing is taken any more."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from django.utils import timezone

from jobs import blobs
from jobs.ingest import files
from jobs.models import Blob, Checkpoint, Job, ResultFile
from jobs.states import State
from jobs.tokens import Grant, grant_of
from learner_agent.wire import Ckpt
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
    for _, blob_id, start in files.offer(who, asked).need:
        blobs.append(blob_id, start, content[start:])
    return files.offer(who, asked)


def state_of(job: Job) -> str:
    return job.checkpoints.values_list("state", flat=True).get()


def test_a_part_that_is_there_does_not_count_for_a_sister_whose_bytes_are_not() -> None:
    """Both parts are declared, and one learner has sent all of its own: a resume would find half a model."""
    job = factories.job(state=State.PROCESSING, learners=2)
    first, second = grant(job, 0), grant(job, 1)
    assert files.offer(second, part_of(1, b"second half")).state == "UPLOADING"

    assert send(first, part_of(0, b"first half"), b"first half").state == "UPLOADING"
    assert state_of(job) == "UPLOADING"

    assert send(second, part_of(1, b"second half"), b"second half").state == "COMMITTED"
    assert state_of(job) == "COMMITTED"
    assert files.offer(first, part_of(0, b"first half")).state == "COMMITTED"


def test_a_part_that_nobody_declared_yet_is_waited_for() -> None:
    job = factories.job(state=State.PROCESSING, learners=2)

    assert send(grant(job, 0), part_of(0, b"first half"), b"first half").state == "UPLOADING"

    assert state_of(job) == "UPLOADING"


@pytest.mark.parametrize("what", ["checkpoint", "implicit", "results"])
@pytest.mark.parametrize("over", ["closed", "followed"])
def test_nothing_of_an_attempt_that_is_over_is_taken(what: str, over: str) -> None:
    """Its learner may still run on a node that nobody reaches: it must not save over what its successor does."""
    job = factories.job(state=State.PROCESSING)
    who = grant(job)
    if over == "closed":
        job.attempts.update(held=False, closed_at=timezone.now())
    else:
        Job.objects.filter(pk=job.pk).update(attempt=job.attempt + 1)
    asked = replace(part_of(0, b"late", of=1), what=what)

    answer = files.offer(who, asked)

    assert (answer.state, answer.need) == ("REFUSED", [])
    assert "This attempt is over" in answer.message
    kept = [model for model in (Checkpoint, ResultFile, Blob) if model.objects.exists()]
    assert kept == []
