"""Faults of a real cluster under a whole platform: each gives the job a clear reason, and leaves nothing behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.browser.programs import TRAINER
from tests.cluster.pods import provision, spec
from tests.platform import Client, Platform, wait_for
from tools.kube import nodes
from tools.kube.client import Api, ApiError
from tools.kube.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
HOG = "import time\nheld = []\nwhile True:\n    held.append(bytearray(b'x' * 2**22)); time.sleep(0.02)\n"
TRAINS = {"program": TRAINER, "command": "python3 main.py 100000 0.02"}


@pytest.fixture
def alice(platform: Platform) -> Client:
    return platform.client("alice")


@pytest.fixture
def space(platform: Platform) -> str:
    """The path of the pods of alice's tenant."""
    return f"/api/v1/namespaces/{platform.env['KUBE_NAMESPACE_PREFIX']}vision-lab/pods"


@pytest.fixture
def training(alice: Client) -> Iterator[str]:
    """The id of a job that trains and has a checkpoint. Canceled after the test, if it still runs."""
    job = str(alice.submit(spec("trains", **TRAINS))["id"])
    alice.wait_step(job, 60)
    yield job
    with suppress(AssertionError):
        alice.post(f"/jobs/{job}/cancel")
    alice.wait_state(job, "CANCELED", "FAILED", "COMPLETED", within_s=120)


def is_back(client: Client, job: str) -> bool:
    found = client.job(job)
    return bool(found["state"] == "PROCESSING" and found["attempt"] == 2)


def resumed(client: Client, job: str) -> bool:
    log = wait_for(lambda: client.raw_log(job, attempt=2).decode(), within_s=60, what="its first line")
    return re.match(r"starting at step [1-9]", log) is not None


def test_a_program_that_exceeds_its_memory_fails_as_killed(alice: Client) -> None:
    """The agent's report of the exit code is often quicker than the kubelet's, which has the numbers."""
    job = alice.submit(spec("hog", HOG, resources={"memory": "128Mi"}))["id"]
    failed = alice.wait_state(job, "FAILED", within_s=120)
    assert failed["reason"]["code"] in ("out_of_memory", "learner_failed")
    assert failed["reason"]["numbers"]["exit_code"] == 137
    message = failed["reason"]["message"]
    assert "its limit is 128 MiB" in message or "out of memory" in message


def test_a_missing_image_is_named(alice: Client, space: str, real_cluster: Cluster) -> None:
    name = "luthier.test/not-there:1"
    wanted = spec("no-image", "print()", image=name)
    del wanted["framework"]
    job = alice.submit(wanted)["id"]

    def says() -> str:
        return str(alice.job(job)["reason"]["message"])

    wait_for(lambda: name in says(), within_s=120, what="the image's name")
    alice.post(f"/jobs/{job}/cancel")
    alice.wait_state(job, "CANCELED", "FAILED", within_s=120)
    assert pods_of(real_cluster.admin, space, job) == []


def test_a_pod_deleted_by_hand_is_replaced_from_the_checkpoint(
    alice: Client, training: str, space: str, real_cluster: Cluster
) -> None:
    [pod] = pods_of(real_cluster.admin, space, training)
    real_cluster.admin.delete(f"{space}/{pod['metadata']['name']}")
    wait_for(lambda: is_back(alice, training), within_s=120, what="a second attempt")
    assert resumed(alice, training)


def test_a_drained_node_gives_the_job_back_from_its_checkpoint(
    alice: Client, training: str, space: str, real_cluster: Cluster
) -> None:
    """Cordoned, and its pods evicted, as `kubectl drain` does it."""
    admin = real_cluster.admin
    [pod] = pods_of(admin, space, training)
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    admin.patch(f"{nodes.NODES}/{node}", {"spec": {"unschedulable": True}})
    try:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        admin.create(f"{space}/{name}/eviction", eviction)
        wait_for(lambda: is_back(alice, training), within_s=120, what="a second attempt")
        [after] = pods_of(admin, space, training)
        assert after["spec"]["nodeName"] != node
        assert "evicted" in reasons(alice, training)
        assert resumed(alice, training)
    finally:
        admin.patch(f"{nodes.NODES}/{node}", {"spec": {"unschedulable": None}})


def test_a_namespace_deleted_by_hand_ends_its_jobs_with_the_remedy_and_is_gone(
    alice: Client, training: str, space: str, platform: Platform, real_cluster: Cluster
) -> None:
    namespace = space.split("/")[4]
    real_cluster.admin.delete(f"/api/v1/namespaces/{namespace}")
    try:
        failed = alice.wait_state(training, "FAILED", within_s=180)
        assert "tenant_provision vision-lab" in failed["reason"]["message"]
    finally:  # the tests that follow need it
        wait_for(partial(is_gone, real_cluster.admin, namespace), within_s=120, what="the namespace's end")
        provision(platform, real_cluster)
    again = alice.submit(spec("again", "print('well')", command="python3 main.py"))["id"]
    alice.wait_state(again, "COMPLETED", within_s=120)


def is_gone(admin: Api, namespace: str) -> bool:
    try:
        admin.get(f"/api/v1/namespaces/{namespace}")
    except ApiError as error:
        return error.status == 404
    return False


def reasons(client: Client, job: str) -> list[str]:
    """Of the job's events, in their order."""
    return [event["reason"]["code"] for event in client.get(f"/jobs/{job}/events", page_size=200)["items"]]


def pods_of(api: Api, space: str, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(space, labelSelector=f"luthier.dev/job={job}")["items"]
    return found
