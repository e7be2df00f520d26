"""Processes of Linux, without a daemon around them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.clusters.local import processes


@pytest.mark.parametrize("failing", ["stat_of", "pidfd_open"])
def test_a_start_that_cannot_be_followed_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Else the next try would run the program a second time."""

    def no_handles(_: int) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    if failing == "stat_of":
        monkeypatch.setattr(processes, "stat_of", lambda _: None)
    else:
        monkeypatch.setattr(os, "pidfd_open", no_handles)
    env = {"PATH": os.environ["PATH"], processes.MARK: "unfollowed"}
    with pytest.raises(OSError, match=r"process table|Too many open files"):
        processes.start(["sleep", "60"], env=env, cwd=tmp_path, output=tmp_path / "log", boot="b")
    monkeypatch.undo()
    assert processes.find_marked("unfollowed", "b") is None
