"""Runs one service: starts, watches, restarts with back-off, stops."""

import asyncio
import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from portal.settings.env import without_settings
from portal.supervisor.children import kill_tree
from portal.supervisor.errors import CannotStart
from portal.supervisor.leftovers import Register
from portal.supervisor.loader import Loader
from portal.supervisor.report import Report
from portal.supervisor.running import Running
from portal.supervisor.service import Service, backoff_s
from portal.supervisor.starting import start

STEADY_S = 30  # a run of this length resets the count of earlier failures
FIRST_START_TRIES = 3
READY_POLL_S = 0.05
NOTE_AFTER_S = 2
ASK_EVERY_S = 5
"""One that is being stopped is asked so often whether it still answers."""
UNREADY_STOP_S = 30
"""One that never got ready has no learners of its own to wait for; PostgreSQL may be amid its recovery."""
LOG_MAX_BYTES = 20 * 1024 * 1024


class Supervised:
    """The life of one service. `start` returns when it is ready for the first time; `stop` when it is gone."""

    def __init__(self, service: Service, *, logs: Path, register: Register, report: Report) -> None:
        self.service = service
        self._log_path = logs / f"{service.name}.log"
        self._register = register
        self._report = report
        self._process: Running | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._wanted = True

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    @property
    def stopping(self) -> bool:
        return not self._wanted

    async def start(self, prepared: asyncio.Event | None = None, loader: Loader | None = None) -> None:
        """Start and wait until ready. Raises CannotStart with the end of its log when it dies or hangs.

        Until prepared is set, when there is one, it may only load its code: its time to get ready begins then.
        loader: for the first attempt only; every later start runs the code that is on disk by then.
        """
        deadline: float | None = None
        for attempt in range(1, FIRST_START_TRIES + 1):
            process = await self._spawn(loader if attempt == 1 else None)
            if prepared:
                await prepared.wait()
            deadline = deadline or time.monotonic() + self.service.start_s
            if await self._becomes_ready(process, deadline):
                self._watcher = asyncio.create_task(self._keep(process), name=self.service.name)
                return
            if process.returncode is None or attempt == FIRST_START_TRIES:
                break
            await asyncio.sleep(backoff_s(attempt))
        raise CannotStart(await self._why())

    async def stop(self, within_s: float | None = None) -> None:
        """End it: its own signal first, SIGKILL after within_s (None: its stop_s). A second call kills at once."""
        impatient = not self._wanted
        self._wanted = False
        if self._watcher and not impatient:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        process = self._process
        if process is None or process.returncode is not None:
            return
        if impatient:
            kill_tree(process.pid)
        else:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(self.service.stop_signal)
        if await _gone(process, NOTE_AFTER_S):
            return
        if self.service.stopping_note and not impatient:
            self._report.say(self.service.stopping_note)
        within_s = self.service.stop_s if within_s is None else within_s
        asked = time.monotonic() - NOTE_AFTER_S
        if not await self._ends(process, within_s - NOTE_AFTER_S):
            waited_s = time.monotonic() - asked
            self._report.say(f"{self.service.title} did not stop within {waited_s:.0f} s; killing it")
            kill_tree(process.pid)
            await process.wait()

    async def _ends(self, process: Running, within_s: float) -> bool:
        """Whether it ends by itself in this time. False before that if it would answer meanwhile, and does not."""
        answered = time.monotonic()
        until = answered + within_s
        while (left_s := until - time.monotonic()) > 0:
            if await _gone(process, min(ASK_EVERY_S, left_s)):
                return True
            if self.service.silent_s is None or await self.service.ready():
                answered = time.monotonic()
            elif time.monotonic() - answered > self.service.silent_s:
                return False
        return process.returncode is not None

    async def _keep(self, process: Running) -> None:
        """Restart whenever it dies. Ends only by cancellation."""
        failures = 0
        while True:
            born = time.monotonic()
            code = await process.wait()
            failures = 0 if time.monotonic() - born > STEADY_S else failures + 1
            pause_s = backoff_s(failures - 1) if failures else 0.0
            self._report.say(
                f"{self.service.title} {ended(code)} (see {self._log_path}); restarting in {pause_s:.1f} s"
            )
            await asyncio.sleep(pause_s)
            process = await self._spawn()
            if await self._becomes_ready(process, time.monotonic() + self.service.start_s):
                self._report.say(f"{self.service.title} is running again")

    async def _spawn(self, loader: Loader | None = None) -> Running:
        self.rotate_log()
        settings = os.environ if self.service.reads_settings else without_settings(os.environ)
        with self._log_path.open("ab") as log:
            self._process = await start(
                self.service.command,
                env={**settings, **self.service.env},
                output=log.fileno(),
                errors=log.fileno(),
                on_parent_death=self.service.on_parent_death,
                loader=loader,
            )
        self._register.note(self.service.name, self._process.pid, self.service.stop_signal)
        return self._process

    async def _becomes_ready(self, process: Running, deadline: float) -> bool:
        while process.returncode is None and time.monotonic() < deadline:
            if await self.service.ready():
                return True
            await asyncio.sleep(READY_POLL_S)
        return False

    async def _why(self) -> str:
        process = self._process
        assert process is not None
        if process.returncode is None:
            what = f"was not ready after {self.service.start_s:.0f} s"
            await self.stop(min(self.service.stop_s, UNREADY_STOP_S))
        else:
            what = ended(process.returncode)
        tail = self._log_path.read_text(errors="replace").splitlines()[-15:]
        return "\n".join(
            [f"{self.service.title} {what}. Last lines of {self._log_path}:", *(f"  {line}" for line in tail)]
        )

    def rotate_log(self) -> None:
        """Put a large log aside, so that two generations are kept. The service holds it open, for appending."""
        with contextlib.suppress(OSError):
            if self._log_path.stat().st_size > LOG_MAX_BYTES:
                shutil.copyfile(self._log_path, self._log_path.with_suffix(".log.1"))
                os.truncate(self._log_path, 0)


async def _gone(process: Running, within_s: float) -> bool:
    """Whether it ends in this time."""
    try:
        await asyncio.wait_for(asyncio.shield(process.wait()), max(0.0, within_s))
    except TimeoutError:
        return False
    return True


def ended(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "is running"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was terminated by {signal.Signals(-code).name}"
    except ValueError:
        return f"was terminated by signal {-code}"
