"""A program at its tenant's storage limit, or with hostile amounts, through real processes: it runs to its end, and its
job says once what is not kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs.ingest import store
from jobs.models import Blob, JobEvent, LogChunk, MetricPoint, Progress
from jobs.states import EventCode
from tenants.models import Tenant
from tests.learner_agent.harness import Rig, make_job

MakeRig = Callable[..., Rig]

FULL = """
import os, pathlib
from learner_agent import training

for step in range(4):
    training.report(step, loss=0.5)
    print("x" * 99, flush=True)
    with training.checkpoint(step) as folder:
        (folder / "weights").write_bytes(os.urandom(100_000))
(pathlib.Path(os.environ["RESULT_DIR"]) / "model").write_bytes(os.urandom(100_000))
"""
SPARSE = """
import json, os, pathlib

folder = pathlib.Path(os.environ["CHECKPOINT_DIR"]) / "step-1"
folder.mkdir()
with open(folder / "weights", "wb") as file:
    file.truncate(2**43)
entry = {"path": "weights", "size": 2**43, "sha256": "0" * 64}
(folder / "manifest.json").write_text(json.dumps({"step": 1, "files": [entry]}))
"""
SERIES = """
from learner_agent import training

for step in range(2_000):
    training.report(step, **{f"loss of step {step}": 0.5})
"""


def conditions(learner: Rig) -> list[tuple[str, str]]:
    found = JobEvent.objects.filter(job=learner.job, code=EventCode.CONDITION).order_by("n")
    return [(event.reason, event.numbers.get("kind", "")) for event in found]


def test_a_program_of_a_full_tenant_runs_to_its_end_and_says_once_what_is_not_kept(rig: MakeRig) -> None:
    job = make_job({"train.py": FULL})
    used = sum(Blob.objects.filter(tenant=job.tenant).values_list("size", flat=True))
    Tenant.objects.filter(pk=job.tenant_id).update(storage_limit=used + 150)
    learner = rig(job)
    learner.launch("python3 train.py")
    learner.ship()
    assert learner.wait() == (0, 0), "the program notices nothing"

    assert sorted(conditions(learner)) == [
        ("storage_full", "checkpoints"),
        ("storage_full", "logs"),
        ("storage_full", "metrics"),
        ("storage_full", "results"),
    ]
    row = learner.row
    assert (row.log_bytes, row.log_lines, row.error_code) == (400, 4, "results_not_kept")
    assert sum(LogChunk.objects.filter(job=job, tombstone=True).values_list("len", flat=True)) == 250
    assert (Progress.objects.get(job=job).metric_lost, MetricPoint.objects.filter(job=job).count()) == (4, 0)
    assert Blob.objects.filter(tenant=job.tenant).exclude(kind="code").count() == 0


def test_a_sparse_file_larger_than_the_disk_is_refused_before_a_byte_is_sent(rig: MakeRig) -> None:
    learner = rig(make_job({"train.py": SPARSE}))
    learner.launch("python3 train.py")
    learner.ship()
    assert learner.wait() == (0, 0)
    assert conditions(learner) == [("disk_full", "checkpoints")]
    assert not Blob.objects.filter(kind="checkpoints").exists()


def test_a_metric_per_step_ends_at_so_many_metrics(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_METRICS", 500)
    learner = rig(make_job({"train.py": SERIES}))
    learner.launch("python3 train.py")
    learner.ship()
    assert learner.wait() == (0, 0)
    assert conditions(learner) == [("too_many_metrics", "")]
    assert MetricPoint.objects.filter(job=learner.job).values("name").distinct().count() == 500
    assert Progress.objects.get(job=learner.job).metric_lost == 1_500
