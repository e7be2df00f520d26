"""One shipper from start to end: fetch the inputs, ship what the program leaves, store the rest at its end."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from learner_agent.log_segments import LogReader, log_span
from learner_agent.sandbox import entry
from learner_agent.settings import SHOWN_CHARS, ShipperSettings, shipper_settings
from learner_agent.shipper.checkpoint_uploader import CheckpointUploader
from learner_agent.shipper.connection import Connection, Fenced, WrongVersion
from learner_agent.shipper.description import JobDescription
from learner_agent.shipper.fetch import InputFetch, tensorboard_roots
from learner_agent.shipper.final_files import FinalFiles
from learner_agent.shipper.http import Client
from learner_agent.shipper.inputs import InputError
from learner_agent.shipper.metrics.log_rules import LogRules
from learner_agent.shipper.metrics.reported import ReportedMetrics
from learner_agent.shipper.metrics.tensorboard import TensorBoard
from learner_agent.spool import Spool
from learner_agent.untrusted_files import now_ms, number_or, objects
from learner_agent.wire import Final, JobIntent
from learner_agent.wire_fields import SETUP_FAILED

logger = logging.getLogger(__name__)

POLL_S = 0.5
"""How often the spool and CHECKPOINT_DIR are checked without a notification."""
CHECKS = ("checks_halt", "checks_save")
"""Marks of a program that asks whether it shall end, or save."""
DEATH_S = 1.0
"""A launcher whose lock has been free this long without an ``exit`` has died."""
EXIT_WRONG_VERSION, EXIT_FENCED = 75, 76
LATE = ("uvloop", "websockets.asyncio.client", "encodings.idna", "gzip")
"""What a shipper imports only when it needs it."""


class Shipper:
    """One learner's shipper."""

    def __init__(self, settings: ShipperSettings) -> None:
        self.settings = settings
        self.spool = Spool(settings.state_dir)
        self.spool.create()
        self.client = Client(settings.base, settings.secret)
        self.connection = Connection(settings, self.spool, self._take_intent)
        self.uploader = CheckpointUploader(self.client, self.connection, self.spool, settings.checkpoint_dir)
        self.exited = asyncio.Event()
        self.polled = asyncio.Event()
        self._may_start = asyncio.Event()
        self.ending: dict[str, Any] = {}
        self.job = JobDescription(self.spool)
        self.inputs = InputFetch(settings, self.spool, self.client, self.connection, self.job)
        self._phase = ""
        self._answers: dict[str, Any] = {}
        self._reported_in = 0
        self._reported_gen = self._intent_gen = -1
        self._save = 0

    async def run(self) -> int:
        """Ship until the server has confirmed everything. Returns the process's exit code."""
        tasks = [
            asyncio.create_task(part())
            for part in (self.connection.run, self._watch_spool, self._run_attempt)
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            return 0
        except WrongVersion as error:
            # The program goes on, and the node daemon starts a shipper from the installed code in place of this one.
            logger.warning("the server speaks another version", extra={"reason": str(error)[:200]})
            return EXIT_WRONG_VERSION
        except Fenced as fence:
            logger.warning("the server closed the attempt", extra={"reason": str(fence)[:200]})
            self.spool.write("halt", {"intent": "CANCEL", "gen": 2**53, "grace_s": 10})
            return EXIT_FENCED
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- watching the spool

    async def _watch_spool(self) -> None:
        """Notice what launcher and program leave in the spool: promptly by notifications, and at least every POLL_S."""
        loop = asyncio.get_running_loop()
        fifo = self.spool.open_fifo()
        notified = asyncio.Event()
        loop.add_reader(fifo, _read_notifications, fifo, self.connection.changed, notified)
        died_at = None
        try:
            while True:
                self._notice()
                self.connection.changed.set()
                self.polled.set()
                died_at = self._notice_death(died_at)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await notified.wait()
                notified.clear()
        finally:
            loop.remove_reader(fifo)
            os.close(fifo)

    def _notice(self) -> None:
        if self.exited.is_set():
            return
        # The phase before the mark: that of a setup command is removed before SETUP ends.
        phase = self.spool.phase()
        if self._phase != "PROCESSING" and phase in ("SETUP", "PROCESSING"):
            self._report_phase("PROCESSING")
        is_program = self._phase == "PROCESSING" and phase != "SETUP"
        if is_program:
            self._notice_answers()
        if self.spool.has("halt_seen"):
            self._notice_halt()
        # A program can write `exit`, too. It is the launcher's once its lock is free.
        if self.spool.has("exit") and not self.spool.launcher_lives():
            ending = self.spool.read("exit")
            if ending is not None:
                self._take_end(ending)

    def _notice_answers(self) -> None:
        """Report that the program asks whether it shall end or save, and for which request it has saved. To each server
        again: one of the version before takes note of less."""
        answers: dict[str, Any] = {mark: True for mark in CHECKS if self.spool.has(mark)}
        if number := int(number_or((self.spool.read("saved") or {}).get("n"), 0, most=self._save)):
            answers["saved_for"] = number
        if answers and (answers != self._answers or self._reported_in != self.connection.greetings):
            self._answers, self._reported_in = answers, self.connection.greetings
            self.connection.report("phase", phase=self._phase, **answers)

    def _take_end(self, ending: dict[str, Any]) -> None:
        self.ending = ending
        self._report_end()
        self.exited.set()

    def _report_end(self) -> None:
        """Report at once how the program ended: a checkpoint that is still being stored may take many minutes."""
        end = self.ending
        if (failed := setup_failure(end)) is not None:
            self.connection.report("error", code=SETUP_FAILED, message=failed)
        self.connection.report(
            "exit", code=int(number_or(end.get("code"), 137, most=255)),
            signal=int(number_or(end.get("signal"), 0, most=64)) or None, halted=bool(end.get("halted")),
            finished=bool(end.get("finished")), lost=bool(end.get("lost")),
            at_ms=int(number_or(end.get("at_ms"), now_ms(), most=2**53)),
        )  # fmt: skip
        if end.get("started"):
            self._report_phase("STORING")

    def _notice_halt(self) -> None:
        seen = self.spool.read("halt_seen") or {}
        gen = int(number_or(seen.get("gen"), 0))
        if gen > self._reported_gen:
            self._reported_gen = gen
            self.connection.report("halt_seen", gen=gen, aware=bool(seen.get("aware")))

    def _notice_death(self, died_at: float | None) -> float | None:
        """Write ``exit`` in place of a launcher that died without it. Returns since when it is gone, or None."""
        if self.exited.is_set() or self.spool.launcher_lives() is not False:
            return None
        if died_at is None or time.monotonic() - died_at < DEATH_S:
            return died_at or time.monotonic()
        if self.spool.read("exit") is None:
            size = max(LogReader(self.spool).end(), self.connection.log.acked)
            end = {
                "code": 137, "signal": None, "started": self._inputs_complete(), "halted": False, "lost": True,
                "finished": self.spool.has("finished"), "size": size, "crc": None, "at_ms": now_ms(),
            }  # fmt: skip
            try:
                self.spool.write("exit", end)
            except OSError:  # a full disk: what is in the spool is shipped anyway
                self._take_end(end)
        return None

    def _inputs_complete(self) -> bool:
        """Whether the program may have run. Until then the folders are half restored, and nothing in them is stored."""
        return self._phase == "PROCESSING" or bool(self.spool.phase()) or self.spool.has("ready")

    def _report_phase(self, phase: str) -> None:
        if self._phase != phase:
            self._phase = phase
            self.connection.report("phase", phase=phase)

    def _take_intent(self, intent: JobIntent) -> None:
        """Pass a halt or cancel to the launcher, and a request for a checkpoint to the program. RUN after a halt is for
        the next attempt."""
        if intent.start:
            self._may_start.set()
        if self.exited.is_set():
            return
        if intent.save > self._save:
            with contextlib.suppress(OSError):  # as below
                self.spool.write("save", {"n": intent.save})
                self._save = intent.save
        if intent.intent == "RUN":
            return
        if intent.gen > self._intent_gen:
            with contextlib.suppress(OSError):  # a full disk: every response repeats the intent
                self.spool.write(
                    "halt", {"intent": intent.intent, "gen": intent.gen, "grace_s": intent.grace_s}
                )
                self._intent_gen = intent.gen

    # --- one attempt

    async def _run_attempt(self) -> None:
        if not self.spool.has("ready") and not self.spool.has("refused") and not self.spool.has("exit"):
            await self._provide_inputs()
        self._open_sources()
        while not self.exited.is_set():
            await self.uploader.upload_new_checkpoints()
            await self.polled.wait()
            self.polled.clear()
        await self._finish()

    async def _provide_inputs(self) -> None:
        self._report_phase("DOWNLOADING")
        fetch = asyncio.create_task(self._prepare())
        exited = asyncio.create_task(self.exited.wait())
        try:
            await asyncio.wait([fetch, exited], return_when=asyncio.FIRST_COMPLETED)
            if fetch.done():
                self._let_start(fetch.result())
        except InputError as error:
            self.connection.report("error", code=error.code, message=str(error)[:1000])
            with contextlib.suppress(OSError):  # a full disk: the lifecycle stops the launcher
                self.spool.write("refused", {"code": error.code, "message": str(error)})
        finally:
            fetch.cancel()
            exited.cancel()

    async def _prepare(self) -> str | None:
        """Fetch the inputs, then wait until every learner of the gang has its own: no program starts before that, or it
        would wait for a peer that may never come. Returns the value for RESUME_FROM."""
        resume_from = await self.inputs.run()
        self._report_phase("READY")
        if self.job.world() > 1:
            await self._may_start.wait()
        return resume_from

    def _let_start(self, resume_from: str | None) -> None:
        """Have the launcher start the program. Raises InputError."""
        try:
            self.spool.write("ready", {"resume_from": resume_from})
        except OSError as error:
            raise InputError("not_prepared", f"The learner's folder cannot be written: {error}") from error

    def _open_sources(self) -> None:
        job = self.job.read()
        self.uploader.direct_from = number_or(job.get("direct_from"), float("inf"))
        given = [rule.get("pattern") for rule in objects(job.get("metrics"))]
        patterns = [pattern for pattern in given if isinstance(pattern, str)]
        found = job.get("in_order")
        ends = {
            str(name): int(number_or(at, 0))
            for name, at in (found if isinstance(found, dict) else {}).items()
        }
        note = self._report_note
        self.reported = ReportedMetrics(self.spool, self._report_skipped_line, note, ends)
        self.rules = LogRules(self.spool, patterns, self._report_slow_rule, note, ends)
        self.tensorboard = TensorBoard(self.spool, tensorboard_roots(self.settings), note, ends)
        self.connection.use([self.reported, self.rules, self.tensorboard])

    def _report_skipped_line(self, message: str) -> None:
        self.connection.report("error", code="metrics_skipped", message=message)

    def _report_slow_rule(self, pattern: str) -> None:
        logger.warning("a metric rule was too slow and is switched off", extra={"pattern": pattern})
        message = f"The rule {pattern[:600]} took too long and is disabled in this attempt."
        self.connection.report("error", code="rule_too_slow", message=message)

    def _report_note(self, code: str, message: str) -> None:
        self.connection.report("error", code=code, message=message)

    async def _finish(self) -> None:
        """After the program's end: store what it left, and complete the log."""
        self.connection.finish(self._final())
        for source in (self.reported, self.rules, self.tensorboard):
            source.end()
        if self.ending.get("started"):
            self.connection.changed.set()
            await self.connection.metrics_drained()
            await FinalFiles(
                self.settings,
                self.spool,
                self.connection,
                self.uploader,
                self.job,
                self.rules,
                self._report_slow_rule,
            ).store()
        await self.connection.all_confirmed()
        self._report_phase("DONE")
        await self.connection.all_confirmed()
        self.connection.tidy()
        with contextlib.suppress(OSError):  # everything is confirmed, and the exit code says so
            self.spool.write("shipper/done.json", {"at_ms": now_ms()})

    def _final(self) -> Final:
        """The end of the log. Without a checksum if the launcher died or its disk was full."""
        log_from, kept = log_span(self.spool)
        size = max(kept, self.connection.log.acked)
        reported, crc = (number_or(self.ending.get(name), -1, most=2**53) for name in ("size", "crc"))
        return Final(size, int(crc) if reported == size and 0 <= crc < 2**32 else None, log_from=log_from)


def setup_failure(ending: Mapping[str, Any]) -> str | None:
    """A sentence about the setup command that failed, None if none did."""
    failed = ending.get("setup")
    if not isinstance(failed, Mapping) or ending.get("halted"):
        return None
    n, of = (int(number_or(failed.get(key), 1)) for key in ("n", "of"))
    code, command = (
        int(number_or(ending.get("code"), 137, most=255)),
        str(failed.get("command"))[:SHOWN_CHARS],
    )
    return f"Setup command {n} of {of} exited with code {code}: {command}"


def _read_notifications(fifo: int, more: asyncio.Event, state: asyncio.Event) -> None:
    """Empty the FIFO and set the events."""
    more.set()
    try:
        while content := os.read(fifo, 4096):
            if b"!" in content:
                state.set()
    except BlockingIOError:
        pass


def preload() -> None:
    """Import what `main` still imports, in a process from which shippers are forked."""
    for name in LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def main() -> int:
    """Entry point. SIGTERM is ignored: unconfirmed data is sent first, and SIGKILL loses nothing.

    Raises SandboxFailed.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    settings = shipper_settings(os.environ)
    os.environ.pop("LUTHIER_SECRET", None)
    sandbox = entry.of(os.environ)
    if sandbox is not None:
        sandbox.enter_as_shipper()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(Shipper(settings).run())
    return uvloop.run(Shipper(settings).run())
