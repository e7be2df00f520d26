"""A backup of a running installation, restored into another data folder: what it had then is there, and goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
    second.users = users
    restored = second.manage("restore", str(backup))
    assert "Restored 2 jobs" in restored
    try:
        client = second.start().client()
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
