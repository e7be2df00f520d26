"""Ray's head node on this machine, in a folder of its own, and its client.

Ray is installed from PyPI into an environment of its own (`bench/peers/ray.txt`). The head node listens on loopback
addresses only, reports nothing to its makers, and ends with the context.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil

from bench.peers import environments
from bench.submits import tree_cpu_s
from gpu_scheduler.clusters.local.processes import become_subreaper
from tests.platform import free_port, wait_for

LOCK = Path(__file__).with_name("ray.txt")
CLIENT = Path(__file__).with_name("ray_client.py")
HOST = "127.0.0.1"
START_S, END_S = 120.0, 20.0
PORTS = (
    "port",
    "dashboard-port",
    "dashboard-agent-listen-port",
    "metrics-export-port",
    "ray-client-server-port",
)


def version() -> str:
    """Of Ray, as locked."""
    lines = LOCK.read_text().splitlines()
    return next(line.split("==")[1].split()[0] for line in lines if line.startswith("ray=="))


def start_command(python: Path, folder: Path, ports: dict[str, int]) -> list[str]:
    """`ray start` for a head node in the foreground. Beyond addresses and paths, all is Ray's default."""
    options = {"node-ip-address": HOST, "dashboard-host": HOST, "temp-dir": folder, **ports}
    command = [str(python), "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    return [*command, *(f"--{name}={value}" for name, value in options.items())]


class Ray:
    """A running head node, and a process with Ray's client."""

    def __init__(
        self, folder: Path, head: subprocess.Popen[bytes], client: subprocess.Popen[str], python: Path
    ) -> None:
        self.folder, self.head, self.client, self.python = folder, head, client, python

    def first_line_s(self, entrypoint: str, working_dir: Path | None = None) -> float:
        """Seconds from the submit until the client has the line; the job has ended when this returns."""
        asked = {"entrypoint": entrypoint, "working_dir": str(working_dir) if working_dir else None}
        return float(self.ask(asked)["first_line_s"])

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self.client.stdin
        self.client.stdin.write(json.dumps(asked) + "\n")
        self.client.stdin.flush()
        return answer(self.client)

    def cpu_s(self) -> float:
        """CPU-seconds so far of the head node and its jobs, those that have ended included."""
        return tree_cpu_s(psutil.Process(self.head.pid))


def answer(client: subprocess.Popen[str]) -> dict[str, Any]:
    """The client's next line; RuntimeError if it ended."""
    assert client.stdout
    line = client.stdout.readline()
    if not line:
        raise RuntimeError(f"Ray's client ended with {client.wait()}")
    return dict(json.loads(line))


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Ray]:
    """Start a head node in an empty folder, and end it whatever happens. A path above some 40 characters is too long
    for its sockets."""
    become_subreaper()
    python = environments.interpreter(LOCK)
    folder.mkdir(parents=True)
    ports = {name: free_port() for name in PORTS}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = {**kept, "RAY_USAGE_STATS_ENABLED": "0"}
    log = folder.with_suffix(".log")
    with contextlib.ExitStack() as ends, log.open("wb") as out:
        head = subprocess.Popen(
            start_command(python, folder, ports),
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
        ends.callback(end, head)
        address = (HOST, ports["dashboard-port"])

        def listens() -> bool:
            if head.poll() is not None:
                raise RuntimeError(f"ray start ended with {head.returncode}:\n{log.read_text()[-4000:]}")
            return any(tuple(found) == address for found in listening(head))

        wait_for(listens, within_s=START_S, what=f"Ray's dashboard; see {log}")
        client = ends.enter_context(
            subprocess.Popen(
                [str(python), str(CLIENT), f"http://{HOST}:{address[1]}"],
                env=environment,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        ends.callback(client.kill)
        assert answer(client)["ready"]
        ray = Ray(folder, head, client, python)
        require_loopback(listening(head))
        yield ray


def listening(head: subprocess.Popen[bytes]) -> list[tuple[str, int]]:
    """Addresses and ports at which the head node's processes listen."""
    top, found = psutil.Process(head.pid), []
    for process in (top, *top.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [
                (each.laddr.ip, each.laddr.port)
                for each in process.net_connections("tcp")
                if each.status == psutil.CONN_LISTEN
            ]
    return found


def require_loopback(found: list[tuple[str, int]]) -> None:
    """RuntimeError names what others could reach: whoever reaches Ray runs programs as its user."""
    open_to_others = sorted({f"{ip}:{port}" for ip, port in found if not ip_address(ip).is_loopback})
    if open_to_others:
        raise RuntimeError(f"Ray listens beyond the loopback interface: {', '.join(open_to_others)}")


def end(head: subprocess.Popen[bytes]) -> None:
    """End the head node, and what it leaves behind."""
    below = psutil.Process(head.pid).children(recursive=True) if head.poll() is None else []
    head.terminate()
    try:
        head.wait(END_S)
    except subprocess.TimeoutExpired:
        head.kill()
        head.wait()
    _, left = psutil.wait_procs(below, 5)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, 10)
