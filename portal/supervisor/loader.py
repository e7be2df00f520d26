"""The supervisor's end of portal.loader: processes of the first start are forked from one that has loaded their code.

Whatever is wrong with the loader, a process is started the plain way, and so is every later one.
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

from portal.settings.env import BASE_DIR
from portal.supervisor import kernel
from portal.supervisor.children import dies_with_parent
from portal.supervisor.report import Report
from portal.supervisor.running import Adopted

COMMAND = (sys.executable, "-m", "portal.loader")
ANSWER_S = 30.0
"""So long a process is waited for, the loading of its code included."""
END_S = 1.0
SHOWN_CHARS = 1024
"""Room for the command that /proc shows of a forked process."""


class Loader:
    """Forks processes with the environment that it was started with. Once ended it starts nothing."""

    def __init__(self, *, env: Mapping[str, str], logs: Path, report: Report) -> None:
        self._env = dict(env)
        self._log = logs / "loader.log"
        self._report = report
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._connection: socket.socket | None = None

    async def start(self) -> None:
        """Let it load the code; nothing waits for that before the first `fork`."""
        if sys.platform != "linux":
            return
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._connection = ours
        try:
            with its, self._log.open("wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *dies_with_parent([*COMMAND, "-" * SHOWN_CHARS], SIGTERM),
                    stdin=its.fileno(),
                    stdout=log,
                    stderr=log,
                    cwd=BASE_DIR,
                    env=self._env,
                    start_new_session=True,
                )
        except OSError as error:
            await self._give_up(f"could not be started: {error}")

    async def fork(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        output: int,
        errors: int,
        on_parent_death: Signals,
    ) -> Adopted | None:
        """A process that runs the command, our child; None if there is none, so that the caller starts it."""
        request = json.dumps({"command": list(command), "on_parent_death": int(on_parent_death)}).encode()
        async with self._turn:
            if self._connection is None or env != self._env:
                return None
            try:
                with kernel.adopting_orphans():
                    async with asyncio.timeout(ANSWER_S):
                        return await _ask(self._connection, request, output, errors)
            except TimeoutError:
                why = f"did not answer within {ANSWER_S:g} s"
            except (OSError, ValueError) as error:
                why = f"failed: {error}"
            await self._give_up(why)
            return None

    async def end(self) -> None:
        """What it forked lives on, except a process that has not begun."""
        if self._connection is not None:
            self._connection.close()
        process, self._process, self._connection = self._process, None, None
        if process is None:
            return
        try:
            await asyncio.wait_for(process.wait(), END_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, SIGKILL)
            await process.wait()
        _reap_group(process.pid)

    async def _give_up(self, why: str) -> None:
        self._report.say(f"The loader {why} (see {self._log}); each process loads its code itself")
        await self.end()


def _reap_group(group: int) -> None:
    """See the end of those whose forking a killed loader had not finished."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass


async def _ask(loader: socket.socket, request: bytes, output: int, errors: int) -> Adopted:
    """A new process is awaited on a connection of its own and ends where that is closed before an answer:
    what we gave up never runs beside what is started instead. Raises OSError, ValueError."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.setblocking(False)
        with its:
            socket.send_fds(loader, [request], [output, errors, its.fileno()])
        pid = await asyncio.get_running_loop().sock_recv(ours, 64)
        if not pid:
            raise OSError("it ended, or could not fork")
        process = Adopted(int(pid))
        ours.send(b".")
        return process
