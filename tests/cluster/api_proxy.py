"""An HTTP proxy in front of an API server: it refuses, delays, forgets and repeats, as API servers and caches may."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

UPSTREAM_S = 30
COMPACTED = {
    "type": "ERROR",
    "object": {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "too old resource version: 1 (4242)",
        "reason": "Expired",
        "code": 410,
    },
}
"""How an API server ends a watch whose changes it has forgotten."""
PASSED_ON = ("Accept", "Authorization", "Content-Type", "User-Agent")


@dataclass(frozen=True)
class Behavior:
    """status: answer so, without asking the API server; retry_after_s: and say when to come back. delay_s: before each
    response. forgets: watches end at once because their version has been compacted away. replays: lists are those of
    the moment when this began, whatever has changed since."""

    status: int = 0
    retry_after_s: int = 0
    delay_s: float = 0
    forgets: bool = False
    replays: bool = False


class ApiProxy:
    """Listens on loopback, without TLS. kubeconfig: of a client with a token, as Cluster.service_account has it."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        content = json.loads(kubeconfig.read_text())
        server = content["clusters"][0]["cluster"]
        target = urlsplit(server["server"])
        assert target.hostname
        assert target.port
        self.behavior = Behavior()
        self.seen: Counter[str] = Counter()
        """Responses, by what the proxy did: "passed", "watched", "refused", "forgotten", "replayed"."""
        self._lists: dict[str, bytes] = {}
        trusted = ssl.create_default_context(cafile=server.pop("certificate-authority"))
        handler = type(
            "Handler", (_Handler,), {"proxy": self, "target": (target.hostname, target.port, trusted)}
        )
        self._server = _Server(("127.0.0.1", 0), handler)
        server["server"] = f"http://127.0.0.1:{self._server.server_port}"
        self.kubeconfig = folder / "proxied.kubeconfig"
        self.kubeconfig.write_text(json.dumps(content))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @contextmanager
    def behaving(self, **how: Any) -> Iterator[None]:
        """In this way until the end of the block."""
        self._lists.clear()
        self.seen.clear()
        self.behavior = replace(Behavior(), **how)
        try:
            yield
        finally:
            self.behavior = Behavior()

    def kept(self, path: str, body: bytes) -> bytes:
        """The list of this path as it was first returned."""
        return self._lists.setdefault(path, body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """A client that has closed its connection is none."""


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client. Each request has one of its own to the API server, which may have closed an older."""

    proxy: ApiProxy
    target: tuple[str, int, ssl.SSLContext]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """The proxy's counts say enough."""

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PATCH = do_DELETE = do_PUT = do_GET

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
        behavior, parts = self.proxy.behavior, urlsplit(self.path)
        is_watch = "watch" in dict(parse_qsl(parts.query))
        time.sleep(behavior.delay_s)
        if behavior.status:
            self.proxy.seen["refused"] += 1
            self._refuse(behavior)
            return
        if is_watch and behavior.forgets:
            self.proxy.seen["forgotten"] += 1
            self._send(200, json.dumps(COMPACTED).encode() + b"\n", {})
            return
        headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
        host, port, trusted = self.target
        upstream = HTTPSConnection(host, port, context=trusted, timeout=UPSTREAM_S)
        try:
            upstream.request(self.command, self.path, body, headers)
            response = upstream.getresponse()
            if is_watch and response.status == 200:
                self._stream(response)
                return
            content = response.read()
        except (OSError, HTTPException):  # the API server is away: so is its proxy
            self.close_connection = True
            return
        finally:
            upstream.close()
        is_list = self.command == "GET" and response.status == 200 and b'List"' in content[:64]
        if is_list and behavior.replays:
            content = self.proxy.kept(self.path, content)
        self.proxy.seen["replayed" if is_list and behavior.replays else "passed"] += 1
        self._send(response.status, content, dict(response.getheaders()))

    def _refuse(self, behavior: Behavior) -> None:
        headers = {"Retry-After": str(behavior.retry_after_s)} if behavior.retry_after_s else {}
        message = "Too many requests, please try again later."
        status = {"kind": "Status", "status": "Failure", "code": behavior.status, "message": message}
        self._send(behavior.status, json.dumps(status).encode(), headers)

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name in ("Content-Type", "Retry-After"):
            if name in headers:
                self.send_header(name, headers[name])
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, response: HTTPResponse) -> None:
        self.proxy.seen["watched"] += 1
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in response:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")
