"""Requests of a shipper to a store: connections that are used again, refusals, and how long it waits between tries."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import tracemalloc
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import pytest

from learner_agent.shipper import http
from learner_agent.shipper.direct import AT_ONCE, Sending, _hash
from learner_agent.shipper.http import Client, Connections, Refused, Unreachable

CONTENT = bytes(range(256)) * 40


class Store(ThreadingHTTPServer):
    """Gives ranges of CONTENT. leaves: it closes each connection after an answer, without a word before. drops: instead
    of an answer. hangs: it does not answer before `go` is set. knows_ranges: else it sends all of CONTENT."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.connections = self.closed = self.requests = 0
        self.leaves = self.drops = self.hangs = False
        self.knows_ranges = True
        self.go = threading.Event()
        self.answer: tuple[int, bytes] | None = None
        self.changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self.changed:
            self.closed += 1
            self.changed.notify_all()

    def count_request(self) -> None:
        with self.changed:
            self.requests += 1
            self.changed.notify_all()

    def await_requests(self, requests: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.requests >= requests, 60)

    def await_closed(self, connections: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.closed >= connections, 60)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def do_GET(self) -> None:
        self.server.count_request()
        if self.server.hangs:
            self.server.go.wait(60)
        if self.server.drops:
            self.close_connection = True
            return
        status, content = self.server.answer or (206, self._range())
        self.send_response_only(status)
        if status == 307:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = self.server.leaves

    def do_PUT(self) -> None:
        left = int(self.headers["Content-Length"])
        while left:
            left -= len(self.rfile.read(min(left, 64 * 1024)))
        self.send_response_only(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _range(self) -> bytes:
        if not self.server.knows_ranges:
            return CONTENT
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        return CONTENT[first : last + 1]

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def client_of(store: Store) -> Client:
    client = Client("http://127.0.0.1:9", "lsec_x")
    client._links["/file"] = f"{store.url}/bucket/file?permission=secret"
    return client


def piece(client: Client, start: int, size: int = 100) -> bytes:
    return asyncio.run(client.piece("/file", start, size))


def test_pieces_come_by_one_connection_until_it_is_left(store: Store) -> None:
    client = client_of(store)
    got = b"".join(piece(client, start) for start in range(0, 1000, 100))
    assert got == CONTENT[:1000]
    assert store.connections == 1

    client.leave_store()
    store.await_closed(1)
    assert piece(client, 7) == CONTENT[7:107]
    store.await_closed(2)


def test_a_connection_that_the_store_has_closed_since_costs_no_try(store: Store) -> None:
    client = client_of(store)
    store.leaves = True
    for number in range(3):
        assert piece(client, number) == CONTENT[number : number + 100]
        store.await_closed(number + 1)
    assert store.connections == 3
    client.leave_store()


def test_a_store_that_closes_every_connection_is_asked_once_more(store: Store) -> None:
    """By a connection of its own, even if more of those before are left."""
    client = client_of(store)
    store.hangs = True

    async def three() -> list[bytes]:
        pieces = [asyncio.create_task(client.piece("/file", start, 9)) for start in (0, 9, 18)]
        await asyncio.to_thread(store.await_requests, 3)
        store.go.set()
        return await asyncio.gather(*pieces)

    assert b"".join(asyncio.run(three())) == CONTENT[:27]
    assert store.connections == 3
    store.drops = True
    with pytest.raises(Unreachable):
        piece(client, 0)
    assert (store.requests, store.connections) == (5, 4)
    client.leave_store()


def test_a_connection_that_does_not_answer_is_given_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is slow is not asked twice at once, nor is anything asked by that connection again."""
    monkeypatch.setattr(http, "TIMEOUT_S", 0.5)
    client = client_of(store)
    assert piece(client, 0)
    store.hangs = True
    with pytest.raises(Unreachable, match="timed out"):
        piece(client, 0)
    assert (store.requests, store.connections) == (2, 1)
    store.hangs = False
    store.go.set()
    assert piece(client, 5) == CONTENT[5:105]
    assert store.connections == 2
    client.leave_store()


def test_a_connection_that_was_idle_for_long_is_not_used(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "IDLE_S", 0)
    client = client_of(store)
    for start in (0, 100):
        assert piece(client, start) == CONTENT[start : start + 100]
    store.await_closed(1)
    assert store.connections == 2
    client.leave_store()


def test_a_connection_in_use_is_closed_when_it_has_answered(store: Store) -> None:
    """The pieces of a restore that is interrupted come in threads that nothing ends."""
    client = client_of(store)
    store.hangs = True
    asking = threading.Thread(target=piece, args=(client, 0))
    asking.start()
    store.await_requests(1)
    client.leave_store()
    store.go.set()
    asking.join(60)
    store.await_closed(1)


def test_of_a_store_that_knows_no_ranges_no_more_than_a_piece_is_read(store: Store) -> None:
    client = client_of(store)
    store.knows_ranges = False
    with pytest.raises(Unreachable, match="101 bytes instead of 100"):
        piece(client, 0)
    store.await_closed(1)


def test_a_store_that_is_gone_is_unreachable_and_named_without_its_permission(store: Store) -> None:
    client = client_of(store)
    assert piece(client, 0)
    client.leave_store()
    store.server_close()
    with pytest.raises(Unreachable) as failed:
        piece(client, 0)
    assert "/bucket/file" in str(failed.value)
    assert "permission" not in str(failed.value)


@pytest.mark.parametrize(
    ("status", "expected"), [(404, Refused), (403, Unreachable), (416, Unreachable), (503, Unreachable)]
)
def test_what_a_store_refuses_is_asked_for_again_unless_it_is_gone(
    store: Store, status: int, expected: type[Exception]
) -> None:
    client = client_of(store)
    store.answer = (status, b"<Error><Code>Because</Code></Error>")
    with pytest.raises(expected):
        piece(client, 0)
    assert (client.link_of("/file") is None) == (status != 503)
    client.leave_store()


def test_a_connection_to_another_place_is_not_used(store: Store) -> None:
    connections = Connections()
    for host in ("127.0.0.1", "localhost"):
        url = f"http://{host}:{store.server_port}/file"
        assert connections.get(url, {"Range": "bytes=0-2"}, 4) == CONTENT[:3]
    store.await_closed(1)
    connections.close()
    assert store.connections == 2


def test_a_store_behind_a_proxy_is_reached_by_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the server is: a machine may know no other way. no_proxy names what needs none."""
    monkeypatch.setenv("http_proxy", store.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(http, "_opener", urllib.request.build_opener(http._NoRedirects))
    client = Client("http://127.0.0.1:9", "lsec_x")
    client._links["/file"] = "http://store.test/bucket/file?permission=secret"
    for start in (0, 100):
        assert piece(client, start) == CONTENT[start : start + 100]
    store.knows_ranges = False
    with pytest.raises(Unreachable, match="101 bytes instead of 100"):
        piece(client, 0)
    store.answer = (307, b"")
    with pytest.raises(Unreachable, match="moved"):
        piece(client, 0)
    assert store.requests == 4

    client._links["/file"] = "http://127.0.0.1:9/bucket/file"
    with pytest.raises(Unreachable, match="refused"):
        piece(client, 0)
    assert store.requests == 4


def test_while_the_store_makes_the_object_it_is_asked_again_soon(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However often: a halted job may hold its GPUs until the object is there."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 12:
            store.answer = (200, b'{"verified": true}')

    monkeypatch.setattr(http.random, "uniform", lambda least, most: most)
    monkeypatch.setattr(http.asyncio, "sleep", sleep)
    client = Client(store.url, "lsec_x")
    for code, longest in (("being_finished", http.FINISHING_S), ("store_unavailable", 30.0)):
        pauses.clear()
        store.answer = (503, json.dumps({"code": code}).encode())
        assert asyncio.run(http.patiently(lambda: client.json("/finish"))) == {"verified": True}
        assert max(pauses) == longest


def test_large_parts_are_never_whole_in_memory(store: Store, tmp_path: Path) -> None:
    """A shipper's container has 256 MiB, and a file of 600 GB has such parts."""
    part = 64 * 2**20
    with (tmp_path / "weights").open("wb+") as source:
        source.truncate(AT_ONCE * part)
        file = Sending(cast(BufferedReader, source), "weights", AT_ONCE * part, "")
        client = Client(store.url, "lsec_x")

        async def send_all() -> None:
            starts = range(0, file.size, part)
            await asyncio.gather(
                *(client.put_file(f"{store.url}/part", {}, file.source, at, part) for at in starts),
                *(asyncio.to_thread(_hash, file, at, part, hashlib.sha256()) for at in starts),
            )

        tracemalloc.start()
        asyncio.run(send_all())
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 16 * 2**20
