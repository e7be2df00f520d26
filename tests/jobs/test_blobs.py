"""The blob store: whole or in pieces, hashed here, kept once per tenant, and deleted when no row refers to it."""

from __future__ import annotations

import hashlib
import os
import time
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models.functions import Now

from jobs import blobs
from jobs.blobs import arrival, removal
from jobs.blobs.folder import FolderStore
from jobs.blobs.store import MARK, store
from jobs.lifecycle import periodic
from jobs.models import Blob, Upload
from jobs.states import State
from tests import factories

pytestmark = pytest.mark.django_db


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_the_same_bytes_are_kept_once_per_tenant() -> None:
    one, other = factories.tenant(), factories.tenant()
    content = os.urandom(5000)

    first, again, elsewhere = (
        blobs.put(one.pk, content),
        blobs.put(one.pk, BytesIO(content)),
        blobs.put(other.pk, content),
    )

    assert first.pk == again.pk != elsewhere.pk
    assert (first.size, first.sha256, first.verified) == (5000, sha256(content), True)
    assert blobs.read(elsewhere, 100, 50) == content[100:150]
    with blobs.open(first) as source:
        assert source.read() == content


@pytest.mark.parametrize("piece", [1, 7, 1000, 10_000])
def test_pieces_go_on_where_the_last_one_ended_and_the_last_one_verifies(piece: int) -> None:
    content = os.urandom(3000) if piece > 1 else b"abc"
    blob = blobs.begin(factories.tenant().pk, sha256(content), len(content))

    for at in range(0, len(content), piece):
        blob = blobs.append(blob.pk, at, content[at : at + piece])

    assert (blob.received, blob.verified) == (len(content), True)
    assert blobs.read(blob, 0, 10_000) == content


def test_an_empty_file_is_a_blob_too() -> None:
    blob = blobs.begin(factories.tenant().pk, sha256(b""), 0)

    assert blobs.append(blob.pk, 0, b"").verified


def test_who_begins_the_same_bytes_a_moment_later_gets_the_same_row_and_the_database_no_error() -> None:
    tenant, others, errors = factories.tenant(), [], []

    def another_is_quicker(execute: Any, sql: str, *more: Any) -> Any:
        if sql == arrival.MAKE and not others:
            others.append(Blob(tenant=tenant, sha256=sha256(b"abc"), size=3))
            others[0].save()
        try:
            return execute(sql, *more)
        except DatabaseError as error:
            errors.append(error)
            raise

    with connection.execute_wrapper(another_is_quicker):
        blob = blobs.begin(tenant.pk, sha256(b"abc"), 3)
    assert (blob.pk, errors) == (others[0].pk, [])
    assert Blob.objects.filter(tenant=tenant).count() == 1


def test_a_piece_at_the_wrong_offset_is_refused_with_the_right_one() -> None:
    blob = blobs.begin(factories.tenant().pk, sha256(b"abcdef"), 6)
    blobs.append(blob.pk, 0, b"abc")

    for offset in (0, 2, 4):
        with pytest.raises(blobs.WrongOffset) as refusal:
            blobs.append(blob.pk, offset, b"d")
        assert refusal.value.received == 3


def test_a_restarted_server_hashes_the_earlier_pieces_from_its_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    blob = blobs.begin(factories.tenant().pk, sha256(b"abcdef"), 6)
    blobs.append(blob.pk, 0, b"abc")
    monkeypatch.setattr(arrival, "_hashers", arrival._Hashers())

    assert blobs.append(blob.pk, 3, b"def").verified


def test_bytes_that_do_not_match_the_declared_hash_are_discarded() -> None:
    blob = blobs.begin(factories.tenant().pk, sha256(b"abcdef"), 6)
    blobs.append(blob.pk, 0, b"abc")

    with pytest.raises(blobs.HashMismatch):
        blobs.append(blob.pk, 3, b"xxx")

    blob.refresh_from_db()
    assert (blob.received, blob.verified) == (0, False)
    blobs.append(blob.pk, 0, b"abc")
    assert blobs.append(blob.pk, 3, b"def").verified


def test_more_bytes_than_declared_are_refused() -> None:
    blob = blobs.begin(factories.tenant().pk, sha256(b"abc"), 3)

    with pytest.raises(blobs.PieceTooLarge):
        blobs.append(blob.pk, 0, b"abcd")


def test_damage_on_the_disk_is_found_by_hashing_again() -> None:
    blob = blobs.put(factories.tenant().pk, b"precious")
    assert blobs.is_sound(blob)
    factories.bytes_of(blob).write_bytes(b"preciouX")

    assert not blobs.is_sound(blob)
    blobs.discard(blob)
    blob.refresh_from_db()
    assert not blob.verified
    with pytest.raises(blobs.BlobGone):
        blobs.open(blob)


def test_bytes_whose_row_is_released_while_they_are_written_get_another_row() -> None:
    tenant = factories.tenant()
    before = blobs.begin(tenant.pk, sha256(b"code"), 4)
    taken = []

    def release(execute: Any, sql: str, *more: Any) -> Any:
        if "FOR KEY SHARE" in sql and not taken:
            taken.append(Blob.objects.filter(pk=before.pk).delete())
        return execute(sql, *more)

    with connection.execute_wrapper(release):
        blob = blobs.put(tenant.pk, BytesIO(b"code"))

    assert taken
    assert blob.pk != before.pk
    assert blobs.read(blob, 0, 4) == b"code"


def test_a_wrongly_declared_size_is_corrected_unless_the_row_is_deleted_meanwhile() -> None:
    tenant = factories.tenant()
    wrong = blobs.begin(tenant.pk, sha256(b"abc"), 2)
    blobs.append(wrong.pk, 0, b"a")
    right = blobs.begin(tenant.pk, sha256(b"abc"), 3)
    assert (right.pk, right.size, right.received) == (wrong.pk, 3, 0)

    def release(execute: Any, sql: str, *more: Any) -> Any:
        if sql.startswith('UPDATE "jobs_blob"'):
            Blob.objects.all().delete()
        return execute(sql, *more)

    with connection.execute_wrapper(release):
        fresh = blobs.begin(tenant.pk, sha256(b"abc"), 4)
    assert fresh.pk != wrong.pk
    assert Blob.objects.get().size == 4


def test_only_blobs_without_references_are_released_and_their_bytes_stay_for_backups(settings: Any) -> None:
    hour, tenant = timedelta(hours=1), factories.tenant()
    settings.LUTHIER_BLOB_RETENTION_H = 2
    used, free = blobs.put(tenant.pk, b"used"), blobs.put(tenant.pk, b"free")
    Upload.objects.create(tenant=tenant, owner=factories.member(tenant), blob=used, files=1, bytes=4)

    assert blobs.release([used.pk, free.pk, free.pk]) == 1

    assert blobs.sweep(hour) == 0
    assert blobs.read(free, 0, 4) == b"free"
    Blob.objects.filter(pk=free.pk).update(released_at=Now() - 3 * hour)
    assert blobs.sweep(hour) == 1
    assert list(Blob.objects.filter(pk__in=[used.pk, free.pk])) == [used]
    assert factories.bytes_of(used).exists()
    assert not factories.bytes_of(free).exists()


def test_a_released_blob_that_is_used_again_stays() -> None:
    day, tenant = timedelta(days=1), factories.tenant()
    before = blobs.put(tenant.pk, b"used again")
    blobs.release([before.pk])
    Blob.objects.update(created_at=Now() - 2 * day, released_at=Now() - 2 * day)

    blob = blobs.put(tenant.pk, b"used again")
    Upload.objects.create(tenant=tenant, owner=factories.member(tenant), blob=blob, files=1, bytes=4)

    assert blobs.sweep(day) == 0
    assert (blob.pk, blobs.read(blob, 0, 4)) == (before.pk, b"used")


def test_a_sweep_takes_what_is_left_behind_and_spares_what_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is written before its row is committed, so a young one without a row may be an upload in progress."""
    monkeypatch.setattr(removal, "SWEPT_AT_ONCE", 2)
    day, tenant = timedelta(days=1), factories.tenant()
    old_blob, young_blob = blobs.put(tenant.pk, b"old"), blobs.put(tenant.pk, b"young")
    Blob.objects.filter(pk=old_blob.pk).update(created_at=Now() - 2 * day)
    root, folder = factories.bytes_of(old_blob).parents[2], factories.bytes_of(old_blob).parent
    unused = [blobs.begin(tenant.pk, str(n) * 64, 1) for n in range(4)]
    Blob.objects.filter(pk__in=[blob.pk for blob in unused]).delete()
    old, young = (
        [root / f"put-{age}", folder / f"{whole.pk}", folder / f"{part.pk}.part"]
        for age, whole, part in (("old", *unused[:2]), ("young", *unused[2:]))
    )
    others = [root / "notes.txt", root / MARK, folder / "7.json", folder / f"{10**9}"]
    for path in (*old, *young, *others):
        path.write_bytes(b"half of it")
    for path in (*old, *others, factories.bytes_of(old_blob)):
        os.utime(path, (time.time() - 2 * day.total_seconds(),) * 2)

    assert blobs.sweep(day) == 1
    assert all(path.exists() for path in old)
    assert blobs.sweep_keys(day) == (3, "")

    assert [path for path in (*old, factories.bytes_of(old_blob)) if path.exists()] == []
    left = (*young, *others, factories.bytes_of(young_blob))
    assert [path for path in left if not path.exists()] == []
    assert list(Blob.objects.all()) == [young_blob]
    for path in others:
        path.unlink()


def test_a_place_belongs_to_the_database_that_has_its_mark() -> None:
    place = store()
    assert isinstance(place, FolderStore)
    (place.root / MARK).unlink(missing_ok=True)
    mark = blobs.own_mark("")
    assert mark
    assert blobs.own_mark(mark) == mark
    assert blobs.own_mark("") == "", "a new database next to used bytes"
    assert blobs.own_mark("another") == ""
    (place.root / MARK).unlink()
    assert blobs.own_mark(mark) == mark, "a copy of the bytes has no mark"


def test_nothing_is_removed_from_a_place_of_another_installation(settings: Any, tmp_path: Path) -> None:
    """Such as a rehearsal of a restore that uses the original's files: its rows name the same bytes."""
    settings.LUTHIER_BLOBS = str(tmp_path)
    (tmp_path / MARK).write_text("the original's")
    tenant = factories.tenant()
    released, orphan = blobs.put(tenant.pk, b"released"), blobs.put(tenant.pk, b"without a row")
    Blob.objects.filter(pk=released.pk).update(released_at=Now() - timedelta(days=2))
    Blob.objects.filter(pk=orphan.pk).delete()
    os.utime(factories.bytes_of(orphan), (0, 0))

    result = periodic.tidy({"store": ""})
    assert (result["store"], result["swept"]) == ("", 0)
    assert factories.bytes_of(released).exists()
    assert factories.bytes_of(orphan).exists()

    (tmp_path / MARK).unlink()
    assert periodic.tidy(result)["swept"] == 2, "by an operator's word"


def test_a_sweep_spares_an_old_row_whose_bytes_still_come() -> None:
    blob = blobs.begin(factories.tenant().pk, sha256(b"abcdef"), 6)
    blobs.append(blob.pk, 0, b"abc")
    Blob.objects.update(created_at=Now() - timedelta(days=2))

    assert blobs.sweep(timedelta(days=1)) == 0

    assert blobs.append(blob.pk, 3, b"def").verified


def test_a_sweep_spares_what_an_open_attempt_may_still_name_as_its_result() -> None:
    """Results are referred to when the last of them has come: after days, if there are many bytes."""
    day = timedelta(days=1)
    job = factories.job(state=State.STORING)
    job.attempts.update(opened_at=Now() - 3 * day)
    result, left_before, elsewhere = (
        blobs.put(job.tenant_id, b"weights"),
        blobs.put(job.tenant_id, b"left before"),
        blobs.put(factories.tenant().pk, b"weights"),
    )
    Blob.objects.update(created_at=Now() - 2 * day, requested_from=[job.pk])
    Blob.objects.filter(pk=left_before.pk).update(created_at=Now() - 4 * day)

    assert blobs.sweep(day) == 2

    assert list(Blob.objects.filter(pk__in=[result.pk, left_before.pk, elsewhere.pk])) == [result]
    job.attempts.update(held=False, closed_at=Now())
    assert blobs.sweep(day) == 1
    assert not factories.bytes_of(result).exists()


def test_a_file_that_goes_while_the_sweep_looks_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    root = factories.bytes_of(blobs.put(factories.tenant().pk, b"kept")).parents[2]
    goes, stays = root / "put-goes", root / "put-stays"
    for path in (goes, stays):
        path.write_bytes(b"half of it")
        os.utime(path, (0, 0))
    is_file = Path.is_file

    def gone_after(path: Path) -> bool:
        there = is_file(path)
        if path == goes:
            path.unlink(missing_ok=True)
        return there

    monkeypatch.setattr(Path, "is_file", gone_after)
    blobs.sweep_keys(timedelta(days=1))
    assert not stays.exists()


def test_a_sweep_that_has_no_time_left_continues_where_it_stopped(
    monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path
) -> None:
    """Most bytes of a large store stay: a sweep that always began with them would never come to the last."""
    tenant = factories.tenant()
    settings.LUTHIER_BLOBS = str(tmp_path)
    kept = [blobs.put(tenant.pk, bytes([n])) for n in range(5)]
    orphan = blobs.put(tenant.pk, b"without a row")
    Blob.objects.filter(pk=orphan.pk).delete()
    for blob in (*kept, orphan):
        os.utime(factories.bytes_of(blob), (0, 0))
    monkeypatch.setattr(removal, "SWEPT_AT_ONCE", 2)
    monkeypatch.setattr(removal, "SWEEP_S", -1.0)
    results = [periodic.tidy({})]
    while results[-1]["swept_to"]:
        assert factories.bytes_of(orphan).exists() == (len(results) < 3)
        results.append(periodic.tidy(results[-1]))

    assert [result["swept_to"].rpartition("/")[2] for result in results] == [
        str(kept[1].pk), str(kept[3].pk), str(orphan.pk), "",
    ]  # fmt: skip
    assert not factories.bytes_of(orphan).exists()
    assert all(factories.bytes_of(blob).exists() for blob in kept)


def test_a_folder_is_listed_in_one_order_and_from_behind_a_key(tmp_path: Path) -> None:
    place = FolderStore(tmp_path)
    assert list(place.older_than(time.time())) == []
    names = [
        "1/000000/7",
        "1/000000/7.part",
        "1/000000/70",
        "1/000001/1000",
        "10/000000/8",
        "2/000000/9",
        "put-x",
    ]
    for name in reversed(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    keys = [key for key, _ in place.older_than(time.time() + 60)]
    assert keys == [name.removesuffix(".part") for name in names]
    for n, key in enumerate(keys):
        behind = [other for other in keys[n:] if other != key]
        assert [other for other, _ in place.older_than(time.time() + 60, key)] == behind
    assert [key for key, _ in place.older_than(time.time() + 60, "1/000000/8")] == keys[3:], "it is gone"


def test_two_processes_that_receive_the_pieces_in_turn_verify_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them hashes what the other one received from the disk."""
    content, processes = os.urandom(5000), (arrival._Hashers(), arrival._Hashers())
    blob = blobs.begin(factories.tenant().pk, sha256(content), len(content))

    for at in range(0, len(content), 1000):
        monkeypatch.setattr(arrival, "_hashers", processes[at // 1000 % 2])
        blob = blobs.append(blob.pk, at, content[at : at + 1000])

    assert blob.verified
    assert blobs.is_sound(blob)


def test_a_large_file_is_hashed_over_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that takes over the last piece of a large file must not read all of it in one request."""
    content = os.urandom(5000)
    monkeypatch.setattr(arrival, "HASHED_AT_ONCE", 2000)
    blob = blobs.begin(factories.tenant().pk, sha256(content), len(content))
    blobs.append(blob.pk, 0, content[:4500])
    monkeypatch.setattr(arrival, "_hashers", arrival._Hashers())

    seen = [blobs.append(blob.pk, 4500, content[4500:])]
    while not seen[-1].verified:
        assert len(seen) < 5
        seen.append(blobs.append(blob.pk, len(content), b""))

    assert [(one.received, one.verified) for one in seen] == [(5000, False), (5000, False), (5000, True)]
    assert blobs.read(blob, 0, 5000) == content


def test_no_process_relies_on_what_it_hashed_before_the_file_began_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the hash of the first try would verify the bytes that a second one left on the disk."""
    one, other, content = arrival._Hashers(), arrival._Hashers(), b"abcdef"
    blob = blobs.begin(factories.tenant().pk, sha256(content), 7)
    monkeypatch.setattr(arrival, "_hashers", one)
    blobs.append(blob.pk, 0, b"abc")
    blobs.begin(blob.tenant_id, sha256(content), 6)
    monkeypatch.setattr(arrival, "_hashers", other)
    blobs.append(blob.pk, 0, b"xxx")
    monkeypatch.setattr(arrival, "_hashers", one)

    with pytest.raises(blobs.HashMismatch):
        blobs.append(blob.pk, 3, b"def")


def test_pieces_are_written_and_hashed_outside_of_transactions() -> None:
    """A slow disk must not hold a row's lock, nor a connection's transaction."""
    blob, locked = blobs.begin(factories.tenant().pk, sha256(b"abcdef"), 6), []

    def watch(execute: Any, sql: str, *more: Any) -> Any:
        locked.extend([sql] if "FOR " in sql or "SAVEPOINT" in sql else [])
        return execute(sql, *more)

    with connection.execute_wrapper(watch):
        blobs.append(blob.pk, 0, b"abc")
        blobs.append(blob.pk, 3, b"def")
    assert locked == []


def test_a_disk_that_lost_the_last_piece_gets_it_again() -> None:
    blob = blobs.begin(factories.tenant().pk, sha256(b"abcdef"), 6)
    blobs.append(blob.pk, 0, b"abcd")
    with factories.bytes_of(blob).with_suffix(".part").open("r+b") as file:
        file.truncate(2)

    with pytest.raises(blobs.WrongOffset) as refusal:
        blobs.append(blob.pk, 4, b"ef")

    assert refusal.value.received == 2
    assert blobs.append(blob.pk, 2, b"cdef").verified
    assert blobs.is_sound(blob)


def test_moved_files_and_new_folders_are_on_disk_before_anything_refers_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    synced: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: (synced.append(str(Path(f"/proc/self/fd/{handle}").readlink())), fsync(handle)),
    )

    whole = blobs.put(factories.tenant().pk, b"whole")
    pieces = blobs.begin(factories.tenant().pk, sha256(b"abc"), 3)
    blobs.append(pieces.pk, 0, b"abc")

    for blob in (whole, pieces):
        assert str(factories.bytes_of(blob).parent) in synced
        assert str(factories.bytes_of(blob).parent.parent) in synced


@pytest.mark.django_db(transaction=True)
def test_to_look_for_known_bytes_is_no_commit() -> None:
    """A lock outside of a transaction would protect nothing, and its commit waits for the disk."""
    tenant = factories.tenant()
    known = blobs.put(tenant.pk, b"code")

    with connection.cursor() as cursor:
        assert blobs.put(tenant.pk, b"code").pk == known.pk
        cursor.execute("SELECT xmax FROM jobs_blob WHERE id = %s", [known.pk])
        assert cursor.fetchone() == ("0",)
        with transaction.atomic():
            assert blobs.put(tenant.pk, b"code").pk == known.pk
            cursor.execute("SELECT xmax = pg_current_xact_id()::xid FROM jobs_blob WHERE id = %s", [known.pk])
            assert cursor.fetchone() == (True,)
