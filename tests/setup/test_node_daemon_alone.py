"""`manage.py nodes` as in docker-compose.yml: with a data folder of its own, and none of the platform's secrets."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpu_scheduler.clusters.base import ClusterBusy
from gpu_scheduler.clusters.local.client import Address, ping
from gpu_scheduler.clusters.local.driver import LocalCluster
from portal.settings.embedded import layout
from tests.platform import wait_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def shared() -> Iterator[Path]:
    """LUTHIER_NODE_DIR; a socket's path must be short, and pytest's folders are not."""
    with tempfile.TemporaryDirectory(prefix="node-") as folder:
        yield Path(folder) / "shared"


def test_it_serves_those_who_share_its_folder_and_knows_no_secret(tmp_path: Path, shared: Path) -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    given = compose["services"]["nodes"]["environment"]
    own = tmp_path / "learners"
    own.mkdir()
    env = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    env |= dict.fromkeys(given, "") | {"LUTHIER_NODE_DIR": str(shared), "LOCAL_NODES": "node-a:cpu:4"}
    env["LUTHIER_DATA"] = str(own)
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "manage.py", "nodes"]
        daemon = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)
    try:
        # As a web process or worker with the platform's own data folder finds it.
        where = layout(tmp_path / "platform", shared)
        address = Address(where.node_socket, where.node_key)

        def answers() -> bool:
            assert daemon.poll() is None, (tmp_path / "log").read_text()
            try:
                return ping(address)["pid"] == daemon.pid
            except (ClusterBusy, FileNotFoundError):
                return False

        wait_for(answers, within_s=60, what="the node daemon")
        found = LocalCluster.connect(
            {"LUTHIER_NODE_SOCKET": str(address.socket), "LUTHIER_NODE_KEY": str(address.key)}
        )
        assert [node.name for node in found.nodes()] == ["node-a"]
        assert stat.S_IMODE(shared.stat().st_mode) == 0o700
        assert stat.S_IMODE(address.key.stat().st_mode) == 0o600
        # The secret key that its settings have made is its own: nothing of the platform's is there to read.
        assert not [path for name in ("keys", "postgres", "blobs") for path in own.glob(f"{name}/*")]
    finally:
        daemon.terminate()
        daemon.wait(30)
