"""Peers that are Python packages, each in an environment of its own: nothing of them is in the platform's lock.

An environment is kept in `peers` beside the test cluster's programs, outside the checkout, and named by a hash of its
lock and its interpreter: it is made once for all checkouts of this machine.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tools import environment
from tools.kube.binaries import cache_root


def interpreter(lock: Path) -> Path:
    """The Python of the environment that this lock describes; made now if it is missing, which downloads packages."""
    root = cache_root().parent / "peers"
    digest = hashlib.sha256(sys.version.encode() + lock.read_bytes()).hexdigest()[:16]
    folder = root / f"{lock.stem}-{digest}"
    if not folder.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{lock.stem}-", dir=root) as made:
            target, uv = f"{made}/environment", environment.find_uv()
            environment.run(
                [uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, target],
                "make an environment",
            )
            options = ["--require-hashes", "--no-deps", "--quiet", "--python", f"{target}/bin/python"]
            environment.run([uv, "pip", "install", *options, "-r", str(lock)], f"install {lock.stem}")
            with suppress(OSError):  # another run was faster
                Path(target).rename(folder)
    return folder / "bin" / "python"
