"""The whole platform with learners as pods on real nodes: a gang with real collectives, and the loss of a node."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from pathlib import Path

import psutil
import pytest

from tests.browser.programs import TRAINER
from tests.cluster.pods import load_runtime, spec
from tests.platform import Client, Platform, wait_for
from tools.kube import nodes
from tools.kube.__main__ import main
from tools.kube.client import Object
from tools.kube.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
GANG = Path(__file__).with_name("agreeing_program.py").read_text()
PROGRAM = ["main.py", "100000", "0.02"]
BACK_S = 90
"""Within it a job of a lost node trains again on another one."""


@pytest.fixture
def alice(platform: Platform) -> Client:
    return platform.client("alice")


def nodes_of(client: Client, job: str) -> list[str]:
    """By rank, of the newest attempt."""
    found = client.get(f"/jobs/{job}/learners", attempt=client.job(job)["attempt"])
    return [learner["node"] for learner in found["items"]]


def is_back_on(client: Client, job: str, node: str) -> bool:
    found = client.job(job)
    return found["state"] == "PROCESSING" and found["attempt"] == 2 and nodes_of(client, job) == [node]


def last_line(client: Client, job: str, *, attempt: int, learner: int) -> str:
    lines = client.raw_log(job, attempt=attempt, learner=learner).decode().splitlines()
    return lines[-1].partition("rank ")[2]


def test_a_gang_with_real_collectives_halts_and_resumes_in_the_same_bits(
    alice: Client, real_cluster: Cluster
) -> None:
    """Its twin of another attempt count runs straight through."""
    load_runtime(real_cluster, "jax")
    gang = {"framework": "jax", "placement": "spread", "resources": {"learners": 2, "memory": "2Gi"}}
    straight = alice.submit(spec("straight", GANG, command="python3 main.py 60 0", **gang))["id"]
    alice.wait_state(straight, "COMPLETED", within_s=240)
    slow_at_first = 'python3 main.py 60 "$([ $LUTHIER_ATTEMPT = 1 ] && echo 0.5 || echo 0)"'
    job = alice.submit(spec("halted", GANG, command=slow_at_first, **gang))["id"]
    alice.wait_step(job, 10, within_s=240)
    assert set(nodes_of(alice, job)) == {"node-1", "node-2"}
    alice.post(f"/jobs/{job}/halt")
    halted = alice.wait_state(job, "HALTED", within_s=120)
    assert halted["last_halt"]["steps_lost"] == 0
    alice.post(f"/jobs/{job}/resume")
    alice.wait_state(job, "COMPLETED", within_s=240)
    for rank in (0, 1):
        ends = last_line(alice, straight, attempt=1, learner=rank)
        assert ends.startswith(f"{rank} ends with")
        assert last_line(alice, job, attempt=2, learner=rank) == ends
    resumed = alice.raw_log(job, attempt=2, learner=1).decode()
    assert f"rank 1 of 2 begins at step {halted['last_halt']['step']}\n" in resumed


def test_a_job_of_a_lost_node_goes_on_elsewhere_from_its_checkpoint(
    alice: Client, platform: Platform, real_cluster: Cluster
) -> None:
    job = alice.submit(spec("survivor", TRAINER, command="python3 main.py 100000 0.02"))["id"]
    alice.wait_step(job, 60)
    [name] = nodes_of(alice, job)
    [lost] = [node for node in real_cluster.nodes if node.name == name]
    other = next(node.name for node in real_cluster.nodes if node is not lost)
    killed_at = time.monotonic()
    assert main(["--folder", str(real_cluster.layout.folder), "kill-node", name]) == 0
    assert lost.processes() == set()

    wait_for(lambda: is_back_on(alice, job, other), within_s=180, what="the job on the other node")
    assert time.monotonic() - killed_at <= BACK_S
    began = wait_for(lambda: alice.raw_log(job, attempt=2).decode(), within_s=30, what="its first line")
    assert re.match(r"starting at step [1-9]", began)

    real_cluster.start_node(lost)
    real_cluster.admin.wait_for(nodes.NODES, lost.name, is_ready, timeout_s=120)
    used = {node["name"]: node["used"] for node in alice.get("/cluster/nodes")["items"]}
    assert used == {lost.name: 0, other: 1}
    left = real_cluster.admin.get("/api/v1/pods", labelSelector=f"luthier.dev/job={job}")["items"]
    assert [pod["spec"]["nodeName"] for pod in left] == [other], "the node is back without its containers"
    alice.post(f"/jobs/{job}/cancel")
    alice.wait_state(job, "CANCELED", within_s=120)


def test_a_learner_whose_node_comes_back_is_fenced_and_ends(
    alice: Client, platform: Platform, real_cluster: Cluster
) -> None:
    """Its program has not ended meanwhile: the node hung, and goes on where it was until its kubelet stops it."""
    job = alice.submit(spec("zombie", TRAINER, command="python3 main.py 100000 0.02"))["id"]
    alice.wait_step(job, 60)
    [name] = nodes_of(alice, job)
    [hung] = [node for node in real_cluster.nodes if node.name == name]
    other = next(node.name for node in real_cluster.nodes if node is not hung)
    processes = map(psutil.Process, hung.processes())
    [zombie] = [process for process in processes if process.cmdline()[1:] == PROGRAM]
    hung.freeze()
    try:
        wait_for(lambda: is_back_on(alice, job, other), within_s=180, what="the job on the other node")
        kept = saved_by_first(alice, job)
        assert zombie.is_running()
    finally:
        hung.thaw()
    wait_for(lambda: not zombie.is_running(), within_s=120, what="its end")
    real_cluster.admin.wait_for(nodes.NODES, name, is_ready, timeout_s=120)

    # The rest of its log is taken, what it saves is not: it does so when its kubelet stops it.
    assert saved_by_first(alice, job) <= kept
    found = alice.job(job)
    assert (found["state"], found["attempt"]) == ("PROCESSING", 2)
    step = found["progress"]["step"]
    wait_for(lambda: alice.job(job)["progress"]["step"] > step, within_s=60, what="another step")
    used = {node["name"]: node["used"] for node in alice.get("/cluster/nodes")["items"]}
    assert used == {name: 0, other: 1}
    left = real_cluster.admin.get("/api/v1/pods", labelSelector=f"luthier.dev/job={job}")["items"]
    assert [pod["spec"]["nodeName"] for pod in left] == [other]
    digests = [each["image_digests"] for each in alice.get(f"/jobs/{job}/attempts")["items"]]
    assert digests == [[image_of(left[0])]] * 2, "what a kubelet says is what is kept"
    alice.post(f"/jobs/{job}/cancel")
    alice.wait_state(job, "CANCELED", within_s=120)


def image_of(pod: Object) -> str:
    """The digest of its program's image, as its kubelet says it."""
    [program] = [each for each in pod["status"]["containerStatuses"] if each["name"] == "learner"]
    return str(program["imageID"]).rpartition("@")[2]


def saved_by_first(client: Client, job: str) -> set[int]:
    """The numbers of the first attempt's checkpoints."""
    found = client.get(f"/jobs/{job}/checkpoints")["items"]
    return {each["n"] for each in found if each["attempt"] == 1}


def is_ready(node: Object | None) -> bool:
    conditions = node["status"].get("conditions", []) if node else []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


KEYED = """
import hashlib, os, time
from learner_agent import training

value = os.environ["WANDB_API_KEY"]
print("value", value, hashlib.sha256(value.encode()).hexdigest(), flush=True)
while not training.halt_requested():
    time.sleep(0.1)
"""


def test_a_pods_program_gets_a_secret_that_its_manifest_and_its_log_do_not_show(
    alice: Client, real_cluster: Cluster
) -> None:
    value = "pods-own-secret-value"
    assert alice.call("PUT", "/me/secrets/wandb", {"value": value}).status == 200
    made = spec("keyed", KEYED, command="python3 main.py", secrets={"WANDB_API_KEY": "wandb"})
    job = alice.submit(made)["id"]
    digest = hashlib.sha256(value.encode()).hexdigest()

    def line() -> str:
        """Once it is whole: what may be the beginning of a secret is sent later than what precedes it."""
        log = alice.raw_log(job, attempt=1).decode() if alice.job(job)["state"] == "PROCESSING" else ""
        return log if log.endswith("\n") else ""

    assert wait_for(line, within_s=240, what="its line").splitlines() == [f"value *** {digest}"]
    admin = real_cluster.admin
    gang = {"labelSelector": f"luthier.dev/job={job}"}
    for kind in ("pods", "services", "events"):
        found = admin.get(f"/api/v1/{kind}", **(gang if kind != "events" else {}))
        assert value not in json.dumps(found), kind
    (secret,) = admin.get("/api/v1/secrets", **gang)["items"]
    assert base64.b64decode(secret["data"]["program.WANDB_API_KEY"]).decode() == value
    alice.post(f"/jobs/{job}/cancel")
    alice.wait_state(job, "CANCELED", within_s=120)
    assert admin.get("/api/v1/secrets", **gang)["items"] == []
