"""A real web server in a thread, and one learner's two processes beside it, for tests of the whole path."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
import zstandard
from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import get_resolver, path
from django.utils import timezone

from jobs import blobs
from jobs.ingest.writer import writer
from jobs.models import Checkpoint, Job, Learner, LogChunk
from jobs.states import Intent, State
from learner_agent.spool import Spool
from portal.asgi_handler import ThreadedHandler
from portal.live import learner_hub
from portal.live.learner_consumer import LearnerConsumer
from portal.live.socket import Socket
from tests import factories

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60.0
"""So long a busy machine may take for what takes a moment elsewhere; no test waits it out."""


def until(claim: Callable[[], Any], what: str, *, timeout_s: float = TIMEOUT_S) -> Any:
    """Wait until claim() is true and return what it gave."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := claim():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout_s:.0f} s: {what}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class AgentServer:
    """uvicorn with the learners' socket and the real URL map; stop and start keep the port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        # A second of work, which the first request would do in a learner's time.
        _ = get_resolver().url_patterns
        app = ProtocolTypeRouter(
            {
                "http": ThreadedHandler(),
                "websocket": URLRouter([path("ws/agent/v1", LearnerConsumer.as_asgi())]),
            }
        )
        config = uvicorn.Config(
            app, host="127.0.0.1", port=self.port, log_level="error", ws_per_message_deflate=False,
            ws_max_size=1024 * 1024, lifespan="off", timeout_graceful_shutdown=1, ws=Socket,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        until(lambda: self._server.started, "the server listens")

    def stop(self) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=TIMEOUT_S)
        writer.stop()
        learner_hub.THREADS.close()
        learner_hub.OFFERS.close()


def archive(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as rolled:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            rolled.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def make_job(files: dict[str, str], **fields: Any) -> Job:
    """A job that is being processed, with its code in the blob store."""
    job = factories.job(state=State.PROCESSING, **fields)
    job.code = blobs.put(job.tenant_id, archive(files))
    job.save(update_fields=["code"])
    return job


def next_attempt(job: Job, saved: Checkpoint | None = None) -> None:
    """Close the live attempt and open the next one, which resumes from saved."""
    job.attempts.filter(closed_at=None).update(held=False, closed_at=timezone.now())
    job.attempt += 1
    job.intent = Intent.RUN
    job.save(update_fields=["attempt", "intent"])
    made = factories.add_attempt(job, job.attempt, held=True)
    made.resume_from = saved
    made.save()


class Rig:
    """One learner of a job: its folders and its two processes."""

    def __init__(
        self, job: Job, server_url: str, home: Path, *, rank: int = 0, data_root: Path | None = None
    ) -> None:
        self.job, self.rank, self.attempt = job, rank, job.attempt
        self.home = home
        self.state = home / "state"
        self.spool = Spool(self.state)
        self.state.mkdir(parents=True)
        self.env = {
            "PATH": os.environ["PATH"],
            "TRAINING_ID": job.pk,
            "LUTHIER_ATTEMPT": str(job.attempt),
            "LUTHIER_RANK": str(rank),
            "LEARNER_ID": str(rank + 1),
            "NUM_LEARNERS": str(job.learners),
            "LUTHIER_GRACE_S": str(job.grace_s),
            "JOB_STATE_DIR": str(self.state),
            "CHECKPOINT_DIR": str(self.state / "checkpoints"),
            "MODEL_DIR": str(home / "code"),
            "DATA_DIR": str(home / "data"),
            "RESULT_DIR": str(home / "results"),
            "LOG_DIR": str(home / "logs"),
        }
        self.shipper_env = self.env | {
            "LUTHIER_INGEST_URL": server_url,
            "LUTHIER_SECRET": factories.secret(job, job.attempt, rank),
            "PYTHONPATH": str(ROOT),
        }
        if data_root is not None:
            self.shipper_env["LUTHIER_DATA_ROOT"] = str(data_root)
        self.launcher: subprocess.Popen[bytes] | None = None
        self.shipper: subprocess.Popen[bytes] | None = None

    def launch(self, command: str | list[str]) -> None:
        argv = [sys.executable, str(ROOT / "learner_agent"), "launcher"]
        env = dict(self.env)
        if isinstance(command, str):
            env["TRAINING_COMMAND"] = command
        else:
            argv += ["--", *command]
        self.launcher = subprocess.Popen(argv, env=env)

    def ship(self) -> None:
        self.shipper = subprocess.Popen(
            [sys.executable, "-m", "learner_agent", "shipper"], env=self.shipper_env, cwd=self.home
        )

    def kill_shipper(self) -> None:
        assert self.shipper is not None
        self.shipper.send_signal(signal.SIGKILL)
        self.shipper.wait()

    def wait(self, *, timeout_s: float = TIMEOUT_S) -> tuple[int, int]:
        """Wait for both ends: (launcher's exit code, shipper's)."""
        assert self.launcher is not None
        assert self.shipper is not None
        return self.launcher.wait(timeout_s), self.shipper.wait(timeout_s)

    def end(self) -> None:
        for process in (self.launcher, self.shipper):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    @property
    def row(self) -> Learner:
        return Learner.objects.get(job=self.job, attempt=self.attempt, rank=self.rank)

    def stored_log(self) -> bytes:
        """What the database holds of this learner's output, checked to be dense."""
        pieces, at = [], 0
        for chunk in LogChunk.objects.filter(job=self.job, attempt=self.attempt, rank=self.rank).order_by(
            "offset"
        ):
            assert chunk.offset == at, "the stored chunks leave a gap or overlap"
            data = b"?" * chunk.len if chunk.tombstone else zstandard.decompress(bytes(chunk.data))
            assert len(data) == chunk.len
            assert chunk.tombstone or chunk.lines == data.count(b"\n")
            pieces.append(data)
            at += chunk.len
        return b"".join(pieces)
