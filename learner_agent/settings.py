"""Settings of both processes from the environment. One error names every wrong or missing variable."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import List, Mapping, Optional, Tuple
from urllib.parse import urlsplit

CAP_BYTES = 1024**3
"""Bytes of log that a spool holds at most, unless LUTHIER_SPOOL_BYTES is set."""
SHOWN_CHARS = 200
"""Of a setup command, in the log's headings and in messages."""


class BadSettings(Exception):
    """Variables are wrong or missing; the message has one line for each."""


@dataclass(frozen=True)
class LauncherSettings:
    """Settings of the launcher. grace_s: the job's grace period in seconds (see learner_agent.halting).

    setup: commands to run before the program, each by sh -e.
    """

    state_dir: Path
    model_dir: Path
    checkpoint_dir: Path
    result_dir: Path
    log_dir: Path
    command: str
    grace_s: int
    spool_bytes: int
    setup: Tuple[str, ...] = ()


@dataclass(frozen=True)
class ShipperSettings:
    """Settings of the shipper. base is the web server's http(s) address, without a trailing slash."""

    state_dir: Path
    checkpoint_dir: Path
    model_dir: Path
    data_dir: Path
    result_dir: Path
    log_dir: Path
    data_root: Optional[Path]
    base: str
    secret: str
    job: str
    attempt: int
    rank: int

    @property
    def socket_url(self) -> str:
        return "ws" + self.base[len("http") :] + "/ws/agent/v1"


class _Reader:
    """Reads variables and collects errors."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.wrong: List[str] = []

    def text(self, name: str, remedy: str) -> str:
        value = self.env.get(name, "").strip()
        if not value:
            self.wrong.append("%s: missing; %s" % (name, remedy))
        return value

    def directory(self, name: str, default: str = "") -> Path:
        value = self.env.get(name, "").strip() or default
        if not value:
            self.wrong.append("%s: missing; set it to a directory" % name)
        elif not os.path.isabs(value):
            self.wrong.append("%s: %r is not an absolute path" % (name, value[:200]))
        return Path(value)

    def whole(self, name: str, low: int, default: Optional[int] = None) -> int:
        value = self.env.get(name, "").strip()
        if not value and default is not None:
            return default
        if not value.isdigit() or int(value) < low:
            self.wrong.append("%s: %r is not a whole number of at least %d" % (name, value[:40], low))
            return low
        return int(value)

    def texts(self, name: str) -> Tuple[str, ...]:
        """A JSON list of strings; nothing if the variable is not set."""
        value = self.env.get(name, "").strip()
        try:
            found = json.loads(value) if value else []
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            self.wrong.append("%s: %r is not a JSON list of strings" % (name, value[:200]))
            return ()
        return tuple(found)

    def address(self, name: str) -> str:
        value = self.text(name, "the web server's address, such as http://127.0.0.1:8000").rstrip("/")
        for secure in ("", "s"):  # a websocket address works, too
            if value.startswith("ws%s://" % secure):
                value = "http%s://%s" % (secure, value.split("://", 1)[1])
        if value and (urlsplit(value).scheme not in ("http", "https") or not urlsplit(value).netloc):
            self.wrong.append("%s: %r is not an http(s) address" % (name, value[:200]))
        return value

    def done(self) -> None:
        if self.wrong:
            raise BadSettings("\n".join(self.wrong))


def _folders(read: _Reader) -> Tuple[Path, Path, Path, Path, Path]:
    """JOB_STATE_DIR, MODEL_DIR, CHECKPOINT_DIR, RESULT_DIR, LOG_DIR."""
    state = read.directory("JOB_STATE_DIR")
    model = read.directory("MODEL_DIR")
    checkpoint = read.directory("CHECKPOINT_DIR", str(state / "checkpoints"))
    result = read.directory("RESULT_DIR", str(state / "results"))
    return state, model, checkpoint, result, read.directory("LOG_DIR", str(state / "logs"))


def launcher_settings(env: Mapping[str, str], *, needs_command: bool = True) -> LauncherSettings:
    """Read the launcher's settings. Raises BadSettings."""
    read = _Reader(env)
    state, model, checkpoint, result, log = _folders(read)
    command = read.text("TRAINING_COMMAND", "the command to run") if needs_command else ""
    settings = LauncherSettings(
        state, model, checkpoint, result, log, command,
        grace_s=read.whole("LUTHIER_GRACE_S", 0, 60),
        spool_bytes=read.whole("LUTHIER_SPOOL_BYTES", 4096, CAP_BYTES),
        setup=read.texts("LUTHIER_SETUP"),
    )  # fmt: skip
    read.done()
    return settings


def shipper_settings(env: Mapping[str, str]) -> ShipperSettings:
    """Read the shipper's settings. Raises BadSettings, whose message never has the secret."""
    read = _Reader(env)
    state, model, checkpoint, result, log = _folders(read)
    root = env.get("LUTHIER_DATA_ROOT", "").strip()
    settings = ShipperSettings(
        state, checkpoint, model,
        data_dir=read.directory("DATA_DIR"),
        result_dir=result,
        log_dir=log,
        data_root=read.directory("LUTHIER_DATA_ROOT") if root else None,
        base=read.address("LUTHIER_INGEST_URL"),
        secret=read.text("LUTHIER_SECRET", "the learner's secret, given at launch"),
        job=read.text("TRAINING_ID", "the job's id"),
        attempt=read.whole("LUTHIER_ATTEMPT", 1),
        rank=read.whole("LUTHIER_RANK", 0),
    )  # fmt: skip
    read.done()
    return settings
