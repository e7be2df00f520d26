"""Fetches a job's inputs, however long the server is away, and says whose fault it is when that does not succeed."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from learner_agent.settings import ShipperSettings
from learner_agent.shipper import inputs, results
from learner_agent.shipper.connection import Connection, Fenced
from learner_agent.shipper.description import UNRESTORED, JobDescription, world
from learner_agent.shipper.http import Client, Refused, Unreachable
from learner_agent.shipper.inputs import NODE_ERRORS, CorruptDownload, InputError, Interrupted
from learner_agent.shipper.metrics import tensorboard
from learner_agent.spool import Spool
from learner_agent.untrusted_files import objects

logger = logging.getLogger(__name__)

UNREACHABLE_S = 60.0
"""Seconds without a byte of the inputs after which an event names what this learner cannot reach."""
UNREACHABLE_MAX_S = 1800.0
"""After so many, another attempt, maybe on another node, is the better try: this one holds devices."""
DAMAGED_TRIES = 5
"""Damaged downloads in one attempt after which another attempt, maybe on another node, is the better try."""


class InputFetch:
    """Code, data, checkpoint and results of one attempt."""

    def __init__(
        self,
        settings: ShipperSettings,
        spool: Spool,
        client: Client,
        connection: Connection,
        job: JobDescription,
    ) -> None:
        self._settings = settings
        self._spool = spool
        self._client = client
        self._connection = connection
        self._job = job

    async def run(self) -> str | None:
        """Returns the value for RESUME_FROM. Raises InputError, or Fenced if the server closed the attempt."""
        try:
            return await self._fetch()
        finally:
            self._client.leave_store()

    async def _fetch(self) -> str | None:
        outage = _Outage()
        unreachable = damaged = 0
        while True:
            try:
                return await self._try()
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

    async def _try(self) -> str | None:
        job = await self._client.json("/agent/v1/job")
        await inputs.fetch_code(self._client, self._settings, job.pop("code", None))
        inputs.link_data(self._settings, list(job.get("data") or []))
        resume_from = await self._restore(job)
        job[UNRESTORED] = await self._restore_results(job)
        self._job.set(job)
        return resume_from

    async def _restore(self, job: dict[str, Any]) -> str | None:
        saved = job.get("restore")
        try:
            return await inputs.restore(self._client, self._settings, saved, world=world(job))
        except CorruptDownload:
            # The server checks its own copy: if that is damaged too, the next response names an older checkpoint.
            await self._client.json(f"/agent/v1/checkpoints/{saved['n']}/verify", method="POST", body=b"")  # type: ignore[index]  # only a checkpoint's download is damaged
            raise

    async def _restore_results(self, job: dict[str, Any]) -> list[str]:
        """Put the job's results back. Returns the paths of those that stay in the store only."""
        files = objects(job.get("results"))
        lost = await results.restore(self._client, self._settings, files)
        if lost:
            shown = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
            message = f"Not restored, because the stored copy cannot be read or written here: {shown[:800]}."
            self._connection.report("error", code="results_not_restored", message=message)
        if files:  # an earlier attempt's points must not be sent as those of this one
            await asyncio.to_thread(tensorboard.skip_present, self._spool, tensorboard_roots(self._settings))
        return lost

    def _note_outage(self, outage: _Outage, error: Unreachable) -> None:
        """Report inputs that cannot be reached although the server can. Raises InputError after UNREACHABLE_MAX_S."""
        place = error.place if isinstance(error, Interrupted) else ("", 0)
        outage.note(place, time.monotonic(), counts=self._connection.is_up())
        if outage.length_s < UNREACHABLE_S:
            return
        link = self._client.link_of(error.path) if isinstance(error, Interrupted) else None
        host = urlsplit(link or self._settings.base).netloc.rpartition("@")[2]
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
            self._connection.report("error", code="inputs_unreachable", message=f"{message} {remedy}")


def tensorboard_roots(settings: ShipperSettings) -> list[Path]:
    """Where event files are read while the program runs."""
    return [settings.log_dir, settings.result_dir]


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
