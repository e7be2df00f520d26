"""Gangs of GPU pods on fake nodes: through the whole platform, and the same pods created directly, bound by
kube-scheduler.

Both sides get a control plane of their own, real but for KWOK's nodes, on which no container runs. The platform's pods
are read from its cluster and created again on the other one, without the node that the platform chose. A pod counts
from the first request on, a job's submission or a pod's creation, until it is Running; one that did not run by the end
keeps its gang partial, and its GPUs idle. Requests are those that the API server recorded of the platform. No agent
runs in a pod, so their heartbeats are written to the database: without them the platform would stop gangs as silent.
Both sides and their clients share this machine: the processor time of all of them says what waiting for it does not.

The gangs need nearly all GPUs, and come in an order that differs from run to run: what is free in the end may lie on
nodes so that a gang fits nowhere. Its pods are counted (without_room) apart from those of gangs that did not run
although there was room (forgotten), and what the platform says of each gang that did not run is printed.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import psycopg2

from bench.left_out import free_gpus, left_out, without_room
from bench.pod_watch import PodWatch
from bench.record import percentile, record
from gpu_scheduler.clusters.kubernetes import manifests
from gpu_scheduler.clusters.kubernetes.client import Api, Object
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings
from portal.settings.embedded import layout
from tests.cluster.folders import new_folder
from tests.cluster.kubernetes_harness import provisioner
from tests.cluster.pods import GPU_TYPE, provision, spec
from tests.platform import Client, Platform, running, wait_for
from tools.kube import binaries, fake
from tools.kube.cluster import Cluster

GPUS, MOST = 8, 8
"""GPUs of a node; the most learners of a gang."""
SIZES, SHARES = (1, 2, 4, 8), (30, 20, 20, 30)
"""GPUs of each of a gang's learners, and how often: they need 3.9 on average."""
CONNECTIONS = 8
HEARTBEAT_S = 10.0
STUCK_S = 30.0
"""Seconds without another pod that runs after which no other is expected."""
Gang = tuple[int, int]
"""Learners, and GPUs of each."""


def gangs(pods: int, room: int, seed: int) -> list[Gang]:
    """So many pods, in gangs of 1 to MOST. room: GPUs that they need at most."""
    dice, found, left = random.Random(seed), list[Gang](), pods
    while left:
        learners = min(left, dice.randint(1, MOST))
        [size] = dice.choices(SIZES, SHARES)
        found.append((learners, size))
        left -= learners
    while sum(learners * size for learners, size in found) > room:
        at = max(range(len(found)), key=lambda place: found[place][0] * found[place][1])
        found[at] = (found[at][0], found[at][1] // 2)
    return found


class Progress(PodWatch):
    """When each pod of a cluster was first seen to run, in seconds since `begin`."""

    def __init__(self, api: Api) -> None:
        self.began = self.last = time.monotonic()
        self.running_s: dict[str, float] = {}
        self.pods: dict[str, Object] = {}
        super().__init__(api)

    def begin(self) -> None:
        self.began = self.last = time.monotonic()
        self.cpu_s, self._began_cpu_s = 0.0, used_cpu_s()

    def until(self, pods: int) -> None:
        """Until so many run, or no other does any more. cpu_s: what was used until the last one ran, to a second."""
        known = 0
        while known < pods and time.monotonic() - self.last < STUCK_S:
            time.sleep(1.0 if len(self.running_s) < pods else 0)
            if len(self.running_s) > known:
                known, self.cpu_s = len(self.running_s), used_cpu_s() - self._began_cpu_s

    def now_running(self) -> list[Object]:
        return [pod for pod in self.pods.values() if pod["status"].get("phase") == "Running"]

    def partial(self) -> tuple[int, int]:
        """Gangs of which some pods have a node and others have none; and the pods that have none."""
        bound: dict[str, list[bool]] = {}
        for pod in self.pods.values():
            bound.setdefault(pod["metadata"]["labels"][manifests.GANG], []).append("nodeName" in pod["spec"])
        partly = sum(1 for each in bound.values() if any(each) and not all(each))
        return partly, sum(each.count(False) for each in bound.values())

    def seen(self, kind: str, pod: Object) -> None:
        name = pod["metadata"]["name"]
        if kind == "DELETED":
            self.pods.pop(name, None)
            return
        self.pods[name] = pod
        if pod["status"].get("phase") == "Running" and name not in self.running_s:
            self.last = time.monotonic()
            self.running_s[name] = self.last - self.began


@contextmanager
def fake_cluster(nodes: int) -> Iterator[tuple[Cluster, Api]]:
    """A control plane of this run's own with so many nodes, and the administrator's connections."""
    cluster = Cluster(new_folder(f"bench-{uuid4().hex[:6]}"), binaries.build(), tied=True)
    cluster.start()
    try:
        with closing(Api(str(cluster.kubeconfig))) as api:
            made = [fake.node(f"gpu-{number}", gpus=GPUS) for number in range(nodes)]
            in_parallel(lambda node: api.create(fake.NODES, node), made)
            wait_for(
                lambda: all(map(fake.is_schedulable, api.get(fake.NODES)["items"])),
                within_s=300,
                every_s=1,
                what=f"{nodes} nodes",
            )
            yield cluster, api
    finally:
        cluster.stop()


def in_parallel(work: Any, each: Sequence[Any]) -> list[Any]:
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        return list(threads.map(work, each))


@contextmanager
def platform_on(cluster: Cluster, folder: Path, gpus: int) -> Iterator[Platform]:
    """With all GPUs for one tenant."""
    name = f"bench-{uuid4().hex[:6]}"
    env = {
        "LUTHIER_CLUSTER": "kubernetes",
        "KUBECONFIG": str(cluster.service_account()),
        "KUBE_INSTALLATION": name,
        "KUBE_AGENT_IMAGE": "test.invalid/agent:1",
        "KUBE_RUNTIME_IMAGE": "test.invalid/{runtime}:1",
        "KUBE_NAMESPACE_PREFIX": f"{name}-",
        "KUBE_INGEST_PEERS": "10.0.0.1/32:443",
    }
    list(provisioner(cluster, KubernetesSettings(name, "x", namespace_prefix=f"{name}-")).installation())
    with running(folder / "data", **env) as platform:
        tenant = platform.client().tenant
        change = {"limit": gpus, "reason": "measuring pods at scale"}
        done = platform.client("admin").call("PUT", f"/tenants/{tenant}/quotas/{GPU_TYPE}", change)
        assert done.status == 200, done
        provision(platform, cluster)
        yield platform


@contextmanager
def heartbeats(platform: Platform) -> Iterator[None]:
    """Every learner has just sent a heartbeat, until the end of the block."""
    over = threading.Event()

    def beat() -> None:
        with closing(psycopg2.connect(layout(platform.data).database_url)) as connection:
            connection.autocommit = True
            while not over.wait(HEARTBEAT_S):
                with connection.cursor() as cursor:
                    cursor.execute("UPDATE jobs_learner SET last_seen_at = clock_timestamp()")

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def used_cpu_s() -> float:
    """Processor time until now of this process and of all that it started and that run: the control plane, KWOK and the
    platform."""
    this, used_s = psutil.Process(), 0.0
    for each in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            used_s += sum(each.cpu_times()[:4])  # of the children that ended, too
    return used_s


def counted(audited: Sequence[Object]) -> list[Object]:
    """A watch is recorded when it begins and when it ends."""
    return [each for each in audited if (each["verb"], each["stage"]) != ("watch", "ResponseComplete")]


def is_whole_list(request: Object) -> bool:
    """Not one that asks for a collection's version only."""
    return request["verb"] == "list" and "limit=1" not in request["requestURI"]


def submit_all(client: Client, wanted: Sequence[Gang]) -> None:
    def submit(numbered: tuple[int, Gang]) -> None:
        number, (learners, gpus) = numbered
        resources = {"learners": learners, "gpus": gpus, "cpus": 1, "memory": "64Mi"}
        client.submit(spec(f"gang-{number}", "print()", resources=resources))

    in_parallel(submit, list(enumerate(wanted)))


def memory_mib(platform: Platform) -> dict[str, float]:
    """Resident memory by role, of each process with its children: the most of any of that role."""
    found: dict[str, float] = {}
    for role, pid in platform.pids().items():
        top = psutil.Process(pid)
        used = sum(each.memory_info().rss for each in (top, *top.children(recursive=True))) / 2**20
        kind = role.partition("-")[0]
        found[kind] = max(found.get(kind, 0.0), used)
    return found


def through_the_platform(
    nodes: int, wanted: Sequence[Gang], folder: Path
) -> tuple[dict[str, float], list[Object]]:
    pods = sum(learners for learners, _ in wanted)
    with (
        fake_cluster(nodes) as (cluster, api),
        platform_on(cluster, folder, nodes * GPUS) as platform,
        heartbeats(platform),
    ):
        before, memory = len(cluster.audited()), memory_mib(platform)["worker"]
        with closing(Progress(api)) as progress:
            progress.begin()
            submit_all(platform.client(), wanted)
            submitted_s = time.monotonic() - progress.began
            progress.until(pods)
            requests = counted(cluster.audited()[before:])
            partial, waiting = progress.partial()
            made = list(progress.pods.values())
        with closing(psycopg2.connect(layout(platform.data).database_url)) as database:
            found = left_out(database.cursor(), progress.now_running())
        no_room = without_room(found, free_gpus({f"gpu-{number}": GPUS for number in range(nodes)}, made))
        figures = {
            **times(progress, pods),
            "without_room": no_room,
            "forgotten": sum(each.missing for each in found) - no_room,
            "partial_gangs": partial,
            "submitted_s": submitted_s,
            "api_calls_per_1000_pods": 1000 * len(requests) / pods,
            "api_lists_and_watches": sum(1 for each in requests if each["verb"] in ("list", "watch")),
            "api_whole_lists": sum(map(is_whole_list, requests)),
            "worker_before_mib": memory,
            "worker_mib": memory_mib(platform)["worker"],
            "web_mib": memory_mib(platform)["web"],
        }
        kinds = Counter(
            f"{each['verb']} {each['objectRef']['resource']} {each['responseStatus']['code']}"
            for each in requests
        )
        print(f"platform: {figures}, {waiting} without a node\n{dict(kinds.most_common())}", flush=True)
        return figures, made


def times(progress: Progress, pods: int) -> dict[str, float]:
    found = sorted(progress.running_s.values())
    assert found, "no pod ran"
    return {
        "running": len(found),
        "not_running": pods - len(found),
        "last_running_s": found[-1],
        "p50_running_s": percentile(found, 0.5),
        "pods_per_s": len(found) / found[-1],
        "cpu_s": progress.cpu_s,
    }


def directly(nodes: int, made: Sequence[Object]) -> dict[str, float]:
    """The same pods in a namespace of their own."""
    with fake_cluster(nodes) as (_, api):
        api.create("/api/v1/namespaces", {"metadata": {"name": "plain"}})
        accounts = "/api/v1/namespaces/plain/serviceaccounts"
        wait_for(lambda: api.get(accounts)["items"], within_s=60, what="the service account")
        with closing(Progress(api)) as progress:
            progress.begin()
            in_parallel(lambda pod: api.create("/api/v1/namespaces/plain/pods", plain(pod)), made)
            created_s = time.monotonic() - progress.began
            progress.until(len(made))
            partial, waiting = progress.partial()
        figures = times(progress, len(made)) | {"partial_gangs": partial, "submitted_s": created_s}
        print(f"plain: {figures}, {waiting} without a node", flush=True)
        return figures


def plain(pod: Object) -> Object:
    """What a person would create: without what the platform and the cluster added."""
    kept = {
        name: value for name, value in pod["spec"].items() if name not in ("affinity", "nodeName", "priority")
    }
    metadata = {"name": pod["metadata"]["name"], "labels": pod["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": kept}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--nodes", type=int, default=1000)
    arguments.add_argument("--pods", type=int, default=2000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--record", action="store_true", help="keep the figures")
    chosen = arguments.parse_args()
    wanted = gangs(chosen.pods, chosen.nodes * GPUS, chosen.seed)
    needs = sum(learners * size for learners, size in wanted)
    print(f"{len(wanted)} gangs, {chosen.pods} pods, {needs} of {chosen.nodes * GPUS} GPUs", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        ours, made = through_the_platform(chosen.nodes, wanted, Path(folder))
    theirs = directly(chosen.nodes, made)
    figures: dict[str, float] = {"gangs": len(wanted), "gpus_needed_share": needs / (chosen.nodes * GPUS)}
    figures |= {f"platform_{name}": value for name, value in ours.items()}
    figures |= {f"plain_{name}": value for name, value in theirs.items()}
    figures["time_ratio"] = ours["last_running_s"] / theirs["last_running_s"]
    figures["cpu_ratio"] = ours["cpu_s"] / theirs["cpu_s"]
    figures["load_average"] = os.getloadavg()[0]
    if not chosen.record:
        print(figures)
        return
    record(
        "pods_at_scale",
        figures,
        command=f"python -m bench.pods_at_scale --nodes {chosen.nodes} --pods {chosen.pods} --record",
        baseline="the same pods created directly and bound by kube-scheduler, in the same run",
        targets={"time_ratio": "≤ 1.5", "platform_partial_gangs": "= 0", "platform_forgotten": "= 0"},
    )


if __name__ == "__main__":
    main()
