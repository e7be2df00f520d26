"""What is known of a large file while a store makes one object of its parts."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, cast

import pytest
from django.db.models import F
from hypothesis import given
from hypothesis import strategies as st

from jobs import blobs
from jobs.blobs import direct
from jobs.blobs.s3 import S3Store
from jobs.blobs.store import Part, key_of
from jobs.models import Blob
from tests import factories

pytestmark = pytest.mark.django_db
SIZE = 20_000_000
PARTS = [Part(1, direct.PART_BYTES, "1" * 64), Part(2, SIZE - direct.PART_BYTES, "2" * 64)]
HASHES = [part.sha256 for part in PARTS]


class SlowStore:
    """Lists an upload no more once it was asked to finish it, and shows the object when a test says so."""

    def __init__(self) -> None:
        self.uploads: dict[str, list[Part]] = {}
        self.objects: dict[str, int] = {}
        self.lists_on = False
        """It lists the parts even then."""
        self.asked, self.fails = 0, False

    def start(self, key: str) -> str:
        self.uploads[name := f"upload {len(self.uploads) + 1}"] = list(PARTS)
        return name

    def parts(self, key: str, upload_id: str) -> list[Part]:
        if upload_id not in self.uploads:
            raise FileNotFoundError(upload_id)
        return self.uploads[upload_id]

    def finish(self, key: str, upload_id: str, wanted: Any) -> None:
        self.asked += 1
        if self.fails:
            raise blobs.StoreUnavailable("It cannot now.")
        if not self.lists_on:
            del self.uploads[upload_id]

    def size(self, key: str) -> int | None:
        return self.objects.get(key)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowStore:
    monkeypatch.setattr(direct, "_asked", OrderedDict())
    return SlowStore()


@pytest.fixture
def blob(slow: SlowStore) -> Blob:
    """All its parts are in the store."""
    made = Blob.objects.create(tenant=factories.tenant(), sha256="0" * 64, size=SIZE)
    direct.arrived(cast(S3Store, slow), made)
    return made


def finish(slow: SlowStore, blob: Blob) -> Blob:
    return direct.finish(cast(S3Store, slow), Blob.objects.get(pk=blob.pk), HASHES)


def arrived(slow: SlowStore, blob: Blob) -> list[Part]:
    return direct.arrived(cast(S3Store, slow), Blob.objects.get(pk=blob.pk))


def show(slow: SlowStore, blob: Blob, size: int = SIZE) -> None:
    slow.objects[key_of(blob.tenant_id, blob.pk)] = size


def verified(blob: Blob) -> tuple[bool, int, str]:
    return Blob.objects.values_list("verified", "received", "upload_id").get(pk=blob.pk)


def test_a_file_is_verified_once_the_store_shows_it(slow: SlowStore, blob: Blob) -> None:
    for _ in range(2):
        with pytest.raises(blobs.BeingFinished):
            finish(slow, blob)
        with pytest.raises(blobs.BeingFinished):
            arrived(slow, blob)
    assert not verified(blob)[0]

    show(slow, blob)

    assert finish(slow, blob).verified
    assert verified(blob) == (True, SIZE, "")


def test_a_store_that_is_making_the_object_is_asked_again_only_after_a_while(
    slow: SlowStore, blob: Blob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time a thread may wait for it as long as a call may take; the object is looked for all the same."""
    slow.lists_on = slow.fails = True
    for _ in range(2):
        with pytest.raises(blobs.StoreUnavailable, match="cannot now"):
            finish(slow, blob)
    assert slow.asked == 2, "it has not begun"
    slow.fails = False
    for _ in range(3):
        with pytest.raises(blobs.BeingFinished):
            finish(slow, blob)
    assert slow.asked == 3
    with monkeypatch.context() as later:
        later.setattr(direct, "ASKED_AGAIN_AFTER_S", 0)
        with pytest.raises(blobs.BeingFinished):
            finish(slow, blob)
    assert slow.asked == 4
    show(slow, blob)
    assert finish(slow, blob).verified
    assert slow.asked == 4


def test_a_sender_that_begins_again_meanwhile_sends_nothing_twice(slow: SlowStore, blob: Blob) -> None:
    with pytest.raises(blobs.BeingFinished):
        finish(slow, blob)
    show(slow, blob)

    assert arrived(slow, blob) == []
    assert verified(blob) == (True, SIZE, "")
    assert not slow.uploads


def test_an_object_of_another_size_is_not_the_file(slow: SlowStore, blob: Blob) -> None:
    show(slow, blob, SIZE - 1)
    with pytest.raises(FileNotFoundError):
        finish(slow, blob)
    assert not verified(blob)[0]
    assert arrived(slow, blob) == []
    assert slow.uploads, "its parts are sent again"


def test_a_store_that_goes_on_listing_the_parts_has_no_more_time(slow: SlowStore, blob: Blob) -> None:
    slow.lists_on = True
    with pytest.raises(blobs.BeingFinished):
        finish(slow, blob)
    Blob.objects.update(finishing_at=F("finishing_at") - direct.FINISHED_WITHIN)

    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            finish(slow, blob)


def test_a_store_that_never_shows_the_object_is_sent_the_parts_again(slow: SlowStore, blob: Blob) -> None:
    with pytest.raises(blobs.BeingFinished):
        finish(slow, blob)
    Blob.objects.update(finishing_at=F("finishing_at") - direct.FINISHED_WITHIN)

    with pytest.raises(FileNotFoundError):
        finish(slow, blob)
    assert arrived(slow, blob) == []
    assert slow.uploads, "its parts are sent again"
    show(slow, blob)
    assert finish(slow, blob).verified


@pytest.mark.parametrize(
    ("size", "part"), [(1, 16), (1024, 16), (144_000, 16), (144_001, 17), (600_000, 67), (4_000_000, 445)]
)
def test_parts_are_small_but_for_files_that_would_have_too_many(size: int, part: int) -> None:
    """Both in MiB."""
    assert direct.part_bytes(size * 2**20) == part * 2**20


@given(st.integers(1, 5 * 2**40))
def test_the_parts_of_every_file_that_s3_can_hold_are_within_its_limits(size: int) -> None:
    part = direct.part_bytes(size)
    assert 5 * 2**20 <= part <= 5 * 2**30
    assert -(-size // part) <= 10_000
