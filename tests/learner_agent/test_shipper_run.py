"""What a shipper makes of its spool, without a server."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from learner_agent.settings import shipper_settings
from learner_agent.shipper.run import DEATH_S, EXIT_WRONG_VERSION, Shipper
from learner_agent.spool import Spool
from learner_agent.wire import CLOSE_VERSION, PROTO, Hello, decode


def shipper_of(tmp_path: Path, url: str = "http://127.0.0.1:9") -> Shipper:
    env = {
        name: str(tmp_path / name.lower()) for name in ("JOB_STATE_DIR", "MODEL_DIR", "DATA_DIR", "LOG_DIR")
    }
    env |= {
        "LUTHIER_INGEST_URL": url,
        "LUTHIER_SECRET": "lsec_x",
        "TRAINING_ID": "3f9k2m7qx4ta",
    }
    return Shipper(shipper_settings(env | {"LUTHIER_ATTEMPT": "1", "LUTHIER_RANK": "0"}))


def test_a_dead_launcher_is_reported_although_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipper = shipper_of(tmp_path)
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


def test_a_shipper_of_another_version_ends_and_leaves_the_program_alone(tmp_path: Path) -> None:
    """It would never be understood; the program must not pay for an upgrade of the platform."""

    async def refuse(socket: ServerConnection) -> None:
        hello = decode(await socket.recv())
        assert isinstance(hello, Hello)
        assert hello.proto == PROTO
        await socket.close(CLOSE_VERSION, f"proto: this server speaks {hello.proto + 1}.")

    async def scenario() -> int:
        async with serve(refuse, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            shipper = shipper_of(tmp_path, f"http://127.0.0.1:{port}")
            shipper.spool.write("ready", {"resume_from": None})
            async with asyncio.timeout(30):
                return await shipper.run()

    assert asyncio.run(scenario()) == EXIT_WRONG_VERSION
    spool = Spool(tmp_path / "job_state_dir")
    assert not spool.has("halt")
    assert not spool.has("exit")
