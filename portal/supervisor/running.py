"""A child of the supervisor that runs: what is asked of it, however it was started."""

import asyncio
import contextlib
import os
from typing import Protocol


class Running(Protocol):
    """Of asyncio.subprocess.Process, what the supervisor uses."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None:
        """None while it runs; -N after signal N."""

    async def wait(self) -> int: ...

    def send_signal(self, signal: int) -> None:
        """Raises ProcessLookupError when it has ended."""


class Adopted:
    """A child that another process started and left to us."""

    def __init__(self, pid: int) -> None:
        """Raises OSError."""
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._file = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._file, self._see_end)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signal: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, signal)  # until its end is seen, no other process gets its pid

    def _see_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._file)
        os.close(self._file)
        self.returncode = 255
        with contextlib.suppress(ChildProcessError):
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set()
