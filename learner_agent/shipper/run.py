"""One shipper from start to end: fetch the inputs, ship what the program leaves, store the rest at its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import structs

from learner_agent.log_segments import LogReader, log_span
from learner_agent.sandbox import entry
from learner_agent.settings import SHOWN_CHARS, ShipperSettings, shipper_settings
from learner_agent.shipper import inputs, results
from learner_agent.shipper.checkpoint_steps import step_in_names
from learner_agent.shipper.checkpoint_uploader import CheckpointUploader
from learner_agent.shipper.connection import Connection, Fenced, WrongVersion
from learner_agent.shipper.http import Client, Refused, Unreachable
from learner_agent.shipper.inputs import NODE_ERRORS, CorruptDownload, InputError, Interrupted
from learner_agent.shipper.metrics import tensorboard
from learner_agent.shipper.metrics.log_rules import LogRules, TooSlow
from learner_agent.shipper.metrics.reported import ReportedMetrics
from learner_agent.shipper.metrics.tensorboard import TensorBoard
from learner_agent.shipper.outputs import FileSet, NotWhole, gather
from learner_agent.shipper.results import Found
from learner_agent.spool import Spool
from learner_agent.untrusted_files import LARGE_BYTES, now_ms, number_or, objects
from learner_agent.wire import Final, JobIntent
from learner_agent.wire_fields import MAX_RANK, SETUP_FAILED

logger = logging.getLogger(__name__)

POLL_S = 0.5
"""How often the spool and CHECKPOINT_DIR are checked without a notification."""
DEATH_S = 1.0
"""A launcher whose lock has been free this long without an ``exit`` has died."""
JOB = "shipper/job.json"
UNRESTORED = "unrestored"
"""Added to the server's description of the job: paths of results that could not be restored."""
EXIT_WRONG_VERSION, EXIT_FENCED = 75, 76
UNREACHABLE_S = 60.0
"""Seconds without a byte of the inputs after which an event names what this learner cannot reach."""
UNREACHABLE_MAX_S = 1800.0
"""After so many, another attempt, maybe on another node, is the better try: this one holds devices."""
DAMAGED_TRIES = 5
"""Damaged downloads in one attempt after which another attempt, maybe on another node, is the better try."""
NOT_RANK_0 = (
    "The files in its CHECKPOINT_DIR are not stored: of a gang that saves without manifests only learner 0's count."
    " Save with training.checkpoint(step, part=training.rank(), of=training.world_size())."
)
"""One set is restored for all learners: one that saves last, or counts steps faster, must not replace the model."""


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
        self._fetched: dict[str, Any] = {}
        self._phase = ""
        self._checks_halt = False
        self._reported_gen = self._intent_gen = -1

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
        phase = (
            self.spool.phase()
        )  # before the mark is read: one of a setup command is removed before SETUP ends
        if self._phase != "PROCESSING" and phase in ("SETUP", "PROCESSING"):
            self._report_phase("PROCESSING")
        is_program = self._phase == "PROCESSING" and phase != "SETUP"
        if not self._checks_halt and is_program and self.spool.has("checks_halt"):
            self._checks_halt = True
            self.connection.report("phase", phase=self._phase, checks_halt=True)
        if self.spool.has("halt_seen"):
            self._notice_halt()
        # A program can write `exit`, too. It is the launcher's once its lock is free.
        if self.spool.has("exit") and not self.spool.launcher_lives():
            ending = self.spool.read("exit")
            if ending is not None:
                self._take_end(ending)

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
        """Pass a halt or cancel to the launcher. RUN after a halt is for the next attempt."""
        if intent.start:
            self._may_start.set()
        if intent.intent == "RUN" or self.exited.is_set():
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
        resume_from = await self._fetch()
        self._report_phase("READY")
        if self._world() > 1:
            await self._may_start.wait()
        return resume_from

    def _let_start(self, resume_from: str | None) -> None:
        """Have the launcher start the program. Raises InputError."""
        try:
            self.spool.write("ready", {"resume_from": resume_from})
        except OSError as error:
            raise InputError("not_prepared", f"The learner's folder cannot be written: {error}") from error

    async def _fetch(self) -> str | None:
        """Fetch the inputs, however long the server is away altogether. Returns the value for RESUME_FROM."""
        outage = _Outage()
        unreachable = damaged = 0
        while True:
            try:
                job = await self.client.json("/agent/v1/job")
                await inputs.fetch_code(self.client, self.settings, job.get("code"))
                inputs.link_data(self.settings, list(job.get("data") or []))
                resume_from = await self._restore(job)
                job[UNRESTORED] = await self._restore_results(job)
                self._fetched = job
                self.spool.write(JOB, job)
                return resume_from
            except Unreachable as error:
                unreachable += 1
                logger.info("server unavailable", extra={"error": str(error)[:200], "tries": unreachable})
                self._note_outage(outage, error)
                await asyncio.sleep(random.uniform(0, min(30.0, 0.2 * 2 ** min(unreachable, 10))))
            except Refused as error:
                if error.status in (403, 409):
                    raise Fenced(str(error)) from error
                if error.code == "checkpoint_invalid":
                    raise InputError("not_prepared", str(error)) from error
                if error.status != 404:
                    raise InputError("data_error", str(error)) from error
                # What the server has just named is missing: it may have changed since. The job's inputs are not wrong.
                damaged += 1
                if damaged >= DAMAGED_TRIES:
                    raise InputError("not_prepared", str(error)) from error
            except OSError as error:
                code = "not_prepared" if error.errno in NODE_ERRORS else "data_error"
                raise InputError(code, f"The inputs cannot be written: {error}") from error
            except CorruptDownload as error:
                damaged += 1
                if damaged >= DAMAGED_TRIES:
                    raise InputError("not_prepared", str(error)) from error

    def _note_outage(self, outage: _Outage, error: Unreachable) -> None:
        """Report inputs that cannot be reached although the server can. Raises InputError after UNREACHABLE_MAX_S."""
        place = error.place if isinstance(error, Interrupted) else ("", 0)
        outage.note(place, time.monotonic(), counts=self.connection.is_up())
        if outage.length_s < UNREACHABLE_S:
            return
        link = self.client._links.get(error.path) if isinstance(error, Interrupted) else None
        host = urlsplit(link or self.settings.base).netloc.rpartition("@")[2]
        # Without a link's query: it is the permission to read the file.
        message = (
            f"The inputs are not fetched: no bytes for {outage.length_s / 60:.0f} min from"
            f" {'the store' if link else 'the server'} at {host} ({str(error).partition('?')[0][:500]})."
        )
        if outage.length_s >= UNREACHABLE_MAX_S:
            raise InputError("not_prepared", message) from error
        if not outage.is_reported:
            outage.is_reported = True
            remedy = "Check that this learner's node can reach it; the learner tries again."
            self.connection.report("error", code="inputs_unreachable", message=f"{message} {remedy}")

    async def _restore(self, job: dict[str, Any]) -> str | None:
        saved = job.get("restore")
        try:
            return await inputs.restore(self.client, self.settings, saved)
        except CorruptDownload:
            # The server checks its own copy: if that is damaged too, the next response names an older checkpoint.
            await self.client.json(f"/agent/v1/checkpoints/{saved['n']}/verify", method="POST", body=b"")  # type: ignore[index]
            raise

    async def _restore_results(self, job: dict[str, Any]) -> list[str]:
        """Put the job's results back. Returns the paths of those that stay in the store only."""
        files = objects(job.get("results"))
        lost = await results.restore(self.client, self.settings, files)
        if lost:
            shown = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
            message = f"Not restored, because the stored copy cannot be read or written here: {shown[:800]}."
            self.connection.report("error", code="results_not_restored", message=message)
        if files:  # an earlier attempt's points must not be sent as those of this one
            await asyncio.to_thread(tensorboard.skip_present, self.spool, self._tensorboard_roots())
        return lost

    def _tensorboard_roots(self) -> list[Path]:
        return [self.settings.log_dir, self.settings.result_dir]

    def _job(self) -> dict[str, Any]:
        """The server's description of the job when its inputs were fetched; a program may have damaged it since."""
        return self.spool.read(JOB, most=LARGE_BYTES) or self._fetched

    def _world(self) -> int:
        """The number of learners in the gang."""
        return max(1, int(number_or(self._job().get("learners"), 1, most=MAX_RANK)))

    def _open_sources(self) -> None:
        self.uploader.direct_from = number_or(self._job().get("direct_from"), float("inf"))
        self.tensorboard = TensorBoard(self.spool, self._tensorboard_roots())
        given = [rule.get("pattern") for rule in objects(self._job().get("metrics"))]
        patterns = [pattern for pattern in given if isinstance(pattern, str)]
        ends = self._job().get("in_order")
        self.rules = LogRules(
            self.spool,
            patterns,
            self._report_slow_rule,
            self._report_note,
            {str(name): int(number_or(at, 0)) for name, at in ends.items()} if isinstance(ends, dict) else {},
        )
        self.connection.use(
            [ReportedMetrics(self.spool.metrics, self._report_skipped_line), self.rules, self.tensorboard]
        )

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
        self.rules.end()
        self.tensorboard.scan_without_pause()
        if self.ending.get("started"):
            self.connection.changed.set()
            await self.connection.metrics_drained()
            await self._store()
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

    async def _store(self) -> None:
        """Store what the program left, the checkpoint first: a resume needs it, and results may be large."""
        await self.uploader.upload_new_checkpoints()
        world = self._world()
        for what, take in (("implicit", self._implicit_checkpoint), ("results", self._results)):
            try:
                found = await asyncio.to_thread(take, world)
            except (NotWhole, OSError) as error:
                self.connection.report("error", code=f"{what}_not_kept", message=str(error)[:1000])
                continue
            for code, message in found.notes:
                self.connection.report("error", code=code, message=message)
            if found.files is not None:
                implicit = (
                    what == "implicit"
                )  # the rule's time is measured by a signal, which this thread gets
                await self.uploader.upload(self._with_step(found.files) if implicit else found.files)

    def _implicit_checkpoint(self, world: int) -> Found:
        """CHECKPOINT_DIR as it is, of a program that saves without manifests. Raises TooMany."""
        if self.uploader.saw_manifest:
            return Found()
        folder = self.settings.checkpoint_dir
        files = gather(folder, what="implicit", world=world)
        if files is None or self._was_restored(files):
            return Found()
        if self.settings.rank:
            return Found(notes=[("implicit_not_kept", NOT_RANK_0)])
        found = Found(files if files.offer.files else None)
        if files.left_out:
            found.notes.append(("implicit_left_out", results.left_out_message(folder.name, files.left_out)))
        return found

    def _with_step(self, files: FileSet) -> FileSet:
        """The same set at the step that the spec's rule finds in its names. Nothing else says when a program saved."""
        pattern = self._job().get("checkpoint_step")
        if not isinstance(pattern, str):
            return files
        try:
            step = step_in_names([path for path, _, _ in files.offer.files], pattern, self.rules.timer)
        except TooSlow:
            self._report_slow_rule(pattern)
            return files
        except (re.error, RecursionError, OverflowError):  # a program may have changed the file since
            return files
        return replace(files, offer=structs.replace(files.offer, step=step))

    def _results(self, world: int) -> Found:
        """RESULT_DIR and the files that the spec keeps. Raises TooMany or OSError."""
        job = self._job()
        keep, unrestored = job.get("keep"), job.get(UNRESTORED)
        return results.collect(
            self.settings.result_dir,
            self.settings.model_dir,
            keep=[glob for glob in keep if isinstance(glob, str)] if isinstance(keep, list) else [],
            into=self.spool.root / "shipper",
            world=world,
            stored_before=bool(job.get("results")),
            unrestored=[path for path in unrestored if isinstance(path, str)]
            if isinstance(unrestored, list)
            else [],
        )

    def _was_restored(self, files: FileSet) -> bool:
        """True if these are the files that the attempt began with: nothing was saved since."""
        saved = self._job().get("restore")
        entries = objects(saved.get("files")) if isinstance(saved, dict) else []
        began = [(entry.get("path"), entry.get("size"), entry.get("sha256")) for entry in entries]
        return bool(began) and sorted(map(repr, began)) == sorted(map(repr, files.offer.files))


class _Outage:
    """How long no byte of the inputs arrived, counted only while the server itself is connected."""

    def __init__(self) -> None:
        self.length_s = 0.0
        self.is_reported = False
        self._places: set[tuple[str, int]] = set()
        self._noted_at: float | None = None

    def note(self, place: tuple[str, int], now: float, *, counts: bool) -> None:
        """Note one more failure, at this place of this file: at a new one, bytes have arrived since the last."""
        if place not in self._places:
            self._places.add(place)
            self.length_s = 0.0
        elif counts and self._noted_at is not None:
            self.length_s += now - self._noted_at
        self._noted_at = now


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
