"""A cluster in memory, a clock that is turned by hand, and hands for what learners would do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jobs.lifecycle import together
from tests.jobs.lifecycle.world import World, two_nodes


@pytest.fixture
def world(db: None) -> Iterator[World]:
    with two_nodes() as made:
        yield made


@pytest.fixture
def on_a_machine_of_any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn ends early because the machine is slow."""
    monkeypatch.setattr(together, "QUICK_S", 3600.0)
    monkeypatch.setattr(together, "TURN_S", 3600.0)
