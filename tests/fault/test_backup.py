"""A backup of a running installation, restored into another data folder: what it had then is there, and goes on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener

import pytest

from portal.backup.contents import BLOBS, DUMP, Manifest, run_tool
from portal.backup.restoring import _embedded
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

        said = first.manage("backup", str(backup))

        assert f"{backup} has 2 jobs" in said
        later = client.submit(spec("goes-on", "print('after the backup')"))["id"]
        client.wait_state(later, "COMPLETED")
        users = first.users
    assert json.loads((backup / "backup.json").read_text())["jobs"] == 2
    assert {
        path.stat().st_mode & 0o077 for path in (backup, backup / "database.dump", backup / "secret_key")
    } == {0}

    second = Platform(tmp_path / "second")
    second.users, second.port, second.url = users, first.port, first.url
    restored = second.manage("restore", str(backup))
    assert "Restored 2 jobs" in restored
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


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A backup of an empty database."""
    backup, where = tmp_path / "backup", layout(tmp_path / "empty")
    (backup / BLOBS).mkdir(parents=True)
    with _embedded(where) as database:
        run_tool("pg_dump", ["--format=custom", f"--file={backup / DUMP}", "--no-owner"], database)
    Manifest("", 0, 0, 0).write(backup)
    return backup


SECRETS_OF_LEARNERS = """
from jobs import tokens
from jobs.models import Learner
rows = Learner.objects.filter(attempt=1).values_list("job_id", "rank", "secret_sha256")
assert len(rows) == 2
print("the same" if all(tokens.derive(job, 1, rank)[1] == known for job, rank, known in rows) else "others")
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
