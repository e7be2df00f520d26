"""One supervisor per data folder: a lock that the kernel drops with the process that holds it."""

import fcntl
import os
from pathlib import Path

from portal.supervisor.errors import BadFolder, CannotStart


class DataLock:
    """Held from `take` until the process ends. Its file says who holds it, for the message of the second start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def take(self) -> None:
        """Raises CannotStart naming the process and address that already serve this folder, or BadFolder."""
        folder = self._path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            why = "it is not a folder" if isinstance(error, FileExistsError) else error.strerror
            raise BadFolder(
                f"--data: {folder} cannot be used: {why}. Name a folder that you may write, by --data "
                "or LUTHIER_DATA."
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 500).decode(errors="replace").strip() or "another process"
            raise CannotStart(
                f"Luthier is already running in {self._path.parent} ({holder}). "
                "Stop it there with Ctrl-C, or start a second installation with --data and --port."
            ) from None

    def describe(self, text: str) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)
