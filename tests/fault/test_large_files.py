"""A result file of more than 12 GB through two web processes, of which one is killed meanwhile: only by make test-long.

It takes some 26 GB of disk and several minutes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pytest

from tests.fault.replicas import Balancer, WebReplica
from tests.platform import Platform, running, wait_for

GIB = 1 << 30
SIZE = 12 * GIB + 12345
DISK = 2 * SIZE + 2 * GIB
MEMORY = 400 << 20
"""Of a web process: it never holds a file."""
PROGRAM = f"""\
import hashlib, os
size, block = {SIZE}, os.urandom(1 << 20)
whole = hashlib.sha256()
with open(os.environ["RESULT_DIR"] + "/large.bin", "wb") as file:
    for number in range(-(-size // len(block))):
        part = (number.to_bytes(8, "big") + block[8:])[: size - number * len(block)]
        whole.update(part)
        file.write(part)
print(whole.hexdigest())
"""
SPEC = {
    "apiVersion": "luthier/v1",
    "name": "large-file",
    "framework": "plain",
    "code": {"files": {"main.py": PROGRAM}},
    "command": "python main.py",
    "resources": {"learners": 1, "gpus": 0, "cpus": 1},
}


@contextmanager
def two_web_processes(folder: Path) -> Iterator[tuple[Platform, WebReplica]]:
    """The platform's own and a second one, behind one address for the agents."""
    balancer = Balancer()
    address = f"127.0.0.1:{balancer.port}"
    with running(folder, workers=1, LUTHIER_INGEST_URL=f"ws://{address}") as platform:
        replica = WebReplica(platform)
        balancer.backends += [platform.port, replica.port]
        try:
            yield platform, replica
        finally:
            replica.stop()
            balancer.close()


@pytest.mark.fault
@pytest.mark.skipif("LUTHIER_LONG" not in os.environ, reason="12 GB: only by make test-long")
@pytest.mark.timeout(3600)
def test_a_file_of_12_gb_is_stored_while_a_web_process_is_killed_and_comes_back_whole(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    if free < DISK:
        pytest.skip(f"{DISK / GIB:.0f} GiB of disk are needed, {free / GIB:.0f} are free")
    with two_web_processes(tmp_path / "data") as (platform, replica):
        client = platform.client()
        job = client.submit(SPEC)["id"]
        client.wait_state(job, "STORING", within_s=900)
        files = platform.data / "blobs"
        wait_for(lambda: _bytes_of(files) > 2 * GIB, within_s=600, what="2 GiB in the store")
        replica.kill()
        replica.start()
        job_row = client.wait_state(job, "COMPLETED", within_s=1800)
        assert job_row["state"] == "COMPLETED"
        printed = client.get(f"/jobs/{job}/logs", learner=0)["lines"][-1]["text"]
        (large,) = client.get(f"/jobs/{job}/results")["items"]
        assert large["size"] == SIZE
        assert _sha256(f"{client.url}/api/v1/jobs/{job}/results/large.bin", client.token) == printed
        web = [psutil.Process(platform.pids()["web"]), psutil.Process(replica.pid)]
        assert max(process.memory_info().rss for process in web) < MEMORY


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _sha256(url: str, token: str) -> str:
    whole = hashlib.sha256()
    with urlopen(Request(url, headers={"Authorization": f"Bearer {token}"}), timeout=120) as answer:
        while part := answer.read(1 << 20):
            whole.update(part)
    return whole.hexdigest()
