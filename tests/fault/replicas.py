"""Several web processes behind one address, and viewers that follow a log through it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from portal.settings.env import read_environment
from portal.supervisor.plan import Options, start_plan
from tests.platform import Client, Platform, free_port, wait_for


class Balancer:
    """Forwards each connection to the next web process that accepts it, as a load balancer of level 4 does."""

    def __init__(self) -> None:
        self.backends: list[int] = []
        """Their ports."""
        self.open: Counter[int] = Counter()
        """Connections that are open now, by port."""
        self.carried: Counter[int] = Counter()
        """Bytes that went to a web process so far, by port."""
        self.stalls_at: int | None = None
        """A connection that has carried so many bytes in one direction carries no more."""
        self.stalled = 0
        """How many connections came to that."""
        self._next = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._forward, "127.0.0.1", 0, backlog=1024), self._loop
        ).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        """Also what is open, as after a failure: what closes later hides why a test failed."""
        self._server.close()
        forwarding = asyncio.all_tasks() - {asyncio.current_task()}
        for task in forwarding:
            task.cancel()
        await asyncio.gather(*forwarding, return_exceptions=True)

    async def _forward(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with contextlib.closing(back):
            await self._forward_to_next(near, back)

    async def _forward_to_next(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        for _ in range(len(self.backends)):
            port = self.backends[next(self._next) % len(self.backends)]
            try:
                far, out = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            self.open[port] += 1
            try:
                await _either(self._pipe(near, out, port), self._pipe(far, back))
            finally:
                self.open[port] -= 1
                out.close()
            break

    async def _pipe(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, port: int | None = None
    ) -> None:
        """port: of the web process that it goes to, None if it comes from there."""
        carried = 0
        with contextlib.suppress(OSError):
            while content := await source.read(65536):
                carried += len(content)
                if port is not None:
                    self.carried[port] += len(content)
                target.write(content)
                await target.drain()
                if self.stalls_at is not None and carried >= self.stalls_at:
                    self.stalled += 1
                    await asyncio.Event().wait()  # until either side gives up


async def _either(*pipes: Coroutine[None, None, None]) -> None:
    """Run both directions until one ends: with HTTP, either side's end ends the connection."""
    tasks = [asyncio.create_task(pipe) for pipe in pipes]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class WebReplica:
    """One more web process of a running platform, at a port of its own."""

    def __init__(self, platform: Platform) -> None:
        self.port = free_port()
        service = start_plan(Options(data=platform.data), read_environment(), port=self.port).web[0]
        self._command = service.command
        ours = ("LUTHIER_PUBLIC_URL", "LUTHIER_INGEST_URL", "LUTHIER_DATA")
        given = {name: value for name, value in service.env.items() if name not in ours}
        self._env = platform.environment() | given | {"LOCAL_NODES": platform.nodes}
        self._log: Path = platform.data / f"web-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_for(self._responds, within_s=120, what=f"a web process; see {self._log}")

    def _responds(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-4000:]
        with (
            contextlib.suppress(URLError, OSError),
            urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5),
        ):
            return True
        return False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it as an upgrade does: it finishes what it is responding to."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(60)


class LogViewer(threading.Thread):
    """Follows a job's log by the live socket, connects again whenever that ends, and fetches gaps by REST."""

    def __init__(self, client: Client, job: str) -> None:
        super().__init__(daemon=True)
        self._client, self._job = client, job
        self.lines: list[str] = []
        self.wrong: list[str] = []
        """What should never come: lines out of order, missing or twice, and errors."""
        self.connections = 0
        self.last_at = 0.0
        """When the newest line came, by the monotonic clock."""
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError, WebSocketException), self._connected() as socket:
                self.connections += 1
                self._follow(socket)
            self._over.wait(0.2)

    def stop(self) -> None:
        self._over.set()
        self.join()

    def has_seen(self, lines: int) -> bool:
        return len(self.lines) >= lines

    @contextlib.contextmanager
    def _connected(self) -> Iterator[ClientConnection]:
        url = self._client.url.replace("http", "ws", 1) + "/ws/v1/live"
        headers = {"Authorization": f"Bearer {self._client.token}"}
        with connect(
            url, additional_headers=headers, compression=None, proxy=None, open_timeout=30
        ) as socket:
            yield socket

    def _follow(self, socket: ClientConnection) -> None:
        channel = f"job:{self._job}:logs:1:0"
        socket.send(json.dumps({"op": "sub", "ch": channel, "after": len(self.lines)}))
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                frame = json.loads(socket.recv(timeout=0.2))
                if frame.get("ch") == channel:
                    self._take(frame)

    def _take(self, frame: dict[str, object]) -> None:
        if "gap" in frame:
            gap = frame["gap"]
            assert isinstance(gap, dict)
            while len(self.lines) < gap["to"]:
                page = self._client.get(
                    f"/jobs/{self._job}/logs", learner=0, attempt=1, after=len(self.lines), limit=1000
                )
                self._append(page["lines"])
        elif "error" in frame:
            self.wrong.append(str(frame))
        else:
            items = frame["items"]
            assert isinstance(items, list)
            self._append(items)

    def _append(self, items: list[dict[str, object]]) -> None:
        for item in items:
            if item["n"] != len(self.lines) + 1:
                self.wrong.append(f"line {item['n']} after line {len(self.lines)}")
            self.lines.append(str(item["text"]))
            self.last_at = time.monotonic()
