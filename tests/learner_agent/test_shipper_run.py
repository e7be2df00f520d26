"""What a shipper makes of its spool, without a server."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from learner_agent.settings import shipper_settings
from learner_agent.shipper.run import DEATH_S, Shipper


def test_a_dead_launcher_is_reported_although_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {
        name: str(tmp_path / name.lower()) for name in ("JOB_STATE_DIR", "MODEL_DIR", "DATA_DIR", "LOG_DIR")
    }
    env |= {
        "LUTHIER_INGEST_URL": "http://127.0.0.1:9",
        "LUTHIER_SECRET": "lsec_x",
        "TRAINING_ID": "3f9k2m7qx4ta",
    }
    shipper = Shipper(shipper_settings(env | {"LUTHIER_ATTEMPT": "1", "LUTHIER_RANK": "0"}))
    handle = shipper.spool.hold_lock()
    assert handle is not None
    assert shipper._notice_death(None) is None, "it lives"
    os.close(handle)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shipper.spool, "write", full)
    died_at = shipper._notice_death(None)
    assert died_at is not None
    assert shipper._notice_death(died_at - DEATH_S - 1) is None
    assert shipper.exited.is_set()
    (reported, phase) = shipper.connection._events.values()
    assert (reported.what, reported.data["lost"], reported.data["code"]) == ("exit", True, 137)
    assert phase.data == {"phase": "STORING"}
