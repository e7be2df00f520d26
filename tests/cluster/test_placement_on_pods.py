"""What the plan starts on real nodes is admitted there, and a gang that cannot start gives its devices back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.programs import TRAINER
from tests.cluster.pods import platform_on_pods, spec
from tests.platform import Client, wait_for
from tools.kube.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
NO_IMAGE = "registry.invalid/team/train:1"


@pytest.fixture(scope="module")
def alice(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    data = tmp_path_factory.mktemp("placement") / "data"
    with platform_on_pods(real_cluster, data, LUTHIER_DEPLOY_DEADLINE_S="20") as platform:
        yield platform.client("alice")


def nodes(client: Client) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in client.get("/cluster/nodes")["items"]}


def test_a_second_learner_waits_for_memory_that_the_kubelet_would_refuse(alice: Client) -> None:
    """Each takes more than half of what its node has beside the pods of the cluster; GPUs are free all the time."""
    wait_for(lambda: nodes(alice), within_s=60, what="the nodes")
    free = [int(node["memory_mib"]["free"]) for node in nodes(alice).values()]
    resources = {"memory": f"{int(max(free) * 0.6)}Mi", "cpus": 1}
    assert min(free) * 2 > max(free)
    made = [
        alice.submit(spec(f"big-{n}", TRAINER, command="python3 main.py 4000 0.1", resources=resources))["id"]
        for n in range(3)
    ]
    waiting = wait_for(
        lambda: next((job for job in map(alice.job, made) if job["reason"]["code"] == "NODE_MEMORY"), None),
        within_s=60,
        what="a job that waits for memory",
    )
    assert waiting["reason"]["numbers"]["need"] > waiting["reason"]["numbers"]["have"]
    started = [job for job in made if job != waiting["id"]]
    for job in started:
        alice.wait_state(job, "PROCESSING", within_s=120)
    used = {name: node["memory_mib"]["used"] for name, node in nodes(alice).items()}
    assert sorted(used.values()) == [int(max(free) * 0.6) + 256] * 2, (
        "one learner with its shipper on each node"
    )
    alice.post(f"/jobs/{started[0]}/cancel")
    alice.wait_state(waiting["id"], "PROCESSING", within_s=180)
    for job in made:
        alice.post(f"/jobs/{job}/cancel")
    for job in made:
        alice.wait_state(job, "CANCELED", within_s=120)


def test_a_gang_whose_image_cannot_be_pulled_releases_its_gpus_and_tries_another_node(alice: Client) -> None:
    wanted = spec("no-image", TRAINER, image=NO_IMAGE)
    del wanted["framework"]
    job = alice.submit(wanted)["id"]
    wait_for(lambda: alice.job(job)["attempt"] >= 2, within_s=150, what="a second attempt")
    first, second = alice.get(f"/jobs/{job}/attempts")["items"][:2]
    if first["n"] > second["n"]:
        first, second = second, first
    assert first["outcome"] == "deploy_timeout"
    assert f"Cannot pull image {NO_IMAGE}" in first["message"]
    [failed] = first["nodes"]
    marked = nodes(alice)[failed]
    assert f"Cannot pull image {NO_IMAGE}" in marked["avoid"]["reason"]
    assert second["nodes"] != [failed]
    alice.post(f"/jobs/{job}/cancel")
    alice.wait_state(job, "CANCELED", within_s=120)
