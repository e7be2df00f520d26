"""The spool: what is written is read from any offset, whatever is dropped, torn or full."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner_agent.log_segments import LogReader, LogWriter, Piece, log_span
from learner_agent.spool import Gap, Spool
from learner_agent.untrusted_files import number_or


def spool_at(path: Path) -> Spool:
    spool = Spool(path)
    spool.create()
    return spool


def read_all(spool: Spool, *, limit: int = 1000, start: int = 0) -> tuple[bytes, list[Gap]]:
    """Everything from start on; gaps are filled with question marks."""
    reader, off, out, gaps = LogReader(spool), start, b"", []
    while (found := reader.read(off, limit=limit)) is not None:
        assert found.off == off
        if isinstance(found, Gap):
            gaps.append(found)
            out += b"?" * (found.to - found.off)
            off = found.to
        else:
            assert 0 < len(found.data) <= limit
            assert sum(size for size, _ in found.reads) == len(found.data)
            out += found.data
            off += len(found.data)
    reader.close()
    return out, gaps


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=200), max_size=60),
    st.integers(50, 500),
    st.integers(1, 300),
    st.data(),
)
def test_what_was_written_is_read_from_any_offset_in_any_size(
    tmp_path_factory: pytest.TempPathFactory,
    writes: list[bytes],
    segment: int,
    limit: int,
    data: st.DataObject,
) -> None:
    spool = spool_at(tmp_path_factory.mktemp("spool"))
    log = LogWriter(spool, segment_bytes=segment)
    for at, written in enumerate(writes):
        log.write(written, 1000 + at)
    whole = b"".join(writes)

    start = data.draw(st.integers(0, len(whole)))

    assert read_all(spool, limit=limit, start=start) == (whole[start:], [])
    assert (log.size, log.lines) == (len(whole), whole.count(b"\n"))
    assert log_span(spool) == (0, len(whole))


def test_a_reader_follows_a_growing_log(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    log, reader = LogWriter(spool, segment_bytes=64), LogReader(spool)
    off = 0
    for n in range(100):
        line = b"line %d\n" % n
        assert reader.read(off) is None
        log.write(line, 5000 + n)
        found = reader.read(off)
        assert isinstance(found, Piece)
        assert (found.data, found.t0) == (line, 5000 + n)
        off += len(line)


def test_times_belong_to_the_reads_they_were_taken_at(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    log = LogWriter(spool)
    for at, text in ((1000, b"a"), (1000, b"bc"), (1007, b"def")):
        log.write(text, at)

    found = LogReader(spool).read(1)

    assert found == Piece(1, b"bcdef", 1000, [(2, 0), (3, 7)])


def test_above_the_cap_head_and_newest_stay_and_the_middle_is_counted(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    log = LogWriter(spool, cap=80_000, head=20_000, segment_bytes=5_000)
    whole = b"".join(b"line %06d\n" % n for n in range(20_000))
    for at in range(0, len(whole), 700):
        log.write(whole[at : at + 700], 1)

    out, gaps = read_all(spool)

    assert len(out) == len(whole)
    (gap,) = gaps
    assert out[: gap.off] == whole[: gap.off]
    assert out[gap.to :] == whole[gap.to :]
    assert gap.off >= 20_000
    assert len(whole) - gap.to >= 20_000
    assert gap.lines == whole[gap.off : gap.to].count(b"\n")
    kept = sum(path.stat().st_size for path in spool.log_dir.glob("*.seg"))
    assert kept < 80_000 * 1.2


def test_the_segment_being_shipped_is_not_dropped_so_a_gap_begins_where_a_frame_can(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    log = LogWriter(spool, cap=40_000, head=0, segment_bytes=5_000)
    whole = b"".join(b"line %06d\n" % n for n in range(10_000))
    spool.set_acked(2_345)
    for at in range(0, len(whole), 500):
        log.write(whole[at : at + 500], 1)

    out, gaps = read_all(spool, start=2_345)

    assert len(out) == len(whole) - 2_345
    for gap in gaps:
        assert gap.lines == whole[gap.off : gap.to].count(b"\n")
    assert out[: gaps[0].off - 2_345] == whole[2_345 : gaps[0].off]


def test_dropping_below_the_acknowledged_offset_keeps_what_is_needed(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    log = LogWriter(spool, segment_bytes=1_000)
    whole = os.urandom(10_000)
    for at in range(0, len(whole), 100):
        log.write(whole[at : at + 100], 1)

    spool.drop_below(4_500)

    assert spool.segments()[0] <= 4_500
    assert len(spool.segments()) == 6
    assert read_all(spool, start=4_500) == (whole[4_500:], [])


def test_a_torn_last_record_waits_and_harms_nothing(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    log = LogWriter(spool)
    log.write(b"whole\n", 1)
    log.close()
    with open(spool.segment_path(0), "ab") as segment:
        segment.write(b"\0\0\0\x09\0\0")

    assert read_all(spool) == (b"whole\n", [])


def test_a_full_disk_makes_a_counted_gap_and_never_an_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = spool_at(tmp_path)
    log = LogWriter(spool)
    log.write(b"before\n", 1)
    real = os.write

    def full(handle: int, data: bytes) -> int:
        if len(data) > 3:
            real(handle, data[:3])  # a part still fits, as it may
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    log.write(b"lost 1\nlost 2\n", 2)
    log.write(b"lost 3\n", 3)
    monkeypatch.setattr(os, "write", real)
    log.write(b"after\n", 4)

    out, gaps = read_all(spool)

    assert out == b"before\n" + b"?" * 21 + b"after\n"
    assert gaps == [Gap(7, 28, 3)]
    assert log.size == len(out)


def test_small_files_are_replaced_as_a_whole_and_garbage_reads_as_absent(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    spool.write("exit", {"code": 3})
    assert spool.read("exit") == {"code": 3}
    (tmp_path / "exit").write_bytes(b"\xff{")
    assert spool.read("exit") is None
    assert spool.read("nothing") is None
    assert not list(tmp_path.glob("*.tmp"))


def test_the_lock_shows_whether_the_launcher_lives(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    assert spool.launcher_lives() is None
    handle = spool.hold_lock()
    assert handle is not None
    assert Spool(tmp_path).launcher_lives() is True
    os.close(handle)
    assert Spool(tmp_path).launcher_lives() is False


def test_a_notification_without_a_reader_never_blocks(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    for _ in range(100_000):
        spool.notify()


def test_a_reader_that_goes_back_behind_what_is_kept_meets_a_hole(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    log = LogWriter(spool, segment_bytes=1_000)
    for _ in range(50):
        log.write(b"x" * 100, 1)
    spool.drop_below(3_000)

    assert LogReader(spool).read(0) == Gap(0, 3_000, 0)


@pytest.mark.parametrize("spoil", ["remove", "cut"])
def test_a_segment_in_the_middle_that_a_program_spoiled_is_a_hole(tmp_path: Path, spoil: str) -> None:
    spool = spool_at(tmp_path)
    writer = LogWriter(spool, segment_bytes=10)
    for piece in (b"0123456789", b"abcdefghij", b"ABCDEFGHIJ"):
        writer.write(piece, 1)
    writer.close()
    middle = Path(spool.segment_path(10))
    if spoil == "remove":
        middle.unlink()
    else:
        os.truncate(middle, 15)

    assert read_all(spool) == (b"0123456789??????????ABCDEFGHIJ", [Gap(10, 20, 0)])


def test_a_reader_that_rested_at_the_end_goes_back_and_finds_all_again(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    log, reader = LogWriter(spool, segment_bytes=64), LogReader(spool)
    written = b"".join(b"line %d\n" % n for n in range(30))
    for line in written.splitlines(keepends=True):
        log.write(line, 5)
    assert len(spool.segments()) > 2
    long_ago = time.time_ns() - 10**10
    os.utime(spool.log_dir, ns=(long_ago, long_ago))  # nothing has come or gone for a while
    for _ in range(3):
        at = 0
        while (piece := reader.read(at)) is not None:
            assert isinstance(piece, Piece)
            assert written[at : at + len(piece.data)] == piece.data
            at += len(piece.data)
        assert at == len(written)
        assert reader.read(at) is None
    log.write(b"more\n", 5)
    assert reader.read(at) is not None


def _write(text: str) -> Callable[[Path], None]:
    return lambda place: place.write_text(text) and None


JUNK: dict[str, Callable[[Path], None]] = {
    "deep": _write("[" * 200_000),
    "huge": _write(json.dumps({"x": "x" * 1_000_000})),
    "digits": _write("9" * 5_000),
    "list": _write("[1]"),
    "bytes": lambda place: place.write_bytes(b"\xff\xfe") and None,
    "folder": lambda place: (place / "x").mkdir(parents=True),
    "fifo": os.mkfifo,
    "link": lambda place: place.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("junk", JUNK)
def test_no_junk_of_a_program_raises_blocks_or_stays_in_the_way(tmp_path: Path, junk: str) -> None:
    spool = spool_at(tmp_path / "state")
    names = ("exit", "phase", "halt", "log/acked", "log/gaps", "log/00000000000000000000.seg", "log/².seg")
    for name in names:
        JUNK[junk](spool.root / name)

    assert spool.read("exit") is None
    assert len(spool.phase()) <= 40
    assert spool.acked() == 0
    assert spool.gaps() == []
    assert spool.segments() == [0]
    assert LogReader(spool).read(0) is None
    writer = LogWriter(spool)
    writer.write(b"text", 1)
    writer.close()
    spool.drop_below(9)
    spool.write("exit", {"code": 3})
    spool.set_acked(4)
    assert spool.read("exit") == {"code": 3}
    assert spool.acked() == 4


@pytest.mark.parametrize("name", ["", "log", "notify", "checkpoints", "shipper"])
def test_the_spool_is_made_even_where_something_else_took_its_names(tmp_path: Path, name: str) -> None:
    place = tmp_path / "state" / name
    place.parent.mkdir(exist_ok=True)
    place.write_text("no folder")

    spool = spool_at(tmp_path / "state")

    os.close(spool.open_fifo())
    assert all(folder.is_dir() for folder in (spool.log_dir, spool.checkpoints, spool.root / "shipper"))


def test_a_number_of_a_program_is_one_or_the_default() -> None:
    odd = ("x", None, True, -1, 2**80, float("nan"), float("inf"), [], {})
    assert [number_or(value, 7) for value in odd] == [7] * len(odd)
    assert (number_or(0, 7), number_or(2.5, 7), number_or(300, 7, most=255)) == (0, 2.5, 7)


def test_only_whole_tombstones_are_read(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    (spool.log_dir / "gaps").write_text("1 2 3\n4 5\n6 x 7 8\n9 10 x\n11 12 13 14\n20 30 1\n40 50 1")

    assert spool.gaps() == [Gap(1, 2, 3), Gap(20, 30, 1)]
