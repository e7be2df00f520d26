"""What a client without an account can hold of a running platform: bytes, connections, and its health probes.

With `-s` it prints the figures of docs/security.md, "Attacked from outside".
"""

from __future__ import annotations

import base64
import io
import re
import secrets
import socket
import statistics
import time
import uuid
import zipfile
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest

from tenants.tokens import PREFIX
from tests.fault.faults import frozen
from tests.platform import Client, Platform, running, wait_for

STRANGERS_SHARE = 64 * 1024
KERNEL_BYTES = 8 * 1024**2
"""What the kernels' buffers of both ends may hold of a body that is not read."""
HEAD_S, BODY_S = 10, 30
SLACK_S = 20
"""This machine may be busy."""
STRANGERS_PATHS = (
    "/login", "/", "/welcome/password", "/me/password", "/t/vision-lab/secrets/set", "/api/v1/me/tokens",
    "/api/v1/tenants/vision-lab/uploads", "/api/v1/tenants/vision-lab/jobs", "/agent/v1/uploads/1", "/nowhere",
)  # fmt: skip
MEMBERS_PATHS = ("/api/v1/tenants/{}/jobs", "/api/v1/tenants/{}/jobs:validate", "/api/v1/me/tokens")
CONNECTIONS = 600
LOGINS = 20
"""Failed ones that an address has in five minutes."""


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
        _await_the_end_of(half_open)
        web = psutil.Process(platform.pids()["web"])
        wait_for(lambda: not _connections_of_clients(web, platform.port), within_s=60)


@pytest.mark.fault
@pytest.mark.timeout(400)
def test_what_strangers_do_at_once_stays_within_its_limits(tmp_path: Path) -> None:
    """Each row of the table in docs/security.md but the first test's."""
    limits = {"LUTHIER_CONNECTIONS": str(CONNECTIONS), "LUTHIER_CONNECTIONS_PER_ADDRESS": "400"}
    with running(tmp_path / "data", workers=1, **limits) as platform:
        member = platform.client()
        _bodies(platform, member)
        half_open, began = [_half_open(platform, n) for n in range(80)], time.monotonic()
        alive_s = [_seconds(f"{platform.url}/healthz") for _ in range(40)]
        _print("/healthz while 80 are half-open", f"{1000 * statistics.median(alive_s):.1f} ms in the median")
        assert statistics.median(alive_s) <= 0.05
        with ThreadPoolExecutor(2) as slow:
            head = slow.submit(_byte_by_byte, platform, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ")
            body = slow.submit(
                _byte_by_byte,
                platform,
                b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60000\r\n\r\n",
            )
            _await_the_end_of(half_open)
            _print("80 half-open connections", f"none after {time.monotonic() - began:.0f} s")
            assert time.monotonic() - began < 60
            _print(
                "byte by byte",
                f"a head ended after {head.result():.0f} s, a body after {body.result():.0f} s",
            )
            assert head.result() <= HEAD_S + SLACK_S
            assert body.result() <= BODY_S + SLACK_S
        _websockets(platform)
        _invalid_tokens(platform, member)
        _guesses(platform)


def _bodies(platform: Platform, member: Client) -> None:
    strangers = [_send_much(platform, path) for path in STRANGERS_PATHS]
    bearer = f"Authorization: Bearer {member.token}\r\nContent-Type: application/json\r\n"
    members = [_send_much(platform, path.format(member.tenant), bearer) for path in MEMBERS_PATHS]
    for whose, found in (("a stranger", strangers), ("a member", members)):
        sizes = sorted(sent / 1024**2 for sent, _ in found)
        statuses = Counter(status for _, status in found)
        _print(f"300 MiB of {whose}", f"{sizes[0]:.1f} to {sizes[-1]:.1f} MiB were sent; {dict(statuses)}")
    assert all(sent <= STRANGERS_SHARE + KERNEL_BYTES for sent, _ in strangers)
    assert all(sent <= 4 * 1024**2 + KERNEL_BYTES for sent, _ in members)
    assert not {status for _, status in strangers + members} & {200, 201, 202, 500}


def _send_much(platform: Platform, path: str, headers: str = "") -> tuple[int, int | None]:
    """300 MiB in chunks, as a body of unknown size: how many bytes left this process before the answer or the
    end, and the answer's status."""
    sent, size, answer, chunk, left = 0, 300 * 1024**2, b"", b"10000\r\n" + bytes(65_536) + b"\r\n", b""
    with socket.create_connection(("127.0.0.1", platform.port)) as client:
        client.sendall(
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        client.setblocking(False)
        ends = time.monotonic() + 60
        while sent < size and time.monotonic() < ends:
            try:
                answer += client.recv(4096)
                break
            except BlockingIOError:
                pass
            except OSError:
                break
            left = left or chunk
            try:
                gone = client.send(left)
                sent, left = sent + gone, left[gone:]
            except BlockingIOError:
                time.sleep(0.001)
            except OSError:
                break
    found = re.match(rb"HTTP/1.1 (\d+)", answer)
    return sent, int(found[1]) if found else None


def _byte_by_byte(platform: Platform, start: bytes) -> float:
    """Send one byte each half second: after how many seconds the server has ended it."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", platform.port)) as client:
        client.sendall(start)
        client.settimeout(0.5)
        while time.monotonic() - began < 120:
            try:
                client.sendall(b"a")
                if not client.recv(4096):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
    return time.monotonic() - began


def _websockets(platform: Platform) -> None:
    """Many more than the server has places, from another address, which answer no close frame."""
    enough = Event()
    with ThreadPoolExecutor(1) as flood:
        flooding = flood.submit(_open_websockets, platform, 3 * CONNECTIONS, enough)
        statuses = Counter(_status(f"{platform.url}/healthz") for _ in range(30))
        enough.set()
        (opened, held), began = flooding.result(), time.monotonic()
        _await_the_end_of(held)
    _print(f"/healthz while one address opens {opened} websockets", str(dict(statuses)))
    _print("the last of these websockets", f"none after {time.monotonic() - began:.0f} s")
    assert set(statuses) == {200}


def _open_websockets(platform: Platform, count: int, enough: Event) -> tuple[int, list[socket.socket]]:
    """Open so many, and more until it is enough: how many, and the newest ones."""
    held: deque[socket.socket] = deque()
    opened = 0
    while opened < count or not enough.is_set():
        client = socket.create_connection(("127.0.0.1", platform.port), source_address=("127.0.0.2", 0))
        held.append(client)
        with suppress(ConnectionError):  # refused at once
            client.sendall(_handshake(("/ws/v1/live", "/ws/agent/v1", "/ws/nowhere")[opened % 3]))
        opened += 1
        if len(held) > CONNECTIONS + 200:
            _await_the_end_of([held.popleft()])
    return opened, list(held)


def _handshake(path: str) -> bytes:
    key = base64.b64encode(bytes(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


def _invalid_tokens(platform: Platform, member: Client) -> None:
    """200 valid calls, with one invalid one before each, from the same address."""
    refused = Counter[int]()
    valid = Counter[int]()
    for _ in range(200):
        stranger = Client(platform.url, PREFIX + secrets.token_urlsafe(32), member.tenant)
        refused[stranger.call("GET", "/me").status] += 1
        valid[member.call("GET", "/me").status] += 1
    _print("valid calls between 200 with invalid tokens", f"{dict(valid)}; those {dict(refused)}")
    assert valid == {200: 200}
    assert set(refused) == {401, 429}, "they are counted"


def _guesses(platform: Platform) -> None:
    """Failed sign-ins with 40 forwarded addresses and 40 names."""
    answers = list(_sign_ins(platform))
    failed = answers.index(429)
    _print("failed sign-ins with 40 forwarded addresses", f"{failed}, then 429")
    assert failed <= LOGINS
    assert set(answers[failed:]) == {429}


def _sign_ins(platform: Platform) -> Iterator[int]:
    for n in range(40):
        page = urlopen(f"{platform.url}/login")
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.read().decode())
        cookie = page.headers["Set-Cookie"].partition(";")[0]
        assert token
        data = f"csrfmiddlewaretoken={token[1]}&username=name{n}&password=a-wrong-one".encode()
        request = Request(f"{platform.url}/login", data=data)
        for name, value in (
            ("Cookie", cookie),
            ("Origin", platform.url),
            ("X-Forwarded-For", f"203.0.113.{n + 1}"),
        ):
            request.add_header(name, value)
        try:
            with urlopen(request, timeout=60) as answer:
                yield answer.status
        except HTTPError as error:
            yield error.code


def _print(what: str, seen: str) -> None:
    print(f"\n{what}: {seen}")


def _half_open(platform: Platform, n: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", platform.port))
    head = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    starts = (b"", b"GET / HT", head, head + b"Content-Length: 9\r\n\r\n")
    sockets = (_handshake("/ws/v1/live"), _handshake("/ws/agent/v1"))
    client.sendall((*starts, *sockets)[n % 6])
    return client


def _await_the_end_of(connections: list[socket.socket]) -> None:
    """Until the server has closed each of them."""
    for connection in connections:
        connection.settimeout(HEAD_S + 60)
        with connection, suppress(ConnectionError):  # cut off
            while connection.recv(4096):
                pass


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
