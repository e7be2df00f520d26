"""Which Python interpreters this machine has: the platform's own, those that uv manages, and the system's.

None is ever downloaded: a version that is not here is not offered.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from gpu_scheduler.clusters.base import PYTHON_VERSIONS
from gpu_scheduler.clusters.local import processes

KNOWN_S = 60.0
"""How long what was found counts: an interpreter that is installed now is there a minute later."""
TRY_S = 20.0
_SAY = "import sys; print('%d.%d' % sys.version_info[:2], sys.implementation.name)"

_found: tuple[float, dict[str, Path]] | None = None
_lock = threading.Lock()


def find() -> dict[str, Path]:
    """Version -> an interpreter that runs, for each of PYTHON_VERSIONS that this machine has."""
    global _found
    with _lock:
        if _found is None or time.monotonic() - _found[0] > KNOWN_S:
            _found = time.monotonic(), _look()
        return _found[1]


def versions() -> tuple[str, ...]:
    """The versions that a job may ask for here, ascending."""
    return tuple(find())


def _look() -> dict[str, Path]:
    first = {
        version: next((path for path in _candidates(version) if _runs(path, version)), None)
        for version in PYTHON_VERSIONS
    }
    return {version: path for version, path in first.items() if path is not None}


def _candidates(version: str) -> Iterator[Path]:
    """Where an interpreter of that version may be, the most trustworthy first."""
    name = f"python{version}"
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        yield Path(sys.executable)
    for home, pattern in (
        (
            _folder("UV_PYTHON_INSTALL_DIR", _folder("XDG_DATA_HOME", "~/.local/share") / "uv" / "python"),
            "cpython-{}.*",
        ),
        (_folder("PYENV_ROOT", "~/.pyenv") / "versions", "{}.*"),
    ):
        yield from sorted(home.glob(f"{pattern.format(version)}/bin/{name}"), reverse=True)
    for folder in os.get_exec_path():
        if found := shutil.which(name, path=folder):
            yield Path(found)


def _folder(variable: str, otherwise: str | Path) -> Path:
    return Path(os.environ.get(variable) or otherwise).expanduser()


def _runs(path: Path, version: str) -> bool:
    """True if it is CPython of that version; one that a tool only pretends to have does not run."""
    try:
        with processes.spawning:
            child = subprocess.Popen(
                [path, "-I", "-S", "-c", _SAY], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            processes.note_child(child.pid)
        said, _ = child.communicate(timeout=TRY_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return False
    except (OSError, ValueError):
        return False
    return said.split() == [version, "cpython"]
