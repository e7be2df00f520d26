"""Requests of a shipper to a store: connections that are used again, refusals, and how long it waits between tries."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from learner_agent.shipper import http
from learner_agent.shipper.http import Client, Connections, Refused, Unreachable

CONTENT = bytes(range(256)) * 40


class Store(ThreadingHTTPServer):
    """Gives ranges of CONTENT. leaves: it closes each connection after an answer, without a word before."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.connections = self.closed = 0
        self.leaves = False
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

    def await_closed(self, connections: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.closed >= connections, 60)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def do_GET(self) -> None:
        status, content = self.server.answer or (206, self._range())
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = self.server.leaves

    def _range(self) -> bytes:
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
    assert store.connections == 2
    client.leave_store()


def test_a_connection_that_the_store_has_closed_since_costs_no_try(store: Store) -> None:
    client = client_of(store)
    store.leaves = True
    for number in range(3):
        assert piece(client, number) == CONTENT[number : number + 100]
        store.await_closed(number + 1)
    assert store.connections == 3
    client.leave_store()


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
        assert connections.get(url, {"Range": "bytes=0-2"}) == CONTENT[:3]
    store.await_closed(1)
    connections.close()
    assert store.connections == 2


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
