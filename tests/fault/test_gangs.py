"""Gangs on a crowded cluster: they start whole, end whole, and resume where they were."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_scheduler.clusters.base import ENDED, ClusterBusy, LearnerPhase
from tests.fault.faults import learner_processes, local_cluster
from tests.fault.specs import spec
from tests.platform import Platform, running, wait_for

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
SLOTS = {"node-a": 4, "node-b": 4, "node-c": 4, "node-d": 4}

MEETS_ITS_GANG = """\
import os, pathlib, sys, time
world, rank = int(os.environ["NUM_LEARNERS"]), os.environ["LUTHIER_RANK"]
place = pathlib.Path(os.environ["MEETING"]) / (os.environ["TRAINING_ID"] + "-" + os.environ["LUTHIER_ATTEMPT"])
place.mkdir(parents=True, exist_ok=True)
(place / rank).touch()
until = time.monotonic() + 60
while len(list(place.iterdir())) < world:
    if time.monotonic() > until:
        sys.exit("alone: %s of %d came" % (sorted(p.name for p in place.iterdir()), world))
    time.sleep(0.05)
print("all %d met" % world, flush=True)
time.sleep(float(os.environ["STAYS"]))
"""

DIES_ONCE = """\
import os, pathlib, sys, time
from learner_agent import training
found = training.resume_from()
first = int((found / "step").read_text()) + 1 if found else 1
print("begins at step", first, flush=True)
for step in range(first, 31):
    training.report(step, total=30, loss=1 / step)
    if step == 10 and training.rank() == 0:
        with training.checkpoint(step) as folder:
            (folder / "step").write_text(str(step))
    if step == 20 and first == 1 and training.rank() == 1:
        while not pathlib.Path(os.environ["STORED"]).exists():
            time.sleep(0.05)
        sys.exit(5)
    time.sleep(0.1)
"""

SAVES_IN_PARTS = """\
import time
from learner_agent import training
found, part = training.resume_from(), training.rank()
first = int((found / "step").read_text()) + 1 if found else 1
print("begins at step", first, flush=True)
for step in range(first, 21):
    training.report(step, total=20, loss=1 / step)
    if step in (10, 15):
        with training.checkpoint(step, part, of=2) as folder:
            (folder / "step").write_text(str(step))
            (folder / "rank").write_text(f"{part} at {step}")
    time.sleep(0.05)
while not found and not training.halt_requested():
    time.sleep(0.05)
"""


def gang(name: str, program: str, learners: int, **more: Any) -> dict[str, Any]:
    size = {"learners": learners, "memory": "256Mi"}
    return spec(name, program, resources=size, checkpoint={"grace": "5s"}, **more)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    nodes = ",".join(f"{name}:cpu:{slots}" for name, slots in SLOTS.items())
    with running(tmp_path_factory.mktemp("gangs") / "data", nodes=nodes, workers=2) as started:
        yield started


class Watch:
    """Observes the node daemon continuously and records what must never happen."""

    def __init__(self, platform: Platform) -> None:
        self._cluster = local_cluster(platform)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.looks = 0
        self.most_used = 0
        self.wrong: list[str] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.05):
            try:
                gangs = self._cluster.observe().gangs.values()
            except ClusterBusy:
                continue
            self.looks += 1
            used: Counter[str] = Counter()
            for gang in gangs:
                begun = {learner.phase is not LearnerPhase.PREPARING for learner in gang.learners}
                if len(begun) != 1:
                    self.wrong.append(f"{gang.name} began in part")
                used.update(learner.node for learner in gang.learners)
            self.most_used = max(self.most_used, used.total())
            self.wrong += [f"{node} holds {count}" for node, count in used.items() if count > SLOTS[node]]


def test_twenty_gangs_on_sixteen_slots_start_whole_or_not_at_all(platform: Platform) -> None:
    client = platform.client()
    chance = random.Random(11)
    with Watch(platform) as watch:
        jobs = []
        for index in range(20):
            learners = chance.randint(1, 8)
            env = {"MEETING": str(platform.meeting), "STAYS": str(chance.choice([0, 0.5, 2]))}
            placement = chance.choice(["pack", "spread"])
            job = client.submit(gang(f"gang-{index}", MEETS_ITS_GANG, learners, env=env, placement=placement))
            jobs.append((job["id"], learners))
            if index == 10:
                platform.kill("nodes", signal.SIGKILL)
        for job_id, learners in jobs:
            client.wait_state(job_id, "COMPLETED", within_s=240)
            for rank in range(learners):
                log = client.raw_log(job_id, attempt=1, learner=rank)
                assert log == b"all %d met\n" % learners
    assert watch.wrong == []
    assert watch.looks > 20
    assert watch.most_used > 8
    cluster = local_cluster(platform)
    wait_for(lambda: cluster.observe().gangs == {}, within_s=60)


def test_a_dying_learner_restarts_its_gang_from_the_checkpoint(platform: Platform) -> None:
    client = platform.client()
    stored = platform.meeting / "stored"
    job = client.submit(gang("dies-once", DIES_ONCE, 2, max_restarts=1, env={"STORED": str(stored)}))
    wait_for(lambda: client.job(job["id"])["checkpoint"], within_s=120, what="the checkpoint")
    stored.touch()
    ended = client.wait_state(job["id"], "COMPLETED", within_s=120)
    assert (ended["attempt"], ended["restarts_used"]) == (2, 1)
    for rank in (0, 1):
        assert b"begins at step 11\n" in client.raw_log(job["id"], attempt=2, learner=rank)


def test_a_damaged_part_takes_the_whole_gang_back_to_the_checkpoint_before(platform: Platform) -> None:
    """One learner's part of the newest checkpoint is damaged in the store: the other, whose part is sound, does not
    begin with it either."""
    client = platform.client()
    job = client.submit(gang("damaged", SAVES_IN_PARTS, 2, max_restarts=0))["id"]

    def checkpoints() -> list[dict[str, Any]]:
        return list(client.get(f"/jobs/{job}/checkpoints")["items"])

    def committed() -> set[int]:
        return {saved["step"] for saved in checkpoints() if saved["state"] == "COMMITTED"}

    wait_for(lambda: committed() == {10, 15}, within_s=120, what="both checkpoints")
    client.post(f"/jobs/{job}/halt")
    client.wait_state(job, "HALTED")
    blobs = (path for path in (platform.data / "blobs").rglob("*") if path.is_file())
    (stored,) = (path for path in blobs if path.read_bytes() == b"1 at 15")
    stored.chmod(0o600)
    stored.write_bytes(b"1 at 14")

    client.post(f"/jobs/{job}/resume")
    ended = client.wait_state(job, "COMPLETED", within_s=120)
    assert (ended["attempt"], ended["restarts_used"]) == (3, 0)
    for rank in (0, 1):
        assert b"begins" not in client.raw_log(job, attempt=2, learner=rank)
        assert client.raw_log(job, attempt=3, learner=rank) == b"begins at step 11\n"
    assert {saved["step"]: saved["state"] for saved in checkpoints()}[10] == "COMMITTED"
    codes = [event["code"] for event in client.get(f"/jobs/{job}/events")["items"]]
    assert codes.count("CHECKPOINT_CORRUPT") == 1


def test_a_gang_without_restarts_left_fails_whole_and_frees_its_slots(platform: Platform) -> None:
    client = platform.client()
    program = (
        "import os, sys, time\ntime.sleep(1)\n"
        "sys.exit(7 if os.environ['LUTHIER_RANK'] == '1' else time.sleep(300))\n"
    )
    job = client.submit(gang("dies", program, 4, max_restarts=0))
    failed = client.wait_state(job["id"], "FAILED", within_s=90)
    assert failed["reason"]["numbers"]["exit_code"] == 7
    cluster = local_cluster(platform)
    wait_for(
        lambda: all(
            learner.phase in ENDED for gang in cluster.observe().gangs.values() for learner in gang.learners
        ),
        within_s=60,
    )


def test_a_killed_launcher_costs_the_job_no_restart(platform: Platform) -> None:
    client = platform.client()
    program = "import os, time\ntime.sleep(600 * (os.environ['LUTHIER_ATTEMPT'] == '1'))\nprint('through')\n"
    job = client.submit(gang("orphaned", program, 1, max_restarts=0))
    client.wait_state(job["id"], "PROCESSING")
    (launcher,) = learner_processes(job["id"], "launcher")
    launcher.kill()
    ended = client.wait_state(job["id"], "COMPLETED", within_s=90)
    assert (ended["attempt"], ended["restarts_used"]) == (2, 0)
    codes = [event["reason"]["code"] for event in client.get(f"/jobs/{job['id']}/events")["items"]]
    assert "learner_lost" in codes
