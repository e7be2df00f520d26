"""What is uploaded while the program keeps saving."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from learner_agent import training
from learner_agent.shipper import checkpoint_uploader, http
from learner_agent.shipper.http import Unreachable
from learner_agent.spool import Spool
from learner_agent.wire import Ckpt


class Server:
    """Connection and client in one: needs each offer's first file, and counts it as stored when its last byte came."""

    def __init__(self, on_piece: Callable[[], None]) -> None:
        self.on_piece = on_piece
        self.sent: list[bytes] = []
        self.stored: list[bytes] = []
        self.reported: list[dict[str, Any]] = []
        self._whole: set[str] = set()

    async def offer(self, offer: Ckpt) -> Ckpt:
        if offer.key in self._whole:
            return Ckpt(offer.key, state="COMMITTED")
        self._asked, self._got = offer, b""
        return Ckpt(offer.key, state="UPLOADING", need=[(0, 1, 0)])

    def report(self, what: str, **data: Any) -> None:
        self.reported.append(data)

    async def json(self, path: str, *, method: str, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
        self._got += body
        self.sent.append(body)
        if len(self._got) == self._asked.files[0][1]:
            self._whole.add(self._asked.key)
            self.stored.append(self._got)
        self.on_piece()
        return {"received": len(self._got), "verified": self._asked.key in self._whole}


def test_a_step_that_is_saved_again_while_it_is_sent_is_no_damage_and_the_later_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_uploader, "PIECE_BYTES", 4)
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    saves = iter([b"later   "])

    def save(content: bytes) -> None:
        with training.checkpoint(0) as folder:
            (folder / "model").write_bytes(content)
        manifest = tmp_path / "checkpoints" / "step-0" / "manifest.json"
        os.utime(manifest, ns=(1, 1))  # as when both saves fall within one tick of the clock

    def save_again() -> None:
        for content in saves:
            save(content)

    server = Server(save_again)
    spool = Spool(tmp_path / "state")
    spool.create()
    kept = checkpoint_uploader.CheckpointUploader(server, server, spool, tmp_path / "checkpoints")  # type: ignore[arg-type]
    save(b"earlier ")

    asyncio.run(kept.upload_new_checkpoints())
    assert (server.sent, server.reported) == ([b"earl"], []), (
        "the rest of it is gone, and no error is reported"
    )
    asyncio.run(kept.upload_new_checkpoints())

    assert (server.stored, server.reported) == ([b"later   "], [])


def test_a_file_of_which_the_server_takes_nothing_for_a_day_is_given_up_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blob store is full: the job must not hold its devices forever."""
    now = 0.0

    def refuse() -> None:
        raise Unreachable("HTTP 503")

    async def pass_time(_: float) -> None:
        nonlocal now
        now += 3600

    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.setattr(http.time, "monotonic", lambda: now)
    monkeypatch.setattr(http.asyncio, "sleep", pass_time)
    with training.checkpoint(0) as folder:
        (folder / "model").write_bytes(b"weights")
    server, spool = Server(refuse), Spool(tmp_path / "state")
    spool.create()
    kept = checkpoint_uploader.CheckpointUploader(server, server, spool, tmp_path / "checkpoints")  # type: ignore[arg-type]

    asyncio.run(kept.upload_new_checkpoints())

    (report,) = server.reported
    assert report["code"] == "checkpoint_not_kept"
    assert report["message"] == "The server took nothing of model for a day: HTTP 503"
    assert 23 < len(server.sent) < 28


def test_a_step_that_was_saved_again_is_kept_though_two_newer_ones_are_stored_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path / "checkpoints"))

    def save(step: int, content: bytes) -> None:
        with training.checkpoint(step) as folder:
            (folder / "model").write_bytes(content)

    server = Server(lambda: None)
    spool = Spool(tmp_path / "state")
    spool.create()
    kept = checkpoint_uploader.CheckpointUploader(server, server, spool, tmp_path / "checkpoints")  # type: ignore[arg-type]
    save(2, b"earlier")
    asyncio.run(kept.upload_new_checkpoints())
    for step, content in [(2, b"later"), (3, b"third"), (4, b"fourth")]:
        save(step, content)

    asyncio.run(kept.upload_new_checkpoints())

    assert server.stored == [b"earlier", b"fourth", b"third", b"later"]
    left = sorted(folder.name for folder in (tmp_path / "checkpoints").iterdir())
    assert left == ["step-3", "step-4"], "all three are stored: the oldest need not lie here"
