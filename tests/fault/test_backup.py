"""A backup of a running installation, restored into another data folder: what it had then is there, and goes on."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener

import pytest

from jobs.blobs.folder import FolderStore
from jobs.blobs.store import MARK, number_of
from portal.backup.contents import BLOBS, DUMP, BackupError, Manifest, run_tool, tool
from portal.backup.restoring import _connected, _embedded, restore
from portal.settings.embedded import layout
from portal.settings.secret import new_secrets_key
from tests.fault.specs import TRAINS, spec
from tests.platform import Platform, running, wait_for

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]


def test_a_backup_of_a_running_installation_is_restored_and_its_jobs_go_on(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with running(tmp_path / "first") as first:
        client = first.client()
        halted, trains = (client.submit(spec("goes-on", TRAINS))["id"] for _ in range(2))
        for job in (halted, trains):
            wait_for(
                lambda job=job: (client.job(job)["progress"]["step"] or 0) > 5, within_s=60, what="it trains"
            )
        client.post(f"/jobs/{halted}/halt")
        kept = client.wait_state(halted, "HALTED")["checkpoint"]
        browser = _signed_in(first)
        first.manage("shell", "-c", GRANTS_TO_ANOTHER_ROLE)

        said = first.manage("backup", str(backup))

        assert f"{backup} has 2 jobs" in said
        assert "It has secret_key: keep it" in said
        later = client.submit(spec("goes-on", "print('after the backup')"))["id"]
        client.wait_state(later, "COMPLETED")
        users = first.users
        _others_say_what_they_lack(first)
    assert json.loads((backup / "backup.json").read_text())["jobs"] == 2
    assert _open_to_others(backup) == []

    second = Platform(tmp_path / "second")
    second.users, second.port, second.url = users, first.port, first.url
    restored = second.manage("restore", str(backup))
    assert "Restored 2 jobs" in restored
    assert _open_to_others(second.data / "blobs") == []
    assert b"GRANT" not in _sql(backup), "the roles of one server are not those of another"
    assert (second.data / "secret_key").read_bytes() == (first.data / "secret_key").read_bytes()
    try:
        client = second.start().client()
        assert browser.open(f"{second.url}/me").url == f"{second.url}/me", "it is still signed in"
        assert "the same" in second.manage("shell", "-c", SECRETS_OF_LEARNERS)
        assert client.job(halted)["checkpoint"] == kept
        assert client.call("GET", f"/jobs/{later}").status == 404
        client.post(f"/jobs/{halted}/resume")
        client.wait_state(halted, "COMPLETED", within_s=120)
        log = client.raw_log(halted, attempt=2).decode()
        assert f"from {kept['step'] + 1} with ['attempt-1.txt']" in log
        # Its learners are not those of this installation's nodes, so it begins again by itself.
        wait_for(lambda: client.job(trains)["attempt"] == 2, within_s=120, what="it runs again")
        client.wait_state(trains, "PROCESSING")
        assert "rules hold" in second.manage("invariants")
    finally:
        second.stop()


def test_a_dump_with_grants_is_restored_where_their_role_is_missing(tmp_path: Path) -> None:
    backup = _backup(
        tmp_path / "backup",
        "CREATE TABLE kept (); CREATE ROLE luthier_runs; GRANT SELECT ON kept TO luthier_runs",
    )
    assert b"GRANT" in _sql(backup)

    assert "Restored 0 jobs" in Platform(tmp_path / "data").manage("restore", str(backup))


def test_a_restore_that_failed_leaves_nothing_that_blocks_the_next_one(tmp_path: Path, empty: Path) -> None:
    platform = Platform(tmp_path / "data")
    blobs = platform.data / "blobs"
    blobs.mkdir(parents=True)
    stored = empty / BLOBS / "1" / "000000" / "7"
    stored.parent.mkdir(parents=True)
    stored.write_text("bytes")
    dump = (empty / DUMP).read_bytes()
    (empty / DUMP).write_bytes(dump[:100])
    with pytest.raises(AssertionError, match="pg_restore failed"):
        platform.manage("restore", str(empty))
    assert list(blobs.iterdir()) == []

    (empty / DUMP).write_bytes(dump)
    assert "Restored 0 jobs" in platform.manage("restore", str(empty))
    assert (blobs / "1" / "000000" / "7").read_text() == "bytes"


def test_a_restore_keeps_the_modes_of_a_folder_that_was_there(tmp_path: Path, empty: Path) -> None:
    platform = Platform(tmp_path / "data")
    blobs = platform.data / "blobs"
    blobs.mkdir(parents=True)
    blobs.chmod(0o750)
    (empty / DUMP).write_bytes(b"")
    with pytest.raises(AssertionError, match="pg_restore failed"):
        platform.manage("restore", str(empty))
    assert blobs.stat().st_mode & 0o777 == 0o750


def test_the_keys_of_a_backup_replace_what_the_command_itself_made(tmp_path: Path, empty: Path) -> None:
    (empty / "secret_key").write_text("K" * 86)
    of_backup, of_both, of_folder = (new_secrets_key() for _ in range(3))
    (empty / "secrets_keys").write_text(f"{of_backup}\n{of_both}\n")
    platform = Platform(tmp_path / "data")
    platform.data.mkdir()
    (platform.data / "secrets_keys").write_text(f"{of_both}\n{of_folder}\n")

    platform.manage("restore", str(empty))

    assert (platform.data / "secret_key").read_text() == "K" * 86
    assert (platform.data / "secrets_keys").read_text() == f"{of_backup}\n{of_both}\n{of_folder}\n"
    assert {(platform.data / name).stat().st_mode & 0o077 for name in ("secret_key", "secrets_keys")} == {0}


def _others_say_what_they_lack(platform: Platform) -> None:
    place, backup = platform.data / "blobs", platform.data.with_name("lacks-one")
    stored = [path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()]
    lost, cut, *others = sorted(filter(number_of, stored))
    keys = backup.with_name("keys-elsewhere")
    keys.write_text(new_secrets_key())
    given = {"SECRET_KEY": "k" * 86, "LUTHIER_SECRETS_KEYS_FILE": str(keys)}
    whole = backup.with_name("without-keys")
    said = platform.manage("backup", str(whole), **given)
    assert "It lacks the keys of SECRET_KEY and LUTHIER_SECRETS_KEYS_FILE" in said
    assert "It has secret" not in said
    assert not any((whole / name).exists() for name in ("secret_key", "secrets_keys"))
    said = Platform(backup.with_name("needs-keys")).manage("restore", str(whole))
    assert "It needs the keys that SECRET_KEY and LUTHIER_SECRETS_KEYS_FILE gave" in said

    (place / lost).unlink()
    (place / cut).write_bytes((place / cut).read_bytes()[:-1])
    said = "2 of the files that the dump refers to are missing or incomplete"

    with pytest.raises(AssertionError, match=f", 1, .*{said}"):
        platform.manage("backup", str(backup))

    assert json.loads((backup / "backup.json").read_text())["missing"] == [lost, cut]
    assert {path.name for path in (backup / BLOBS).rglob("*") if path.is_file()} == {
        key.rpartition("/")[2] for key in others
    }
    assert said in Platform(backup.with_name("restored-without")).manage("restore", str(backup))


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A backup of an empty database."""
    return _backup(tmp_path / "backup")


TABLES = """
CREATE TABLE jobs_blob (id bigint GENERATED BY DEFAULT AS IDENTITY);
CREATE TABLE jobs_periodictask (name varchar PRIMARY KEY, result jsonb NOT NULL);
INSERT INTO jobs_periodictask VALUES ('tidy', '{"store": "of-the-dump", "swept_to": "1/000000/7", "answers": 1}');
"""


def _backup(folder: Path, sql: str = "") -> Path:
    """A backup of a database with what a restore needs and what this SQL makes, with grants."""
    (folder / BLOBS).mkdir(parents=True)
    where = layout(folder.with_name("of-the-backup"))
    with _embedded(where) as database:
        with _connected(database) as connection, connection.cursor() as cursor:
            cursor.execute(TABLES + sql)
            connection.commit()
        run_tool("pg_dump", ["--format=custom", f"--file={folder / DUMP}", "--no-owner"], database)
    Manifest("", 0, 0, 0).write(folder)
    return folder


def _open_to_others(folder: Path) -> list[Path]:
    """The folder itself, and files."""
    found = [folder, *(path for path in folder.rglob("*") if path.is_file())]
    assert len(found) > 1
    return [path for path in found if path.stat().st_mode & 0o077]


def _sql(backup: Path) -> bytes:
    command = [tool("pg_restore"), "--file=-", str(backup / DUMP)]
    return subprocess.run(command, capture_output=True, check=True).stdout


@pytest.mark.parametrize(
    ("mark", "options", "number"),
    [("of-the-dump", [], 1_000_001_235), ("of-the-dump", ["--take-over"], 1235), ("", [], 1235)],
    ids=["the original's store", "taken over", "a copy"],
)
def test_a_restored_database_overwrites_and_removes_nothing_in_the_original_s_store(
    tmp_path: Path, empty: Path, mark: str, options: list[str], number: int
) -> None:
    Manifest("", 0, 0, 0, "s3://of-the-original").write(empty)
    there = tmp_path / "store" / "1" / "000001" / "1234"
    there.parent.mkdir(parents=True)
    there.write_text("written after the backup")
    if mark:
        (tmp_path / "store" / MARK).write_text(mark)
    platform = Platform(tmp_path / "data", LUTHIER_BLOBS=str(tmp_path / "store"))

    said = platform.manage("restore", str(empty), *options)

    assert ("has the mark of an installation" in said) == bool(mark and not options)
    with _embedded(layout(platform.data)) as database, _connected(database) as connection:
        cursor = connection.cursor()
        cursor.execute("INSERT INTO jobs_blob DEFAULT VALUES RETURNING id")
        assert cursor.fetchone() == (number,)
        cursor.execute("SELECT result FROM jobs_periodictask")
        ((result,),) = cursor.fetchall()
    assert result["answers"] == 1
    assert "swept_to" not in result
    assert result["store"] != "of-the-dump"
    assert bool(result["store"]) == bool(options)
    if options:
        assert FolderStore(tmp_path / "store").mark() == result["store"]


def test_a_restore_needs_the_place_of_the_stored_files(tmp_path: Path, empty: Path) -> None:
    Manifest("", 0, 0, 0, "s3://of-the-original").write(empty)
    with pytest.raises(AssertionError, match="Set LUTHIER_BLOBS to where they are now"):
        Platform(tmp_path / "data").manage("restore", str(empty))


def test_files_of_a_backup_are_not_left_out_where_the_store_is_a_bucket(tmp_path: Path, empty: Path) -> None:
    Manifest("", 0, 1, 1).write(empty)
    with pytest.raises(BackupError, match="Unset LUTHIER_BLOBS, or set it to a folder"):
        restore(
            empty, layout(tmp_path / "data"), database_url=None, blobs=None, place=FolderStore(tmp_path),
            take_over=False, say=print,
        )  # fmt: skip


SECRETS_OF_LEARNERS = """
from jobs import tokens
from jobs.models import Learner
rows = Learner.objects.filter(attempt=1).values_list("job_id", "rank", "secret_sha256")
assert len(rows) == 2
print("the same" if all(tokens.derive(job, 1, rank)[1] == known for job, rank, known in rows) else "others")
"""


GRANTS_TO_ANOTHER_ROLE = """
from django.db import connection
from portal.database import roles
connection.cursor().execute("CREATE ROLE luthier_runs")
roles.grant("luthier_runs")
"""


def _signed_in(platform: Platform) -> OpenerDirector:
    browser = build_opener(HTTPCookieProcessor())
    page = browser.open(f"{platform.url}/login").read().decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert token
    form = {
        "csrfmiddlewaretoken": token[1],
        "username": "alice",
        "password": platform.users["alice"]["password"],
    }
    request = Request(f"{platform.url}/login", urlencode(form).encode(), headers={"Origin": platform.url})
    assert "/login" not in browser.open(request).url
    return browser


def test_a_backup_is_restored_into_nothing_but_an_empty_place(tmp_path: Path) -> None:
    folder = tmp_path / "half"
    folder.mkdir()
    platform = Platform(tmp_path / "data")
    with pytest.raises(AssertionError, match="is no whole backup"):
        platform.manage("restore", str(folder))
    (folder / "backup.json").write_text(
        '{"made_at": "", "jobs": 0, "blobs": 0, "blob_bytes": 0, "format": 1}'
    )
    (tmp_path / "data" / "postgres").mkdir(parents=True)
    with pytest.raises(AssertionError, match="Restore into another folder"):
        platform.manage("restore", str(folder))
