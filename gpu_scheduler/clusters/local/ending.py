"""How a learner's program ended, read from its spool (files ``exit``, ``phase``, ``refused``)."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_scheduler.clusters.base import SHIPPER_REFUSALS, STOPPED_BEFORE_PROGRAM, STOPPED_CODE, EndReason
from gpu_scheduler.clusters.local.context import read_plain
from gpu_scheduler.clusters.local.environment import Folders
from gpu_scheduler.clusters.local.processes import KILLED

MAX_BYTES = 64 * 1024


def read(folders: Folders) -> Mapping[str, Any] | None:
    """What the launcher wrote about the end, None before."""
    return _object(folders.state / "exit")


def code_of(ending: Mapping[str, Any] | None) -> int | None:
    """The program's exit code; None if its launcher died first, so that it is unknown."""
    if ending is None or ending.get("lost"):
        return None
    code = ending.get("code")
    return code if isinstance(code, int) and 0 <= code <= 255 else KILLED


def began(folders: Folders) -> bool:
    """True if the launcher has started the program."""
    return (folders.state / "phase").exists()


def write_exit_for_launcher(folders: Folders, *, stopped: bool) -> Mapping[str, Any]:
    """Write the ``exit`` file of a launcher that ended before it did anything; its shipper would wait for it forever.

    The shipper handles a launcher that did start, because only it knows how much of the log there is. Raises OSError.
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


def refusal(folders: Folders) -> tuple[EndReason, str]:
    """Why a program never began: the shipper's reason and message, or that it was stopped."""
    refused = _object(folders.state / "refused") or {}
    message = refused.get("message", STOPPED_BEFORE_PROGRAM)
    code = refused.get("code")
    reason = EndReason(code) if isinstance(code, str) and code in SHIPPER_REFUSALS else EndReason.STOPPED
    return reason, str(message)[:1000]


def _object(path: Path) -> dict[str, Any] | None:
    """A small JSON object, or None for anything else."""
    try:
        value = json.loads(read_plain(path, max_bytes=MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
