"""The web server of a test and the learners started beside it; all of them end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.models import Job
from tests.learner_agent.harness import AgentServer, Rig
from tests.learner_agent.launched import Launched


@pytest.fixture
def server(transactional_db: None) -> Iterator[AgentServer]:
    running = AgentServer()
    running.start()
    yield running
    running.stop()


@pytest.fixture
def rig(server: AgentServer, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Make learners beside the server: rig(job, rank=…)."""
    made: list[Rig] = []

    def make(job: Job, **options: Any) -> Rig:
        made.append(Rig(job, server.url, tmp_path / f"learner-{len(made)}", **options))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    one = Launched(tmp_path)
    yield one
    if one.process is not None:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()
