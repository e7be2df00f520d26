"""What the benchmark against Ray Jobs starts, and what all peers share, without Ray."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peers import environments, ray_cluster, ray_jobs, sides

ROOT = Path(__file__).resolve().parents[2]


def test_the_head_node_is_started_on_loopback_addresses() -> None:
    ports = {name: 7000 + n for n, name in enumerate(ray_cluster.PORTS)}
    command = ray_cluster.start_command(Path("/env/bin/python"), Path("/private/ray"), ports)
    assert command[:6] == ["/env/bin/python", "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    found = dict(option.removeprefix("--").split("=") for option in command[6:])
    assert found["node-ip-address"] == found["dashboard-host"] == "127.0.0.1"
    assert found["temp-dir"] == "/private/ray"
    assert found["dashboard-port"] == "7001"


def test_a_head_node_that_others_could_reach_is_an_error() -> None:
    ray_cluster.require_loopback([("127.0.0.1", 1), ("::1", 2), ("::ffff:127.0.0.1", 3)])
    with pytest.raises(RuntimeError, match=r"0\.0\.0\.0:8265"):
        ray_cluster.require_loopback([("127.0.0.1", 1), ("0.0.0.0", 8265)])
    with pytest.raises(RuntimeError, match="::"):
        ray_cluster.require_loopback([("::", 8265)])


def test_a_client_that_ends_is_an_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print('{\"first_line_s\": 2}'); raise SystemExit(3)"],
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert ray_cluster.answer(client) == {"first_line_s": 2}
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


def test_who_is_first_alternates() -> None:
    both = dict.fromkeys(("ours", "slurm"))
    assert [[name for name, _ in sides.alternating(both, place)] for place in (0, 1)] == [
        ["ours", "slurm"],
        ["slurm", "ours"],
    ]


class Side:
    """Takes the next of these times for a line, and 2 s of CPU for each; between its lines it takes more."""

    def __init__(self, times: Iterator[float], order: list[str], name: str) -> None:
        self.times, self.order, self.name, self.cpu = times, order, name, 0.0

    def first_line_s(self) -> float:
        self.order.append(self.name)
        self.cpu += 2
        return next(self.times)

    def cpu_s(self) -> float:
        self.cpu += 0.5
        return self.cpu


def test_lines_alternate_and_cpu_time_is_that_of_the_own_lines() -> None:
    order: list[str] = []
    names = ("ours", "ray")
    found = ray_jobs.measure({name: Side(iter([1.0, 2.0, 3.0]), order, name) for name in names}, 3)
    assert order == ["ours", "ray", "ray", "ours", "ours", "ray"]
    assert found["ray"] == {"first_line_s": [1.0, 2.0, 3.0], "line_cpu_s": [2.5]}
