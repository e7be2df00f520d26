"""Uploads sets of files: offers the manifest, sends what the server lacks, repeats until it has verified all of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from learner_agent.shipper import direct
from learner_agent.shipper.connection import Connection
from learner_agent.shipper.direct import Sending
from learner_agent.shipper.http import PIECE_BYTES, Client, Refused, Unreachable, patiently
from learner_agent.shipper.outputs import (
    FileSet,
    NotWhole,
    find_checkpoints,
    key_of,
    prune,
    read_checkpoint,
    sha256_from,
)
from learner_agent.spool import Spool
from learner_agent.untrusted_files import LARGE_BYTES, number_or
from learner_agent.wire_fields import MAX_OFFSET

logger = logging.getLogger(__name__)

TRIES = 3
OFFER_AGAIN = frozenset({"hash_mismatch", "not_found"})
"""Damaged in transit or on this disk, which _upload_file checks; or what had arrived was removed as left behind."""
KEEP_LOCAL = 2
DONE = "shipper/kept.json"
SAVES = "shipper/saves.json"
LATEST_NS = MAX_OFFSET - 2**40
"""A later time in it was written by the program; the rest is room for saves after this one."""


class CheckpointUploader:
    """Uploads each set once. What the server has is recorded in the spool; losing that costs an offer, but no bytes."""

    def __init__(self, client: Client, connection: Connection, spool: Spool, base: Path) -> None:
        self.client = client
        self.connection = connection
        self.spool = spool
        self.base = base
        self._done: dict[str, str] = dict(spool.read(DONE, most=LARGE_BYTES) or {})
        self._seen: set[tuple[str, int, int]] = set()
        self._keys: dict[
            tuple[str, int, int], str
        ] = {}  # of each manifest that is there and was put in order
        saves = spool.read(SAVES, most=LARGE_BYTES) or {}
        self._saves = {key: int(number_or(at, 0, most=LATEST_NS)) for key, at in saves.items()}
        self.direct_from = float("inf")
        """Bytes from which on files go to the store itself."""
        self._busy = asyncio.Lock()

    @property
    def has_saved(self) -> bool:
        """True if this attempt's program has saved with a manifest: then it needs no implicit checkpoint. A restored
        one does not count: a clone's program may save in another way than the one before."""
        return any(":" in key for key in self._done) or bool(self._seen)

    async def upload_new_checkpoints(self) -> None:
        """Upload every checkpoint that the server does not have yet, the newest first. Of a backlog, each may take
        minutes, and what is saved meanwhile counts more; not of parts: learners that always send their newest one next
        may never send all parts of one."""
        async with self._busy:
            more = True
            while more:
                found = find_checkpoints(self.base)
                self._put_in_order(found)
                more = False
                for manifest in reversed(found):
                    if more := await self._upload_checkpoint(manifest):
                        break

    def _put_in_order(self, manifests: list[Path]) -> None:
        """Give each save that is new a later time than all that were seen before it. Remembers those that are there,
        and the last one. manifests: oldest first."""
        keys = {}
        for manifest in manifests:
            mark = _mark(manifest)
            with contextlib.suppress(OSError, ValueError):  # gone since, or no manifest
                keys[mark] = self._keys.get(mark) or key_of(manifest, self.base)
                self._saved_ns(keys[mark], mark[1])
        if keys != self._keys:
            self._keys, last = keys, max(self._saves.values(), default=0)
            there = set(keys.values())
            self._saves = {key: at for key, at in self._saves.items() if key in there or at == last}
            with contextlib.suppress(OSError):  # a full disk: after a restart the times of the files count
                self.spool.write(SAVES, self._saves)

    def _saved_ns(self, key: str, at_ns: int) -> int:
        """When this save was put in place, in nanoseconds. A file can have any time, and a clock may be set back: none
        is later than now, or as early as that of an earlier save."""
        if key not in self._saves:
            last = max(self._saves.values(), default=0)
            self._saves[key] = max(last + 1, min(at_ns, time.time_ns()))
        return self._saves[key]

    def dated(self, files: FileSet) -> FileSet:
        """The same set, saved after all others, and when the newest of its files was written: the program may have made
        many steps since."""
        self._saves.pop(files.key, None)
        written = []
        for index in range(len(files.offer.files)):
            with contextlib.suppress(OSError):  # gone since
                written.append(files.place(index).stat().st_mtime_ns)
        return _at(files, self._saved_ns(files.key, max(written, default=time.time_ns())))

    async def _upload_checkpoint(self, manifest: Path) -> bool:
        """Whether it was sent, or was to be, and is a whole one."""
        mark = _mark(manifest)
        if mark in self._seen or not manifest.exists():
            return False  # the latter: removed when a newer one was uploaded
        try:
            found = read_checkpoint(manifest, self.base)
        except (NotWhole, OSError) as error:
            self._seen.add(mark)
            if not _is_gone(manifest):  # else the program has replaced it by a newer one
                self.connection.report("error", code="checkpoint_not_whole", message=str(error))
            return False
        if found is None:
            return False  # a restored one
        self._seen.add(mark)
        if found.key in self._done:
            return False
        dated = _at(found, self._saved_ns(found.key, mark[1]))
        await self.upload(dated, is_unchanged=lambda: _mark(manifest) == mark)
        prune(self.base, [key for key, state in self._done.items() if state == "COMMITTED"], keep=KEEP_LOCAL)
        return found.offer.of == 1

    async def upload(self, files: FileSet, is_unchanged: Callable[[], bool] = lambda: True) -> bool:
        """Upload one set. Return False if it can never be stored, which has then been reported.

        is_unchanged: whether the set is still as it was found. A checkpoint that the program has removed or saved
        again since is skipped without a report.
        """
        for _ in range(TRIES):
            try:
                state = await self._upload_set(files, is_unchanged)
            except (Refused, NotWhole, OSError) as error:
                if isinstance(error, Refused) and error.code in OFFER_AGAIN:
                    continue
                if is_unchanged():
                    self._record(files.key, "REFUSED")
                    self.connection.report(
                        "error", code=f"{files.offer.what}_not_kept", message=str(error)[:1000]
                    )
                return False
            self._record(files.key, state)
            return True
        self._record(files.key, "REFUSED")
        self.connection.report(
            "error",
            code=f"{files.offer.what}_not_kept",
            message=f"{files.key}: damaged in transit {TRIES} times",
        )
        return False

    def _record(self, key: str, state: str) -> None:
        self._done[key] = state
        with contextlib.suppress(OSError):  # a full disk; losing the record costs an offer
            self.spool.write(DONE, self._done)

    async def _upload_set(self, files: FileSet, is_unchanged: Callable[[], bool]) -> str:
        while True:
            response = await self.connection.offer(files.offer)
            if response.state == "REFUSED":
                raise NotWhole(response.message)
            if response.state == "COMMITTED" or not response.need:
                return "COMMITTED"  # or this part is stored, and the gang's other parts are being uploaded
            for index, upload, offset in response.need:
                _, size, sha256 = files.offer.files[index]
                with files.open(index) as source:
                    file = Sending(source, files.place(index).name, size, sha256)
                    await self._send_file(file, upload, offset, is_unchanged)

    async def _send_file(
        self, file: Sending, upload: int, offset: int, is_unchanged: Callable[[], bool]
    ) -> None:
        """Send one file to the server, or a large one to its store. Raises NotWhole, Refused or OSError."""
        if file.size >= self.direct_from:
            try:
                return await direct.send(self.client, file, upload, is_unchanged)
            except Refused as refusal:
                if (
                    refusal.code != "not_direct"
                ):  # else the server was given a folder since this attempt began
                    raise
        return await self._upload_file(file, upload, offset, is_unchanged)

    async def _upload_file(
        self, file: Sending, upload: int, offset: int, is_unchanged: Callable[[], bool]
    ) -> None:
        """Send one file from offset on until it is verified. Raises NotWhole if it is not what its manifest says.

        The last piece is sent only if the set is unchanged: otherwise the bytes may be those of another save, and the
        server would report damage where there is none.
        """
        while True:
            file.source.seek(offset)
            piece = file.source.read(min(PIECE_BYTES, file.size - offset))
            if not piece and offset < file.size:
                raise NotWhole(f"{file.name} became shorter than its manifest says")
            if offset + len(piece) >= file.size and not is_unchanged():
                raise NotWhole(f"{file.name} was saved again")
            last = max(offset, offset + len(piece) - 1)
            span = f"bytes {offset}-{last}/{file.size}" if piece else f"bytes */{file.size}"
            try:
                response = await patiently(partial(self._put, upload, piece, span))
            except Unreachable as error:
                raise NotWhole(f"The server took nothing of {file.name} for a day: {error}") from error
            except Refused as refusal:
                if refusal.code == "wrong_offset":
                    offset = int(refusal.body.get("received", 0))
                    continue
                if refusal.code == "send_directly":  # another store since this attempt began
                    await direct.send(self.client, file, upload, is_unchanged)
                    return
                if refusal.code == "hash_mismatch" and sha256_from(file.source) != file.sha256:
                    raise NotWhole(f"{file.name} is not the file that its manifest lists") from refusal
                raise
            offset = int(response.get("received", offset + len(piece)))
            if response.get("verified"):
                return

    async def _put(self, upload: int, piece: bytes, span: str) -> dict[str, Any]:
        headers = {"Content-Range": span}
        return await self.client.json(
            f"/agent/v1/uploads/{upload}", method="PUT", body=piece, headers=headers
        )


def _at(files: FileSet, saved_ns: int) -> FileSet:
    return dataclasses.replace(files, offer=replace(files.offer, saved_ns=saved_ns))


def _mark(manifest: Path) -> tuple[str, int, int]:
    """Identify one write of a manifest. Two writes within one tick of the clock differ in the file's number."""
    try:
        found = manifest.stat()
    except OSError:
        return str(manifest), 0, 0
    return str(manifest), found.st_mtime_ns, found.st_ino


def _is_gone(manifest: Path) -> bool:
    return not manifest.exists()
