"""What the benchmark against Ray Jobs starts, and what all peers share, without Ray."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bench.peers import environments, ray_client, ray_cluster, ray_jobs, sides

ROOT = Path(__file__).resolve().parents[2]


def test_the_head_node_is_started_on_loopback_addresses() -> None:
    ports = {name: 7000 + n for n, name in enumerate(ray_cluster.PORTS)}
    command = ray_cluster.start_command(Path("/env/bin/python"), Path("/private/ray"), 3, ports)
    assert command[:6] == ["/env/bin/python", "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    found = dict(option.removeprefix("--").split("=") for option in command[6:])
    assert found["node-ip-address"] == found["dashboard-host"] == "127.0.0.2"
    assert found["num-cpus"] == "3"
    assert found["temp-dir"] == "/private/ray"
    assert found["dashboard-port"] == "7001"


def test_a_head_node_and_its_client_have_a_network_of_their_own() -> None:
    """With a loopback interface that works, and nothing else: no other process reaches what listens there."""
    there = [
        sys.executable,
        "-c",
        "import socket\n"
        "server = socket.create_server(('127.0.0.2', 0))\n"
        "print([name for _, name in socket.if_nameindex()], server.getsockname()[1], flush=True)\n"
        "print(server.accept()[0].recv(9).decode())",
    ]
    with subprocess.Popen(ray_cluster.in_own_network(there), stdout=subprocess.PIPE, text=True) as inside:
        assert inside.stdout
        interfaces, port = inside.stdout.readline().rsplit(maxsplit=1)
        assert interfaces == "['lo']"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", int(port)))
        client = f"import socket; socket.create_connection(('127.0.0.2', {port})).send(b'hello')"
        subprocess.run(
            ray_cluster.in_network_of(inside.pid, [sys.executable, "-c", client]), check=True, timeout=60
        )
        assert inside.stdout.readline() == "hello\n"


def test_a_client_that_ends_is_an_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print('{\"answer\": 2}'); raise SystemExit(3)"],
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert ray_cluster.answer(client) == 2
        with pytest.raises(RuntimeError, match="ended with 3"):
            ray_cluster.answer(client)


def test_ray_is_locked_for_itself_and_in_no_environment_of_the_platform() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", ray_cluster.version())
    assert f"=={ray_cluster.version()}" in ray_cluster.LOCK.with_suffix(".in").read_text()
    for lock in (ROOT / "requirements").glob("*.txt"):
        assert not re.search(r"^ray\b", lock.read_text(), re.M)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """What would be run; a new environment gets its interpreter."""
    ran: list[list[str]] = []

    def run(command: list[str], purpose: str) -> None:
        ran.append(command)
        if "venv" in command:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()

    monkeypatch.setenv("LUTHIER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(environments.environment, "run", run)
    monkeypatch.setattr(environments.environment, "find_uv", lambda: "uv")
    return ran


def test_an_environment_is_made_once_for_each_lock(commands: list[list[str]], tmp_path: Path) -> None:
    lock = tmp_path / "ray.txt"
    lock.write_text("ray==1\n")
    python = environments.interpreter(lock)
    assert python.exists()
    assert python.is_relative_to(tmp_path / "cache" / "peers")
    assert [command[:2] for command in commands] == [["uv", "venv"], ["uv", "pip"]]
    assert "--require-hashes" in commands[1]
    assert commands[1][-2:] == ["-r", str(lock)]
    assert environments.interpreter(lock) == python
    assert len(commands) == 2
    lock.write_text("ray==2\n")
    assert environments.interpreter(lock) != python
    assert [path.name for path in python.parents[2].iterdir() if path.name.startswith(".")] == []


def test_ratios_are_ours_by_those_of_the_side_named() -> None:
    def side(lines: list[float], rates: list[float]) -> defaultdict[str, list[float]]:
        return defaultdict(list, first_line_s=lines, submits_per_s=rates)

    found = sides.figures(
        {"ours": side([0.2, 0.3, 0.4], [100, 200]), "slurm": side([3, 3, 3], [300, 300])}, "slurm"
    )
    assert found["ratio first_line_p50_s"] == pytest.approx(0.1)
    assert found["ratio submits_per_s"] == pytest.approx(0.5)


def test_what_one_side_alone_has_is_given_without_a_ratio() -> None:
    ours = defaultdict(list, first_line_s=[0.2])
    ray = defaultdict(list, first_line_s=[0.4], in_place_line_s=[0.3])
    found = sides.figures({"ours": ours, "ray": ray}, "ray")
    assert found["ray in_place_line_s"] == 0.3
    assert [name for name in found if name.endswith("in_place_line_s")] == ["ray in_place_line_s"]


def test_who_is_first_alternates() -> None:
    both = dict.fromkeys(("ours", "slurm"))
    assert [[name for name, _ in sides.alternating(both, place)] for place in (0, 1)] == [
        ["ours", "slurm"],
        ["slurm", "ours"],
    ]


class Side:
    """Takes the next of these times for a line."""

    def __init__(self, times: Iterator[float], order: list[str], name: str) -> None:
        self.times, self.order, self.name = times, order, name

    def first_line_s(self) -> float:
        return self._did(f"{self.name} line", next(self.times))

    def jobs_per_s(self, count: int) -> float:
        return self._did(f"{self.name} {count} jobs", 7.0)

    def submits_per_s(self, count: int) -> float:
        return self._did(f"{self.name} {count} submits", 9.0)

    def withdraw(self) -> None:
        self.order.append(f"{self.name} withdraws")

    def _did(self, what: str, value: float) -> float:
        self.order.append(what)
        return value


def test_sides_take_turns() -> None:
    order: list[str] = []
    both = {name: Side(iter([1.0, 3.0]), order, name) for name in ("ours", "ray")}
    found = ray_jobs.measure(**both, lines=2, jobs=5, submits=6)
    assert order == [
        *("ours line", "ray line"),
        *("ray line", "ours line"),
        *("ours 5 jobs", "ray 5 jobs"),
        *("ours 6 submits", "ours withdraws", "ray 6 submits"),
    ]
    assert found["ray"] == {
        "first_line_s": [1.0, 3.0],
        "jobs_per_s": [7.0],
        "submits_per_s": [9.0],
    }


class Head(BaseHTTPRequestHandler):
    """Answers as Ray's head node does to a submit and to a list; a job waits if it asks for what no node has."""

    jobs: ClassVar[list[dict[str, Any]]] = []
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.jobs.append({"status": "PENDING" if "entrypoint_resources" in job else "SUCCEEDED"})
        self._answer({"submission_id": str(len(self.jobs))})

    def do_GET(self) -> None:
        self._answer(self.jobs)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, body: Any) -> None:
        sent = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of one without jobs."""
    monkeypatch.setattr(Head, "jobs", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), Head) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


class Direct(ray_cluster.Ray):
    """Asks a server without a client's process between."""

    def __init__(self, folder: Path, server: str) -> None:
        self.folder, self.server, self.python = folder, server, Path("python")

    def ask(self, what: str, **asked: Any) -> Any:
        return {
            "line": lambda **_: 1.0,
            "submit": lambda **asked: ray_client.submit_many(self.server, **asked),
            "states": lambda: dict(ray_client.states(self.server)),
        }[what](**asked)


def test_jobs_and_submits_are_counted_by_the_state_that_they_reach(
    head: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray = Direct(tmp_path / "ray", f"127.0.0.1:{head}")
    theirs = ray_jobs.Theirs(ray, connections=2)
    assert theirs.jobs_per_s(5) > 0
    assert theirs.submits_per_s(3) > 0
    assert ray.states() == {"SUCCEEDED": 5, "PENDING": 3}
    monkeypatch.setattr(ray_jobs, "HELD", {})
    with pytest.raises(AssertionError):
        theirs.submits_per_s(3)
    Head.jobs.append({"status": "FAILED"})
    with pytest.raises(AssertionError, match="FAILED"):
        theirs.jobs_per_s(1)
