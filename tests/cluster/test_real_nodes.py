"""Real nodes: kubelets that run containers, on a network of their own, and nothing left of them afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_scheduler.clusters.kubernetes import reports
from tests.cluster.folders import new_folder
from tools.kube import binaries, nodes
from tools.kube.__main__ import main
from tools.kube.client import Api, Object
from tools.kube.cluster import Cluster
from tools.kube.images import AGENT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
SPACE = "/api/v1/namespaces/default"
PODS = f"{SPACE}/pods"
SERVES = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8080)"
ASKS = """
import os, time, urllib.request
while True:
    try:
        print(urllib.request.urlopen("http://rank-0.gang:8080/", timeout=2).status, len(os.environ["NVIDIA_VISIBLE_DEVICES"].split(",")))
        break
    except OSError as error:
        print(error, flush=True)
        time.sleep(0.2)
"""  # noqa: E501
CONFINED = """
import os, re
import msgspec, websockets
status = open("/proc/self/status").read()
print(os.getuid(), *(re.search(f"{name}:\\t(\\\\w+)", status)[1] for name in ("CapEff", "Seccomp")))
try:
    open("/file", "w")
except OSError as error:
    print(error.strerror)
"""


@pytest.fixture
def api(real_cluster: Cluster) -> Api:
    return real_cluster.admin


def run(api: Api, name: str, program: str, node: str, **spec: object) -> None:
    container = {"name": "program", "image": AGENT, "command": ["python3", "-c", program]}
    container |= {"resources": {"limits": {"nvidia.com/gpu": "2"}}} if not spec else {}
    security = spec.pop("container", None)
    if security:
        container["securityContext"] = security
    metadata = {"name": name, "labels": {"gang": "gang"}}
    about = {"nodeName": node, "restartPolicy": "Never", "hostname": name, "subdomain": "gang"}
    about |= {"terminationGracePeriodSeconds": 1, "containers": [container]}
    api.create(PODS, {"metadata": metadata, "spec": about | spec})


def ended(api: Api, name: str) -> str:
    def has_ended(pod: Object | None) -> bool:
        return pod is not None and pod["status"].get("phase") in ("Succeeded", "Failed")

    api.wait_for(PODS, name, has_ended)
    return api.text(f"{PODS}/{name}/log")


def remove(api: Api, *names: str) -> None:
    for name in names:
        api.delete(f"{PODS}/{name}")
    for name in names:
        api.wait_for(PODS, name, lambda pod: pod is None)


def test_a_gang_finds_itself_by_name_across_nodes(api: Api) -> None:
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"gang": "gang"}}
    api.create(f"{SPACE}/services", {"metadata": {"name": "gang"}, "spec": service})
    run(api, "rank-0", SERVES, "node-1")
    run(api, "rank-1", ASKS, "node-2")
    assert ended(api, "rank-1").splitlines()[-1] == "200 2"
    remove(api, "rank-0", "rank-1")
    api.delete(f"{SPACE}/services/gang")


def test_a_restricted_pod_runs_confined(api: Api) -> None:
    pod = {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    run(api, "confined", CONFINED, "node-1", securityContext=pod, container=container)
    assert ended(api, "confined").splitlines() == ["65534 0000000000000000 2", "Read-only file system"]
    remove(api, "confined")


def test_a_gpu_that_fails_can_no_longer_be_requested(api: Api, real_cluster: Cluster) -> None:
    def gpus(count: int) -> None:
        def has(node: Object | None) -> bool:
            return node is not None and node["status"]["allocatable"].get("nvidia.com/gpu") == str(count)

        api.wait_for(nodes.NODES, "node-1", has)

    [node] = [each for each in real_cluster.nodes if each.name == "node-1"]
    node.unhealthy_gpus.write_text("gpu-1 gpu-3\n")
    gpus(2)
    node.unhealthy_gpus.write_text("")
    gpus(4)


def test_killing_a_node_that_is_not_there_names_those_that_are(
    real_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--folder", str(real_cluster.layout.folder), "kill-node", "node-9"]) == 1
    assert capsys.readouterr().err == "No real node node-9 is running. There are: node-1, node-2.\n"


def test_nothing_is_left_of_nodes_whose_cluster_is_stopped() -> None:
    if why := nodes.missing():
        pytest.skip(why)
    before, folder = links(), new_folder("left")
    cluster = Cluster(folder, binaries.build(), tied=True, real_nodes=1)
    cluster.start()
    assert len(links()) > len(before)
    assert any(root.exists() for root in nodes._folders(nodes.cgroup_of(folder)))
    cluster.stop()
    assert links() == before
    assert not any(root.exists() for root in nodes._folders(nodes.cgroup_of(folder)))
    assert not folder.exists()


def links() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def test_a_volume_that_cannot_be_mounted_is_the_pods_reason(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kubelet shows it, for reports of learners."""
    monkeypatch.setattr(reports, "PREPARED_S", 0)
    volume = {"name": "data", "hostPath": {"path": "/none/such", "type": "Directory"}}
    run(api, "unmounted", "", "node-1", volumes=[volume])
    run(api, "mounted", "", "node-1", volumes=[{"name": "data", "emptyDir": {}}])
    ended(api, "mounted")
    expected = "Node node-1 has not prepared its volumes or its network."
    # The kubelet writes each pod's status when it comes to it.
    api.wait_for(PODS, "unmounted", lambda pod: bool(pod) and reports._waits_for(pod).startswith(expected))
    remove(api, "mounted", "unmounted")
