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

import pytest

from tests.fault.replicas import Balancer, WebReplica
from tests.fault.specs import spec
from tests.platform import Platform, running, wait_for

GIB = 1 << 30
SIZE = 12 * GIB + 12345
DISK = 2 * SIZE + 2 * GIB
AT_KILL = 2 * GIB
"""So much is in the store when a web process is killed."""
CARRIED = AT_KILL // 8
"""At least so much of it went through that process: connections go to both in turn."""
MEMORY = 400 << 20
"""Of a web process at its peak: it never holds a file."""
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
SPEC = spec("large-file", PROGRAM)


@contextmanager
def two_web_processes(folder: Path) -> Iterator[tuple[Platform, WebReplica, Balancer]]:
    """The platform's own and a second one, behind one address for the agents."""
    balancer = Balancer()
    address = f"127.0.0.1:{balancer.port}"
    with running(folder, workers=1, LUTHIER_INGEST_URL=f"ws://{address}") as platform:
        replica = WebReplica(platform)
        balancer.backends += [platform.port, replica.port]
        try:
            yield platform, replica, balancer
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
    with two_web_processes(tmp_path / "data") as (platform, replica, balancer):
        client = platform.client()
        job = client.submit(SPEC)["id"]
        client.wait_state(job, "STORING", within_s=900)
        files = platform.data / "blobs"
        wait_for(lambda: _bytes_of(files) > AT_KILL, within_s=600, what=f"{AT_KILL} bytes in the store")
        killed = _peak_of(replica.pid)
        replica.kill()
        assert balancer.carried[replica.port] > CARRIED
        replica.start()
        job_row = client.wait_state(job, "COMPLETED", within_s=1800)
        assert job_row["state"] == "COMPLETED"
        printed = client.get(f"/jobs/{job}/logs", learner=0)["lines"][-1]["text"]
        (large,) = client.get(f"/jobs/{job}/results")["items"]
        assert large["size"] == SIZE
        assert _sha256(f"{client.url}/api/v1/jobs/{job}/results/large.bin", client.token) == printed
        assert max(killed, _peak_of(replica.pid), _peak_of(platform.pids()["web"])) < MEMORY


def _bytes_of(folder: Path) -> int:
    return sum(_size_of(Path(place, name)) for place, _, names in os.walk(folder) for name in names)


def _size_of(path: Path) -> int:
    """0 for a file that has got another name meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _peak_of(pid: int) -> int:
    """The most memory, in bytes, that a process has had at once."""
    (peak,) = (
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")
    )
    return int(peak.split()[1]) << 10


def _sha256(url: str, token: str) -> str:
    whole = hashlib.sha256()
    with urlopen(Request(url, headers={"Authorization": f"Bearer {token}"}), timeout=120) as answer:
        while part := answer.read(1 << 20):
            whole.update(part)
    return whole.hexdigest()
