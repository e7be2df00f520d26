"""Whatever dies, the stored log is what was printed: each byte once, each point once, each checkpoint whole."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable

import pytest
from django.db.models import F

from jobs import blobs
from jobs.models import Blob, Checkpoint, CheckpointFile, Job, JobEvent, Learner, MetricPoint
from jobs.selectors.checkpoints import checkpoint_find, checkpoint_for
from jobs.selectors.serializers import CheckpointSerializer
from jobs.states import EventCode, Intent, Phase
from learner_agent.shipper.http import PIECE_BYTES
from tests import factories
from tests.learner_agent.harness import TIMEOUT_S, AgentServer, Rig, make_job, until

MakeRig = Callable[..., Rig]

NUMBERED = """
import sys, time
from learner_agent import training
for n in range(20_000):
    print("line", n)
    if n % 100 == 0:
        training.report(n, loss=1 / (n + 1))
        sys.stdout.flush()
        time.sleep(0.01)
"""
EXPECTED = "".join(f"line {n}\n" for n in range(20_000)).encode()


def assert_whole(learner: Rig) -> None:
    assert learner.stored_log() == EXPECTED
    row = learner.row
    assert (row.log_lines, row.log_sealed, row.phase, row.exit_code) == (20_000, True, "DONE", 0)
    points = MetricPoint.objects.filter(job=learner.job).order_by("seq").values_list("seq", "step")
    assert list(points) == [(n + 1, n * 100) for n in range(200)]


def test_a_shipper_killed_again_and_again_loses_and_repeats_nothing(rig: MakeRig) -> None:
    chance = random.Random(3)
    learner = rig(make_job({"train.py": NUMBERED}))
    learner.launch("python3 train.py")
    for _ in range(8):
        learner.ship()
        time.sleep(chance.uniform(0.15, 0.6))
        learner.kill_shipper()
    learner.ship()

    assert learner.wait() == (0, 0)
    assert_whole(learner)


def test_a_server_that_goes_and_comes_back_loses_nothing(rig: MakeRig, server: AgentServer) -> None:
    learner = rig(make_job({"train.py": NUMBERED}))
    learner.launch("python3 train.py")
    learner.ship()
    for _ in range(3):
        before = learner.row.log_bytes
        until(lambda before=before: learner.row.log_bytes > before or learner.row.log_sealed, "bytes arrive")
        server.stop()
        time.sleep(0.3)
        server.start()

    assert learner.wait(timeout_s=60) == (0, 0)
    assert_whole(learner)


def test_a_program_that_ended_while_the_server_was_away_is_shipped_afterwards(
    rig: MakeRig, server: AgentServer
) -> None:
    learner = rig(make_job({"train.py": NUMBERED}))
    learner.launch("python3 train.py")
    learner.ship()
    until(lambda: learner.spool.phase() == "PROCESSING", "the program runs")
    server.stop()
    assert learner.launcher is not None
    assert learner.launcher.wait(TIMEOUT_S) == 0
    learner.kill_shipper()

    server.start()
    learner.ship()

    assert learner.wait(timeout_s=60) == (0, 0)
    assert_whole(learner)


def test_a_small_spool_reports_exactly_what_it_could_not_keep(rig: MakeRig, server: AgentServer) -> None:
    learner = rig(make_job({"train.py": NUMBERED}))
    learner.env["LUTHIER_SPOOL_BYTES"] = "60000"
    learner.ship()
    until(lambda: learner.spool.has("ready"), "the inputs are there")
    server.stop()
    learner.kill_shipper()
    learner.launch("python3 train.py")
    assert learner.launcher is not None
    learner.launcher.wait(TIMEOUT_S)

    server.start()
    learner.ship()
    learner.wait(timeout_s=60)

    stored = learner.stored_log()
    assert len(stored) == len(EXPECTED)
    assert b"?" * 1000 in stored
    first, last = stored.index(b"?"), stored.rindex(b"?") + 1
    assert stored[:first] + EXPECTED[first:last] + stored[last:] == EXPECTED
    assert (learner.row.log_lines, learner.row.log_sealed) == (20_000, True)


def test_a_launcher_that_is_killed_is_reported_with_everything_it_had_written(rig: MakeRig) -> None:
    learner = rig(make_job({"train.py": "import time\nprint('last words', flush=True)\ntime.sleep(60)"}))
    learner.launch("exec python3 train.py")
    learner.ship()
    until(lambda: learner.row.log_lines == 1, "the line is stored")
    assert learner.launcher is not None

    learner.launcher.kill()

    assert learner.wait()[1] == 0
    row = learner.row
    assert (row.exit_code, row.phase, row.log_sealed) == (None, "DONE", True)
    assert row.exited_at is not None
    assert learner.stored_log() == b"last words\n"


SAVER = """
import os, time
from learner_agent import training
for step in range({steps}):
    time.sleep(0.05)
    with training.checkpoint(step, part=training.rank(), of={of}) as folder:
        (folder / "weights").write_bytes(os.urandom(64) + b"%d" % step)
    training.report(step, loss=1.0)
"""


def test_only_the_newest_checkpoints_are_kept_and_each_was_verified(rig: MakeRig) -> None:
    job = make_job({"train.py": SAVER.format(steps=6, of=1)})
    job.spec["checkpoint"] = {"every": "10m", "keep": 2}
    job.save()
    learner = rig(job)
    learner.launch("python3 train.py")
    learner.ship()

    assert learner.wait() == (0, 0)

    rows = list(Checkpoint.objects.filter(job=job).order_by("n"))
    kept = [row for row in rows if row.state == "COMMITTED"]
    assert {row.state for row in rows} <= {"COMMITTED", "DROPPED"}
    assert len(kept) == 2
    assert max(row.step or 0 for row in kept) == 5
    assert CheckpointFile.objects.filter(checkpoint__in=rows).count() == 2
    assert JobEvent.objects.filter(job=job, code=EventCode.CHECKPOINT_STORED).count() == len(rows)


def test_a_gangs_checkpoint_counts_when_all_its_parts_are_there(rig: MakeRig) -> None:
    job = make_job({"train.py": SAVER.format(steps=1, of=2)}, learners=2)
    first, second = rig(job, rank=0), rig(job, rank=1)
    Learner.objects.filter(job=job, rank=1).update(phase=Phase.READY)  # the gang may start
    first.launch("python3 train.py")
    first.ship()
    assert first.wait() == (0, 0)
    saved = Checkpoint.objects.get(job=job)
    assert (saved.state, saved.parts) == ("UPLOADING", 2)

    second.launch("python3 train.py")
    second.ship()
    assert second.wait() == (0, 0)

    saved.refresh_from_db()
    assert saved.state == "COMMITTED"
    assert sorted(CheckpointFile.objects.values_list("part", "path")) == [(0, "weights"), (1, "weights")]


def test_a_file_that_is_not_what_its_manifest_promises_is_refused_and_the_one_before_stays(
    rig: MakeRig,
) -> None:
    program = """
import json, os, pathlib, time
from learner_agent import training
with training.checkpoint(1) as folder:
    (folder / "weights").write_bytes(b"good")
place = pathlib.Path(os.environ["CHECKPOINT_DIR"]) / "step-2"
place.mkdir()
(place / "weights").write_bytes(b"bad!")
files = [{"path": "weights", "size": 4, "sha256": "0" * 64}]
(place / "manifest.json").write_text(json.dumps({"step": 2, "files": files}))
"""
    job = make_job({"train.py": program})
    learner = rig(job)
    learner.launch("python3 train.py")
    learner.ship()

    assert learner.wait() == (0, 0)

    states = dict(Checkpoint.objects.filter(job=job).values_list("step", "state"))
    assert states[1] == "COMMITTED"
    assert states.get(2) != "COMMITTED"
    assert JobEvent.objects.filter(job=job, code=EventCode.CHECKPOINT_CORRUPT).exists()
    assert "not the file" in learner.row.message


def test_large_files_go_in_pieces_and_survive_a_kill_in_between(rig: MakeRig) -> None:
    program = """
import os, random
from learner_agent import training
with training.checkpoint(1) as folder:
    (folder / "weights").write_bytes(random.Random(1).randbytes(30_000_000))
    (folder / "empty").write_bytes(b"")
"""
    job = make_job({"train.py": program})
    learner = rig(job)
    learner.launch("python3 train.py")
    learner.ship()
    until(lambda: CheckpointFile.objects.filter(blob__received__gt=0, blob__verified=False).exists()
          or Checkpoint.objects.filter(state="COMMITTED").exists(), "the upload is under way")  # fmt: skip
    learner.kill_shipper()
    learner.ship()

    assert learner.wait(timeout_s=60) == (0, 0)

    saved = Checkpoint.objects.get(job=job)
    assert (saved.state, saved.bytes) == ("COMMITTED", 30_000_000)


def test_an_end_is_reported_while_the_checkpoint_is_stored_and_a_kill_in_between_changes_nothing(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    program = """
import random
from learner_agent import training
with training.checkpoint(1) as folder:
    (folder / "weights").write_bytes(random.Random(1).randbytes(10_000_000))
raise SystemExit(3)
"""
    take, go_on = blobs.append, threading.Event()
    request.addfinalizer(go_on.set)

    def take_one_piece(blob_id: int, offset: int, piece: bytes) -> Blob:
        assert offset == 0 or go_on.wait(60)
        return take(blob_id, offset, piece)

    monkeypatch.setattr(blobs, "append", take_one_piece)
    learner = rig(make_job({"train.py": program}))
    learner.launch("python3 train.py")
    learner.ship()

    until(lambda: learner.row.exited_at and learner.row.phase == "STORING", "the end is reported")
    reported = learner.row
    assert (reported.exit_code, reported.done_at) == (3, None)
    until(lambda: Checkpoint.objects.filter(files__blob__received__gt=0).exists(), "its first piece is here")
    saved = CheckpointSerializer.render(checkpoint_find(learner.job.pk, 1))
    assert (saved["state"], saved["bytes"], saved["received"]) == ("UPLOADING", 10_000_000, PIECE_BYTES)
    learner.kill_shipper()
    learner.ship()
    go_on.set()

    assert learner.wait(timeout_s=60) == (3, 0)
    row = learner.row
    assert (row.exit_code, row.phase, row.log_sealed, row.exited_at) == (3, "DONE", True, reported.exited_at)
    saved = CheckpointSerializer.render(checkpoint_find(learner.job.pk, 1))
    assert (saved["state"], saved["bytes"], saved["received"]) == ("COMMITTED", 10_000_000, 10_000_000)


def test_a_damaged_store_is_noticed_before_the_program_starts_and_the_next_attempt_uses_the_one_before(
    rig: MakeRig,
) -> None:
    from tests.learner_agent.test_end_to_end import next_attempt

    job = make_job({"train.py": SAVER.format(steps=2, of=1)})
    learner = rig(job)
    learner.launch("python3 train.py")
    learner.ship()
    learner.wait()
    older, newest = Checkpoint.objects.filter(job=job).order_by("step")
    damaged = factories.bytes_of(newest.files.get().blob)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"X")

    next_attempt(job, newest)
    broken = rig(job)
    broken.launch("echo $RESUME_FROM")
    broken.ship()
    until(lambda: broken.row.error_code, "it is refused")
    assert broken.row.error_code == "not_prepared", "not the job's fault"
    assert b"step-" not in broken.stored_log(), "no program starts from another checkpoint than its peers"
    next_attempt(job, checkpoint_for(Job.objects.get(pk=job.pk)))
    again = rig(job)
    again.launch("echo $RESUME_FROM")
    again.ship()
    assert again.wait(timeout_s=30) == (0, 0)

    assert again.stored_log().endswith(b"step-0\n")
    newest.refresh_from_db()
    assert newest.state == "CORRUPT"
    assert JobEvent.objects.filter(job=job, code=EventCode.CHECKPOINT_CORRUPT).exists()
    assert older.state == "COMMITTED"


@pytest.mark.parametrize("intent", [Intent.HALT, Intent.CANCEL])
def test_a_request_reaches_a_program_without_the_module_as_a_signal(rig: MakeRig, intent: Intent) -> None:
    job = make_job({"train.py": "import time\nprint('up', flush=True)\ntime.sleep(600)"}, grace_s=600)
    learner = rig(job)
    learner.launch("exec python3 train.py")
    learner.ship()
    until(lambda: learner.row.log_lines == 1, "the program runs")

    Job.objects.filter(pk=job.pk).update(intent=intent, intent_gen=F("intent_gen") + 1)

    assert learner.wait() == (143, 0)
    row = Learner.objects.get(job=job)
    assert (row.halted, row.gen_seen) == (True, 2)
    assert json.loads((learner.state / "halt").read_text())["intent"] == intent


def test_an_exit_reported_late_has_its_age(rig: MakeRig) -> None:
    learner = rig(make_job({"train.sh": "until [ -e go ]; do sleep 0.05; done"}))
    learner.launch("sh train.sh")
    learner.ship()
    until(lambda: learner.row.phase == "PROCESSING", "it runs")
    learner.kill_shipper()
    (learner.home / "code" / "go").touch()
    until(lambda: (learner.state / "exit").exists(), "it has ended")
    time.sleep(3)
    learner.ship()

    assert learner.wait() == (0, 0)
    row = learner.row
    assert row.exited_at is not None
    assert row.done_at is not None
    assert (row.done_at - row.exited_at).total_seconds() >= 3
