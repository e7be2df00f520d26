"""Real nodes: a kubelet, containerd and kube-proxy each, in namespaces and control groups of their own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.kube import network
from tools.kube.binaries import Binaries
from tools.kube.client import Api, Object
from tools.kube.components import DNS_SERVICE, Layout
from tools.kube.network import Network, Spawn

NODES = "/api/v1/nodes"
CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = (
    "blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids", "systemd", "unified",
)  # fmt: skip
TOOLS = (*network.TOOLS, "containerd", "ctr", "runc", "nft", "mount", "sysctl")
PLUGINS = Path("/usr/lib/cni")
PACKAGES = ("containerd", "runc", "containernetworking-plugins", "iproute2", "nftables")
"""Of Debian, for what TOOLS and PLUGINS name."""
END_S, LOAD_S = 20, 300
IMPORT = ("ctr", "--namespace=k8s.io", "images", "import")
INIT = Path(__file__).with_name("node_init.py")
MAX_PODS = 60
OWN_NAMESPACES = (
    "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc",
)  # fmt: skip
"""One for processes, too, so that whatever ends the first process ends every container."""


class NoSuchNode(Exception):
    """A real node that is not running was named."""


def missing() -> str:
    """Why this machine cannot have real nodes; empty: it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "real nodes need Linux and root"
    if not (CGROUPS / "memory").is_dir():
        return "real nodes need control groups of version 1"
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if not (PLUGINS / "ptp").exists():
        lacking.append(str(PLUGINS / "ptp"))
    if lacking:
        return f"real nodes need {', '.join(lacking)} (Debian: {' '.join(PACKAGES)})"
    probe = subprocess.run(
        [*OWN_NAMESPACES, "--net", "--", "true"], capture_output=True, text=True, timeout=30
    )
    if probe.returncode != 0 or not os.access(CGROUPS / "memory", os.W_OK):
        return f"real nodes need namespaces and control groups of their own: {probe.stderr.strip()}"
    return ""


def install() -> None:
    """Debian's packages, where this process may install them and something of them is missing."""
    apt = shutil.which("apt-get")
    tools = (*map(shutil.which, TOOLS), PLUGINS.exists())
    if all(tools) or apt is None or os.geteuid() != 0:
        return
    print("Installing what real nodes need ...", flush=True)
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *PACKAGES]):
        subprocess.run([apt, *command], env=env, stdout=subprocess.DEVNULL, timeout=600)


@dataclass(slots=True)
class Node:
    """One node of a cluster. images: archives that it has before it is ready."""

    name: str
    number: int
    layout: Layout
    network: Network
    gpus: int
    images: tuple[Path, ...]
    holder: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        return self.layout.folder / self.name

    @property
    def address(self) -> str:
        return self.network.node_address(self.number)

    @property
    def unhealthy_gpus(self) -> Path:
        """Write names of GPUs (gpu-0 …) to it, and the kubelet learns that they have failed."""
        return self.folder / "unhealthy-gpus"

    @property
    def cgroup(self) -> str:
        return _cgroup(self.layout, self.name)

    def start(self, api: Api, binaries: Binaries, spawn: Spawn) -> None:
        """Returns at once; see is_ready."""
        self._register(api)
        if not self.folder.exists():
            self._write_files(binaries)
        self._make_cgroups()
        if self.process is not None:
            self.process.wait()  # of the earlier start: it was killed, maybe by another process
        inside = [sys.executable, str(INIT), str(self.folder / "node.json")]
        self.process = spawn(self.name, [*network.enter(self.holder), *OWN_NAMESPACES, "--", *inside])

    def is_ready(self, api: Api) -> bool:
        """With its GPUs."""
        node = api.get(f"{NODES}/{self.name}")
        conditions = node["status"].get("conditions", [])
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        gpus = node["status"].get("allocatable", {}).get("nvidia.com/gpu", "0")
        return ready and int(gpus) == self.gpus

    def load(self, archive: Path) -> None:
        """Import an image. One that is killed later has it again."""
        assert self.process is not None
        command = ["nsenter", f"--mount=/proc/{self.process.pid}/ns/mnt", *IMPORT, str(archive)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_S)
        if done.returncode != 0:
            raise RuntimeError(f"{archive.name} could not be imported on {self.name}: {done.stderr.strip()}")

    def kill(self) -> None:
        """As if its power failed: every process of it, its containers among them, ends at once."""
        assert self.process is not None
        kill(self.layout, self.name)
        self.process.wait()

    def freeze(self) -> None:
        """As if its machine hung: no process of it goes on, and none ends, until `thaw`."""
        stopped: set[int] = set()
        while pids := self.processes() - stopped:  # a process that starts others meanwhile
            _signal(pids, signal.SIGSTOP)
            stopped |= pids

    def thaw(self) -> None:
        _signal(self.processes(), signal.SIGCONT)

    def processes(self) -> set[int]:
        """All of them, those of its containers among them."""
        return _pids_below(self.cgroup)

    def _register(self, api: Api) -> None:
        """The kubelet finds its pods' range in its Node."""
        pods = self.network.pod_range(self.number)
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"}
        if self.gpus:
            labels["nvidia.com/gpu.product"] = "NVIDIA-H100-80GB-HBM3"
        if self.process is None:
            metadata = {"name": self.name, "labels": labels}
            api.create(NODES, {"metadata": metadata, "spec": {"podCIDR": pods, "podCIDRs": [pods]}})

    def _write_files(self, binaries: Binaries) -> None:
        for name in ("kubelet", "containerd", "cni", "ipam", "log", "pods"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(self._pod_network()))
        (self.folder / "containerd.toml").write_text(self._containerd())
        (self.folder / "kubelet.json").write_text(json.dumps(self._kubelet()))
        (self.folder / "proxy.json").write_text(json.dumps(self._proxy()))
        content = {
            "folder": str(self.folder),
            "cgroups": [str(each / "daemons") for each in _folders(self.cgroup)],
            "imports": [[*IMPORT, str(image)] for image in self.images],
            "kubelet": [
                binaries["kubelet"],
                f"--config={self.folder / 'kubelet.json'}",
                f"--kubeconfig={self.layout.kubeconfig(self.name)}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
                "--cert-dir=/var/lib/kubelet/pki",
            ],
            "proxy": [
                binaries["kube-proxy"], f"--config={self.folder / 'proxy.json'}",
                f"--hostname-override={self.name}",
            ],
            "devices": [
                binaries["kube"], "device-plugin", "/var/lib/kubelet/device-plugins", str(self.gpus),
                str(self.unhealthy_gpus),
            ] if self.gpus else [],
        }  # fmt: skip
        (self.folder / "node.json").write_text(json.dumps(content))

    def _pod_network(self) -> Object:
        ipam = {
            "type": "host-local",
            "dataDir": str(self.folder / "ipam"),
            "ranges": [[{"subnet": self.network.pod_range(self.number)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        pods = {"type": "ptp", "ipMasq": False, "mtu": 1500, "ipam": ipam}
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [pods, ports]}

    def _containerd(self) -> str:
        return f"""version = 2
root = "{self.folder}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.btrfs", \
"io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.internal.v1.tracing"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "luthier.test/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{self.folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""

    def _kubelet(self) -> Object:
        keys = self.layout.keys
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "address": self.address,
            "healthzBindAddress": "127.0.0.1",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(keys / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(keys / f"{self.name}-server.crt"),
            "tlsPrivateKeyFile": str(keys / f"{self.name}-server.key"),
            "clusterDNS": [DNS_SERVICE],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self.folder / "resolv.conf"),
            "failSwapOn": False,
            "seccompDefault": True,
            # The machine's disk may be almost full: that is not the test's business.
            "evictionHard": dict.fromkeys(
                ("nodefs.available", "imagefs.available", "nodefs.inodesFree"), "1%"
            )
            | {"memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "nodeStatusUpdateFrequency": "2s",
            "nodeStatusReportFrequency": "10s",
            "nodeLeaseDurationSeconds": 8,
            "syncFrequency": "10s",
            "maxPods": MAX_PODS,
        }

    def _proxy(self) -> Object:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.layout.kubeconfig("proxy"))},
            "mode": "nftables",
            "clusterCIDR": self.network.pods,
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            # Connection tracking is the machine's; its limits are not changed.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }

    def _make_cgroups(self) -> None:
        for folder in _folders(self.cgroup):
            (folder / "daemons").mkdir(parents=True, exist_ok=True)
        cpuset = CGROUPS / "cpuset"
        for part in (cgroup_of(self.layout.folder), self.cgroup, f"{self.cgroup}/daemons"):
            for file in ("cpuset.cpus", "cpuset.mems"):  # a new group has none
                (cpuset / part / file).write_text((cpuset / file).read_text())


def kill(layout: Layout, name: str) -> None:
    """End every process of a node, whichever process started it. Raises NoSuchNode."""
    cgroup = _cgroup(layout, name)
    pids = _pids_below(cgroup)
    if "/" in name or not pids:
        there = sorted(path.parent.name for path in layout.folder.glob("*/node.json"))
        raise NoSuchNode(f"No real node {name} is running. There are: {', '.join(there) or 'none'}.")
    while pids:  # a process that starts others meanwhile
        _signal(pids, signal.SIGKILL)
        pids = _pids_below(cgroup) - pids
    _await_empty(cgroup)


def _cgroup(layout: Layout, node: str) -> str:
    return f"{cgroup_of(layout.folder)}/{node}"


def cgroup_of(folder: Path) -> str:
    """The control group of all nodes of the cluster in this folder."""
    return f"luthier-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"


def remove_cgroups(folder: Path) -> None:
    """After the end of all processes: the only thing that outlives them."""
    name = cgroup_of(folder)
    _await_empty(name)
    for root in _folders(name):
        if root.exists():
            for group in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
                group.rmdir()
            root.rmdir()


def _folders(cgroup: str) -> list[Path]:
    return [CGROUPS / name / cgroup for name in CONTROLLERS if (CGROUPS / name).is_dir()]


def _pids_below(cgroup: str) -> set[int]:
    found = (CGROUPS / "pids" / cgroup).rglob("cgroup.procs")
    return {int(line) for file in found for line in file.read_text().split()}


def _signal(pids: set[int], sent: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, sent)


def _await_empty(cgroup: str) -> None:
    deadline = time.monotonic() + END_S
    while pids := _pids_below(cgroup):
        if time.monotonic() > deadline:
            raise RuntimeError(f"Still running after {END_S} s: {sorted(pids)}")
        time.sleep(0.02)
