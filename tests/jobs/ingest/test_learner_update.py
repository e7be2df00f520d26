"""Cursor arithmetic: repeats, overlaps and gaps in any order leave exactly what was printed."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from jobs.ingest.learner_update import CRC_UNKNOWN, LearnerUpdate
from jobs.tokens import Grant
from learner_agent.wire import Ack, Data, Event, Final, Metric, Nack

GRANT = Grant(1, "3f9k2m7qx4ta", 1, 1, 0, True)


def row(**changes: object) -> LearnerUpdate:
    fields: dict[str, object] = {
        "grant": GRANT, "log_bytes": 0, "log_lines": 0, "log_crc": 0, "log_sealed": False, "metric_cursor": 0,
        "phase": "PROCESSING", "first_step": None, "last_step": None, "fell_ms": None,
        "steps_by_rule": False, "error_code": "", "live": True, "room": 10**9,
    }  # fmt: skip
    return LearnerUpdate(**(fields | changes))  # type: ignore[arg-type]


def data(off: int, payload: bytes, t0: int = 1000) -> Data:
    return Data(off, payload, t0, [(len(payload), 0)], zlib.crc32(payload))


def stored(kept: LearnerUpdate) -> bytes:
    return b"".join(b"?" * chunk.len if chunk.tombstone else b"".join(chunk.parts) for chunk in kept.chunks)


SHARES = st.tuples(st.floats(0, 1), st.floats(0, 1))  # where a frame starts and ends, as shares of the whole


@given(st.binary(min_size=1, max_size=300), st.lists(SHARES, max_size=20))
def test_any_cuts_repeated_and_overlapping_store_the_bytes_once(
    whole: bytes, cuts: list[tuple[float, float]]
) -> None:
    kept = row()
    for first, last in [*cuts, (0, 1)]:  # the last frame brings all, so that nothing is missing in the end
        start = min(int(first * len(whole)), len(whole) - 1)
        end = max(start + 1, int(last * len(whole)))
        before = kept.log_bytes
        kept.refusal = None
        kept.apply(data(start, whole[start:end]))
        if start > before:
            assert kept.log_bytes == before
            assert kept.refusal == Nack("log", "GAP", before, kept.refusal.message if kept.refusal else "")
        else:
            assert kept.log_bytes == max(before, end)

    assert stored(kept) == whole
    assert kept.log_lines == whole.count(b"\n")
    assert kept.log_crc == zlib.crc32(whole)
    at, line = 0, 1
    for chunk in kept.chunks:
        assert (chunk.offset, chunk.first_line) == (at, line)
        at, line = at + chunk.len, line + chunk.lines
        offsets = [offset for offset, _ in chunk.times]
        assert offsets == sorted(offsets)
        assert offsets[0] == 0
        assert offsets[-1] < chunk.len


def test_each_read_keeps_its_time_when_a_frame_overlaps() -> None:
    kept = row(log_bytes=4)
    frame = Data(0, b"abcdefgh", 1000, [(3, 0), (3, 5), (2, 9)], zlib.crc32(b"abcdefgh"))

    kept.apply(frame)

    (chunk,) = kept.chunks
    assert (chunk.offset, stored(kept)) == (4, b"efgh")
    assert chunk.times == [[0, 1005], [2, 1009]]


def test_above_the_jobs_cap_bytes_are_counted_but_not_kept() -> None:
    kept = row(room=5)

    kept.apply(data(0, b"one\ntwo\nthree\n"))
    kept.apply(data(14, b"four\n"))

    assert stored(kept) == b"one\nt" + b"?" * 14
    assert [(chunk.tombstone, chunk.len, chunk.lines) for chunk in kept.chunks] == [
        (False, 5, 1),
        (True, 14, 3),
    ]
    assert (kept.log_bytes, kept.log_lines, kept.log_crc) == (19, 4, CRC_UNKNOWN)


def test_that_the_jobs_log_is_full_is_said_once_also_where_its_spool_has_lost_some_before() -> None:
    kept = row(room=5)

    kept.apply(Data(0, gone=100, lines=7))
    kept.apply(data(100, b"one\ntwo\nthree\n"))
    kept.apply(data(114, b"four\n"))

    assert [code for code, _ in kept.errors] == ["log_full"]


def test_a_tombstone_of_the_spool_keeps_offsets_and_lines_dense() -> None:
    kept = row()

    kept.apply(data(0, b"one\n"))
    kept.apply(Data(4, gone=100, lines=7))
    kept.apply(data(104, b"last\n"))

    assert [(chunk.offset, chunk.first_line, chunk.tombstone) for chunk in kept.chunks] == [
        (0, 1, False), (4, 2, True), (104, 9, False),
    ]  # fmt: skip
    assert kept.log_lines == 9


def test_the_stream_is_sealed_when_size_and_checksum_agree() -> None:
    kept = row()
    kept.apply(data(0, b"all\n"))

    kept.apply(Final(4, zlib.crc32(b"all\n")))

    assert kept.log_sealed
    assert kept.response() == [Ack(4, {}, 0, True)]


def test_an_end_that_is_not_reached_yet_asks_for_the_rest() -> None:
    kept = row()
    kept.apply(data(0, b"al"))

    kept.apply(Final(4, 1))

    assert not kept.log_sealed
    assert kept.refusal is not None
    assert (kept.refusal.code, kept.refusal.next) == ("GAP", 2)


def test_a_wrong_checksum_rewinds_to_the_beginning_if_it_can_be_sent_again() -> None:
    kept = row()
    kept.apply(data(0, b"bad\n"))

    kept.apply(Final(4, zlib.crc32(b"all\n"), log_from=0))

    assert kept.restart
    assert (kept.log_bytes, kept.log_lines, kept.log_sealed) == (0, 0, False)
    assert kept.refusal is not None
    assert (kept.refusal.code, kept.refusal.next) == ("CRC", 0)
    kept.apply(data(0, b"all\n"))
    kept.apply(Final(4, zlib.crc32(b"all\n")))
    assert kept.log_sealed
    assert stored(kept) == b"all\n"


def test_a_wrong_checksum_that_cannot_be_sent_again_is_sealed_as_it_is() -> None:
    kept = row()
    kept.apply(data(0, b"bad\n"))

    kept.apply(Final(4, 7, log_from=2))

    assert kept.log_sealed


def test_an_end_before_what_was_acknowledged_keeps_it_and_is_reported() -> None:
    kept = row()
    kept.apply(data(0, b"all\n"))

    kept.apply(Final(3, 0))

    assert (kept.log_sealed, kept.restart, kept.log_bytes) == (True, False, 4)
    assert stored(kept) == b"all\n"
    assert kept.changes["error_code"] == "log_end_disagrees"


def test_a_checksum_that_disagrees_twice_is_sealed_and_never_sent_a_third_time() -> None:
    first = row(log_bytes=4, log_lines=1, log_crc=1)
    first.apply(Final(4, 2))
    assert (first.restart, first.freed) == (True, 4)
    assert first.changes["error_code"] == "log_damaged"

    again = row(log_bytes=first.log_bytes, log_lines=first.log_lines, log_crc=first.log_crc)  # a later batch
    again.apply(data(0, b"bad\n"))
    again.apply(Final(4, 2))

    assert (again.log_sealed, again.restart) == (True, False)
    assert stored(again) == b"bad\n"


def test_after_the_seal_nothing_is_taken() -> None:
    kept = row(log_bytes=4, log_sealed=True)

    kept.apply(data(4, b"more"))
    kept.apply(Final(4, 0))

    assert kept.chunks == []
    assert kept.refusal is not None
    assert kept.refusal.code == "SEALED"


def test_a_closed_attempt_may_still_complete_its_log_but_report_nothing() -> None:
    kept = row(live=False)

    kept.apply(data(0, b"late\n"))
    kept.apply(Metric("jsonl", 0, 10, [("loss", 1, 0, 1.0)]))
    kept.apply(Event(1, "exit", 0, {"code": 0}))

    assert stored(kept) == b"late\n"
    assert (kept.points, kept.changes, kept.needs_reconcile, kept.last_step) == ([], {}, False, None)
    assert kept.response() == [Ack(5, {"jsonl": 10}, 1, False)]


def test_metrics_of_the_file_may_not_leave_a_hole() -> None:
    kept = row(metric_cursor=10)

    kept.apply(Metric("jsonl", 20, 30, [("loss", 1, 0, 1.0)]))

    assert kept.points == []
    assert kept.refusal is not None
    assert (kept.refusal.stream, kept.refusal.code, kept.refusal.next) == ("jsonl", "GAP", 10)


def test_phases_only_go_forward() -> None:
    kept = row(phase="STORING")

    kept.apply(Event(1, "phase", 0, {"phase": "PROCESSING"}))
    assert kept.changes == {}

    kept.apply(Event(2, "phase", 0, {"phase": "DONE"}))
    assert kept.changes == {"phase": "DONE"}


def test_an_exit_keeps_what_the_lifecycle_decides_by() -> None:
    kept = row()

    kept.apply(Event(1, "exit", 0, {"code": 3, "halted": True, "finished": False, "signal": None}))

    assert kept.changes == {"phase": "EXITED", "exit_code": 3, "halted": True, "finished_mark": False}
    assert kept.needs_reconcile


def test_nonsense_in_an_event_changes_nothing_that_matters() -> None:
    kept = row()

    kept.apply(Event(1, "exit", 0, {"code": "zero", "halted": "yes"}))
    kept.apply(Event(2, "phase", 0, {"phase": "GONE"}))
    kept.apply(Event(3, "halt_seen", 0, {"gen": 2**60}))

    assert (kept.changes["exit_code"], kept.changes["halted"], kept.changes["gen_seen"]) == (137, False, 0)


@given(st.lists(st.sampled_from(["rule_too_slow", "log_damaged", "results_not_kept"])), st.data())
def test_no_warning_takes_the_place_of_what_decides_the_jobs_end(
    codes: list[str], draw: st.DataObject
) -> None:
    """However its events are spread over commits."""
    kept, stored_code = row(), ""
    for n, code in enumerate(codes):
        kept.apply(Event(n + 1, "error", 0, {"code": code, "message": f"About {code}."}))
        stored_code = str(kept.changes.get("error_code", stored_code))
        if draw.draw(st.booleans()):
            kept = row(error_code=stored_code)

    newest = codes[-1] if codes else ""
    assert stored_code == ("results_not_kept" if "results_not_kept" in codes else newest)


def points(src: str, *steps: int, name: str = "loss", in_order: bool = False) -> Metric:
    made = [(name, step, 0, 1.0) for step in steps]
    return Metric(src, 0, 1, made, in_order=[name] if in_order else [])


def test_steps_count_from_the_first_to_the_highest_that_were_reported() -> None:
    kept = row()
    kept.apply(points("jsonl", 7, 8))
    kept.apply(points("jsonl", 9))
    assert (kept.first_step, kept.last_step) == (7, 9)


def test_points_in_the_order_of_their_lines_are_no_steps() -> None:
    kept = row()
    kept.apply(points("rules", 1, 2, 3, in_order=True))
    assert (kept.first_step, kept.last_step) == (None, None)
    assert (len(kept.points), kept.in_order) == (3, {"loss"})


def test_a_counter_that_falls_back_takes_its_earlier_steps_along() -> None:
    kept = row()
    kept.apply(points("rules", 1, 20))
    assert (kept.last_step, kept.steps_by_rule) == (20, True)
    kept.apply(points("rules", 21, in_order=True))
    assert (kept.first_step, kept.last_step, kept.no_steps) == (None, None, True)


def test_a_counter_that_fell_back_before_leaves_the_steps_of_other_rules_alone() -> None:
    kept = row(first_step=2, last_step=2, steps_by_rule=True)
    kept.known_in_order = frozenset({"loss"})
    kept.apply(points("rules", 122, in_order=True))
    assert (kept.first_step, kept.last_step, kept.no_steps) == (2, 2, False)


def test_what_the_program_reports_by_itself_stays_its_step() -> None:
    kept = row()
    kept.apply(points("rules", 1, 20))
    kept.apply(points("jsonl", 4, name="reward"))
    kept.apply(points("rules", 21, in_order=True))
    assert (kept.last_step, kept.no_steps) == (20, False)
    kept.apply(points("jsonl", 33, name="reward"))
    assert kept.last_step == 33


def test_the_last_step_is_the_last_reported_one_also_where_steps_fell_back() -> None:
    kept = row()
    kept.apply(points("jsonl", 1000, 3000))
    kept.apply(Metric("jsonl", 1, 2, [("loss", 4000, 0, 1.0)], in_order=["loss"], steps=(10, 10), fell_ms=77))
    assert (kept.first_step, kept.last_step, kept.fell_ms) == (1000, 10, 77)
    kept.apply(
        Metric(
            "jsonl", 2, 3, [("loss", 4590, 0, 1.0), ("val", 4, 0, 1.0)], in_order=["loss"], steps=(600, 600)
        )
    )
    assert (kept.first_step, kept.last_step, kept.fell_ms) == (1000, 600, 77)


def test_what_falls_back_in_reports_leaves_the_steps_of_rules_alone() -> None:
    kept = row()
    kept.apply(points("rules", 1, 20))
    kept.apply(points("tb", 4, name="reward", in_order=True))
    assert (kept.last_step, kept.no_steps) == (20, False)
