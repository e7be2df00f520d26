"""Where a learner resumes from when the gang has another number of learners than the one that saved."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any, cast

import pytest

from learner_agent.settings import ShipperSettings
from learner_agent.shipper.http import Client
from learner_agent.shipper.inputs import restore

CONTENT = b"shard"


def saved(parts: int) -> dict[str, Any]:
    entry = {"path": "shard.bin", "size": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest()}
    files = [{"part": part, "url": "", **entry} for part in range(parts)]
    return {"n": 1, "step": 30, "implicit": False, "parts": parts, "files": files}


def resumed(base: Path, *, parts: int, rank: int, world: int) -> Path:
    """The path below the checkpoints' folder, whose files are there already."""
    for part in range(parts):
        place = base / "step-30" / (f"part-{part}" if parts > 1 else "")
        place.mkdir(parents=True, exist_ok=True)
        (place / "shard.bin").write_bytes(CONTENT)
    settings = ShipperSettings(base, base, base, base, base, base, None, "", "", "job", 2, rank)
    found = asyncio.run(restore(cast(Client, None), settings, saved(parts), world=world))
    assert found is not None
    return Path(found).relative_to(base)


@pytest.mark.parametrize("rank", [0, 1])
def test_as_many_learners_as_parts_have_a_part_each(tmp_path: Path, rank: int) -> None:
    assert resumed(tmp_path, parts=2, rank=rank, world=2) == Path(f"step-30/part-{rank}")


@pytest.mark.parametrize(("parts", "world"), [(2, 4), (4, 2), (2, 1), (1, 4), (1, 1)])
def test_any_other_number_of_learners_has_all_parts(tmp_path: Path, parts: int, world: int) -> None:
    for rank in range(world):
        assert resumed(tmp_path, parts=parts, rank=rank, world=world) == Path("step-30")
