"""Ray's head node on this machine, in a folder of its own, and its client.

Ray is installed from PyPI into an environment of its own (`bench/peers/ray.txt`). Anyone who reaches a head node runs
programs as its user, and it listens on all addresses, so it runs in a network of its own, which has only a loopback
interface; its client and its jobs are in there, too. It reports nothing to its makers, and ends with the context.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.peers import environments
from gpu_scheduler.clusters.local.processes import become_subreaper
from tests.platform import free_port, wait_for

LOCK = Path(__file__).with_name("ray.txt")
CLIENT = Path(__file__).with_name("ray_client.py")
HOST = "127.0.0.2"
"""A loopback address: for 127.0.0.1 Ray takes the address by which other machines would reach this one."""
END_S = 20.0
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


def start_command(python: Path, folder: Path, cpus: int, ports: dict[str, int]) -> list[str]:
    """`ray start` for a head node in the foreground. Beyond CPUs, addresses and paths, all is Ray's default."""
    options = {"num-cpus": cpus, "node-ip-address": HOST, "dashboard-host": HOST, "temp-dir": folder, **ports}
    command = [str(python), "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    return [*command, *(f"--{name}={value}" for name, value in options.items())]


def in_own_network(command: Sequence[str]) -> list[str]:
    """This command in a network that nothing outside reaches, with a loopback interface alone."""
    made = [
        "unshare",
        "--user",
        "--map-root-user",
        "--net",
        "sh",
        "-c",
        'ip link set lo up && exec "$@"',
        "sh",
    ]
    return [*made, *command]


def is_in_own_network(pid: int) -> bool:
    """Whether the process has entered it, as `unshare` does a moment after it began."""
    return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()


def in_network_of(pid: int, command: Sequence[str]) -> list[str]:
    """This command in the network of a process that runs there."""
    return ["nsenter", f"--target={pid}", "--user", "--net", "--preserve-credentials", *command]


class Ray:
    """A running head node, and a process with Ray's client."""

    def __init__(
        self, folder: Path, head: subprocess.Popen[bytes], client: subprocess.Popen[str], python: Path
    ) -> None:
        self.folder, self.head, self.client, self.python = folder, head, client, python

    def first_line_s(self, entrypoint: str, working_dir: Path | None = None) -> float:
        """Seconds from the submit until the client has the line; the job has ended when this returns."""
        code = str(working_dir) if working_dir else None
        return float(self.ask("line", entrypoint=entrypoint, working_dir=code))

    def submit_many(self, job: Mapping[str, Any], count: int, connections: int) -> float:
        """Submit this job so often over so many connections; seconds."""
        return float(self.ask("submit", job=job, count=count, connections=connections))

    def states(self) -> Counter[str]:
        """How many of the jobs that were submitted are in which state."""
        return Counter(self.ask("states"))

    def ask(self, what: str, **asked: Any) -> Any:
        """The client's answer; RuntimeError if it ended."""
        assert self.client.stdin
        self.client.stdin.write(json.dumps({"do": what, **asked}) + "\n")
        self.client.stdin.flush()
        return answer(self.client)


def answer(client: subprocess.Popen[str]) -> Any:
    """What the client's next line says; RuntimeError if it ended."""
    assert client.stdout
    line = client.stdout.readline()
    if not line:
        raise RuntimeError(f"Ray's client ended with {client.wait()}")
    return json.loads(line)["answer"]


@contextlib.contextmanager
def running(folder: Path, cpus: int) -> Iterator[Ray]:
    """Start a head node with so many CPUs in an empty folder, and end it whatever happens. A path above some 40
    characters is too long for its sockets."""
    become_subreaper()
    python = environments.interpreter(LOCK)
    folder.mkdir(parents=True)
    ports = {name: free_port() for name in PORTS}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = {**kept, "RAY_USAGE_STATS_ENABLED": "0"}
    log = folder.with_suffix(".log")
    with contextlib.ExitStack() as ends, log.open("wb") as out:
        head = subprocess.Popen(
            in_own_network(start_command(python, folder, cpus, ports)),
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
        ends.callback(end, head)
        wait_for(lambda: is_in_own_network(head.pid), within_s=30, what="the head node's own network")
        server = f"{HOST}:{ports['dashboard-port']}"
        client = ends.enter_context(
            subprocess.Popen(
                in_network_of(head.pid, [str(python), str(CLIENT), server]),
                env=environment,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        ends.callback(client.kill)
        ray = Ray(folder, head, client, python)
        try:
            assert ray.ask("ready")
        except RuntimeError as error:
            raise RuntimeError(f"{error}; ray start says:\n{log.read_text()[-4000:]}") from error
        yield ray


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
