"""Results belong to the job: stored however an attempt ends, and back in their places when the next one begins."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.db.models import F

from jobs import blobs
from jobs.models import Blob, Job, JobEvent, MetricPoint, ResultFile
from jobs.states import EventCode, Intent
from learner_agent.shipper.results import collect, is_kept
from tests import factories
from tests.learner_agent.harness import Rig, make_job, next_attempt, until
from tests.learner_agent.metrics.sources import event, record, simple

MakeRig = Callable[..., Rig]

WRITES = """
import os, pathlib, sys, time
results = pathlib.Path(os.environ["RESULT_DIR"])
print("found", sorted(str(path.relative_to(results)) for path in results.rglob("*") if path.is_file()), flush=True)
(results / "plots").mkdir(exist_ok=True)
(results / "plots" / "loss.txt").write_text("falling")
(results / os.environ["LUTHIER_ATTEMPT"]).write_text("of this attempt")
print("wrote", flush=True)
{end}
"""


def run(learner: Rig) -> Rig:
    learner.launch("python3 train.py")
    learner.ship()
    return learner


def stored(job: Job) -> dict[str, bytes]:
    files = ResultFile.objects.filter(job=job, rank=0).select_related("blob")
    return {file.path: blobs.read(file.blob, 0, 1000) for file in files}


def request(job: Job, intent: Intent) -> None:
    Job.objects.filter(pk=job.pk).update(intent=intent, intent_gen=F("intent_gen") + 1)


@pytest.mark.parametrize(
    ("end", "intent"),
    [
        ("time.sleep(600)", Intent.HALT),
        ("time.sleep(600)", Intent.CANCEL),
        ("sys.exit(3)", None),
        ("os.kill(os.getpid(), 9)", None),
    ],
)
def test_results_are_stored_however_an_attempt_ends(rig: MakeRig, end: str, intent: Intent | None) -> None:
    job = make_job({"train.py": WRITES.format(end=end)}, grace_s=1)
    learner = run(rig(job))
    if intent is not None:
        until(lambda: b"wrote" in learner.stored_log(), "the program has written its results")
        request(job, intent)

    learner.wait()

    assert learner.row.done_at is not None
    assert stored(job) == {"plots/loss.txt": b"falling", "1": b"of this attempt"}


def test_the_next_attempt_finds_its_results_and_what_has_not_changed_is_not_sent_again(rig: MakeRig) -> None:
    job = make_job({"train.py": WRITES.format(end="sys.exit(3)")})
    run(rig(job)).wait()
    first = {file.path: file.blob_id for file in ResultFile.objects.filter(job=job)}
    next_attempt(job)

    again = run(rig(job))
    again.wait()

    assert again.stored_log().startswith(b"found ['1', 'plots/loss.txt']\n")
    assert set(stored(job)) == {"1", "2", "plots/loss.txt"}
    kept = {file.path: file.blob_id for file in ResultFile.objects.filter(job=job)}
    assert kept["plots/loss.txt"] == first["plots/loss.txt"]
    assert {file.attempt for file in ResultFile.objects.filter(job=job)} == {2}


def test_results_that_the_program_removed_are_gone(rig: MakeRig) -> None:
    job = make_job({"train.py": WRITES.format(end="sys.exit(3)")})
    run(rig(job)).wait()
    next_attempt(job)

    again = rig(job)
    again.launch("rm -r $RESULT_DIR/*")
    again.ship()
    again.wait()

    assert stored(job) == {}


def test_a_result_that_cannot_be_read_back_costs_no_restart(rig: MakeRig) -> None:
    job = make_job({"train.py": WRITES.format(end="sys.exit(3)")})
    run(rig(job)).wait()
    lost = ResultFile.objects.select_related("blob").get(job=job, path="1").blob
    factories.bytes_of(lost).unlink()
    next_attempt(job)

    again = run(rig(job))
    again.wait()

    assert again.stored_log().startswith(b"found ['plots/loss.txt']\n")
    reported = JobEvent.objects.get(job=job, code=EventCode.CONDITION, reason="results_not_restored")
    assert reported.message.startswith("Learner 0: Not restored")
    assert set(ResultFile.objects.filter(job=job).values_list("path", flat=True)) == {
        "1",  # the program never had it, so it did not remove it
        "2",
        "plots/loss.txt",
    }


def test_files_that_the_spec_keeps_and_those_of_tensorboard_are_results_and_come_back(rig: MakeRig) -> None:
    program = """
import os, pathlib
print("found", pathlib.Path("out/model.pt").exists(), pathlib.Path("big.bin").exists(), flush=True)
for name in ("out/model.pt", "runs/a/events.out.tfevents.1.host", "big.bin", "clash.txt"):
    pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(name).write_text(name)
os.path.lexists("out/latest.pt") or os.symlink("/etc/hostname", "out/latest.pt")
(pathlib.Path(os.environ["RESULT_DIR"]) / "clash.txt").write_text("of RESULT_DIR")
raise SystemExit(3)
"""
    job = make_job({"train.py": program})
    job.spec["keep"] = ["out/*.pt", "clash.txt"]
    job.save(update_fields=["spec"])
    run(rig(job)).wait()

    assert stored(job) == {
        "clash.txt": b"of RESULT_DIR",
        "out/model.pt": b"out/model.pt",
        "runs/a/events.out.tfevents.1.host": b"runs/a/events.out.tfevents.1.host",
    }
    reported = dict(
        JobEvent.objects.filter(job=job, code=EventCode.CONDITION).values_list("reason", "message")
    )
    assert set(reported) == {"keep_clash", "results_left_out"}
    assert "RESULT_DIR has the same path: clash.txt." in reported["keep_clash"]
    assert "out/latest.pt" in reported["results_left_out"]

    next_attempt(job)
    again = run(rig(job))
    again.wait()
    assert again.stored_log().startswith(b"found True False\n")


def test_a_program_that_removes_the_spool_keeps_its_results(rig: MakeRig) -> None:
    job = make_job(
        {"train.py": "import os, time\nos.system('echo w > a.pt; rm -rf $JOB_STATE_DIR')\ntime.sleep(600)"}
    )
    job.spec["keep"] = ["*.pt"]
    job.save(update_fields=["spec"])

    run(rig(job)).wait()

    assert stored(job) == {"a.pt": b"w\n"}


def test_points_of_an_earlier_attempts_tensorboard_files_are_not_reported_again(rig: MakeRig) -> None:
    scalar = event(4, simple("loss", 0.5))
    program = f"""
import os, pathlib
place = pathlib.Path(os.environ["RESULT_DIR"]) / "events.out.tfevents.1.host"
place.exists() or place.write_bytes({record(scalar)!r})
raise SystemExit(3)
"""
    job = make_job({"train.py": program})
    run(rig(job)).wait()
    next_attempt(job)
    run(rig(job)).wait()

    assert MetricPoint.objects.filter(job=job, attempt=1).count() == 1
    assert not MetricPoint.objects.filter(job=job, attempt=2).exists()


def test_results_too_many_to_list_come_back_as_files(rig: MakeRig) -> None:
    program = """
import os, pathlib
results = pathlib.Path(os.environ["RESULT_DIR"])
print("found", len(list(results.iterdir())), flush=True)
for number in range(5_001):
    (results / str(number)).touch()
raise SystemExit(3)
"""
    job = make_job({"train.py": program})
    run(rig(job)).wait()
    assert list(ResultFile.objects.filter(job=job).values_list("path", "archive")) == [("results.tar", True)]
    next_attempt(job)

    again = run(rig(job))
    again.wait()

    assert again.stored_log() == b"found 5001\n"
    assert list(ResultFile.objects.filter(job=job).values_list("path", flat=True)) == ["results.tar"]
    blobs.sweep(timedelta(0))
    assert Blob.objects.count() == 2  # that archive and the code


@pytest.mark.parametrize(
    ("glob", "path", "kept"),
    [
        ("*.pt", "model.pt", True),
        ("*.pt", "out/model.pt", False),
        ("out/*.pt", "out/model.pt", True),
        ("**/*.pt", "model.pt", True),
        ("**/*.pt", "a/b/model.pt", True),
        ("lightning_logs/**", "lightning_logs/v0/m.csv", True),
        ("lightning_logs", "lightning_logs/v0/m.csv", True),
        ("lightning_logs", "other/lightning_logs/m.csv", False),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z/file", True),
        ("run[12].txt", "run2.txt", True),
        ("Model.PT", "model.pt", False),
        ("/".join(["**", "a"] * 30), "/".join(["a"] * 29), False),
    ],
)
def test_a_glob_names_files_or_whole_folders(glob: str, path: str, kept: bool) -> None:
    assert is_kept(path, [glob]) is kept


def test_a_missing_result_folder_takes_nothing_away(tmp_path: Path) -> None:
    found = collect(
        tmp_path / "gone", tmp_path / "code", keep=[], into=tmp_path, world=1, stored_before=True
    )  # fmt: skip

    assert found.files is None
