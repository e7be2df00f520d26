"""Twenty jobs run on while the API server refuses, is slow, forgets, repeats old answers, or is stopped.

One of them trains in a container on a real node. The pods of the others are on a fake node, and the test speaks for
their agents: to the API server, the driver and the lifecycle they are the same.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from gpu_scheduler.clusters.kubernetes.tenancy import JOBS_QUOTA
from tests.browser.programs import TRAINER
from tests.cluster.api_proxy import ApiProxy
from tests.cluster.played_agents import PlayedAgents
from tests.cluster.pods import spec
from tests.platform import Client, Platform, wait_for
from tools.kube import fake
from tools.kube.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
JOBS = 20
API_AWAY_S = 600 if "LUTHIER_LONG" in os.environ else 60
NODE = "played"
CPUS = {"learners": 1, "gpus": 0, "cpus": 1, "memory": "64Mi"}


@pytest.fixture(scope="module")
def alice(platform: Platform) -> Client:
    return platform.client("alice")


@pytest.fixture(scope="module")
def jobs(platform: Platform, alice: Client, real_cluster: Cluster) -> Iterator[list[str]]:
    """All of them are PROCESSING, the first one in a container. Canceled in the end."""
    with room_for_jobs(platform, alice, real_cluster):
        made = [str(alice.submit(spec("trains", TRAINER, command="python3 main.py 100000 0.1"))["id"])]
        try:
            for number in range(1, JOBS):
                played = spec(f"played-{number}", "print()")
                made.append(str(alice.submit(played | {"resources": CPUS})["id"]))
            secrets = wait_for(
                lambda: secrets_of(real_cluster, made[1:]), within_s=120, what="every gang's secret"
            )
            with PlayedAgents(platform.url, secrets):
                for job in made:
                    alice.wait_state(job, "PROCESSING", within_s=120)
                wait_for(lambda: step(alice, made[0]) >= 10, within_s=120, what="step 10")
                yield made
        finally:
            for job in made:
                with suppress(AssertionError):
                    alice.post(f"/jobs/{job}/cancel")
            for job in made:
                alice.wait_state(job, "CANCELED", within_s=120)


@contextmanager
def room_for_jobs(platform: Platform, alice: Client, cluster: Cluster) -> Iterator[None]:
    """A node of CPUs, and quotas for it in the cluster and in the platform. What other tests find is as it was."""
    admin, boss = cluster.admin, platform.client("admin")
    namespace = f"/api/v1/namespaces/{platform.env['KUBE_NAMESPACE_PREFIX']}vision-lab"
    quota = f"{namespace}/resourcequotas/{JOBS_QUOTA}"
    hard = admin.get(quota)["spec"]["hard"]
    limits = {each["gpu_type"]: each["limit"] for each in boss.get("/tenants/vision-lab/quotas")["items"]}
    with ExitStack() as afterwards:
        fake.add_nodes(admin, fake.node(NODE, gpus=0, cpus=JOBS))
        afterwards.callback(fake.remove_nodes, admin, NODE)
        admin.patch(quota, {"spec": {"hard": hard | {"pods": str(2 * JOBS)}}})
        afterwards.callback(admin.patch, quota, {"spec": {"hard": hard}})
        wait_for(lambda: NODE in names_of_nodes(alice), within_s=60, what="the node in the platform")
        limit(boss, JOBS)
        afterwards.callback(limit, boss, limits.get("cpu", 0))
        yield


def limit(boss: Client, cpus: int) -> None:
    change = {"limit": cpus, "reason": "a node of CPUs comes and goes"}
    assert boss.call("PUT", "/tenants/vision-lab/quotas/cpu", change).status == 200


def names_of_nodes(client: Client) -> list[str]:
    return [node["name"] for node in client.get("/cluster/nodes")["items"]]


def secrets_of(cluster: Cluster, jobs: list[str]) -> dict[str, str] | None:
    """Of the first attempt's only learner, by job; None before all are there."""
    found = {}
    for secret in cluster.admin.get("/api/v1/secrets", labelSelector="luthier.dev/job")["items"]:
        job = secret["metadata"]["labels"]["luthier.dev/job"]
        found[job] = base64.b64decode(secret["data"]["rank-0"]).decode()
    return {job: found[job] for job in jobs} if found.keys() >= set(jobs) else None


def step(client: Client, job: str) -> int:
    return int(client.job(job)["progress"]["step"] or 0)


def all_run_on(client: Client, jobs: list[str]) -> bool:
    """Nothing was released, and nothing failed."""
    found = {job["id"]: job for job in client.get("/jobs", page_size=200)["items"]}
    assert {(found[job]["state"], found[job]["attempt"]) for job in jobs} == {("PROCESSING", 1)}
    return True


def test_jobs_run_on_while_the_api_server_refuses_is_slow_forgets_and_repeats_old_answers(
    alice: Client, jobs: list[str], platform: Platform, api_proxy: ApiProxy
) -> None:
    before = step(alice, jobs[0])
    with api_proxy.behaving(status=429, retry_after_s=1):
        wait_for(lambda: not platform.is_ready(), within_s=60, what="that it is known to be unknown")
        assert all_run_on(alice, jobs)
    wait_for(platform.is_ready, within_s=60, what="readiness after refusals")
    for behavior, seen in (
        ({"delay_s": 2.5}, "watched"),
        ({"forgets": True}, "forgotten"),
        ({"forgets": True, "replays": True}, "replayed"),
    ):
        with api_proxy.behaving(**behavior):
            wait_for(lambda seen=seen: api_proxy.seen[seen] >= 8, within_s=60, what=f"8 times {seen}")
            assert all_run_on(alice, jobs)
    wait_for(platform.is_ready, within_s=60, what="readiness")
    assert all_run_on(alice, jobs)
    assert step(alice, jobs[0]) > before


def test_jobs_train_on_while_the_api_server_is_stopped(
    alice: Client, jobs: list[str], platform: Platform, real_cluster: Cluster
) -> None:
    before = step(alice, jobs[0])
    real_cluster.stop_api()
    try:
        time.sleep(API_AWAY_S)  # the outage itself
        assert all_run_on(alice, jobs)
        assert step(alice, jobs[0]) > before
    finally:
        real_cluster.start_api()
    wait_for(platform.is_ready, within_s=60, what="readiness")
    assert all_run_on(alice, jobs)
    # What the API server shows counts again: a pod that is deleted by hand is noticed.
    ended = jobs[-1]
    alice.post(f"/jobs/{ended}/cancel")
    alice.wait_state(ended, "CANCELED", within_s=60)
    assert all_run_on(alice, jobs[:-1])


def test_a_job_starts_halts_and_resumes_in_containers_while_the_api_server_is_slow_forgets_and_repeats(
    alice: Client, platform: Platform, real_cluster: Cluster, api_proxy: ApiProxy
) -> None:
    """Each attempt has one pod, and nothing of the first one is left when the second one trains."""
    pods: set[tuple[str, str]] = set()

    def reaches(wanted: int) -> bool:
        found = real_cluster.admin.get("/api/v1/pods", labelSelector=f"luthier.dev/job={job}")["items"]
        pods.update((each["metadata"]["name"], each["metadata"]["uid"]) for each in found)
        return step(alice, job) >= wanted

    with api_proxy.behaving(delay_s=0.5, forgets=True):
        job = str(alice.submit(spec("outage", TRAINER, command="python3 main.py 100000 0.02"))["id"])
        wait_for(lambda: reaches(20), within_s=120, what="step 20")
        alice.post(f"/jobs/{job}/halt")
        halted = alice.wait_state(job, "HALTED", within_s=120)
    assert halted["last_halt"]["steps_lost"] == 0
    with api_proxy.behaving(forgets=True, replays=True):
        alice.post(f"/jobs/{job}/resume")
        wait_for(lambda: api_proxy.seen["replayed"] >= 8, within_s=60, what="8 lists of an earlier time")
    wait_for(lambda: reaches(halted["last_halt"]["step"] + 20), within_s=120, what="20 further steps")
    assert alice.job(job)["attempt"] == 2
    assert sorted(name for name, _ in pods) == [f"job-{job}-1-0", f"job-{job}-2-0"]
    alice.post(f"/jobs/{job}/cancel")
    alice.wait_state(job, "CANCELED", within_s=120)
    wait_for(platform.is_ready, within_s=60, what="readiness")
    left = real_cluster.admin.get("/api/v1/services", labelSelector=f"luthier.dev/job={job}")["items"]
    assert left == []
