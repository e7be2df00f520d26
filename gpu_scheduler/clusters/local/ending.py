"""How a learner's program ended, as the spool tells it (contracts: ``exit``, ``phase``, ``refused``)."""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_scheduler.clusters.base import EndReason
from gpu_scheduler.clusters.local.environment import Folders
from gpu_scheduler.clusters.local.house import read_plain
from gpu_scheduler.clusters.local.processes import KILLED

STOPPED_CODE = 128 + signal.SIGTERM
"""The exit code of a program that was stopped before it began."""
MOST_BYTES = 64 * 1024


def read(folders: Folders) -> Mapping[str, Any] | None:
    """The launcher's word on the end, None while there is none."""
    return _object(folders.state / "exit")


def code_of(ending: Mapping[str, Any] | None) -> int | None:
    """The program's exit code; None when its launcher died and nobody saw it."""
    if ending is None or ending.get("lost"):
        return None
    code = ending.get("code")
    return code if isinstance(code, int) and 0 <= code <= 255 else KILLED


def began(folders: Folders) -> bool:
    """Say whether the launcher came as far as starting the program."""
    return (folders.state / "phase").exists()


def write_in_its_place(folders: Folders, *, stopped: bool) -> Mapping[str, Any]:
    """A launcher that ended before it did anything leaves no word, and its shipper would wait for one for ever.

    One that began is the shipper's to notice: only it knows how much of the log there is. Raises OSError.
    """
    ending = {
        "code": STOPPED_CODE if stopped else KILLED,
        "signal": None,
        "started": False,
        "halted": stopped,
        "finished": False,
        "lost": not stopped,
        "size": 0,
        "crc": None,
    }
    state, name = folders.state, f"exit.{secrets.token_hex(4)}"
    # A program may have removed it all, or put something else in its place.
    if os.path.lexists(state) and not state.is_dir():
        state.rename(folders.root / name)
    state.mkdir(parents=True, exist_ok=True)
    temporary, place = state / f"{name}.tmp", state / "exit"
    if place.is_dir():
        place.rename(state / f"{name}.odd")
    temporary.write_text(json.dumps(ending))
    temporary.replace(place)
    return ending


REFUSALS = {
    EndReason.DATA_ERROR,
    EndReason.IMAGE_ERROR,
    EndReason.DEPLOY_FAILED,
    EndReason.CHECKPOINT_CORRUPT,
}
"""What a shipper may refuse to start a program for; any other code in the spool is not ours."""


def refusal(folders: Folders) -> tuple[EndReason, str]:
    """Why a program never began: the shipper's reason and message, or that it was stopped."""
    refused = _object(folders.state / "refused") or {}
    message = refused.get("message", "Stopped before its program began.")
    code = refused.get("code")
    reason = EndReason(code) if isinstance(code, str) and code in REFUSALS else EndReason.STOPPED
    return reason, str(message)[:1000]


def _object(path: Path) -> dict[str, Any] | None:
    """A small JSON object, or None for whatever else lies there."""
    try:
        value = json.loads(read_plain(path, most=MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
