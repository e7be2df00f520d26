"""What is uploaded while the program keeps saving."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from learner_agent import training
from learner_agent.shipper import checkpoint_uploader, http
from learner_agent.shipper.description import JobDescription
from learner_agent.shipper.final_files import FinalFiles
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
        self.saved_ns: dict[int | None, int] = {}
        """By step: when it was put in place."""
        self._whole: set[str] = set()

    async def offer(self, offer: Ckpt) -> Ckpt:
        assert offer.saved_ns is not None
        self.saved_ns[offer.step] = offer.saved_ns
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

    assert server.sent == [b"earl", b"late", b"r   "], "the rest of it is gone"
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


def uploader(server: Server, tmp_path: Path) -> checkpoint_uploader.CheckpointUploader:
    """As after each start of the shipper: what it knows is in the spool."""
    spool = Spool(tmp_path / "state")
    spool.create()
    return checkpoint_uploader.CheckpointUploader(server, server, spool, tmp_path / "checkpoints")  # type: ignore[arg-type]


def saved(step: int, tmp_path: Path, *, at_ns: int | None = None, of: int = 1) -> None:
    with training.checkpoint(step, part=0, of=of) as folder:
        (folder / "model").write_bytes(b"%d" % step)
    if at_ns is not None:
        os.utime(tmp_path / "checkpoints" / f"step-{step}" / "manifest.json", ns=(at_ns, at_ns))


def test_saves_are_in_the_order_in_which_they_were_put_in_place_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server keeps the newest by it. The clock is set back by an hour, and the program sets a time of its own."""
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    server, clock = Server(lambda: None), [2_000_000_000_000_000_000]
    monkeypatch.setattr(checkpoint_uploader.time, "time_ns", lambda: clock[0])
    before = uploader(server, tmp_path)
    for step, at_ns, passed in (
        (3000, clock[0], 0),
        (20, 2**62, 9),
        (10, 1, -(10**12)),
        (7, clock[0] - 10**12, 1),
    ):
        clock[0] += passed
        saved(step, tmp_path, at_ns=at_ns)
        asyncio.run(before.upload_new_checkpoints())
    saved(5, tmp_path)
    asyncio.run(uploader(server, tmp_path).upload_new_checkpoints())

    assert sorted(server.saved_ns, key=lambda step: server.saved_ns[step]) == [3000, 20, 10, 7, 5]
    assert max(server.saved_ns.values()) < 2_000_000_000_000_001_000, "none is in the future"


@pytest.mark.parametrize(("of", "order"), [(1, [3, 4, 5, 2, 1]), (2, [3, 2, 1])])
def test_a_save_that_is_put_in_place_while_others_wait_is_sent_before_them_unless_it_is_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: int, order: list[int]
) -> None:
    """A halt's save must not wait until a backlog is sent, of which each may take minutes. But two learners that always
    send what is newest may send parts of different saves for as long as they run."""
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path / "checkpoints"))

    later = iter([4, 5])
    server = Server(lambda: [saved(step, tmp_path, of=of) for step in islice(later, 1)])
    for step in (1, 2, 3):
        saved(step, tmp_path, of=of)

    asyncio.run(uploader(server, tmp_path).upload_new_checkpoints())

    assert list(server.saved_ns) == order


def test_a_backlog_keeps_its_order_when_the_shipper_starts_again_in_the_middle_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent from the newest save on."""
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path / "checkpoints"))

    class Killed(Exception):
        pass

    def die() -> None:
        if server.stored:
            raise Killed

    server = Server(die)
    for at_ns, step in enumerate((3000, 10, 500, 600), start=1):
        saved(step, tmp_path, at_ns=at_ns)
    with pytest.raises(Killed):
        asyncio.run(uploader(server, tmp_path).upload_new_checkpoints())
    assert list(server.saved_ns) == [600]
    server.on_piece = lambda: None

    asyncio.run(uploader(server, tmp_path).upload_new_checkpoints())

    assert sorted(server.saved_ns, key=lambda step: server.saved_ns[step]) == [3000, 10, 500, 600]


def test_times_of_saves_that_a_program_wrote_into_the_spool_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    server = Server(lambda: None)
    kept = uploader(server, tmp_path)
    kept.spool.write(checkpoint_uploader.SAVES, {"a": 2**62, "b": -1, "c": "x", "d": None})
    saved(1, tmp_path)

    asyncio.run(uploader(server, tmp_path).upload_new_checkpoints())

    assert 0 < server.saved_ns[1] <= time.time_ns()


def final_files(server: Server, tmp_path: Path) -> FinalFiles:
    """Of learner 0, whose program has ended."""
    kept = uploader(server, tmp_path)
    settings = SimpleNamespace(
        checkpoint_dir=tmp_path / "checkpoints",
        result_dir=tmp_path / "results",
        model_dir=tmp_path / "code",
        rank=0,
    )
    for folder in (settings.checkpoint_dir, settings.result_dir, settings.model_dir):
        folder.mkdir(exist_ok=True)
    job = JobDescription(kept.spool)
    return FinalFiles(settings, kept.spool, server, kept, job, None, pytest.fail)  # type: ignore[arg-type]


def restored(tmp_path: Path) -> None:
    """As inputs.restore leaves a checkpoint that was saved with a manifest."""
    folder = tmp_path / "checkpoints" / "step-5"
    folder.mkdir(parents=True)
    (folder / "w.pt").write_text("restored")
    (folder / "manifest.json").write_text(json.dumps({"step": 5, "restored": True, "of": 1}))


@pytest.mark.parametrize(
    ("imports", "code", "stored"), [(False, 0, True), (False, 143, True), (True, 0, True), (True, 1, False)]
)
@pytest.mark.parametrize("name", ["mine.pt", "step-1000.pt"])
def test_a_clone_that_saves_in_its_own_way_has_its_saves_stored_though_it_began_from_a_manifest(
    tmp_path: Path, name: str, *, imports: bool, code: int, stored: bool
) -> None:
    """Its program was edited. What a failed one left before its first save must not replace the real one."""
    server = Server(lambda: None)
    files = final_files(server, tmp_path)
    restored(tmp_path)
    (tmp_path / "checkpoints" / name).write_text("what torch.save wrote")
    spool = Spool(tmp_path / "state")
    spool.write("exit", {"code": code})
    if imports:
        (spool.root / "imported").touch()

    asyncio.run(files.store())

    assert server.stored == ([b"what torch.save wrote"] if stored else [])
    assert [note["code"] for note in server.reported] == ([] if stored else ["implicit_not_kept"])
    assert all("beside step-5, from which it resumed" in note["message"] for note in server.reported)


def test_a_save_without_a_manifest_is_as_old_as_the_newest_of_its_files(tmp_path: Path) -> None:
    """It is found when the program has ended, which may be long after."""
    server = Server(lambda: None)
    files = final_files(server, tmp_path)
    now = time.time_ns()
    for name, age_s in (("a.pt", 3600), ("b.pt", 60), ("c.pt", 7200)):
        (tmp_path / "checkpoints" / name).write_text("weights")
        at = now - age_s * 10**9
        os.utime(tmp_path / "checkpoints" / name, ns=(at, at))

    asyncio.run(files.store())

    assert server.saved_ns == {None: now - 60 * 10**9}


def test_a_save_that_was_begun_beside_a_restored_one_is_no_checkpoint(tmp_path: Path) -> None:
    """Its program writes manifests, and was ended before this one."""
    server = Server(lambda: None)
    files = final_files(server, tmp_path)
    restored(tmp_path)
    (tmp_path / "checkpoints" / "step-9").mkdir()
    (tmp_path / "checkpoints" / "step-9" / "w.pt").write_text("half of it")
    Spool(tmp_path / "state").write("exit", {"code": 143})

    asyncio.run(files.store())

    assert server.stored == []
    assert [note["code"] for note in server.reported] == ["implicit_not_kept"]


def test_of_an_attempt_that_saved_nothing_a_restored_checkpoint_is_not_stored_again(tmp_path: Path) -> None:
    server = Server(lambda: None)
    files = final_files(server, tmp_path)
    restored(tmp_path)

    asyncio.run(files.store())

    assert (server.stored, server.reported) == ([], [])


def test_a_program_that_saved_with_a_manifest_needs_no_other_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its shipper has started again since, and its own copy is gone."""
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    server = Server(lambda: None)
    restored(tmp_path)
    saved(7, tmp_path)
    asyncio.run(uploader(server, tmp_path).upload_new_checkpoints())
    shutil.rmtree(tmp_path / "checkpoints" / "step-7")
    (tmp_path / "checkpoints" / "log.txt").write_text("of the program")

    asyncio.run(final_files(server, tmp_path).store())

    assert server.stored == [b"7"]
