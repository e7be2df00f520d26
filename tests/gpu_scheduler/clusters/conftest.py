from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.clusters.local import processes
from gpu_scheduler.clusters.local.packages import Environments
from gpu_scheduler.clusters.local.runtimes import Runtimes
from tests.gpu_scheduler.clusters.harness import Harness, LocalHarness, MemoryHarness, SlowHarness
from tests.gpu_scheduler.clusters.node_daemon import NodeDaemon, running_daemon
from tests.gpu_scheduler.clusters.wheelhouse import wheel


@pytest.fixture(params=["memory", "local", "local, watched", "slow"])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """Every driver in turn."""
    if request.param in ("memory", "slow"):
        yield MemoryHarness() if request.param == "memory" else SlowHarness()
        return
    with running_daemon() as daemon:
        if request.param == "local":
            yield LocalHarness(daemon)
            return
        watch = daemon.cluster.watch(lambda names: None)
        yield LocalHarness(daemon)
        watch.close()


@pytest.fixture
def daemon() -> Iterator[NodeDaemon]:
    with running_daemon() as daemon:
        yield daemon


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of a folder; no other can be reached."""
    folder = tmp_path / "wheels"
    for version in ("1.0", "2.0"):
        wheel(folder, "lower", version)
    wheel(folder, "upper", "1.0", requires=("lower",))
    wheel(folder, "upper", "1.5", requires=("lower<2",))
    wheel(folder, "greedy", "1.0", requires=("lower>=2",))
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "index").as_uri())
    return folder


@pytest.fixture
def environments(tmp_path: Path, index: Path) -> Environments:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "plain.txt").write_text("# nothing\n")
    return Environments(tmp_path / "data", Runtimes(tmp_path / "data", tmp_path / "requirements"))


@pytest.fixture
def children_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon's loop in this process does not end the suite's own children, such as its PostgreSQL."""
    monkeypatch.setattr(processes, "sweep_orphans", lambda: None)
