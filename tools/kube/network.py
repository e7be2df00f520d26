"""The network of a cluster with real nodes: private to this machine, with no way out of it.

Network namespaces live exactly as long as a process that holds them, so nothing of it outlives the cluster's
processes, however they end: a holder for the bridge, one per node, and this machine's own end of a cable.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SUBNETS = range(1, 100)
HOLD = ["unshare", "--net", "sleep", "infinity"]
HOLD_S = 10
TOOLS = ("ip", "nsenter", "unshare", "setpriv")

Spawn = Callable[[str, list[str]], "subprocess.Popen[bytes]"]
"""Start a program of the cluster, under this name."""


class NetworkError(Exception):
    """The network could not be made; the message is that of the program that failed."""


@dataclass(frozen=True, slots=True)
class Network:
    """hub: the process that holds the bridge. subnet: another one for each cluster of this machine."""

    subnet: int
    hub: int

    @property
    def gateway(self) -> str:
        """This machine's address, which nodes and pods reach."""
        return f"10.89.{self.subnet}.1"

    def node_address(self, number: int) -> str:
        return f"10.89.{self.subnet}.{10 + number}"

    def pod_range(self, number: int) -> str:
        return f"10.{100 + self.subnet}.{number}.0/24"

    @property
    def pods(self) -> str:
        return f"10.{100 + self.subnet}.0.0/16"

    @classmethod
    def create(cls, spawn: Spawn) -> Network:
        """Raises NetworkError."""
        hub = spawn("network", HOLD).pid
        await_namespace(hub)
        inside(hub, "ip link add bridge type bridge", "ip link set bridge up", "ip link set lo up")
        with _one_at_a_time():
            network = cls(_free_subnet(), hub)
            cable = f"luthier-{network.subnet}"
            run(f"ip link add {cable} type veth peer name machine netns {hub}")
            run(f"ip address add {network.gateway}/24 dev {cable}", f"ip link set {cable} up")
        inside(hub, "ip link set machine master bridge", "ip link set machine up")
        return network

    def add_node(self, number: int, others: int, spawn: Spawn) -> int:
        """Connect a node to the bridge. others: how many nodes there will be. Returns the holder of its namespace."""
        holder = spawn(f"network-{number}", HOLD).pid
        await_namespace(holder)
        address = self.node_address(number)
        run(f"ip link add node-{number} netns {self.hub} type veth peer name eth0 netns {holder}")
        inside(self.hub, f"ip link set node-{number} master bridge", f"ip link set node-{number} up")
        routes = [
            f"ip route add {self.pod_range(other)} via {self.node_address(other)}"
            for other in range(1, others + 1)
            if other != number
        ]
        inside(
            holder,
            f"ip address add {address}/24 dev eth0",
            "ip link set eth0 up",
            "ip link set lo up",
            # Nothing may reach beyond this machine, least of all a failed pull of an image.
            "ip route add unreachable default metric 4096",
            "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0",
            *routes,
        )
        run(f"ip route add {self.pod_range(number)} via {address}")
        return holder

    def cut(self, number: int) -> None:
        """Disconnect a node; what runs on it goes on."""
        inside(self.hub, f"ip link set node-{number} down")

    def reconnect(self, number: int) -> None:
        """Connect it again."""
        inside(self.hub, f"ip link set node-{number} up")


def enter(holder: int) -> list[str]:
    """The beginning of a command that runs in the namespace which this process holds."""
    return ["nsenter", f"--net=/proc/{holder}/ns/net"]


def inside(holder: int, *commands: str) -> None:
    for command in commands:
        _run([*enter(holder), *command.split()])


def run(*commands: str) -> None:
    for command in commands:
        _run(command.split())


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise NetworkError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def await_namespace(pid: int) -> None:
    """Until the process has left this process's network namespace."""
    ours, deadline = os.stat("/proc/self/ns/net").st_ino, time.monotonic() + HOLD_S
    while True:
        try:
            if os.stat(f"/proc/{pid}/ns/net").st_ino != ours:
                return
        except OSError as error:
            raise NetworkError("The program that holds a network namespace has ended.") from error
        if time.monotonic() > deadline:
            raise NetworkError(f"No network namespace within {HOLD_S} s.")
        time.sleep(0.01)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Clusters that start at the same moment would choose the same subnet."""
    with (Path(tempfile.gettempdir()) / "luthier-kube.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _free_subnet() -> int:
    listed = subprocess.run(["ip", "-json", "address"], capture_output=True, check=True, timeout=30).stdout
    used = {each["local"] for link in json.loads(listed) for each in link["addr_info"]}
    for number in SUBNETS:
        if f"10.89.{number}.1" not in used:
            return number
    raise NetworkError("Every subnet from 10.89.1.0/24 on is in use by a test cluster.")
