"""What is sent of a log whose spool was full: the lines of what is gone are counted exactly, wherever the server is."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from learner_agent.log_segments import LogWriter
from learner_agent.shipper.log_sender import LogSender
from learner_agent.spool import Spool
from learner_agent.wire import JobIntent, Welcome

LINE = b"nine bytes\n"


def welcome(log: int) -> Welcome:
    return Welcome(
        session="s", now_ms=0, log=log, sealed=False, max_data=55, metrics={},
        intent=JobIntent("RUN", 1, 60), beat_s=2, window=10_000,
    )  # fmt: skip


@pytest.mark.parametrize("committed", [1, 2, 3], ids=["one frame", "two frames", "three frames"])
def test_lines_are_counted_exactly_when_a_segment_is_dropped_that_was_sent_in_part(
    tmp_path: Path, committed: int
) -> None:
    """The connection was lost amid a segment, and the spool dropped it before the shipper had connected again."""
    spool = Spool(tmp_path)
    spool.create()
    writer = LogWriter(spool, segment_bytes=220)
    for _ in range(60):
        writer.write(LINE, 1)
    first, second = spool.segments()[:2]
    assert first == 0
    sender = LogSender(spool)
    sender.restart(welcome(0))
    frames = list(islice(sender.frames(), 4))  # of which the server commits some; no acknowledgment arrives
    assert frames[3].off + frames[3].size <= second

    lines = (second - first) // len(LINE)
    (spool.log_dir / "gaps").write_text(f"{first} {second} {lines}\n")
    Path(spool.segment_path(first)).unlink()
    cursor = frames[committed].off
    sender.restart(welcome(cursor))
    gone = next(sender.frames())

    assert (gone.off, gone.off + gone.gone) == (cursor, second)
    assert gone.lines == lines - cursor // len(LINE)


def test_what_the_server_has_is_recorded_where_that_changed(tmp_path: Path) -> None:
    """A program that prints nothing leaves no file; a server with an older database may have less than before."""
    spool = Spool(tmp_path)
    spool.create()
    sender = LogSender(spool)
    sender.restart(welcome(0))
    sender.tidy(needed_from=0)
    assert not (spool.log_dir / "acked").exists()
    sender.restart(welcome(55))
    sender.tidy(needed_from=0)
    assert spool.acked() == 55
    later = LogSender(spool)
    later.restart(welcome(0))
    later.tidy(needed_from=0)
    assert spool.acked() == 0
