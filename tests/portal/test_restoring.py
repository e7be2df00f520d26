"""What a restore says to the database about files that its backup has not."""

from __future__ import annotations

import hashlib

import pytest
from django.db import connection

from jobs.blobs.store import key_of
from jobs.invariants import violations
from jobs.models import Blob
from jobs.selectors.checkpoints import checkpoint_for
from jobs.states import State
from learner_agent.wire import Ckpt
from portal.backup.restoring import ask_again
from tests import factories
from tests.jobs.ingest.test_checkpoints import at, grant, send

pytestmark = pytest.mark.django_db


def test_a_file_that_the_backup_lacks_is_asked_for_again_and_its_checkpoint_is_not_resumed_from() -> None:
    job = factories.job(state=State.PROCESSING)
    send(grant(job), *at(1, 1))
    same = b"the tokenizer"
    listed = [("tokenizer", len(same), hashlib.sha256(same).hexdigest())]
    assert send(grant(job), Ckpt("2", step=2, files=listed, saved_ns=2), same).state == "COMMITTED"
    lost = Blob.objects.get(sha256=listed[0][2])
    factories.bytes_of(lost).unlink()

    with connection.cursor() as cursor:
        ask_again(cursor, [key_of(lost.tenant_id, lost.pk)])

    assert checkpoint_for(job) == job.checkpoints.get(step=1)
    assert violations() == []
    assert send(grant(job), Ckpt("3", step=3, files=listed, saved_ns=3), same).state == "COMMITTED"
    assert factories.bytes_of(lost).read_bytes() == same
