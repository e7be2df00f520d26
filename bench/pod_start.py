"""From the request until a pod runs on a real node: a job submitted to the platform, and the same objects created with
kubectl on the same cluster.

Both ways take turns in random order, one pod at a time, on nodes with a real kubelet and containerd that have the
images. kubectl creates the Service, the Secret and the pod (init container and shipper included) that the platform made
for a job before, in a namespace with the same admission level, without the node that the platform chose and without the
finalizer and owner that only the platform removes. kubectl's own start counts, as it does for a person. before_pod in a
figure's name means all that comes before the pod exists. The API server records the platform's own requests; every
other time is taken by this process, as it sends and as its one watch of all pods shows them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

from bench.pod_watch import PodWatch
from bench.record import percentile, record
from gpu_scheduler.clusters.kubernetes import manifests
from gpu_scheduler.clusters.kubernetes.client import Api, Object
from tests.cluster.folders import new_folder
from tests.cluster.pods import platform_on_pods, spec
from tests.platform import Client, wait_for
from tools.kube import binaries
from tools.kube.cluster import Cluster

NAMESPACES = "/api/v1/namespaces"
PROGRAM = "import time\nprint('started', flush=True)\ntime.sleep(3600)\n"
WARM_UPS = 2
REST_S = (0.5, 2.0)
"""Before each start a random while, so that no periodic work of the platform meets every start at the same time."""
MANIFEST, COPY = "manifest.json", "plain"
KEPT = {
    "Service": ("clusterIP", "publishNotReadyAddresses", "selector"),
    "Secret": ("immutable", "data", "type"),
}
ADDED_TO_POD = ("affinity", "nodeName", "priority")
"""To the pod's spec, by the platform for its node and by the cluster."""
Times = dict[str, float]


class Timestamps(PodWatch):
    """When this process first saw each pod exist, have a node, and run; time.monotonic, by uid."""

    def __init__(self, api: Api) -> None:
        self.pods: dict[str, Object] = {}
        """Those that exist, as they were last seen."""
        self.times: dict[str, Times] = {}
        super().__init__(api)

    def running(self, namespace: str) -> tuple[Object, Times]:
        """The pod in this namespace, once it runs, and its timestamps. There must be no other one."""

        def found() -> tuple[Object, Times] | None:
            for uid, pod in list(self.pods.items()):
                if pod["metadata"]["namespace"] == namespace and "running" in self.times[uid]:
                    return pod, self.times[uid]
            return None

        return wait_for(found, within_s=120, every_s=0.02, what=f"a pod in {namespace}") or ({}, {})

    def until_empty(self, namespace: str) -> None:
        def is_empty() -> bool:
            return all(pod["metadata"]["namespace"] != namespace for pod in list(self.pods.values()))

        wait_for(is_empty, within_s=120, every_s=0.05, what=f"no pod in {namespace}")

    def seen(self, kind: str, pod: Object) -> None:
        now, uid = time.monotonic(), pod["metadata"]["uid"]
        timestamps = self.times.setdefault(uid, {})
        timestamps.setdefault("created", now)
        if "nodeName" in pod["spec"]:
            timestamps.setdefault("bound", now)
        if pod["status"].get("phase") == "Running":
            timestamps.setdefault("running", now)
        if kind == "DELETED":
            self.pods.pop(uid, None)
        else:
            self.pods[uid] = pod


class ThroughThePlatform:
    """Submits equal jobs of one learner, and cancels each once its pod runs."""

    def __init__(self, cluster: Cluster, client: Client, timestamps: Timestamps) -> None:
        self._cluster, self._client, self._timestamps = cluster, client, timestamps
        self.made: list[Object] = []
        """Service, Secret and pod of the last job, as the API server had them."""
        self._begun: dict[str, tuple[float, Times]] = {}
        """By gang: what to add to time.monotonic for the time of day, and the timestamps."""

    def start(self, namespace: str) -> float:
        """Seconds from the POST until the pod ran."""
        offset_s, began = time.time() - time.monotonic(), time.monotonic()
        job = self._client.submit(spec("start", PROGRAM))["id"]
        submitted = time.monotonic()
        pod, timestamps = self._timestamps.running(namespace)
        gang = pod["metadata"]["labels"][manifests.GANG]
        self._begun[gang] = offset_s, {"began": began, "submitted": submitted, **timestamps}
        owned = [
            self._cluster.admin.get(f"{NAMESPACES}/{namespace}/{kind}/{gang}")
            for kind in ("services", "secrets")
        ]
        self.made = [owned[0] | {"kind": "Service"}, owned[1] | {"kind": "Secret"}, pod | {"kind": "Pod"}]
        self._client.post(f"/jobs/{job}/cancel")
        self._client.wait_state(job, "CANCELED", within_s=120)
        self._timestamps.until_empty(namespace)
        return timestamps["running"] - began

    def forget(self) -> None:
        self._begun.clear()

    def parts(self) -> list[Times]:
        """Seconds of each start: the submission's response, until a worker's first request about the gang, until the
        pod exists, until it has a node, until it runs."""
        first: Times = {}
        for request in self._cluster.audited():
            name = request["objectRef"].get("name", "")
            if name in self._begun and request["objectRef"]["resource"] == "services":
                at = datetime.fromisoformat(request["requestReceivedTimestamp"]).timestamp()
                first[name] = min(at, first.get(name, at))
        return [
            spans(
                timestamps | {"launched": first[gang] - offset_s},
                before_pod=("began", "created"),
                submit=("began", "submitted"),
                cycle=("submitted", "launched"),
                launch=("launched", "created"),
                bind=("created", "bound"),
                kubelet=("bound", "running"),
            )
            for gang, (offset_s, timestamps) in self._begun.items()
        ]


class WithKubectl:
    """Creates copies of what the platform made, and deletes each once its pod runs."""

    def __init__(self, cluster: Cluster, folder: Path, timestamps: Timestamps) -> None:
        self._cluster, self._timestamps = cluster, timestamps
        self._file = folder / MANIFEST
        self._env = os.environ | {"KUBECONFIG": str(cluster.kubeconfig), "HOME": str(folder)}
        self.parts: list[Times] = []

    def start(self, made: Sequence[Object]) -> float:
        """Seconds from kubectl's start until the pod ran."""
        copies = [copied(each) for each in made]
        self._file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": copies}))
        began = time.monotonic()
        self._kubectl("create", "-f", str(self._file))
        ended = time.monotonic()
        _, timestamps = self._timestamps.running(COPY)
        self._kubectl("delete", "-f", str(self._file), "--grace-period=1")
        self._timestamps.until_empty(COPY)
        self.parts.append(
            spans(
                {"began": began, "ended": ended, **timestamps},
                before_pod=("began", "created"),
                command=("began", "ended"),
                bind=("created", "bound"),
                kubelet=("bound", "running"),
            )
        )
        return timestamps["running"] - began

    def forget(self) -> None:
        self.parts.clear()

    def _kubectl(self, *arguments: str) -> None:
        command = [self._cluster.binaries["kubectl"], *arguments]
        subprocess.run(command, env=self._env, check=True, stdout=subprocess.DEVNULL, timeout=120)


def copied(made: Object) -> Object:
    """What a person would create for the same: without the node, and what the cluster or only the platform gives. As
    another installation's, so that the platform does not remove it."""
    metadata = made["metadata"]
    labels = metadata["labels"] | {manifests.INSTALLATION: COPY}
    copy = {"apiVersion": "v1", "kind": made["kind"]}
    copy["metadata"] = {"name": metadata["name"], "namespace": COPY, "labels": labels}
    kept = KEPT.get(made["kind"], ())
    if made["kind"] == "Secret":
        return copy | {name: made[name] for name in kept}
    if made["kind"] == "Service":
        return copy | {"spec": {name: made["spec"][name] for name in kept}}
    return copy | {"spec": {name: value for name, value in made["spec"].items() if name not in ADDED_TO_POD}}


def spans(timestamps: Times, **between: tuple[str, str]) -> Times:
    """Seconds of each part, by the names of its first and last moment."""
    return {part: timestamps[last] - timestamps[first] for part, (first, last) in between.items()}


@contextmanager
def real_cluster(nodes: int) -> Iterator[Cluster]:
    """Of this run's own; its programs end with this process."""
    cluster = Cluster(new_folder("bench"), binaries.build(), tied=True, real_nodes=nodes, gpus=4)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


def measure(cluster: Cluster, folder: Path, runs: int) -> dict[str, float]:
    api = Api(str(cluster.kubeconfig))
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create(NAMESPACES, {"metadata": {"name": COPY, "labels": labels}})
    cluster.admin.wait_for(f"{NAMESPACES}/{COPY}/serviceaccounts", "default", bool)
    with (
        closing(api),
        platform_on_pods(cluster, folder / "data") as platform,
        closing(Timestamps(api)) as timestamps,
    ):
        client = platform.client()
        namespace = f"{platform.env['KUBE_NAMESPACE_PREFIX']}{client.tenant}"
        ours, theirs = (
            ThroughThePlatform(cluster, client, timestamps),
            WithKubectl(cluster, folder, timestamps),
        )
        pairs = []
        for number in range(-WARM_UPS, runs):
            if number == 0:
                ours.forget()
                theirs.forget()
            pair = in_any_order(lambda: ours.start(namespace), lambda: theirs.start(ours.made), number < 0)
            print(f"{number + 1:3} platform {pair[0]:.3f} s, kubectl {pair[1]:.3f} s", flush=True)
            pairs.append(pair)
        return figures(pairs[WARM_UPS:], ours.parts(), theirs.parts)


def in_any_order(
    ours: Callable[[], float], theirs: Callable[[], float], ours_first: bool
) -> tuple[float, float]:
    """The seconds of both. kubectl needs objects of the platform, of this pair or of one before."""
    if ours_first or random.random() < 0.5:
        return rested(ours), rested(theirs)
    kubectl = rested(theirs)
    return rested(ours), kubectl


def rested(start: Callable[[], float]) -> float:
    time.sleep(random.uniform(*REST_S))
    return start()


def figures(
    pairs: Sequence[tuple[float, float]], ours: Sequence[Times], theirs: Sequence[Times]
) -> dict[str, float]:
    platform, kubectl = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = {
        "difference_p50_s": percentile(platform, 0.5) - percentile(kubectl, 0.5),
        "difference_p95_s": percentile(platform, 0.95) - percentile(kubectl, 0.95),
    }
    for name, values in (("platform", platform), ("kubectl", kubectl)):
        found |= {f"{name}_p50_s": percentile(values, 0.5), f"{name}_p95_s": percentile(values, 0.95)}
    return found | medians("platform", ours) | medians("kubectl", theirs)


def medians(way: str, parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {f"{way}_{part}_p50_s": percentile([each[part] for each in parts], 0.5) for part in parts[0]}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=20, help="of each way")
    arguments.add_argument("--nodes", type=int, default=1)
    arguments.add_argument("--record", action="store_true", help="keep the figures")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder, real_cluster(chosen.nodes) as cluster:
        found = measure(cluster, Path(folder), chosen.runs)
    found |= {"runs": chosen.runs, "load_average": os.getloadavg()[0]}
    if not chosen.record:
        print(json.dumps(found, indent=2))
        return
    record(
        "pod_start",
        found,
        command=f"python -m bench.pod_start --runs {chosen.runs} --nodes {chosen.nodes} --record",
        baseline="the same objects created with kubectl, each after the platform's, in the same run",
        targets={"difference_p50_s": "≤ 0.5"},
    )


if __name__ == "__main__":
    main()
