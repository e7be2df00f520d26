"""Programs that print, save and remove what is not expected: the log, the files and the end still arrive."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.models import Checkpoint, CheckpointFile, Job, JobEvent, MetricPoint, ResultFile
from jobs.states import EventCode
from learner_agent.settings import ShipperSettings
from learner_agent.shipper.connection import Connection
from learner_agent.shipper.metrics.reported import ReportedMetrics
from learner_agent.spool import Spool
from learner_agent.wire import Metric
from tests.learner_agent.harness import TIMEOUT_S, Rig, make_job, until

MakeRig = Callable[..., Rig]

STEPS = "print('step=1 loss=3')\nprint('step=² loss=2')\nprint('step=३ loss=1')\nprint('end')\n"
LEAVES = """
import os, pathlib
place = pathlib.Path(os.environ[{folder!r}])
(place / "good.txt").write_bytes(b"good")
(place / "sub").mkdir()
(place / "sub" / "also.txt").write_bytes(b"also")
for name in (b"a\\\\b", b"a\\xff"):
    with open(os.path.join(os.fsencode(place), name), "wb") as odd:
        odd.write(b"odd")
(place / "latest").symlink_to("sub")
os.mkfifo(place / "pipe")
raise SystemExit({code})
"""


def ruled(program: str) -> Job:
    job = make_job({"train.py": program})
    job.spec["metrics"] = [{"pattern": r"step=(?P<step>\S+) loss=(?P<loss>\S+)"}]
    job.save()
    return job


def run(learner: Rig) -> Rig:
    learner.launch("python3 train.py")
    learner.ship()
    return learner


def troubles(learner: Rig) -> list[tuple[str, str]]:
    found = JobEvent.objects.filter(job=learner.job, code=EventCode.CONDITION).order_by("n")
    return list(found.values_list("reason", "message"))


def test_signs_that_look_like_digits_cost_nothing(rig: MakeRig) -> None:
    learner = run(rig(ruled(STEPS)))

    assert learner.wait() == (0, 0)

    assert learner.stored_log() == STEPS.replace("print('", "").replace("')", "").encode()
    assert (learner.row.phase, learner.row.exit_code) == ("DONE", 0)
    assert list(MetricPoint.objects.filter(job=learner.job).values_list("step", "value")) == [(1, 3.0)]
    (reported,) = troubles(learner)
    assert reported[0] == "points_not_stored"
    assert "2 points were not stored, because its step is not in digits alone, or too large" in reported[1]


def test_a_source_that_fails_is_not_read_again_and_is_reported(tmp_path: Path) -> None:
    class Broken:
        name, label, cursor = "rules", "the metric rules", 0

        def read(self) -> Metric | None:
            raise ZeroDivisionError("whatever a program wrote")

        def confirm(self, frame: Metric) -> None: ...

        def rewind(self, cursor: int) -> None: ...

    settings = ShipperSettings(*[tmp_path] * 6, None, "http://127.0.0.1:9", "secret", "3f9k2m7qx4ta", 1, 0)
    connection = Connection(settings, Spool(tmp_path), lambda intent: None)
    broken, sound = Broken(), ReportedMetrics(Spool(tmp_path))
    connection.use([broken, sound])

    assert connection.metrics.read(broken) is None

    assert connection.metrics.sources == [sound]
    (reported,) = connection._events.values()
    assert reported.data["code"] == "metrics_unreadable"
    expected = "Metrics from the metric rules are no longer read in this attempt: ZeroDivisionError"
    assert expected in reported.data["message"]


def test_reports_without_a_metric_are_skipped_and_reported_once(rig: MakeRig) -> None:
    program = """
import json, os
with open(os.environ["JOB_STATE_DIR"] + "/metrics.jsonl", "a") as reports:
    for line in ({"loss": 5}, {"step": -1, "loss": 4}, {"step": 2, "loss": 3}):
        reports.write(json.dumps(line) + chr(10))
"""
    learner = run(rig(make_job({"train.py": program})))

    assert learner.wait() == (0, 0)

    assert list(MetricPoint.objects.filter(job=learner.job).values_list("step", "value")) == [(2, 3.0)]
    ((reason, message),) = troubles(learner)
    assert reason == "metrics_skipped"
    assert """Learner 0: A line of metrics.jsonl has no metric: '{"loss": 5}'. Each line is""" in message


def test_names_that_cannot_be_stored_are_left_out_of_the_results_and_reported(rig: MakeRig) -> None:
    learner = run(rig(make_job({"train.py": LEAVES.format(folder="RESULT_DIR", code=0)})))

    assert learner.wait() == (0, 0)

    assert set(ResultFile.objects.values_list("path", flat=True)) == {"good.txt", "sub/also.txt"}
    ((reason, message),) = troubles(learner)
    assert reason == "results_left_out"
    assert (
        "Not stored from results: a\\b, a\\udcff, latest, pipe. Only readable regular files are stored"
        in message
    )


def test_results_of_very_many_files_are_kept_as_one_archive_and_reported(rig: MakeRig) -> None:
    program = """
import os, pathlib
folder = pathlib.Path(os.environ["RESULT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
for number in range(5_001):
    (folder / str(number)).write_text("x")
"""
    learner = run(rig(make_job({"train.py": program})))

    assert learner.wait() == (0, 0)

    assert set(ResultFile.objects.values_list("path", flat=True)) == {"results.tar"}
    ((reason, message),) = troubles(learner)
    assert reason == "results_packed"
    assert "more than 5,000 files. They are stored as one archive, results.tar." in message


def test_names_that_cannot_be_stored_are_left_out_of_an_implicit_checkpoint(rig: MakeRig) -> None:
    learner = run(rig(make_job({"train.py": LEAVES.format(folder="CHECKPOINT_DIR", code=3)})))

    assert learner.wait() == (3, 0)

    assert Checkpoint.objects.get(job=learner.job).state == "COMMITTED"
    assert set(CheckpointFile.objects.values_list("path", flat=True)) == {"good.txt", "sub/also.txt"}
    assert [reason for reason, _ in troubles(learner)] == ["implicit_left_out"]


@pytest.mark.parametrize(
    "spoil",
    [
        "rm -rf $JOB_STATE_DIR",
        "rm -rf $JOB_STATE_DIR/*",
        "rm -rf $JOB_STATE_DIR; touch $JOB_STATE_DIR",
        "rm $JOB_STATE_DIR/lock; mkdir $JOB_STATE_DIR/lock",
        "touch $JOB_STATE_DIR/mine; mv $JOB_STATE_DIR/mine $JOB_STATE_DIR/lock",
    ],
)
def test_a_program_that_removes_the_spool_ends_and_its_log_says_why(rig: MakeRig, spoil: str) -> None:
    go = "until [ -e $MODEL_DIR/go ]; do sleep 0.05; done"  # not before: what is not shipped by then is lost
    job = make_job({"train.sh": f"echo before; {go}; {spoil}; echo after; sleep 600\n"})
    learner = rig(job)
    learner.launch("sh train.sh")
    learner.ship()
    until(lambda: learner.stored_log() == b"before\n", "the first line is stored")
    (learner.home / "code" / "go").touch()

    assert learner.launcher is not None
    assert learner.launcher.wait(TIMEOUT_S) == 137
    assert learner.shipper is not None
    while learner.shipper.wait(TIMEOUT_S) != 0:
        learner.ship()  # as the node daemon does

    stored = learner.stored_log()
    assert stored.startswith(b"before\n")
    assert stored.endswith(b"luthier: the program removed JOB_STATE_DIR, so it was terminated\n")
    assert (learner.row.phase, learner.row.exit_code, learner.row.log_sealed) == ("DONE", 137, True)


def test_a_program_whose_last_act_is_to_remove_the_spool_has_ended(rig: MakeRig) -> None:
    learner = rig(make_job({"train.sh": "echo before; sleep 1; rm -rf $JOB_STATE_DIR; exit 0\n"}))
    learner.launch("sh train.sh")
    learner.ship()

    assert learner.launcher is not None
    code = learner.launcher.wait(TIMEOUT_S)
    assert code in (0, 137), "137 if the launcher looked just before the program had left"
    assert learner.shipper is not None
    while learner.shipper.wait(TIMEOUT_S) != 0:
        learner.ship()

    assert (learner.row.phase, learner.row.exit_code, learner.row.log_sealed) == ("DONE", code, True)


def test_a_manifest_that_is_invalid_is_reported_and_costs_no_log_and_no_end(rig: MakeRig) -> None:
    deep = """
import os, pathlib
place = pathlib.Path(os.environ["CHECKPOINT_DIR"])
def manifest(folder, text):  # renamed into place, because half a manifest would be reported as well
    os.mkdir(folder)
    with open(folder + b"/draft", "w") as draft:
        draft.write(text)
    os.rename(folder + b"/draft", folder + b"/manifest.json")
for name, text in ((b"\\xff", "{}"), (b"0", "[" * 200_000), (b"1", " " * 20_000_000)):
    manifest(os.fsencode(place) + b"/step-" + name, text)
(place / "step-2").mkdir()
os.mkfifo(place / "step-2" / "manifest.json")
print("end")
"""
    learner = run(rig(make_job({"train.py": deep})))

    assert learner.wait() == (0, 0)

    assert learner.stored_log() == b"end\n"
    assert [reason for reason, _ in troubles(learner)] == ["checkpoint_not_whole"] * 4


SPOILS = """
import json, os, pathlib, time
state = pathlib.Path(os.environ["JOB_STATE_DIR"])
print("go", flush=True)
{spoil}
time.sleep(1.5)
print("end")
raise SystemExit(9)
"""


@pytest.mark.parametrize(
    "spoil",
    [
        '(state / "halt_seen").write_text(json.dumps({"gen": "x"}))',
        '(state / "halt_seen").write_text(json.dumps({"gen": float("nan"), "aware": []}))',
        '(state / "exit" / "x").mkdir(parents=True)',
        '(state / "phase").unlink(); (state / "phase" / "x").mkdir(parents=True)',
        '(state / "phase").unlink(); os.mkfifo(state / "phase")',
        '(state / "metrics.jsonl").mkdir()',
        'os.mkfifo(state / "metrics.jsonl")',
    ],
)
def test_junk_in_place_of_the_spools_files_costs_no_log_and_no_end(rig: MakeRig, spoil: str) -> None:
    learner = run(rig(make_job({"train.py": SPOILS.format(spoil=spoil)})))

    assert learner.wait() == (9, 0)

    assert learner.stored_log() == b"go\nend\n"
    assert (learner.row.phase, learner.row.exit_code) == ("DONE", 9)


@pytest.mark.parametrize(
    ("name", "junk"),
    [
        ("job", {"metrics": [{"pattern": "("}, {"pattern": 3}, 7, {}], "restore": [1], "learners": 0}),
        ("job", {"metrics": {"a": 1}, "restore": {"files": [3, {"path": []}]}, "learners": "x"}),
        ("job", {"metrics": 5, "restore": {"files": 7}, "learners": 10**9}),
        ("rules", {"off": "x", "tail": 7}),
        ("rules", {"off": 0, "step": 0, "count": 0, "tail": "no hex"}),
        ("tensorboard", {"a": "x", "b": [1], "c": -1, "d": True}),
        ("tensorboard", {str(n): 2**53 for n in range(600)}),
        ("kept", {"results": 5, "implicit": ["COMMITTED"]}),
    ],
)
def test_junk_in_the_shippers_own_files_ends_no_shipper(
    rig: MakeRig, name: str, junk: dict[str, object]
) -> None:
    spoil = f'(state / "shipper" / "{name}.json").write_text({json.dumps(json.dumps(junk))})\n'
    spoil += 'print("step=1 loss=3"); (state / "spoilt").touch()\n'
    spoil += 'pathlib.Path(os.environ["CHECKPOINT_DIR"], "kept").write_text("kept")'
    learner = run(rig(ruled(SPOILS.format(spoil=spoil))))
    until((learner.state / "spoilt").exists, "the file is spoilt")
    learner.kill_shipper()
    learner.ship()

    assert learner.wait() == (9, 0)

    assert learner.stored_log() == b"go\nstep=1 loss=3\nend\n"
    assert (learner.row.phase, learner.row.exit_code) == ("DONE", 9)
    assert Checkpoint.objects.get(job=learner.job).state == "COMMITTED"
    assert troubles(learner) == []
    points = list(MetricPoint.objects.filter(job=learner.job).values_list("step", "value"))
    assert points == [(1, 3.0)] or name == "job"


def test_a_halt_of_a_programs_own_making_is_a_halt_whatever_it_says(rig: MakeRig) -> None:
    halt = '(state / "halt").write_text(json.dumps({"gen": "x", "grace_s": -1, "intent": ["?"]}))'
    spoil = f"{halt}; time.sleep(60)"  # it lives longer than the moment in which it may still import training
    learner = run(rig(make_job({"train.py": SPOILS.format(spoil=spoil)})))

    assert learner.wait() == (143, 0)

    assert (learner.row.phase, learner.row.exit_code, learner.row.halted) == ("DONE", 143, True)


@pytest.mark.parametrize(
    "said", [{"size": 3, "crc": 0}, {"size": 10**12, "crc": 0}, {"size": 9, "code": "x"}, {}]
)
def test_only_the_launchers_word_on_the_end_counts(rig: MakeRig, said: dict[str, object]) -> None:
    forged = {"code": 0, "started": True, "finished": True} | said
    learner = run(
        rig(make_job({"train.py": SPOILS.format(spoil=f'(state / "exit").write_text(json.dumps({forged}))')}))
    )

    assert learner.wait() == (9, 0)

    assert learner.stored_log() == b"go\nend\n"
    assert (learner.row.phase, learner.row.exit_code, learner.row.log_sealed) == ("DONE", 9, True)
    assert not learner.row.finished_mark
    assert troubles(learner) == []
