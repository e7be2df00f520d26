"""What a client without an account can hold of a running platform: bytes, connections, and its health probes."""

from __future__ import annotations

import io
import socket
import time
import uuid
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pytest

from tests.fault.faults import frozen
from tests.platform import Platform, running, wait_for

STRANGERS_SHARE = 64 * 1024
KERNEL_BYTES = 8 * 1024**2
"""What the kernels' buffers of both ends may hold of a body that is not read."""
HEAD_S = 10


@pytest.mark.fault
@pytest.mark.timeout(300)
def test_a_stranger_fills_no_disk_holds_no_connection_and_stops_no_probe(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=1) as platform:
        half_open = [_half_open(platform, n) for n in range(60)]
        for path in (
            "/api/v1/tenants/vision/uploads",
            "/api/v1/tenants/vision/jobs",
            "/agent/v1/uploads/1",
            "/login",
        ):
            _a_large_body_is_refused(platform, path)
        _a_large_archive_of_a_member_is_stored(platform)
        with frozen(platform.pids()["nodes"]), ThreadPoolExecutor(12) as probes:
            ready = [probes.submit(_status, f"{platform.url}/readyz") for _ in range(12)]
            wait_for(lambda: any(probe.running() for probe in ready), within_s=60)
            alive_s = [_seconds(f"{platform.url}/healthz") for _ in range(20)]
            assert {probe.result() for probe in ready} == {503}
        assert sorted(alive_s)[10] <= 0.05, alive_s
        for client in half_open:
            client.settimeout(HEAD_S + 60)
            with client:
                while client.recv(4096):
                    pass  # until the server ends it
        web = psutil.Process(platform.pids()["web"])
        wait_for(lambda: not _connections_of_clients(web, platform.port), within_s=60)


def _half_open(platform: Platform, n: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", platform.port))
    client.sendall((b"", b"GET / HT", b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\n")[n % 3])
    return client


def _a_large_body_is_refused(platform: Platform, path: str) -> None:
    """300 MiB in chunks: how many bytes the server takes before it responds."""
    sent, chunk = 0, b"10000\r\n" + bytes(65_536) + b"\r\n"
    with socket.create_connection(("127.0.0.1", platform.port)) as client:
        client.sendall(
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        client.settimeout(60)
        try:
            while sent < 300 * 1024**2:
                client.sendall(chunk)
                sent += 65_536
        except OSError:
            pass  # the server has closed the connection
    assert sent <= STRANGERS_SHARE + KERNEL_BYTES, (path, sent)


def _a_large_archive_of_a_member_is_stored(platform: Platform) -> None:
    alice, packed = platform.client(), io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("weights.bin", bytes(48 * 1024**2))
    mark = uuid.uuid4().hex
    head = f'--{mark}\r\nContent-Disposition: form-data; name="archive"; filename="code.zip"\r\n\r\n'.encode()
    body = head + packed.getvalue() + f"\r\n--{mark}--\r\n".encode()
    headers = {
        "Authorization": f"Bearer {alice.token}",
        "Content-Type": f"multipart/form-data; boundary={mark}",
    }
    request = Request(f"{alice.url}/api/v1/tenants/{alice.tenant}/uploads", data=body, headers=headers)
    with urlopen(request, timeout=100) as answer:
        assert answer.status == 201


def _status(url: str) -> int:
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1].split("/")[0]))) as client:
        client.settimeout(60)
        client.sendall(
            f"GET /{url.rsplit('/', 1)[1]} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
        )
        return int(client.recv(4096).split()[1])


def _seconds(url: str) -> float:
    started = time.monotonic()
    assert _status(url) == 200
    return time.monotonic() - started


def _connections_of_clients(web: psutil.Process, port: int) -> list[object]:
    """All but those of learners and of this test's own requests, of which none is left."""
    return [
        one for one in web.net_connections() if one.laddr and one.laddr[1] == port and one.status != "LISTEN"
    ]
