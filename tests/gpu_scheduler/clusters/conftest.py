from __future__ import annotations

import pytest

from tests.gpu_scheduler.clusters.harness import Harness, MemoryHarness


@pytest.fixture(params=["memory"])
def harness(request: pytest.FixtureRequest) -> Harness:
    return MemoryHarness()
