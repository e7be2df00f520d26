"""How a learner's program ended, as the spool tells it (contracts: ``exit``, ``phase``, ``refused``)."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from typing import Any

from gpu_scheduler.clusters.local.environment import Folders
from gpu_scheduler.clusters.local.processes import KILLED

STOPPED_CODE = 128 + signal.SIGTERM
"""The exit code of a program that was stopped before it began."""


def read(folders: Folders) -> Mapping[str, Any] | None:
    """The launcher's word on the end, None while there is none."""
    try:
        value = json.loads((folders.state / "exit").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def code_of(ending: Mapping[str, Any] | None) -> int | None:
    """The program's exit code; None when its launcher died and nobody saw it."""
    if ending is None or ending.get("lost"):
        return None
    code = ending.get("code")
    return code if isinstance(code, int) else KILLED


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
    folders.state.mkdir(parents=True, exist_ok=True)  # a program may have removed it
    temporary = folders.state / "exit.tmp"
    temporary.write_text(json.dumps(ending))
    temporary.replace(folders.state / "exit")
    return ending


def refusal(folders: Folders) -> tuple[str, str]:
    """Why a program never began: the shipper's reason and message, or that it was stopped."""
    try:
        refused = json.loads((folders.state / "refused").read_text("utf-8"))
        return str(refused["code"]), str(refused["message"])[:1000]
    except (OSError, ValueError, KeyError, TypeError):
        return "stopped", "Stopped before its program began."
