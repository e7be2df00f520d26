"""First process of a node: arranges its mounts, starts its daemons, and ends the node when one of them ends.

It runs in the node's own network, mount and process namespaces: python node_init.py node.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet sets on its machine. Here it sets copies."""
PLUGINS = Path("/var/lib/kubelet/device-plugins")
START_S = 30


def main(path: str) -> int:
    node: dict[str, Any] = json.loads(Path(path).read_text())
    folder = Path(node["folder"])
    arrange_mounts(folder)
    for group in node["cgroups"]:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    daemons = {start(folder, "containerd", ["containerd", f"--config={folder / 'containerd.toml'}"])}
    await_it("containerd", lambda: subprocess.run(["ctr", "version"], capture_output=True).returncode == 0)
    for command in node["imports"]:
        subprocess.run(command, check=True)
    daemons |= {start(folder, name, node[name]) for name in ("kubelet", "proxy")}
    if node["devices"]:
        # Not before: a kubelet that starts removes the sockets of all plugins.
        await_it("the kubelet", PLUGINS.joinpath("kubelet.sock").exists)
        daemons.add(start(folder, "devices", node["devices"]))
    while True:  # reap orphans, too: this is their parent
        pid, status = os.wait()
        if pid in daemons:
            print(f"process {pid} ended with status {status}", flush=True)
            return 1


def arrange_mounts(folder: Path) -> None:
    """Paths that Kubernetes has compiled in belong to the node; the machine's own stay as they are."""
    mount("--make-rshared", "/")
    for path in ("/run", "/var/lib", "/var/log"):
        mount("-t", "tmpfs", "tmpfs", path)
    Path("/run/netns").mkdir()
    mount("--bind", "/run/netns", "/run/netns")
    Path("/var/lib/kubelet").mkdir()
    mount("--bind", str(folder / "kubelet"), "/var/lib/kubelet")
    mount("--make-rshared", "/var/lib/kubelet")
    PLUGINS.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "tmpfs", str(PLUGINS))  # without the sockets of an earlier start
    Path("/var/log/pods").mkdir()
    mount("--bind", str(folder / "pods"), "/var/log/pods")
    mount("--bind", str(folder / "resolv.conf"), "/etc/resolv.conf")
    for name, value in SYSCTLS.items():
        copy = Path("/run", name.replace("/", "_"))
        copy.write_text(f"{value}\n")
        mount("--bind", str(copy), f"/proc/sys/{name}")


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def start(folder: Path, name: str, command: list[str]) -> int:
    with (folder / "log" / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).pid


def await_it(what: str, answers: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not answers():
        if time.monotonic() > deadline:
            raise SystemExit(f"No answer from {what} within {START_S} s")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
