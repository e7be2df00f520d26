"""A cluster in memory, a clock that is turned by hand, and hands for what learners would do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jobs.lifecycle.world import World, two_nodes


@pytest.fixture
def world(db: None) -> Iterator[World]:
    with two_nodes() as made:
        yield made
