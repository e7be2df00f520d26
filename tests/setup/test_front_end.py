"""What `make front-end` says when npm fails."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from tools import front_end


def test_a_silent_npm_on_a_full_disk_is_reported_with_the_free_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = 3 * 2**20
    monkeypatch.setattr(
        front_end, "subprocess", SimpleNamespace(run=lambda *_, **__: subprocess.CompletedProcess([], 228))
    )
    monkeypatch.setattr(
        front_end, "shutil", SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=free), rmtree=None)
    )
    with pytest.raises(SystemExit) as full:
        front_end.npm("run", "build")
    assert str(full.value) == (
        f"`npm run build` failed with exit code 228. 3 MiB were free in {front_end.ROOT}; "
        "the packages take some 200: make room, then run it again."
    )
    free = 2**40
    with pytest.raises(SystemExit, match=r"exit code 228; the lines above say why, .* MiB were free"):
        front_end.npm("run", "build")
