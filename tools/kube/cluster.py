"""One control plane in one folder: start it, wait until it answers, stop it without leaving a process or a file."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tools.kube import components, existing, images, netpol, nodes, processes
from tools.kube.binaries import ROOT, Binaries
from tools.kube.client import Api, ApiError, Object
from tools.kube.components import Layout, Ports
from tools.kube.network import Network, NetworkError
from tools.kube.nodes import Node

START_S = 90
POLL_S = 0.05
MARKER = "cluster.json"
"""Says that a folder is a cluster's, so that nothing else is ever removed."""
STAGES = Path(__file__).with_name("stages.yaml")
KWOK_RULES = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["get", "list", "watch", "patch", "update", "delete"],
    },
    {"apiGroups": [""], "resources": ["nodes/status", "pods/status"], "verbs": ["patch", "update"]},
    {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "list", "watch", "create", "patch", "update"],
    },
]
"""What KWOK does at the API server, and nothing more. As an administrator it would hide missing permissions."""
DNS_RULES = [
    {"apiGroups": [""], "resources": ["services", "namespaces"], "verbs": ["list", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
]
NETPOL_RULES = [
    {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["list"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list"]},
]


class ClusterError(Exception):
    """The test cluster could not be started; the message says why."""


def stop(folder: Path) -> None:
    """Also a cluster that is half started, or whose starter was killed. Harmless when there is none."""
    processes.kill(folder)
    nodes.remove_cgroups(folder)
    if (folder / MARKER).exists():
        shutil.rmtree(folder)


class Cluster:
    """A control plane, and real nodes if they are asked for. folder: private, made if missing; `stop` removes it.

    tied: the programs are killed when this process dies; otherwise they run until `stop`, of any process. real_nodes,
    gpus: how many, and how many GPUs each pretends to have; nodes.missing says what they need. enforced: the real nodes
    enforce NetworkPolicy.
    """

    def __init__(
        self,
        folder: Path,
        binaries: Binaries,
        *,
        tied: bool,
        real_nodes: int = 0,
        gpus: int = 0,
        enforced: bool = False,
    ) -> None:
        self.layout = Layout(folder.resolve())
        self.nodes: list[Node] = []
        self.network: Network | None = None
        self._ports: Ports | None = None
        self._real_nodes, self._gpus = real_nodes, gpus
        self._enforced = enforced
        self.binaries = binaries
        self._tied = tied
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def kubeconfig(self) -> Path:
        """Of the administrator."""
        return self.layout.kubeconfig("admin")

    @property
    def admin(self) -> Api:
        return Api(self.kubeconfig)

    def start(self) -> None:
        """Return when pods can be created and are scheduled. Raises ClusterError, with nothing left behind."""
        with self._folder_for_us():
            try:
                self._start()
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        stop(self.layout.folder)
        for process in self._started.values():
            process.wait()
        self._started.clear()

    def user(self, name: str, *groups: str) -> Api:
        """A client with a certificate of its own: RBAC decides what this user may do, at first nothing."""
        file = f"user-{name.replace(':', '-')}"
        self._sign([components.certificate(file, name, *groups)])
        port = json.loads((self.layout.folder / MARKER).read_text())["apiserver"]
        path = self.layout.kubeconfig(file)
        path.write_text(components.kubeconfig(self.layout, file, port))
        return Api(path)

    def service_account(self) -> Path:
        """The kubeconfig of components.PLATFORM, with a token as a pod of it has one. RBAC decides what it may do."""
        path = self.layout.kubeconfig("platform")
        if not path.exists():
            port = json.loads((self.layout.folder / MARKER).read_text())["apiserver"]
            token = existing.platform_token(self.admin)
            path.write_text(components.kubeconfig(self.layout, "platform", port, token))
        return path

    def audited(self) -> list[Object]:
        """What components.PLATFORM has done so far, as the API server records it."""
        lines = self.layout.audit_log.read_text().splitlines() if self.layout.audit_log.exists() else []
        return [json.loads(line) for line in lines]

    def _start(self) -> None:
        if self._real_nodes:
            self._connect()
        layout = self.layout
        with processes.PortReservation(len(Ports.__dataclass_fields__), layout.address) as reserved:
            ports = self._ports = Ports(*reserved.ports)
            (layout.folder / MARKER).write_text(json.dumps({"apiserver": ports.apiserver}))
            self._write_files(ports)
            self._spawn(components.etcd(layout))
            self._spawn(components.apiserver(layout, ports))
            api = self.admin
            self._await("the API server", lambda: api.text("/readyz") == "ok")
            self._spawn(components.controllers(layout, ports))
            self._spawn(components.scheduler(layout, ports))
            self._permit(api, "kwok", KWOK_RULES)
            self._spawn(components.kwok(layout))
            self._await("the scheduler", lambda: self._healthy(ports.scheduler))
            # Without it no pod is admitted; the controller manager makes it last.
            accounts = "/api/v1/namespaces/default/serviceaccounts"
            self._await("the default ServiceAccount", lambda: api.get(f"{accounts}/default"))
        if self._real_nodes:
            self._start_nodes(api)

    def _write_files(self, ports: Ports) -> None:
        layout = self.layout
        layout.logs.mkdir(exist_ok=True)
        self._sign(components.certificates(layout.address))
        for user in ("admin", "controllers", "scheduler", "kwok", "proxy", "dns", "netpol"):
            layout.kubeconfig(user).write_text(components.kubeconfig(layout, user, ports.apiserver))
        layout.audit_policy.write_text(components.audit_policy())
        layout.etcd_config.write_text(components.etcd_config(layout, ports))
        stages = [Path(self.binaries["kwok-stages.yaml"]).read_text(), STAGES.read_text()]
        layout.kwok_stages.write_text("\n---\n".join(stages))

    def _sign(self, requests: list[dict[str, object]]) -> None:
        command = [self.binaries["kube"], "certificates", str(self.layout.keys)]
        done = subprocess.run(command, input=json.dumps(requests), capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise ClusterError(f"The certificates could not be made: {done.stderr.strip()}")

    def _spawn(self, command: list[str]) -> None:
        name, *arguments = command
        self._start_program(name, [self.binaries[name], *arguments])

    def _start_program(self, name: str, program: list[str]) -> subprocess.Popen[bytes]:
        self.layout.logs.mkdir(exist_ok=True)
        process = processes.spawn(program, self.layout.log(name), self.layout.folder, tied=self._tied)
        self._started[name] = process
        return process

    def _connect(self) -> None:
        if why := nodes.missing():
            raise ClusterError(f"{why[0].upper()}{why[1:]}.")
        try:
            self.network = Network.create(self._start_program)
        except NetworkError as error:
            raise ClusterError(str(error)) from error
        self.layout = replace(self.layout, address=self.network.gateway)

    def _start_nodes(self, api: Api) -> None:
        assert self.network
        layout = self.layout
        (layout.folder / "Corefile").write_text(components.corefile(layout))
        self._permit(api, "coredns", DNS_RULES)
        self._spawn(components.dns(layout))
        for path, each in components.dns_objects(layout):
            api.create(path, each)
        archives = (layout.folder / "pause.tar", layout.folder / "python.tar")
        images.pause(archives[0], self.binaries["pause"])
        images.python(archives[1], [images.AGENT, images.RUNTIME.format(runtime="plain")])
        port = json.loads((layout.folder / MARKER).read_text())["apiserver"]
        for number in range(1, self._real_nodes + 1):
            node = Node(f"node-{number}", number, layout, self.network, self._gpus, archives)
            self._sign(components.node_certificates(node.name, node.address))
            layout.kubeconfig(node.name).write_text(components.kubeconfig(layout, node.name, port))
            node.holder = self.network.add_node(number, self._real_nodes, self._start_program)
            self.start_node(node)
            self.nodes.append(node)
        if self._enforced:
            self._enforce(api)
        for node in self.nodes:
            self._await(node.name, lambda node=node: node.is_ready(api))

    def _enforce(self, api: Api) -> None:
        """Returns when every node has its table, so that no pod is reached before it is isolated."""
        self._permit(api, "netpol", NETPOL_RULES)
        of_nodes = [f"{node.name}={node.holder}" for node in self.nodes]
        module = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", netpol.__name__]
        self._start_program("netpol", [*module, str(self.layout.kubeconfig("netpol")), *of_nodes])
        for node in self.nodes:
            self._await(f"netpol on {node.name}", lambda node=node: netpol.is_enforced(node.holder))

    def stop_api(self) -> None:
        """Kill the API server; everything else runs on."""
        process = self._started.pop("kube-apiserver")
        process.kill()
        process.wait()

    def start_api(self) -> None:
        """Start it again at the same address. Returns when it answers."""
        assert self._ports is not None
        self._spawn(components.apiserver(self.layout, self._ports))
        self._await("the API server", lambda: self.admin.text("/readyz") == "ok")

    def load(self, name: str, site_packages: Path) -> None:
        """Give every real node an image of this name with these packages beside the learner agent."""
        self._load(lambda archive: images.python(archive, [name], site_packages))

    def load_platform(self) -> None:
        """Give every real node the platform's own image, images.PLATFORM."""
        self._load(images.platform_image)

    def _load(self, write: Callable[[Path], None]) -> None:
        archive = self.layout.folder / "loaded.tar"
        write(archive)
        with ThreadPoolExecutor() as pool:  # each unpacks it for itself
            list(pool.map(lambda node: node.load(archive), self.nodes))
        archive.unlink()

    def start_node(self, node: Node) -> None:
        """Also one that was killed."""
        node.start(self.admin, self.binaries, self._start_program)

    def _permit(self, api: Api, user: str, rules: list[dict[str, list[str]]]) -> None:
        kind = "/apis/rbac.authorization.k8s.io/v1"
        role = {"metadata": {"name": user}, "rules": rules}
        binding = {
            "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }
        api.create(f"{kind}/clusterroles", role)
        api.create(f"{kind}/clusterrolebindings", binding)

    def _healthy(self, port: int) -> bool:
        return Api(self.kubeconfig, port=port).text("/healthz") == "ok"

    def _await(self, what: str, ready: Callable[[], object]) -> None:
        """Until it answers. A program that has ended is reported at once, with the end of its log."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                if ready():
                    return
                why = "it is not ready"
            except (OSError, ApiError) as error:
                why = str(error)
            for name, process in self._started.items():
                if process.poll() is not None:
                    raise ClusterError(
                        f"{name} ended with exit code {process.returncode}:\n{self._tail(name)}"
                    )
            if time.monotonic() > deadline:
                raise ClusterError(f"No answer from {what} within {START_S} s: {why}")
            time.sleep(POLL_S)  # there is no event for "a port is open"

    def _tail(self, name: str) -> str:
        return "\n".join(self.layout.log(name).read_text(errors="replace").splitlines()[-10:])

    @contextmanager
    def _folder_for_us(self) -> Iterator[None]:
        """An empty private folder, or what a cluster that no longer runs left; one start at a time."""
        folder = self.layout.folder
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._require_empty()
            yield
        except BlockingIOError:
            raise ClusterError(f"Another process is starting a cluster in {folder}.") from None
        finally:
            os.close(lock)

    def _require_empty(self) -> None:
        folder = self.layout.folder
        if processes.running(folder):
            raise ClusterError(f"A cluster is running in {folder}. Stop it first, or name another folder.")
        if (folder / MARKER).exists():
            remove_content(folder)
        if any(folder.iterdir()):
            raise ClusterError(f"{folder} holds other files. Name an empty folder.")
        folder.chmod(0o700)


def remove_content(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
