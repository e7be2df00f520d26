"""Points of the event files that TensorBoard reads; whatever else is in them is skipped."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner_agent.shipper.metrics.event_files import NotAnEventFile, Scalar, records, scalars
from learner_agent.shipper.metrics.tensorboard import TensorBoard
from learner_agent.spool import Spool
from tests.learner_agent.metrics.sources import (
    Notes,
    drain,
    event,
    event_files,
    field,
    log,
    record,
    rules,
    scalar,
    simple,
    tensor,
    varint,
)


def test_both_ways_of_writing_a_scalar_are_read() -> None:
    assert scalars(event(3, simple("loss", 0.5))) == [Scalar("loss", 3, 1_700_000_000.25, 0.5)]
    assert scalars(event(4, tensor("acc", 1, struct.pack("<f", 0.25)))) == [
        Scalar("acc", 4, 1_700_000_000.25, 0.25)
    ]
    assert scalars(event(4, tensor("n", 9, varint(77), number=10))) == [
        Scalar("n", 4, 1_700_000_000.25, 77.0)
    ]
    assert scalars(event(4, tensor("hist", 1, struct.pack("<ff", 1, 2)))) == []
    assert scalars(event(4, tensor("text", 7, b"words", number=8))) == []


@given(st.binary(max_size=300))
def test_garbled_events_give_nothing_and_raise_nothing(content: bytes) -> None:
    assert isinstance(scalars(content), list)
    try:
        assert isinstance(list(records(content)), list)
    except NotAnEventFile:
        pass


def test_event_files_are_followed_while_they_grow_with_their_run_as_prefix(
    spool: Spool, tmp_path: Path
) -> None:
    (tmp_path / "tb" / "train").mkdir(parents=True)
    path = tmp_path / "tb" / "train" / "events.out.tfevents.1.host"
    whole = record(event(0, b"")) + record(event(1, simple("loss", 0.5)))
    torn = record(event(2, simple("loss", math.inf)))
    path.write_bytes(whole + torn[:20])
    source = TensorBoard(spool, [tmp_path / "tb", tmp_path / "absent"], scan_every_s=0.0)

    assert drain(source) == [("train/loss", 1, 1_700_000_000_250, 0.5)]
    with path.open("ab") as more:
        more.write(torn[20:])
    assert drain(source) == [("train/loss", 2, 1_700_000_000_250, math.inf)]

    again = TensorBoard(spool, [tmp_path / "tb"], scan_every_s=0.0)
    assert drain(again) == []


def test_pictures_among_the_scalars_are_stepped_over(spool: Spool, tmp_path: Path) -> None:
    path = tmp_path / "tb" / "events.out.tfevents.1"
    path.parent.mkdir()
    path.write_bytes(record(b"\x00" * 3_000_000) + record(event(5, simple("loss", 1.0))))

    assert [point[1] for point in drain(TensorBoard(spool, [path.parent], scan_every_s=0.0))] == [5]


def test_an_event_with_many_scalars_gives_all_of_them(spool: Spool, tmp_path: Path) -> None:
    """As one that sums up all layers of a model: each frame holds 2,000 points."""
    notes: Notes = []
    (tmp_path / "tb").mkdir()
    many = [b"".join(field(1, scalar(f"w{n}", n)) for n in range(count)) for count in (900, 1_500, 2_012)]
    path = tmp_path / "tb" / "events.out.tfevents.1"
    path.write_bytes(b"".join(record(event(step, field(5, one))) for step, one in enumerate(many)))

    found = drain(event_files(spool, notes))

    assert [step for _, step, _, _ in found] == [0] * 900 + [1] * 1_500 + [2] * 2_000
    assert [(code, "12 points were not stored" in said) for code, said in notes] == [
        ("points_not_stored", True)
    ]


def test_a_file_that_only_looks_like_one_is_left_alone(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb" / "notes-on-tfevents.txt").write_text("just a text about tfevents\n" * 10)

    assert drain(TensorBoard(spool, [tmp_path / "tb"], scan_every_s=0.0)) == []


def test_hundreds_of_event_files_are_not_read_again_after_a_restart(spool: Spool, tmp_path: Path) -> None:
    roots = [tmp_path / "tb"]
    for number in range(500):
        run = roots[0] / f"a-run-with-a-name-of-some-length-{number:04}"
        run.mkdir(parents=True)
        (run / "events.out.tfevents.1700000000.learner-0").write_bytes(record(event(1, simple("loss", 1.0))))
    assert len(drain(TensorBoard(spool, roots, scan_every_s=0.0))) == 500

    assert drain(TensorBoard(spool, roots, scan_every_s=0.0)) == []


def test_what_was_written_since_the_last_look_is_read_at_the_end(spool: Spool, tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(record(event(1, simple("loss", 1.0))))
    source = TensorBoard(spool, [tmp_path])
    assert [point[1] for point in drain(source)] == [1]
    with path.open("ab") as file:
        file.write(record(event(2, simple("loss", 2.0))))
    assert drain(source) == [], "it looks every two seconds"
    source.end()
    assert [point[1] for point in drain(source)] == [2]


def test_none_means_nothing_left_also_in_a_file_that_was_read_before(spool: Spool, tmp_path: Path) -> None:
    first, second = (tmp_path / f"events.out.tfevents.{n}" for n in (1, 2))
    for path in (first, second):
        path.write_bytes(record(event(1, simple("loss", 1.0))))
    source = TensorBoard(spool, [tmp_path], scan_every_s=0.0)
    for _ in range(2):
        frame = source.read()
        assert frame is not None
        source.confirm(frame)
    with first.open("ab") as file:
        file.write(record(event(7, simple("loss", 2.0))))
    assert [point[1] for point in drain(source)] == [7]


def test_a_full_disk_costs_a_source_no_point(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events.out.tfevents.1").write_bytes(record(event(1, simple("loss", 1.0))))
    log(spool, b"step=4 loss=2\n")

    def full(*_args: object, **_fields: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool, "write", full)
    lines = rules(spool)

    assert [point[1] for point in drain(lines)] == [4]
    assert [point[1] for point in drain(TensorBoard(spool, [tmp_path], scan_every_s=0.0))] == [1]
