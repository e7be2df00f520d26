"""One commit of frames from many learners: what is in the tables afterwards."""

from __future__ import annotations

import json
import math
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import zstandard
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from jobs.ingest import store
from jobs.ingest.intents import note_seen, resumption, session_states
from jobs.ingest.store import MAX_ERRORS, commit
from jobs.models import Job, JobEvent, Learner, LogChunk, MetricPoint, MetricRollup, Progress
from jobs.selectors.attempts import attempts_of, repeated_steps
from jobs.states import EventCode, Intent, Phase, State
from jobs.tokens import Grant, grant_of
from learner_agent.shipper.metrics.reported import ReportedMetrics
from learner_agent.spool import Spool
from learner_agent.wire import Ack, Data, Event, Final, JobIntent, Metric, Nack, StreamFrame
from tests import factories
from tests.meanwhile import Meanwhile

pytestmark = pytest.mark.django_db


def grant(job: Job, rank: int = 0, attempt: int | None = None) -> Grant:
    found = grant_of(factories.secret(job, attempt or job.attempt, rank))
    assert found is not None
    return found


def data(off: int, payload: bytes) -> Data:
    return Data(off, payload, 1000, [(len(payload), 0)], zlib.crc32(payload))


BAD = data(0, b"bad\n")


def log_of(job: Job, rank: int = 0) -> bytes:
    rows = LogChunk.objects.filter(job=job, rank=rank).order_by("offset")
    return b"".join(zstandard.decompress(bytes(row.data)) for row in rows if not row.tombstone)


def submit(job: Job, *frames: StreamFrame, rank: int = 0) -> list[Ack | Nack]:
    who = grant(job, rank)
    return commit([(who, frame) for frame in frames]).responses[who.learner_id]


@pytest.fixture
def job() -> Job:
    return factories.job(state=State.PROCESSING, learners=2)


def test_frames_of_many_learners_share_a_commit_and_each_gets_its_own_answer(job: Job) -> None:
    first, second = grant(job, 0), grant(job, 1)

    done = commit([(first, data(0, b"a\n")), (second, data(0, b"b\nb")), (first, data(2, b"aa\n"))])

    assert done.responses == {
        first.learner_id: [Ack(5, {}, 0, False)],
        second.learner_id: [Ack(3, {}, 0, False)],
    }
    assert (log_of(job, 0), log_of(job, 1)) == (b"a\naa\n", b"b\nb")
    assert sorted(LogChunk.objects.filter(job=job).values_list("seq", flat=True)) == [1, 2]
    progress = Progress.objects.get(job=job)
    assert (progress.log_seq, progress.log_bytes) == (2, 8)


def test_a_repeat_changes_nothing(job: Job) -> None:
    for _ in range(3):
        submit(job, data(0, b"once\n"))

    assert log_of(job) == b"once\n"
    assert Learner.objects.get(job=job, rank=0).log_lines == 1


def test_the_jobs_cap_makes_one_tombstone_that_grows(job: Job, settings: Any) -> None:
    settings.LUTHIER_LOG_JOB_MAX_BYTES = 10

    for n in range(5):
        submit(job, data(n * 6, b"line \n"))
    submit(job, data(0, b"other\n"), rank=1)

    rows = LogChunk.objects.filter(job=job, rank=0).order_by("offset")
    assert [(row.offset, row.len, row.lines, row.tombstone) for row in rows] == [
        (0, 6, 1, False), (6, 4, 0, False), (10, 20, 4, True),
    ]  # fmt: skip
    assert Learner.objects.get(job=job, rank=0).log_bytes == 30
    assert LogChunk.objects.get(job=job, rank=1).tombstone
    reported = job.events.filter(reason="log_full").order_by("n").values_list("message", flat=True)
    assert list(reported) == [
        f"Learner {rank}: The job's log has reached 10 B; the rest is not kept." for rank in (0, 1)
    ]


def test_points_are_numbered_without_holes_and_a_repeat_burns_no_number(job: Job) -> None:
    submit(job, Metric("jsonl", 0, 10, [("loss", 1, 5000, 0.5), ("loss", 2, 6000, math.nan)], total=9))
    submit(job, Metric("jsonl", 0, 10, [("loss", 1, 5000, 0.5), ("loss", 2, 6000, math.nan)]))
    submit(job, Metric("jsonl", 10, 20, [("loss", 2, 7000, 9.0), ("acc", 2, 0, math.inf)]))

    rows = list(
        MetricPoint.objects.filter(job=job).order_by("seq").values_list("seq", "name", "step", "value")
    )
    assert [row[:3] for row in rows] == [(1, "loss", 1), (2, "loss", 2), (3, "acc", 2)]
    assert math.isnan(rows[1][3])
    progress = Progress.objects.get(job=job)
    assert (progress.step, progress.total, progress.metric_seq) == (2, 9, 3)
    assert progress.metrics["acc"] == {"last": "Infinity", "step": 2, "rank": 0, "axis": "step"}


def test_steps_that_were_reported_without_a_number_are_the_jobs_progress(job: Job) -> None:
    submit(job, Metric("jsonl", 0, 10, steps=(1, 4)))
    submit(job, Metric("jsonl", 10, 20, [("loss", 3, 0, 0.5)], steps=(2, 7)))
    assert Progress.objects.get(job=job).step == 7
    learner = Learner.objects.get(job=job, rank=0)
    assert (learner.first_step, learner.last_step, learner.metric_cursor) == (1, 7, 20)
    assert MetricPoint.objects.filter(job=job).count() == 1


def test_complete_segments_of_points_are_rolled_up_with_the_commit(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MetricRollup, "SEGMENT", 4)
    submit(job, Metric("jsonl", 0, 10, [("loss", step, 0, step / 8) for step in range(3)]))
    assert not MetricRollup.objects.exists()
    submit(job, Metric("jsonl", 10, 20, [("loss", step, 0, step / 8) for step in range(3, 10)]))

    rows = MetricRollup.objects.filter(job=job).order_by("first_seq")
    assert list(rows.values_list("first_seq", "last_seq", "low", "high", "last")) == [
        (1, 4, 0.0, 0.375, 0.375),
        (5, 8, 0.5, 0.875, 0.875),
    ]
    progress = Progress.objects.get(job=job)
    assert (progress.metric_seq, progress.metric_rolled) == (10, 8)


def test_a_repeated_step_keeps_its_first_value_in_the_series_and_in_the_header(job: Job) -> None:
    submit(job, Metric("jsonl", 0, 10, [("loss", 1, 0, 0.5), ("loss", 2, 0, 0.4), ("loss", 2, 0, 7.0)]))
    submit(job, Metric("jsonl", 10, 20, [("loss", 1, 0, 8.0), ("loss", 2, 0, 9.0), ("acc", 2, 0, 1.0)]))

    newest = Progress.objects.get(job=job).metrics["loss"]
    assert newest == {"last": 0.4, "step": 2, "rank": 0, "axis": "step"}
    points = MetricPoint.objects.filter(job=job, name="loss").order_by("seq")
    assert list(points.values_list("step", "value")) == [(1, 0.5), (2, 0.4)]


@pytest.mark.parametrize("repeats", [1, 2])
def test_of_steps_that_begin_again_every_point_is_stored_once_and_the_newest_is_shown(
    job: Job, tmp_path: Path, repeats: int
) -> None:
    """Both learners of a gang; after a lost connection frames are sent again."""
    spool = Spool(tmp_path)
    spool.create()
    rows = [
        {"step": step, "time": 1_700_000_001 + epoch, "loss": 12.0 - epoch}
        for epoch in range(12)
        for step in range(5)
    ]
    for rank in (0, 1):
        source = ReportedMetrics(spool)
        for n in range(0, 60, 7):
            spool.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows[: n + 7]))
            frame = source.read()
            assert frame is not None
            for _ in range(repeats):
                submit(job, frame, rank=rank)
            source.confirm(frame)

    points = MetricPoint.objects.filter(job=job)
    assert [points.filter(rank=rank).count() for rank in (0, 1)] == [60, 60]
    progress = Progress.objects.get(job=job)
    assert progress.metrics["loss"] == {"last": 1.0, "step": 59, "rank": 0, "axis": "order"}
    assert (progress.step, progress.metric_lost) == (4, 0)
    assert set(Learner.objects.filter(job=job).values_list("first_step", "last_step", "fell_ms")) == {
        (0, 4, 1_700_000_012_000)
    }


def test_a_counter_that_falls_back_was_no_step_of_an_earlier_attempt_either() -> None:
    """An attempt that was halted in its first epoch cannot know that its counter begins again in the next."""
    job = factories.job(state=State.PROCESSING, attempt=2)
    runs = Learner.objects.filter(job=job)
    runs.filter(attempt=1).update(first_step=0, last_step=48_640, steps_by_rule=True, processing_at=Now())
    runs.filter(attempt=2).update(processing_at=Now())
    submit(job, Metric("rules", 0, 9, [("loss", 0, 0, 1.0), ("loss", 58_880, 0, 0.9)]))
    submit(job, Metric("rules", 9, 12, [("loss", 58_881, 0, 0.8)], in_order=["loss"]))
    submit(job, Metric("rules", 12, 15, [("epoch_loss", 1, 0, 0.8)]))
    submit(job, Metric("rules", 15, 18, [("loss", 58_882, 0, 0.7)], in_order=["loss"]))
    submit(job, Metric("rules", 18, 21, [("epoch_loss", 2, 0, 0.7)]))
    newest = attempts_of(job.pk).get(n=2)
    assert repeated_steps(newest) is None, "steps of the one counter are not compared with those of the other"
    assert runs.filter(attempt=2).values_list("first_step", "last_step").get() == (1, 2)


def test_a_counter_that_falls_back_before_any_step_of_its_attempt_was_none_of_the_job_either() -> None:
    """A progress bar that another thread draws may fall back within the first lines of an attempt."""
    job = factories.job(state=State.PROCESSING, attempt=2)
    runs = Learner.objects.filter(job=job)
    runs.filter(attempt=1).update(first_step=1, last_step=1_547, steps_by_rule=True, processing_at=Now())
    runs.filter(attempt=2).update(processing_at=Now())
    Progress.objects.filter(job=job).update(step=1_547)
    submit(job, Metric("rules", 0, 9, [("loss", 1, 0, 1.0), ("loss", 2, 0, 0.9)], in_order=["loss"]))
    assert Progress.objects.get(job=job).step is None
    assert runs.filter(attempt=1).values_list("first_step", "last_step").get() == (None, None)


@pytest.mark.django_db(transaction=True)
def test_the_last_lines_of_an_attempt_and_a_counter_that_falls_back_in_the_next_do_not_block_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = factories.job(state=State.PROCESSING, attempt=2)
    runs = Learner.objects.filter(job=job)
    runs.filter(attempt=1).update(first_step=1, last_step=100, steps_by_rule=True, processing_at=Now())
    late, live = grant(job, attempt=1), grant(job)
    fell_back = Metric("rules", 0, 9, [("loss", 5, 0, 1.0)], in_order=["loss"])
    begun: list[Meanwhile] = []
    lock_progress = store._lock_progress

    def with_the_learner_locked(*arguments: Any) -> Any:
        if not begun:
            begun.append(Meanwhile(lambda: commit([(live, fell_back)])))
            begun[0].begin()
            assert not begun[0].is_over, "it waits for the learner of the earlier attempt"
        return lock_progress(*arguments)

    monkeypatch.setattr(store, "_lock_progress", with_the_learner_locked)
    assert commit([(late, data(0, b"late\n"))]).lines == 1
    assert begun[0].result().points == 1
    assert log_of(job) == b"late\n"
    assert runs.filter(attempt=1).values_list("first_step", "last_step").get() == (None, None)


def test_a_counter_in_order_leaves_the_steps_that_an_earlier_attempt_reported_by_itself() -> None:
    job = factories.job(state=State.PROCESSING, attempt=2)
    Learner.objects.filter(job=job, attempt=1).update(first_step=1, last_step=40, processing_at=Now())
    Progress.objects.filter(job=job).update(step=40)
    submit(job, Metric("rules", 0, 9, [("loss", 1, 0, 1.0)], in_order=["loss"]))
    assert Progress.objects.get(job=job).step == 40


def test_rank_0_speaks_for_the_gang(job: Job) -> None:
    submit(job, Metric("jsonl", 0, 10, [("loss", 1, 0, 0.1)]), rank=1)
    submit(job, Metric("jsonl", 0, 10, [("loss", 1, 0, 0.2)]), rank=0)
    submit(job, Metric("jsonl", 10, 20, [("loss", 2, 0, 0.3)]), rank=1)

    assert Progress.objects.get(job=job).metrics["loss"]["last"] == 0.2
    assert MetricPoint.objects.filter(job=job).count() == 3


def test_what_a_learner_reports_is_in_its_row(job: Job) -> None:
    submit(
        job, Event(1, "phase", 0, {"phase": "PROCESSING"}), Event(2, "halt_seen", 0, {"gen": 4}),
        Event(3, "exit", 0, {"code": 0, "halted": True}), data(0, b"x"), Final(1, zlib.crc32(b"x")),
        Event(4, "phase", 0, {"phase": "DONE"}),
    )  # fmt: skip

    row = Learner.objects.get(job=job, rank=0)
    assert (row.phase, row.gen_seen, row.exit_code, row.halted, row.log_sealed) == ("DONE", 4, 0, True, True)
    assert None not in (row.halt_seen_at, row.exited_at, row.done_at)


def test_an_exit_reported_late_has_the_time_of_its_learners_clock(job: Job) -> None:
    submit(job, Event(1, "exit", 0, {"code": 1}, ago_ms=600_000))
    row = Learner.objects.annotate(ago=Now() - F("exited_at")).get(job=job, rank=0)
    assert 600 <= row.ago.total_seconds() < 660

    submit(job, Event(1, "exit", 0, {"code": 1}, ago_ms=2**60), rank=1)
    assert Learner.objects.get(job=job, rank=1).exited_at is not None


def test_the_phases_of_a_start_have_the_times_of_their_learners_clock(job: Job) -> None:
    frames = [
        Event(1, "phase", 0, {"phase": "DOWNLOADING"}, ago_ms=90_000),
        Event(2, "phase", 0, {"phase": "READY"}, ago_ms=30_000),
    ]
    submit(job, *frames)
    submit(job, *frames, Event(3, "phase", 0, {"phase": "PROCESSING"}, ago_ms=10_000))

    row = Learner.objects.get(job=job, rank=0)
    assert row.downloading_at is not None
    assert row.ready_at is not None
    assert row.processing_at is not None
    assert (row.ready_at - row.downloading_at).total_seconds() == pytest.approx(60, abs=0.001)
    assert 15 < (row.processing_at - row.ready_at).total_seconds() < 25 + 60


@pytest.mark.parametrize(
    ("before", "with_end"),
    [([BAD], []), ([], [BAD]), ([data(0, b"ba")], [data(2, b"d\n")])],
    ids=["stored before", "in the same batch", "partly"],
)
def test_a_rewound_stream_replaces_what_was_stored(
    job: Job, before: list[Data], with_end: list[Data]
) -> None:
    submit(job, data(0, b"another learner's\n"), rank=1)
    if before:
        submit(job, *before)
    *_, refusal = submit(job, *with_end, Final(4, zlib.crc32(b"all\n")))
    assert isinstance(refusal, Nack)
    assert Progress.objects.get(job=job).log_bytes == 18

    submit(job, data(0, b"all\n"), Final(4, zlib.crc32(b"all\n")))

    assert log_of(job) == b"all\n"
    assert Progress.objects.get(job=job).log_bytes == 18 + 4


def test_an_unknown_learner_gets_no_answer(job: Job) -> None:
    ghost = Grant(10**9, job.pk, job.tenant_id, 1, 0, True)

    assert commit([(ghost, data(0, b"x"))]).responses == {}


def test_the_secret_of_a_closed_attempt_is_valid_only_until_its_log_is_sealed(job: Job) -> None:
    from django.utils import timezone

    secret = factories.secret(job, 1, 0)
    job.attempts.update(held=False, closed_at=timezone.now())
    found = grant_of(secret)
    assert found is not None
    assert not found.live

    Learner.objects.filter(job=job, rank=0).update(log_sealed=True)
    assert grant_of(secret) is None
    assert grant_of("unknown") is None


def test_the_secret_of_a_closed_attempt_is_worth_nothing_after_a_day(job: Job) -> None:
    from datetime import timedelta

    from django.utils import timezone

    job.attempts.update(held=False, closed_at=timezone.now() - timedelta(hours=25))
    assert grant_of(factories.secret(job, 1, 0)) is None


@pytest.mark.parametrize(
    ("fields", "intent"),
    [
        ({}, "RUN"),
        ({"intent": Intent.HALT}, "HALT"),
        ({"intent": Intent.CANCEL}, "CANCEL"),
        ({"state": State.STOPPING, "stop_reason": "preempted"}, "HALT"),
        ({"state": State.STOPPING, "stop_reason": "cancel_requested"}, "CANCEL"),
        ({"attempt": 2}, "CANCEL"),
    ],
)
def test_the_intent_that_a_learner_receives(job: Job, fields: dict[str, object], intent: str) -> None:
    who = grant(job)
    Job.objects.filter(pk=job.pk).update(intent_gen=7, grace_s=33, **fields)

    found = session_states([who.learner_id])[who.learner_id].intent
    assert found == JobIntent(intent, 7, 33, start=found.start)


def test_a_gangs_learners_may_start_once_all_are_ready() -> None:
    job = factories.job(state=State.DOWNLOADING, learners=3)
    learners = list(Learner.objects.filter(job=job).order_by("rank"))

    def may_start(*phases: Phase) -> list[bool]:
        for learner, phase in zip(learners, phases, strict=True):
            Learner.objects.filter(pk=learner.pk).update(phase=phase)
        states = session_states([learner.pk for learner in learners])
        return [states[learner.pk].intent.start for learner in learners]

    assert may_start(Phase.READY, Phase.DOWNLOADING, Phase.READY) == [False] * 3
    assert may_start(Phase.READY, Phase.READY, Phase.WAITING) == [False] * 3
    assert may_start(Phase.READY, Phase.READY, Phase.READY) == [True] * 3
    assert may_start(Phase.PROCESSING, Phase.READY, Phase.EXITED) == [True] * 3, "it stays open"


def test_a_learner_continues_from_the_servers_cursors(job: Job) -> None:
    submit(job, data(0, b"abc"), Metric("jsonl", 0, 12, []))

    found = resumption(grant(job).learner_id)

    assert found is not None
    assert (found.log, found.sealed, found.metrics) == (3, False, {"jsonl": 12})


def test_each_error_is_in_the_history_once_and_their_number_is_bounded(job: Job) -> None:
    def trouble(n: int, code: str, message: str) -> Event:
        return Event(n, "error", 1000, {"code": code, "message": message})

    submit(job, trouble(1, "rule_too_slow", "One."), trouble(2, "rule_too_slow", "Two."))
    submit(job, trouble(3, "rule_too_slow", "Two."))

    reported = JobEvent.objects.filter(job=job, code=EventCode.CONDITION).order_by("n")
    assert list(reported.values_list("message", flat=True)) == ["Learner 0: One.", "Learner 0: Two."]

    submit(job, *(trouble(n, "checkpoint_not_whole", f"step-{n}") for n in range(4, 4 + MAX_ERRORS)))

    assert reported.count() == MAX_ERRORS
    assert Learner.objects.get(job=job, rank=0).message == f"step-{3 + MAX_ERRORS}"


def test_output_that_is_stored_is_progress_and_a_repeat_or_a_heartbeat_is_none(job: Job) -> None:
    learner = Learner.objects.filter(job=job, rank=0)

    def noted() -> bool:
        found = learner.get().stored_at is not None
        learner.update(stored_at=None)
        return found

    submit(job, data(0, b"once\n"))
    assert noted()
    submit(job, data(0, b"once\n"))
    assert not noted()
    note_seen([learner.get().pk])
    note_seen([learner.get().pk])
    assert not noted()
    submit(job, Event(1, "phase", 0, {"phase": "STORING"}))
    assert noted()


def test_the_time_without_progress_counts_from_the_end_of_a_silence(job: Job) -> None:
    """The platform was away for a day; its agents were not at fault."""
    learner = Learner.objects.filter(job=job, rank=0)
    learner.update(last_seen_at=Now() - timedelta(days=1), stored_at=Now() - timedelta(days=1))
    note_seen([learner.get().pk])
    again = learner.get().stored_at
    assert again is not None
    assert again > timezone.now() - timedelta(hours=1)
    learner.update(last_seen_at=Now() - timedelta(seconds=9), stored_at=Now() - timedelta(days=1))
    note_seen([learner.get().pk])
    assert learner.get().stored_at < timezone.now() - timedelta(hours=1)
