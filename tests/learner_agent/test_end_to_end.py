"""The whole path with real processes: program, launcher, shipper, web server, database."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db.models import F

from jobs import blobs
from jobs.models import Checkpoint, CheckpointFile, Job, JobEvent, Learner, MetricPoint, Progress, ResultFile
from jobs.selectors.attempts import attempts_of, repeated_steps
from jobs.selectors.checkpoints import SaveRequest, save_request
from jobs.selectors.throughput import step_times
from jobs.services import job_checkpoint
from jobs.states import EventCode, Intent, State
from jobs.steps import fell_since
from tests.learner_agent.harness import Rig, make_job, next_attempt, until

MakeRig = Callable[..., Rig]

LOOP = """
import os, pathlib, time
from learner_agent import training

start = training.resume_from()
first = int((start / "step.txt").read_text()) + 1 if start else 0
print("from", first, flush=True)
for step in range(first, {steps}):
    time.sleep(0.02)
    training.report(step, total={steps}, loss=1 / (step + 1))
    print("step", step)
    if training.halt_requested():
        with training.checkpoint(step) as folder:
            (folder / "step.txt").write_text(str(step))
        print("halted at", step)
        break
else:
    (pathlib.Path(os.environ["RESULT_DIR"]) / "model.bin").write_bytes(b"weights")
    training.finish()
"""

STEPS_ALONE = """
import json, os
with open(os.environ["JOB_STATE_DIR"] + "/metrics.jsonl", "a") as report:
    for n in range(1, 11):
        report.write(json.dumps({"step": n, "time": 1_750_000_000 + 2.5 * n, "total": 10}) + "\\n")
"""

NUMBERED = (
    "import sys\nfor n in range(5000):\n    (sys.stdout if n % 3 else sys.stderr).write(f'line {n}\\n')\n"
)


def test_everything_printed_is_stored_byte_for_byte_and_sealed(rig: MakeRig) -> None:
    learner = rig(make_job({"train.py": NUMBERED}))
    learner.launch("python3 train.py")
    learner.ship()

    assert learner.wait() == (0, 0)

    row = learner.row
    assert learner.stored_log() == "".join(f"line {n}\n" for n in range(5000)).encode()
    assert (row.log_lines, row.log_sealed, row.phase, row.exit_code) == (5000, True, "DONE", 0)
    assert row.done_at is not None
    assert not row.checks_halt


def test_a_reporting_program_leaves_points_progress_and_results(rig: MakeRig) -> None:
    learner = rig(make_job({"train.py": LOOP.replace("{steps}", "20")}))
    learner.launch("python3 train.py")
    learner.ship()

    assert learner.wait() == (0, 0)

    points = list(
        MetricPoint.objects.filter(job=learner.job).order_by("seq").values_list("seq", "step", "value")
    )
    assert points == [(n + 1, n, 1 / (n + 1)) for n in range(20)]
    progress = Progress.objects.get(job=learner.job)
    assert (progress.step, progress.total, progress.metrics["loss"]["last"]) == (19, 20, 0.05)
    result = ResultFile.objects.select_related("blob").get(job=learner.job)
    assert result.path == "model.bin"
    assert blobs.read(result.blob, 0, 100) == b"weights"
    assert learner.row.finished_mark


def test_steps_without_a_number_are_timed(rig: MakeRig) -> None:
    learner = rig(make_job({"train.py": STEPS_ALONE}))
    learner.launch("python3 train.py")
    learner.ship()

    assert learner.wait() == (0, 0)

    assert step_times(learner.job.pk, 1, "") == {0: 2.5}
    progress = Progress.objects.get(job=learner.job)
    assert (progress.step, progress.total) == (10, 10)
    assert {name: newest["last"] for name, newest in progress.metrics.items()} == {"seconds_per_step": 2.5}


def test_a_halt_reaches_the_program_saves_a_verified_checkpoint_and_the_next_attempt_goes_on(
    rig: MakeRig,
) -> None:
    # Minutes of it, unless nothing is left: a halt that a busy machine delays must find it running.
    job = make_job({"train.py": LOOP.replace("{steps}", "int(os.environ.get('STEPS', 20_000))")})
    learner = rig(job)
    learner.launch("python3 train.py")
    learner.ship()
    until(lambda: MetricPoint.objects.filter(job=job).count() > 10, "the program reports")

    Job.objects.filter(pk=job.pk).update(intent=Intent.HALT, intent_gen=F("intent_gen") + 1)

    assert learner.wait() == (0, 0)
    row = learner.row
    saved = Checkpoint.objects.get(job=job)
    assert (row.halted, row.finished_mark, row.exit_code, row.checks_halt) == (True, False, 0, True)
    assert (saved.state, saved.step, saved.implicit) == ("COMMITTED", row.last_step, False)
    assert JobEvent.objects.filter(job=job, code=EventCode.CHECKPOINT_STORED).exists()
    assert f"halted at {saved.step}\n".encode() in learner.stored_log()

    next_attempt(job, saved)
    again = rig(job)
    again.launch("STEPS=0 python3 train.py")
    again.ship()
    again.wait()
    assert again.stored_log().startswith(f"from {saved.step + 1}\n".encode())  # type: ignore[operator]


def test_a_checkpoint_is_saved_on_request_while_the_program_runs_on(rig: MakeRig) -> None:
    loop = (
        LOOP.replace("{steps}", "20_000")
        .replace("halt_requested", "checkpoint_due")
        .replace("        break\n", "")
    )
    job = make_job({"train.py": loop})
    learner = rig(job)
    learner.launch("python3 train.py")
    learner.ship()
    until(lambda: learner.row.checks_save, "the program asks whether to save")
    Job.objects.filter(pk=job.pk).update(state=State.PROCESSING)

    job_checkpoint(user=job.owner, job_id=job.pk)

    until(lambda: Checkpoint.objects.filter(job=job, state="COMMITTED").exists(), "it is stored")
    saved = Checkpoint.objects.get(job=job)
    assert (saved.implicit, saved.world_size) == (False, 1)
    assert save_request(job) == SaveRequest(supported=True, waits_since=None)
    seen = MetricPoint.objects.filter(job=job).count()
    until(lambda: MetricPoint.objects.filter(job=job).count() > seen, "the program goes on")
    Job.objects.filter(pk=job.pk).update(intent=Intent.CANCEL, intent_gen=F("intent_gen") + 1)
    learner.wait()
    assert Checkpoint.objects.filter(job=job, implicit=False).count() == 1, "one save for one request"


SAVES_ONCE = """
import os
from learner_agent import training
begin = training.resume_from()
print(sorted(os.listdir(begin)) if begin else "scratch", flush=True)
training.report(10 if begin else 3, loss=1.0)
if not begin:
    with training.checkpoint(3) as folder:
        (folder / "s").write_text("3")
raise SystemExit(3)
"""


def test_an_attempt_that_ends_before_its_first_save_leaves_the_checkpoint_it_went_on_from(
    rig: MakeRig,
) -> None:
    """Else what was put back would be kept as another, nested in itself, and push the real one out at last."""
    job = make_job({"train.py": SAVES_ONCE})
    for attempt in range(3):
        learner = rig(job)
        learner.launch("python3 train.py")
        learner.ship()
        assert learner.wait() == (3, 0)
        saved = Checkpoint.objects.get(job=job)
        assert (saved.state, saved.step, saved.implicit, saved.attempt) == ("COMMITTED", 3, False, 1)
        expected = b"['manifest.json', 's']\n" if attempt else b"scratch\n"
        assert learner.stored_log() == expected
        next_attempt(job, saved)


def test_a_program_that_knows_nothing_of_us_gets_metrics_by_rule_and_an_implicit_checkpoint(
    rig: MakeRig,
) -> None:
    program = """
import os, pathlib
for step in range(5):
    print(f"step={step} loss={'nan' if step == 3 else step / 2}")
(pathlib.Path(os.environ["CHECKPOINT_DIR"]) / "model.bin").write_bytes(b"weights")
raise SystemExit(3)
"""
    job = make_job({"train.py": program})
    job.spec["metrics"] = [{"pattern": r"step=(?P<step>\d+) loss=(?P<loss>\S+)"}]
    job.save()
    learner = rig(job)
    learner.launch(["python3", "train.py"])
    learner.ship()

    assert learner.wait() == (3, 0)

    values = dict(MetricPoint.objects.filter(job=job, name="loss").values_list("step", "value"))
    assert {step: value for step, value in values.items() if step != 3} == {0: 0.0, 1: 0.5, 2: 1.0, 4: 2.0}
    assert values[3] != values[3]
    saved = Checkpoint.objects.get(job=job)
    assert (saved.state, saved.step, saved.implicit) == ("COMMITTED", None, True)
    assert list(CheckpointFile.objects.values_list("path", flat=True)) == ["model.bin"]
    stored = job.events.get(code=EventCode.CHECKPOINT_STORED)
    assert stored.message == (
        "Checkpoint 1 (saved by the program, step unknown, last reported 4) is stored and verified."
    )
    assert stored.numbers["step"] is None

    next_attempt(job, saved)
    again = rig(job)
    again.launch('cat "$RESUME_FROM/model.bin"; echo; echo $RESUME_FROM')
    again.ship()
    again.wait()
    assert again.stored_log() == b"weights\n" + again.env["CHECKPOINT_DIR"].encode() + b"\n"
    assert Checkpoint.objects.get(job=job) == saved, "what was only put back is no new checkpoint"


TWO_PHASES = """
import json, os, pathlib, sys, time
from learner_agent import training
out = open(os.environ["JOB_STATE_DIR"] + "/metrics.jsonl", "a")
began = time.time() if sys.argv[1] == "since-start" else 0
def report(step):
    print(json.dumps({"step": step, "time": time.time() - began, "loss": 1 / step}), file=out, flush=True)
for step in range(1, 301):
    report(step)
if sys.argv[2] == "manifest":
    with training.checkpoint(300) as folder:
        (folder / "model").write_text("of the first phase")
else:
    pathlib.Path(os.environ["CHECKPOINT_DIR"], "model-300.pt").write_text("of the first phase")
time.sleep(0.01)
for step in range(1, 51):
    report(step)
raise SystemExit(143)
"""


@pytest.mark.parametrize("times", ["since-1970", "since-start"])
@pytest.mark.parametrize("saves", ["manifest", "file"])
def test_steps_that_fell_back_after_the_last_save_are_not_said_to_be_kept(
    rig: MakeRig, times: str, saves: str
) -> None:
    """However the program saves, and whatever it gives as the time of its reports."""
    job = make_job({"train.py": TWO_PHASES})
    job.spec["checkpoint"] |= {"step": r"model-(?P<step>\d+)"}
    job.save()
    learner = rig(job)
    learner.launch(f"python3 train.py {times} {saves}")
    learner.ship()
    assert learner.wait() == (143, 0)
    saved = Checkpoint.objects.get(job=job)
    assert (saved.step, learner.row.last_step) == (300, 50)
    assert fell_since(saved)


SAVES_SOMETIMES = """
import os, pathlib, sys
begin, end, save = map(int, sys.argv[1:])
for step in range(begin, end + 1):
    print(f"step={step} loss={1 / step}")
    if step == save:
        (pathlib.Path(os.environ["CHECKPOINT_DIR"]) / f"ckpt-{step}.pt").write_bytes(b"weights %d" % step)
raise SystemExit(3)
"""
STEP_RULE = [{"pattern": r"step=(?P<step>\d+) loss=(?P<loss>\S+)"}]


def run(rig: MakeRig, job: Job, *argv: str) -> None:
    learner = rig(job)
    learner.launch(["python3", "train.py", *argv])
    learner.ship()
    learner.wait()


def test_file_names_state_the_step_of_a_programs_own_checkpoint_by_the_rule_of_the_spec(rig: MakeRig) -> None:
    job = make_job({"train.py": SAVES_SOMETIMES})
    job.spec["metrics"] = STEP_RULE
    job.spec["checkpoint"] = job.spec["checkpoint"] | {"step": r"ckpt-(?P<step>\d+)"}
    job.save()
    run(rig, job, "1", "10", "6")
    saved = Checkpoint.objects.get(job=job)
    assert (saved.state, saved.step, saved.implicit) == ("COMMITTED", 6, True)
    assert "(step 6, by its file names)" in job.events.get(code=EventCode.CHECKPOINT_STORED).message


def test_an_attempt_knows_how_many_steps_it_repeated_after_a_checkpoint_of_unknown_step(rig: MakeRig) -> None:
    job = make_job({"train.py": SAVES_SOMETIMES})
    job.spec["metrics"] = STEP_RULE
    job.save()
    run(rig, job, "1", "10", "6")
    next_attempt(job, Checkpoint.objects.get(job=job))
    run(rig, job, "7", "12", "0")
    assert {one.n: repeated_steps(one) for one in attempts_of(job.pk)} == {1: None, 2: 4}


def test_lines_without_a_step_are_points_in_their_order_and_no_steps(rig: MakeRig) -> None:
    job = make_job({"train.py": 'for loss in range(8):\n    print(f"loss={loss}")\n'})
    job.spec["metrics"] = [{"pattern": r"loss=(?P<loss>\S+)"}]
    job.save()
    run(rig, job)
    found = MetricPoint.objects.filter(job=job).order_by("step")
    assert list(found.values_list("step", "value")) == [(n + 1, float(n)) for n in range(8)]
    progress = Progress.objects.get(job=job)
    assert (progress.step, progress.metrics["loss"]["axis"]) == (None, "order")
    assert Learner.objects.get(job=job).last_step is None


EPOCHS = """
import sys
for epoch in range(3):
    for batch in range(1, 21):
        print(f"Train epoch {epoch}: batch {batch}/20 loss: {epoch + batch / 100}", flush=True)
"""


def test_counters_that_begin_again_with_each_epoch_draw_all_points_of_all_attempts(rig: MakeRig) -> None:
    job = make_job({"train.py": EPOCHS})
    job.spec["metrics"] = [{"pattern": r"batch (?P<step>\d+)/\d+ loss: (?P<loss>\S+)"}]
    job.save()
    run(rig, job)
    found = MetricPoint.objects.filter(job=job, name="loss").order_by("step")
    assert list(found.values_list("step", flat=True)) == list(range(1, 61))
    progress = Progress.objects.get(job=job)
    assert progress.metrics["loss"] == {"last": 2.2, "step": 60, "rank": 0, "axis": "order"}
    assert progress.step is None, "20 is the number of a batch"
    assert Learner.objects.get(job=job).last_step is None
    assert "fell back from 20 to 1" in job.events.get(reason="step_fell_back").message

    next_attempt(job, None)
    run(rig, job)
    later = found.filter(attempt=2)
    assert list(later.values_list("step", flat=True)) == list(range(61, 121))
    assert {one.n: repeated_steps(one) for one in attempts_of(job.pk)} == {1: None, 2: None}


BAR = """
import sys, time
for n in range(16):
    sys.stderr.write(f"\\r{n * 100 // 15:3d}%|###       | {n}/15 [00:01<00:02, loss={1 / (n + 1):.3f}]")
    sys.stderr.flush()
    time.sleep(0.02)
sys.stderr.write("\\n")
"""


def test_a_progress_bar_gives_the_point_of_each_of_its_steps(rig: MakeRig) -> None:
    job = make_job({"train.py": BAR})
    job.spec["metrics"] = [{"pattern": r"(?P<step>\d+)/\d+ \[.*loss=(?P<loss>[\d.]+)"}]
    job.save()
    run(rig, job)
    found = MetricPoint.objects.filter(job=job, name="loss").order_by("step")
    assert list(found.values_list("step", flat=True)) == list(range(16))
    assert Progress.objects.get(job=job).step == 15


def test_of_a_gang_without_manifests_learner_0_saves_for_all(rig: MakeRig, tmp_path: Path) -> None:
    """Learner 1 counts further and ends first: its files must not be what the whole gang resumes from."""
    program = """
import os, pathlib, sys, time
for step in range(int(sys.argv[1])):
    print(f"step={step} loss=1")
while not os.path.exists(sys.argv[3]):
    time.sleep(0.02)
(pathlib.Path(os.environ["CHECKPOINT_DIR"]) / sys.argv[2]).write_bytes(b"bytes")
raise SystemExit(3)
"""
    job = make_job({"train.py": program}, learners=2)
    job.spec["metrics"] = [{"pattern": r"step=(?P<step>\d+) loss=(?P<loss>\S+)"}]
    job.save()
    learners: list[Rig] = []
    gate = tmp_path / "learner-1-has-ended"
    for rank, argv in ((1, ["9", "worker.log", "/"]), (0, ["5", "model.bin", str(gate)])):
        learner = rig(job, rank=rank)
        learner.launch(["python3", "train.py", *argv])
        learner.ship()
        learners.append(learner)
    assert learners[0].wait() == (3, 0)
    gate.touch()
    assert learners[1].wait() == (3, 0)

    saved = Checkpoint.objects.get(job=job)
    assert (saved.state, saved.step, saved.implicit) == ("COMMITTED", None, True)
    assert list(CheckpointFile.objects.values_list("path", flat=True)) == ["model.bin"]
    message = job.events.get(reason="implicit_not_kept").message
    assert message.startswith("Learner 1: The files in its CHECKPOINT_DIR are not stored")


def test_missing_data_is_named_and_the_program_never_starts(rig: MakeRig, tmp_path: Path) -> None:
    job = make_job({"train.py": "print('never')"})
    job.spec["data"] = [{"name": "mnist", "path": "no/such"}]
    job.save()
    (tmp_path / "root").mkdir()
    learner = rig(job, data_root=tmp_path / "root")
    learner.launch("python3 train.py")
    learner.ship()

    learner.wait()

    row = learner.row
    assert row.error_code == "data_error"
    assert "mnist" in row.message
    assert b"mnist" in learner.stored_log()
    assert json.loads((learner.state / "exit").read_text())["started"] is False


@pytest.mark.parametrize("path", ["../secret", "link"])
def test_data_that_leads_out_of_the_data_root_is_refused(rig: MakeRig, tmp_path: Path, path: str) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "secret")
    job = make_job({"train.py": "print('never')"})
    job.spec["data"] = [{"name": "x", "path": path}]
    job.save()
    learner = rig(job, data_root=tmp_path / "root")
    learner.launch("python3 train.py")
    learner.ship()

    learner.wait()

    assert "is outside" in learner.row.message
