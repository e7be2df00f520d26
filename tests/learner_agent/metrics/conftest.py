"""A spool for the sources of points."""

from __future__ import annotations

from pathlib import Path

import pytest

from learner_agent.spool import Spool


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(tmp_path / "state")
    made.root.mkdir()
    made.create()
    return made
