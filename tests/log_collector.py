"""Another system that takes logs by HTTP, for tests: takes lines, refuses them, or goes wrong as servers do."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class LogCollector:
    """Listens on loopback while its block runs. requests: the lines of each one that it took, and its headers.

    status: what it answers with, or statuses, one after the other; it keeps what it answers 2xx. after_s: before it
    answers. behavior: "answer"; "drip": a byte of an answer now and then, without end; "cut": ends the connection once
    it has read the body, which it keeps.
    """

    def __init__(self) -> None:
        self.status, self.behavior, self.after_s = 200, "answer", 0.0
        self.statuses: list[int] = []
        self.requests: list[tuple[list[dict[str, Any]], dict[str, str]]] = []
        self.asked: list[str] = []
        self.over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.asked.append(self.path)
                outer._answer(self, self.rfile.read(int(self.headers["Content-Length"])))

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/logs?stream=luthier"

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [line for lines, _ in self.requests for line in lines]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def _answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        if self.behavior == "drip":
            while not self.over.is_set():
                try:
                    request.wfile.write(b"H")
                except OSError:
                    return
                time.sleep(0.02)
        self.over.wait(self.after_s)
        if self.statuses:
            self.status = self.statuses.pop(0)
        if 200 <= self.status < 300:
            self.requests.append(([json.loads(line) for line in body.splitlines()], dict(request.headers)))
        if self.behavior == "cut":
            request.close_connection = True
            return
        request.send_response(self.status)
        request.send_header("Content-Length", "0")
        request.send_header("Location", self.url)
        request.end_headers()
