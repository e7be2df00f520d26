"""What administrators choose for each pool, in pods, nodes and quotas: GPU resources, runtime classes, data sets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.clusters.base import ClusterError, GangBlocked, LaunchRefused, RefusalCode
from gpu_scheduler.clusters.kubernetes import manifests, pools, resources, tenancy
from gpu_scheduler.clusters.kubernetes.client import NotFound
from gpu_scheduler.clusters.kubernetes.driver import KubernetesCluster
from gpu_scheduler.clusters.kubernetes.manifests import Manifest
from gpu_scheduler.clusters.kubernetes.tenancy import TenantLimits
from gpu_scheduler.clusters.kubernetes.view import View
from gpu_scheduler.model import Resources
from tests.gpu_scheduler.clusters.harness import launch
from tests.gpu_scheduler.clusters.kubernetes_specs import OWNER, SETTINGS

MIG = "nvidia.com/mig-1g.10gb"
MIXED = replace(
    SETTINGS,
    gpu_resource=f"nvidia.com/gpu, a100-1g={MIG}, mi300=amd.com/gpu",
    runtime_class="nvidia,mi300=rocm",
)
SPEC = launch("job-x-1", "runs", nodes=("node-a",))


def pod(slot_type: str, slots: int = 2) -> Manifest:
    spec = replace(SPEC, slot_type=slot_type, slots=slots)
    return manifests.pod(spec, 0, MIXED, "test.invalid/program:1", OWNER)["spec"]  # type: ignore[no-any-return]


def node(labels: dict[str, str] | None = None, **capacity: int) -> Manifest:
    """capacity: by the words in NAMES."""
    names = {"gpu": "nvidia.com/gpu", "mig": MIG, "amd": "amd.com/gpu"}
    devices = {names[word]: str(count) for word, count in capacity.items()}
    return {
        "metadata": {"name": "node-a", "labels": {"nvidia.com/gpu.product": "NVIDIA-A100", **(labels or {})}},
        "status": {
            "capacity": devices,
            "allocatable": {**devices, "cpu": "16", "memory": "64Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def other_pod(uid: str, **requests: str) -> Manifest:
    found = {"gpu": "nvidia.com/gpu", "mig": MIG}
    asked = {found[word]: count for word, count in requests.items()}
    return {
        "metadata": {"uid": uid, "name": uid, "namespace": "others"},
        "spec": {"nodeName": "node-a", "containers": [{"name": "c", "resources": {"requests": asked}}]},
        "status": {"phase": "Running"},
    }


@pytest.mark.parametrize(
    ("slot_type", "resource"), [("a100-1g", MIG), ("mi300", "amd.com/gpu"), ("h100", "nvidia.com/gpu")]
)
def test_gpus_of_a_type_are_asked_for_by_its_resource_and_its_taint_is_tolerated(
    slot_type: str, resource: str
) -> None:
    made = pod(slot_type)
    for kind in ("requests", "limits"):
        asked = made["containers"][0]["resources"][kind]
        assert {name: count for name, count in asked.items() if "/" in name} == {resource: "2"}
    assert made["tolerations"][-1] == {"key": resource, "operator": "Exists", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("seen", "slot_type", "gpus"),
    [
        (node(mig=7), "a100-1g", 7),
        (node(gpu=8), "nvidia-a100", 8),
        (node(amd=4), "mi300", 4),
        (node(), "cpu", 0),
        (node(gpu=1, mig=7), "a100-1g", 7),
        (node({resources.SLOT_TYPE: "a100-1g"}, gpu=1, mig=3), "a100-1g", 3),
        (node({resources.SLOT_TYPE: "special"}, gpu=2, mig=3), "special", 2),
        (node(gpu=0), "nvidia-a100", 0),
        (node(gpu=8, mig=0), "nvidia-a100", 8),
        (node({resources.SLOT_TYPE: "cpu"}, gpu=0), "cpu", 0),
    ],
)
def test_a_node_is_in_one_pool_and_offers_what_its_resource_counts(
    seen: Manifest, slot_type: str, gpus: int
) -> None:
    found = resources.to_node(seen, [], MIXED.gpu_resources())
    assert (found.slot_type, found.allocatable.gpus) == (slot_type, gpus)


def test_a_node_whose_device_plugin_is_away_says_so_and_is_no_pool_of_cpus() -> None:
    """A kubelet that restarts shows 0 until the plugin has registered again."""
    [before], [meanwhile] = (View.of([node(gpu=each)], [], MIXED).scheduler_nodes() for each in (8, 0))
    assert (before.why, before.slots) == ("", 8)
    assert (meanwhile.slot_type, meanwhile.slots) == (before.slot_type, 0)
    assert meanwhile.why == "No device plugin offers nvidia.com/gpu there now."


def test_only_what_others_hold_of_the_pools_own_resource_counts() -> None:
    others = [other_pod("a", mig="2"), other_pod("b", gpu="1")]
    view = View.of([node(gpu=1, mig=7)], others, MIXED)
    [seen] = view.scheduler_nodes()
    assert (seen.slot_type, seen.used_by_others.gpus) == ("a100-1g", 2)
    assert view.free("node-a").gpus == 5


GOOGLE = {"cloud.google.com/gce-topology-block": "b7", "cloud.google.com/gce-topology-subblock": "s1"}
AMAZON = {f"topology.k8s.aws/network-node-layer-{layer}": f"nn-{layer}" for layer in (1, 2, 3)}
KUEUE = {"cloud.provider.com/topology-block": "b1", "cloud.provider.com/topology-rack": "r1"}


@pytest.mark.parametrize(
    ("labels", "chosen", "domains"),
    [
        ({}, {}, ("", "")),
        (KUEUE, {}, ("r1", "b1")),
        (GOOGLE, {}, ("s1", "b7")),
        (AMAZON, {}, ("nn-3", "nn-2")),
        (AMAZON | KUEUE, {}, ("r1", "b1")),
        (
            KUEUE | {"example.com/rack": "own"},
            {"rack_label": "example.com/no,example.com/rack"},
            ("own", "b1"),
        ),
    ],
)
def test_a_nodes_rack_and_block_are_what_the_first_of_the_labels_says(
    labels: dict[str, str], chosen: dict[str, str], domains: tuple[str, str]
) -> None:
    [seen] = View.of([node(labels, gpu=1)], [], replace(SETTINGS, **chosen)).scheduler_nodes()
    assert (seen.rack, seen.block) == domains


def test_a_node_with_as_many_pods_as_its_kubelet_allows_is_full() -> None:
    small = node(gpu=8)
    small["status"]["allocatable"]["pods"] = "2"
    ours = manifests.pod(replace(SPEC, slot_type="nvidia-a100", slots=1), 0, MIXED, "image", OWNER)
    ours["metadata"]["uid"] = "ours"
    ended = other_pod("b") | {"status": {"phase": "Succeeded"}}
    [room] = View.of([small], [other_pod("a"), ended], MIXED).scheduler_nodes()
    assert (room.full, room.why) == (False, "")
    [full] = View.of([small], [other_pod("a"), ended, ours], MIXED).scheduler_nodes()
    assert (full.full, full.why) == (True, "Runs as many pods as its kubelet allows (2).")
    assert full.used_by_others.gpus == 0


def of_whole_pod(uid: str, **requests: str) -> Manifest:
    found = other_pod(uid, gpu="1")
    containers = [{"name": each, "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}} for each in "ab"]
    found["spec"] |= {
        "containers": [*found["spec"]["containers"], *containers],
        "resources": {"requests": requests},
    }
    return found


@pytest.mark.parametrize(
    ("requests", "cpus", "memory_mib"),
    [({}, 2, 2048), ({"cpu": "3"}, 3, 2048), ({"cpu": "2500m", "memory": "4Gi"}, 2.5, 4096)],
)
def test_what_a_pod_requests_as_a_whole_counts_in_place_of_its_containers_sum(
    requests: dict[str, str], cpus: float, memory_mib: int
) -> None:
    [seen] = View.of([node(gpu=4)], [of_whole_pod("a", **requests)], MIXED).scheduler_nodes()
    assert seen.used_by_others == Resources(1, cpus, memory_mib)


def test_the_quota_bounds_each_resource_by_the_limits_of_its_types() -> None:
    tenant = TenantLimits("red", {"a100-1g": 7, "h100": 4, "a100": 2, "cpu": 9})
    jobs = tenancy._jobs_quota(tenant, MIXED)["hard"]
    gpus = {name: count for name, count in jobs.items() if "/" in name}
    assert gpus == {f"requests.{MIG}": "7", "requests.nvidia.com/gpu": "6"}
    of_all_pods = tenancy._quota(tenant, MIXED)
    assert {name: count for name, count in of_all_pods.items() if "/" in name} == {
        "requests.amd.com/gpu": "0"
    }


def test_a_runtime_class_is_that_of_the_pool() -> None:
    assert pod("h100")["runtimeClassName"] == "nvidia"
    assert pod("mi300")["runtimeClassName"] == "rocm"
    assert "runtimeClassName" not in pod("cpu")
    sandboxed = replace(SETTINGS, runtime_class="cpu=gvisor")
    assert manifests.pod(SPEC, 0, sandboxed, "i", OWNER)["spec"]["runtimeClassName"] == "gvisor"
    assert "runtimeClassName" not in manifests.pod(SPEC, 0, SETTINGS, "i", OWNER)["spec"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu", "'gpu' must be a resource"),
        ("a100=gpu", "'a100=gpu' must be"),
        ("A100=nvidia.com/gpu", "must be"),
        ("nvidia.com/gpu,amd.com/gpu", "a second value for all other slot types"),
        ("a=x.y/z,a=x.y/w", "a second value for a"),
        ("cpu=x.y/z", "cpu cannot have GPUs"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pools.gpu_resources(text)


DATA = replace(SPEC, tenant="vision-lab", data={"mnist": "public/mnist", "own": "own"})


def test_data_sets_are_mounted_one_by_one_from_the_tenants_own_folder_and_read_only() -> None:
    made = manifests.pod(DATA, 0, SETTINGS, "i", OWNER)["spec"]
    [volume] = [each for each in made["volumes"] if each["name"] == "data"]
    assert volume["persistentVolumeClaim"] == {"claimName": "data-sets", "readOnly": True}
    [container] = made["containers"]
    mounts = {each["subPath"]: each for each in container["volumeMounts"] if each["name"] == "data"}
    assert {path: each["mountPath"] for path, each in mounts.items()} == {
        "vision-lab/public/mnist": f"{manifests.FOLDERS['DATA_DIR']}/mnist",
        "vision-lab/own": f"{manifests.FOLDERS['DATA_DIR']}/own",
    }
    assert all(each["readOnly"] for each in mounts.values())
    for sidecar in made["initContainers"]:
        assert "data" not in {each["name"] for each in sidecar["volumeMounts"]}
    assert "data" not in {each["name"] for each in pod("cpu")["volumes"]}


@pytest.mark.parametrize(
    ("shows", "error"),
    [(node(gpu=0), GangBlocked), (node({resources.SLOT_TYPE: "other"}, gpu=8), LaunchRefused)],
)
def test_a_gpu_job_survives_what_becomes_of_the_node_that_it_was_planned_on(
    shows: Manifest, error: type[ClusterError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its device plugin went away, or an administrator gave it another label."""
    driver = KubernetesCluster(MIXED, Silent())  # type: ignore[arg-type]
    monkeypatch.setattr(driver, "_view", lambda: View.of([shows], [], MIXED))
    with pytest.raises(error) as refused:
        driver.launch(replace(SPEC, slot_type="nvidia-a100"))
    if isinstance(refused.value, LaunchRefused):
        assert refused.value.code is RefusalCode.NODE_LOST
    else:
        assert getattr(refused.value, "node", "") == "node-a"


class Silent:
    """An API server that has nothing."""

    def get(self, path: str, **_: str) -> Manifest:
        raise NotFound(404, "NotFound", path)


def test_a_job_with_data_sets_is_refused_where_no_claim_has_them() -> None:
    with pytest.raises(LaunchRefused, match="KUBE_DATA_CLAIM is not set") as refused:
        KubernetesCluster(replace(SETTINGS, data_claim=""), Silent()).launch(DATA)  # type: ignore[arg-type]
    assert refused.value.code is RefusalCode.DATA_ERROR
