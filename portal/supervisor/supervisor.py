"""Start everything in order, keep it running, end it in reverse order."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine, Sequence
from typing import Any

from portal.supervisor import postgres
from portal.supervisor.example_data import fetch_example_data
from portal.supervisor.folders import make_folders, make_keys
from portal.supervisor.leftovers import URL, Register, end_leftovers, remove_stale_locks
from portal.supervisor.loader import Loader
from portal.supervisor.plan import StartPlan
from portal.supervisor.preparation import Preparation
from portal.supervisor.process import Supervised
from portal.supervisor.readiness import fetch
from portal.supervisor.report import Report
from portal.supervisor.service import Service
from portal.supervisor.welcome import welcome

READY_WITHIN_S = 60
READY_POLL_S = 0.1
REPORT_EVERY_S = 10
ROTATE_LOGS_S = 60


class Supervisor:
    """One installation, from its first process to its last. `run` returns when all are gone."""

    def __init__(self, plan: StartPlan, report: Report) -> None:
        self._plan = plan
        self._report = report
        self._register = Register(plan.layout.run)
        self._running: list[list[Supervised]] = []
        self._stop = asyncio.Event()
        self._prepared = asyncio.Event()
        self._signals = 0
        self._early_stops: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Raises CannotStart, after everything that had started is gone again."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._asked_to_stop)
        try:
            start = asyncio.create_task(self._start())
            waiting = asyncio.create_task(self._stop.wait())
            await asyncio.wait({start, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                start.result()
                await self._rotate_logs(waiting)
            start.cancel()
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await start
        finally:
            await self._end()

    async def _start(self) -> None:
        plan = self._plan
        make_folders(plan.layout)
        make_keys(plan.layout)
        end_leftovers(plan.layout.run, self._report)
        (plan.layout.run / URL).write_text(plan.url)
        plan.layout.prepared.unlink(missing_ok=True)
        loader = Loader(env={**os.environ, **plan.env}, logs=plan.layout.logs, report=self._report)
        preparation = Preparation(plan, self._report)
        try:
            await loader.start()
            # While the servers start, the preparation loads its code and waits for the database.
            await together(preparation.start(loader), self._start_servers())
            # At once, because loading their code is most of it; they end one stage after the other.
            needed = (plan.web, plan.nodes, plan.workers[:1])
            await together(
                self._prepare(preparation), *(self._stage(stage, loader, self._prepared) for stage in needed)
            )
            await self._until_ready()
            made = await preparation.until_done()
            self._report.plain(welcome(plan.url, made))
            # One worker can do all the work, so the start does not wait for the others.
            await self._stage(plan.workers[1:], loader)
        finally:
            await preparation.end()
            await loader.end()
        if made.get("users") and plan.nodes:
            await fetch_example_data(plan, self._report)

    async def _start_servers(self) -> None:
        """The embedded servers."""
        servers = self._plan.servers
        if any(service.name == "postgres" for service in servers):
            if not (self._plan.layout.postgres_data / "PG_VERSION").exists():
                self._report.say("Creating the database's files")
            layout = self._plan.layout
            await asyncio.to_thread(remove_stale_locks, layout.postgres_data, layout.postgres_socket_dir)
            await asyncio.to_thread(postgres.prepare, layout)
        await self._stage(servers)

    async def _prepare(self, preparation: Preparation) -> None:
        """Wait for the tables, and let the web server and the workers start (portal/migrations_gate.py)."""
        await preparation.until_migrated()
        self._plan.layout.prepared.touch()
        self._prepared.set()

    async def _stage(
        self, services: Sequence[Service], loader: Loader | None = None, prepared: asyncio.Event | None = None
    ) -> None:
        """Start these together and wait for all."""
        stage = [
            Supervised(service, logs=self._plan.layout.logs, register=self._register, report=self._report)
            for service in services
        ]
        self._running.append(stage)
        await together(*(self._start_one(supervised, loader, prepared) for supervised in stage))

    async def _start_one(
        self, supervised: Supervised, loader: Loader | None, prepared: asyncio.Event | None
    ) -> None:
        await supervised.start(prepared, loader if supervised.service.loaded else None)
        if supervised.service not in self._plan.workers:
            self._report.say(f"{supervised.service.title} is ready")

    async def _until_ready(self) -> None:
        """Wait until the platform reports that it is ready; print what is missing when that takes long."""
        began = self._report.seconds
        reported_at = began
        while self._report.seconds - began < READY_WITHIN_S:
            status, answer = await fetch(self._plan.port, "/readyz")
            if status == 200:
                self._report.say("Luthier is ready")
                return
            if self._report.seconds - reported_at > REPORT_EVERY_S:
                reported_at = self._report.seconds
                self._report.say(f"Waiting for {missing(answer)}")
            await asyncio.sleep(READY_POLL_S)
        self._report.say(f"Luthier is running, but not everything is ready: {missing(answer)}")

    async def _rotate_logs(self, until: asyncio.Task[Any]) -> None:
        """Rotate the logs, so that they stay bounded over a long run."""
        while not until.done():
            await asyncio.wait({until}, timeout=ROTATE_LOGS_S)
            for member in (member for stage in self._running for member in stage):
                member.rotate_log()

    async def _end(self) -> None:
        stages = [stage for stage in reversed(self._running) if stage]
        if stages:
            self._report.say("Stopping")
        for stage in stages:
            await asyncio.gather(*(supervised.stop() for supervised in stage))
        self._register.clear()
        if stages:
            self._report.say("Everything has stopped")

    def _asked_to_stop(self) -> None:
        """The first signal stops in order; the second kills what is still running."""
        self._signals += 1
        self._stop.set()
        if self._signals > 1:
            members = [member for stage in self._running for member in stage if member.pid]
            self._early_stops = [asyncio.create_task(member.stop()) for member in members if member.stopping]


async def together(*parts: Coroutine[Any, Any, None]) -> None:
    """All at once; when one fails, the others are given up before its error goes on."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def missing(answer: dict[str, Any]) -> str:
    """What /readyz says is not ready, in one line."""
    reasons = [
        f"{name}: {part['reason']}" for name, part in answer.get("parts", {}).items() if "reason" in part
    ]
    return "; ".join(reasons) or "a response from the web server"
