"""Where thousands wait, the scheduler makes no cycle of its own for each new one."""

from __future__ import annotations

import pytest

from jobs.lifecycle import cycle
from tests.jobs.lifecycle.world import World


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every pass."""
    made: list[int] = []
    one_pass = cycle.one_pass
    monkeypatch.setattr(cycle, "one_pass", lambda: made.append(1) or one_pass())
    return made


def test_after_a_pass_over_many_what_is_asked_for_waits_and_is_not_lost(
    world: World, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle, "MANY", 3)
    monkeypatch.setattr(cycle, "PAUSE_FACTOR", 1e9)
    monkeypatch.setattr(cycle, "PAUSE_MOST_S", 60.0)
    for _ in range(3):
        world.submit(slots=4)
    assert len(cycle.run()) == 2
    world.submit(slots=4)
    assert cycle.run() == []
    assert len(passes) == 1
    world.elapse(61)
    cycle.run(request=False)
    assert len(passes) == 2


def test_where_few_wait_every_request_is_a_pass(world: World, passes: list[int]) -> None:
    for _ in range(3):
        world.submit(slots=4)
        cycle.run()
    assert len(passes) == 3
