from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gpu_scheduler.clusters.harness import Harness, LocalHarness, MemoryHarness
from tests.gpu_scheduler.clusters.node_daemon import NodeDaemon, running_daemon


@pytest.fixture(params=["memory", "local"])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """Every driver in turn."""
    if request.param == "memory":
        yield MemoryHarness()
        return
    with running_daemon() as daemon:
        yield LocalHarness(daemon)


@pytest.fixture
def daemon() -> Iterator[NodeDaemon]:
    with running_daemon() as daemon:
        yield daemon
