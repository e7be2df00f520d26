from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_scheduler.clusters.local import processes
from tests.gpu_scheduler.clusters.harness import Harness, LocalHarness, MemoryHarness, SlowHarness
from tests.gpu_scheduler.clusters.node_daemon import NodeDaemon, running_daemon


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
def children_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon's loop in this process does not end the suite's own children, such as its PostgreSQL."""
    monkeypatch.setattr(processes, "sweep_orphans", lambda: None)
