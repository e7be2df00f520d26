"""What programs import: inside a learner, outside the platform, and when it is used wrongly."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest

from learner_agent import training as module
from learner_agent.shipper.metrics.reported import ReportedMetrics
from learner_agent.spool import Spool
from learner_agent.wire_fields import MAX_POINTS


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name in (
        "JOB_STATE_DIR",
        "TRAINING_ID",
        "CHECKPOINT_DIR",
        "RESUME_FROM",
        "LUTHIER_RANK",
        "NUM_LEARNERS",
        "LUTHIER_CHECKPOINT_EVERY_S",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    yield importlib.reload(module)
    importlib.reload(module)


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    Spool(tmp_path).create()
    monkeypatch.setenv("JOB_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("TRAINING_ID", "3f9k2m7qx4ta")
    yield importlib.reload(module)
    monkeypatch.undo()
    importlib.reload(module)


def test_outside_the_platform_every_call_works_and_does_no_harm(
    outside: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside.report(3, total=10, loss=0.5, acc=1)
    with outside.checkpoint(3) as folder:
        (folder / "model.bin").write_bytes(b"weights")
    outside.finish()

    assert capsys.readouterr().out == "step=3 total=10 loss=0.5 acc=1.0\n"
    assert outside.halt_requested() is False
    assert outside.resume_from() is None
    assert (outside.rank(), outside.world_size()) == (0, 1)
    assert (tmp_path / "checkpoints" / "step-3" / "model.bin").read_bytes() == b"weights"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["checkpoints"]


def test_the_import_is_the_sign_that_the_program_looks_for_a_halt(inside: ModuleType, tmp_path: Path) -> None:
    assert (tmp_path / "imported").exists()
    assert not inside.halt_requested()
    assert not (tmp_path / "halt_noticed").exists()

    (tmp_path / "halt").touch()

    assert inside.halt_requested()
    assert (tmp_path / "halt_noticed").exists()


def save(program: ModuleType, step: int = 1) -> None:
    with program.checkpoint(step) as folder:
        (folder / "model.bin").write_bytes(b"weights")


def test_a_checkpoint_is_due_at_the_interval_of_the_job_from_the_last_save_on(
    inside: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = inside.time.monotonic()
    monkeypatch.setenv("LUTHIER_CHECKPOINT_EVERY_S", "600")
    monkeypatch.setattr(inside.time, "monotonic", lambda: now)
    assert not inside.checkpoint_due()
    assert inside.checkpoint_due(every_s=0)
    now += 600
    assert inside.checkpoint_due()
    save(inside)
    assert not inside.checkpoint_due()
    now += 599
    assert not inside.checkpoint_due()
    now += 1
    with pytest.raises(ZeroDivisionError), inside.checkpoint(2):
        raise ZeroDivisionError
    assert inside.checkpoint_due(), "that save failed"


def test_a_request_makes_a_checkpoint_due_until_a_save_that_began_after_it(
    inside: ModuleType, tmp_path: Path
) -> None:
    home = Spool(tmp_path)
    assert not home.has("checks_save")
    assert not inside.checkpoint_due()
    assert home.has("checks_save")

    home.write("save", {"n": 1})
    assert inside.checkpoint_due()
    assert inside.checkpoint_due(), "it was not saved so far"
    with inside.checkpoint(1):
        assert not inside.checkpoint_due(), "it is being saved"
        home.write("save", {"n": 2})
    assert home.read("saved") == {"n": 1}
    assert inside.checkpoint_due(), "requested after the save had begun"
    with pytest.raises(ZeroDivisionError), inside.checkpoint(2):
        raise ZeroDivisionError
    assert inside.checkpoint_due(), "that save failed"
    save(inside, 2)
    assert not inside.checkpoint_due()
    assert home.read("saved") == {"n": 2}

    assert not importlib.reload(inside).checkpoint_due(), "in another process of the attempt"


def test_a_request_that_is_no_request_is_none(inside: ModuleType, tmp_path: Path) -> None:
    for content in (b"", b"{", b"[1]", b'{"n": "1"}', b'{"n": null}'):
        (tmp_path / "save").write_bytes(content)
        assert not inside.checkpoint_due()


def test_outside_the_platform_only_an_interval_of_its_own_makes_a_checkpoint_due(
    outside: ModuleType, tmp_path: Path
) -> None:
    assert not outside.checkpoint_due()
    assert outside.checkpoint_due(every_s=0)
    assert list(tmp_path.iterdir()) == []


def test_reports_are_whole_lines(inside: ModuleType, tmp_path: Path) -> None:
    inside.report(1, loss=0.5)
    inside.report(2, total=5, loss=float("-inf"))

    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert (lines[1]["total"], lines[1]["loss"]) == (5, "-Infinity")
    assert lines[0]["time"] > 1_600_000_000


def test_a_report_of_many_names_is_several_lines_that_no_reader_skips(
    inside: ModuleType, tmp_path: Path
) -> None:
    values = {f"{'n' * (n % 100)}{n}": n / 2 for n in range(10_000)}
    inside.report(7, total=9, **values)

    source = ReportedMetrics(Spool(tmp_path), pytest.fail)
    points = []
    while (frame := source.read()) is not None:
        assert len(frame.points) <= MAX_POINTS
        assert frame.total == 9
        points += frame.points
        source.confirm(frame)
    assert {name: value for name, _, _, value in points} == values
    assert {step for _, step, _, _ in points} == {7}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"step": 1.5}, "step"), ({"step": -1}, "step"), ({"step": "x"}, "step"), ({"step": 1, "loss": "low"}, "loss"),
     ({"step": 1, "time": 3.0}, "time")],
)  # fmt: skip
def test_a_wrong_report_names_what_is_wrong(
    inside: ModuleType, arguments: dict[str, object], says: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        inside.report(**arguments)


def test_a_checkpoint_is_in_place_with_its_manifest_last(inside: ModuleType, tmp_path: Path) -> None:
    with inside.checkpoint(7) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "a").write_bytes(b"aa")
        (folder / "b").write_bytes(b"")

    place = tmp_path / "checkpoints" / "step-7"
    manifest = json.loads((place / "manifest.json").read_text())
    assert (manifest["step"], manifest["part"], manifest["of"], manifest["world_size"]) == (7, 0, 1, 1)
    assert manifest["ordinal"] == 0
    assert manifest["files"] == [
        {"path": "b", "size": 0, "sha256": hashlib.sha256(b"").hexdigest()},
        {"path": "sub/a", "size": 2, "sha256": hashlib.sha256(b"aa").hexdigest()},
    ]
    assert [entry.name for entry in (tmp_path / "checkpoints").iterdir()] == ["step-7"]


def test_a_save_that_fails_leaves_the_one_before_untouched(inside: ModuleType, tmp_path: Path) -> None:
    with inside.checkpoint(7) as folder:
        (folder / "a").write_bytes(b"good")

    with pytest.raises(OSError, match="disk"):
        save_badly(inside)

    assert (tmp_path / "checkpoints" / "step-7" / "a").read_bytes() == b"good"
    assert [entry.name for entry in (tmp_path / "checkpoints").iterdir()] == ["step-7"]


def save_badly(inside: ModuleType) -> None:
    with inside.checkpoint(7) as folder:
        (folder / "a").write_bytes(b"bad")
        raise OSError("no space on disk")


def test_a_save_cut_off_while_its_files_are_hashed_leaves_nothing_that_looks_saved(
    inside: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "_sha256", Mock(side_effect=SystemExit))

    with pytest.raises(SystemExit), inside.checkpoint(7) as folder:
        (folder / "weights").write_bytes(b"long")

    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_saving_the_same_step_again_replaces_it(inside: ModuleType, tmp_path: Path) -> None:
    for content in (b"first", b"second"):
        with inside.checkpoint(7) as folder:
            (folder / "a").write_bytes(content)

    place = tmp_path / "checkpoints" / "step-7"
    assert (place / "a").read_bytes() == b"second"
    assert json.loads((place / "manifest.json").read_text())["ordinal"] == 1
    assert [entry.name for entry in (tmp_path / "checkpoints").iterdir()] == ["step-7"]


def test_a_second_process_counts_on_although_the_folder_of_the_save_is_gone(
    inside: ModuleType, tmp_path: Path
) -> None:
    for part in (0, 1, 0):
        with inside.checkpoint(7, part=part, of=2) as folder:
            (folder / "shard").write_bytes(b"first")
    shutil.rmtree(tmp_path / "checkpoints")
    again = importlib.reload(inside)  # torchrun starts the program again inside the attempt
    ordinals = []
    for step, part in ((7, 0), (7, 1), (17, 0)):
        with again.checkpoint(step, part=part, of=2) as folder:
            (folder / "shard").write_bytes(b"second")
        manifest = tmp_path / "checkpoints" / f"step-{step}" / f"part-{part}" / "manifest.json"
        ordinals.append(json.loads(manifest.read_text())["ordinal"])
    assert ordinals == [2, 1, 0]


def test_a_damaged_note_of_saves_is_no_obstacle_to_a_save(inside: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "saves-0").write_bytes(b"7 3\n7 \n7 x\n\xff\n7 8 1\n")
    with inside.checkpoint(7) as folder:
        (folder / "a").write_bytes(b"x")
    assert json.loads((tmp_path / "checkpoints" / "step-7" / "manifest.json").read_text())["ordinal"] == 3


def test_parts_of_a_gang_have_places_of_their_own(inside: ModuleType, tmp_path: Path) -> None:
    for part in (0, 1):
        with inside.checkpoint(7, part=part, of=2) as folder:
            (folder / "shard").write_bytes(b"%d" % part)

    for part in (0, 1):
        manifest = tmp_path / "checkpoints" / "step-7" / f"part-{part}" / "manifest.json"
        found = json.loads(manifest.read_text())
        assert (found["part"], found["ordinal"]) == (part, 0)
    with pytest.raises(ValueError, match="part 2 of 2"), inside.checkpoint(7, part=2, of=2):
        pass


def test_where_to_resume_from_comes_from_the_environment(
    inside: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESUME_FROM", "/x/step-3")
    monkeypatch.setenv("LUTHIER_RANK", "2")
    monkeypatch.setenv("NUM_LEARNERS", "4")

    assert inside.resume_from() == Path("/x/step-3")
    assert (inside.rank(), inside.world_size()) == (2, 4)


def test_a_full_disk_is_reported_once_and_never_stops_training(
    inside: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> int:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "write", full)
    for step in range(3):
        inside.report(step, loss=1.0)

    assert capsys.readouterr().err.count("No space left") == 1


def test_a_disk_that_was_full_for_a_while_costs_only_what_came_meanwhile(
    inside: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first write that meets the full disk takes some of a line, as a disk does; the next take nothing."""
    room = [10, 0, 0]
    write = os.write

    def nearly_full(handle: int, text: bytes) -> int:
        if not room:
            return write(handle, text)
        if not (left := room.pop(0)):
            raise OSError(28, "No space left on device")
        return write(handle, text[:left])

    inside.report(1, loss=1.0)
    monkeypatch.setattr(os, "write", nearly_full)
    for step in range(2, 8):
        inside.report(step, loss=1.0)

    reported: list[str] = []
    frame = ReportedMetrics(Spool(tmp_path), reported.append).read()
    assert frame is not None
    assert [step for _, step, _, _ in frame.points] == [1, 5, 6, 7]
    assert reported == [], "the program is not to blame for the line that was cut off"
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "No space left on device" in said[0]
    assert said[1] == "luthier: metrics are kept again; 3 reports were lost"
