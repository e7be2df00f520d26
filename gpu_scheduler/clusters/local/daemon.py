"""The node daemon's process: its socket, its loop and its signals.

SIGTERM and SIGINT stop the learners with their grace period and then end the daemon. A second signal ends it at once
and leaves the learners to the next daemon, as SIGKILL does. Only one daemon runs on a data folder.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import logging
import os
import select
import signal
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_scheduler.clusters.base import ClusterBusy, LaunchRefused
from gpu_scheduler.clusters.local import processes, protocol
from gpu_scheduler.clusters.local.choices import Choices
from gpu_scheduler.clusters.local.gangs import Gangs
from gpu_scheduler.clusters.local.protocol import InvalidRequest, WrongKey

logger = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
"""A watch gets a message at least this often, so that a cache knows that it is current."""


class AlreadyRunning(Exception):
    """Another node daemon runs on this data folder; stop it first, or name another folder with --data."""


class Wakeup:
    """Wakes the loop from any thread or signal handler."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._writer, b".")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self.reader, 4096):
                pass


def hold_folder(data: Path) -> int:
    """Lock the data folder for the lifetime of this process. Raises AlreadyRunning."""
    (data / "nodes").mkdir(parents=True, exist_ok=True)
    handle = os.open(data / "nodes" / ".daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise AlreadyRunning(AlreadyRunning.__doc__) from None
    return handle


class Daemon:
    """Serves the socket and manages the gangs until a signal ends it."""

    def __init__(self, gangs: Gangs, choices: Choices, socket_path: Path, key: str, wakeup: Wakeup) -> None:
        self._gangs = gangs
        self._choices = choices
        self._path = socket_path
        self._key = key.encode()
        self._wakeup = wakeup
        self._signals = 0

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_signal)
        processes.become_subreaper()
        self._gangs.load()
        server = _Server(self._path, self._answer)
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="socket")
        serving.start()
        logger.info("node daemon ready", extra={"socket": str(self._path), "gangs": self._gangs.count()})
        try:
            self._loop()
        finally:
            server.shutdown()
            server.server_close()
            serving.join()
            self._path.unlink(missing_ok=True)

    def _loop(self) -> None:
        stopping = False
        while True:
            if self._signals and not stopping:
                stopping = True
                logger.info("node daemon stopping its learners")
                self._choices.close()
                self._gangs.shut_down()
            if self._signals > 1:
                logger.warning("node daemon ends at once; learners keep running")
                return
            wait_s = self._gangs.advance()
            if stopping and self._gangs.can_exit():
                self._gangs.abandon()
                return
            self._wait(wait_s)

    def _wait(self, seconds: float) -> None:
        """Sleep until a process ends, something wakes the loop, or the time is over."""
        poll = select.poll()
        poll.register(self._wakeup.reader, select.POLLIN)
        for pidfd in self._gangs.pidfds():
            poll.register(pidfd, select.POLLIN)
        poll.poll(seconds * 1000)
        self._wakeup.clear()

    def _note_signal(self, number: int, frame: object) -> None:
        self._signals += 1
        self._wakeup.wake()

    def _answer(self, line: bytes) -> Iterator[dict[str, Any]]:
        """The response to one request, or the messages of a watch."""
        try:
            request = self._read(line)
        except WrongKey as error:
            logger.warning("request without the key", extra={"error": str(error)})
            return iter([{"ok": False, "error": "wrong_key", "message": str(error)}])
        except (InvalidRequest, ValueError) as error:
            return iter([_bad_request(error)])
        return self._watch() if request.get("op") == "watch" else iter([self._respond(request)])

    def _read(self, line: bytes) -> Mapping[str, Any]:
        """The request of one who has the key. Raises WrongKey, InvalidRequest, ValueError."""
        request = json.loads(line)
        if not isinstance(request, dict):
            raise InvalidRequest("an object is expected")
        if not hmac.compare_digest(str(request.get("key", "")).encode("utf-8", "replace"), self._key):
            raise WrongKey(WrongKey.__doc__)
        return request

    def _respond(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Execute one request. Every error becomes a response; none ends the daemon."""
        try:
            return {"ok": True, "result": self._do(request)}
        except LaunchRefused as refusal:
            return {"ok": False, "error": "refused", "code": refusal.code, "message": str(refusal)}
        except ClusterBusy as busy:
            return {"ok": False, "error": "busy", "message": str(busy)}
        except (InvalidRequest, ValueError, KeyError, TypeError) as error:
            return _bad_request(error)
        except OSError as error:
            logger.error("request failed", extra={"error": str(error)})
            return {"ok": False, "error": "busy", "message": f"The node daemon cannot do this now: {error}"}

    def _watch(self) -> Iterator[dict[str, Any]]:
        """The messages of one watch; a driver that has gone ends it with the next message."""
        since = None
        while True:
            changes = self._gangs.changes(since, wait_s=HEARTBEAT_S)
            since = changes.revision
            yield {
                "revision": changes.revision,
                "all": changes.all,
                "changed": [protocol.report_to_json(report) for report in changes.changed],
                "gone": changes.gone,
            }

    def _do(self, request: Mapping[str, Any]) -> Any:
        match request.get("op"):
            case "ping":
                return {
                    "pid": os.getpid(), "nodes": len(self._gangs.nodes()), "gangs": self._gangs.count(),
                    "isolation": asdict(self._gangs.isolation()),
                }  # fmt: skip
            case "nodes":
                return [protocol.node_to_json(node) for node in self._gangs.nodes()]
            case "launch":
                if self._signals:
                    raise ClusterBusy("The node daemon is shutting down.")
                return {"revision": self._gangs.launch(protocol.spec_from_json(request["gang"]))}
            case "observe":
                return [
                    protocol.report_to_json(report) for report in self._gangs.observe(request.get("names"))
                ]
            case "stop":
                grace_s = max(0.0, float(request["grace_s"]))
                return {"revision": self._gangs.stop(protocol.parse_gang_name(request["name"]), grace_s)}
            case "remove":
                removal, revision = self._gangs.remove(
                    protocol.parse_gang_name(request["name"]), request.get("uids")
                )
                return {"removal": removal, "revision": revision}
            case "choose":
                return {"lock": self._choices.choose(protocol.environment_from_json(request["environment"]))}
            case other:
                raise InvalidRequest(
                    f"op: {str(other)[:40]!r} is none of ping, nodes, launch, observe, stop, remove, choose, watch"
                )


def _bad_request(error: Exception) -> dict[str, Any]:
    return {"ok": False, "error": "bad_request", "message": f"{type(error).__name__}: {error}"}


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A thread per request, so that a removal that waits delays no other request."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, path: Path, answer: Callable[[bytes], Iterator[dict[str, Any]]]) -> None:
        self.answer = answer
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        before = os.umask(0o177)
        try:
            super().__init__(str(path), _Connection)
        finally:
            os.umask(before)


class _Connection(socketserver.StreamRequestHandler):
    timeout = 30

    def handle(self) -> None:
        with suppress(OSError, socket.timeout):
            line = self.rfile.readline(protocol.MAX_LINE_BYTES)
            if not line.endswith(b"\n"):
                return
            for message in self.server.answer(line):  # type: ignore[attr-defined]  # the server below
                self.wfile.write(json.dumps(message).encode() + b"\n")
