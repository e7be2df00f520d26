"""`manage.py prepare` as a child process: it needs Django, the supervisor does not. It reports in JSON lines."""

import asyncio
import contextlib
import json
import os
import sys
from signal import SIGINT, SIGTERM
from typing import Any

from portal.settings.env import BASE_DIR
from portal.supervisor.errors import CannotStart
from portal.supervisor.loader import Loader
from portal.supervisor.plan import StartPlan
from portal.supervisor.report import Report
from portal.supervisor.running import Running
from portal.supervisor.starting import start


class Preparation:
    """Migrations, then the demo on an empty database. Started early: loading its code takes as long as the servers."""

    def __init__(self, plan: StartPlan, report: Report) -> None:
        self._plan = plan
        self._report = report
        self._process: Running | None = None
        self._lines = asyncio.StreamReader()
        self._log = plan.layout.logs / "prepare.log"

    async def start(self, loader: Loader | None = None) -> None:
        read, written = os.pipe()
        protocol = asyncio.StreamReaderProtocol(self._lines)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(read, "rb"))
        with os.fdopen(written, "wb") as output, self._log.open("wb") as log:
            self._process = await start(
                [sys.executable, str(BASE_DIR / "manage.py"), *self._plan.prepare],
                env={**os.environ, **self._plan.env, **self._plan.prepare_env},
                output=output.fileno(),
                errors=log.fileno(),
                on_parent_death=SIGINT,
                loader=loader,
            )

    async def until_migrated(self) -> None:
        """Returns when the database has today's tables. Raises CannotStart when that failed."""
        try:
            line = await self._next()
        except CannotStart as error:
            raise CannotStart(f"The database could not be prepared. {error}") from error
        applied = line.get("applied", 0)
        if applied:
            self._report.say(f"Database brought up to date ({applied} migrations)")
        for warning in line.get("warnings", []):
            self._report.say(f"Warning: {warning}")

    async def until_done(self) -> dict[str, Any]:
        """What was made for the first start: {"users": …, "job": …}, or {"hint": text}, or empty when nothing was.

        The platform works without its demo, so a failure is reported and nothing is stopped for it.
        """
        try:
            return await self._next()
        except CannotStart as error:
            self._report.say(f"The demo could not be created. {error}")
            return {}

    async def end(self) -> None:
        process = self._process
        if process and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(SIGTERM)
            await process.wait()

    async def _next(self) -> dict[str, Any]:
        assert self._process is not None
        line = await self._lines.readline()
        try:
            return dict(json.loads(line))
        except ValueError:
            await self._process.wait()
            tail = "\n".join(self._log.read_text(errors="replace").strip().splitlines()[-12:])
            raise CannotStart(f"Last lines of {self._log}:\n{tail}") from None
