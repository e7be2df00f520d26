"""The commands of the page about the test cluster do what it says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import documents
from tests.cluster.folders import new_folder
from tools.kube import processes
from tools.kube.cluster import stop

pytestmark = pytest.mark.cluster


def test_every_command_of_the_page_works_and_leaves_nothing() -> None:
    """In the page's order, in one shell; with a folder of its own beside a cluster that a developer may run."""
    commands = "".join(block.text for block in documents.commands("cluster"))
    makes = [line for line in commands.splitlines() if line.startswith("make ")]
    assert {line.split()[1] for line in makes} == {"test-cluster"}
    folder = new_folder("page")
    here = f"{sys.executable} -m tools.kube --folder {folder}"
    script = commands.replace(".venv/bin/python -m tools.kube", here)
    for line in makes:  # this suite itself
        script = script.replace(f"{line}\n", "", 1)
    try:
        done = subprocess.run(
            ["bash", "-euxc", script], cwd=documents.ROOT, capture_output=True, text=True, timeout=110
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert processes.running(folder) == []
        assert not folder.exists()
    finally:
        stop(folder)
