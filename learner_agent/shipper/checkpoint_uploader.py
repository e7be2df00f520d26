"""Brings sets of files to the server: offers the manifest, uploads what is missing, asks until it is verified."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from pathlib import Path

from learner_agent.shipper.connection import Connection
from learner_agent.shipper.http import PIECE_BYTES, Client, Refused, Unreachable
from learner_agent.shipper.inputs import sha256_of
from learner_agent.shipper.outputs import FileSet, NotWhole, find_checkpoints, prune, read_checkpoint
from learner_agent.spool import Spool
from learner_agent.untrusted_files import LARGE_BYTES

logger = logging.getLogger(__name__)

TRIES = 3
KEEP_LOCAL = 2
DONE = "shipper/kept.json"


class CheckpointUploader:
    """Knows which sets the server has. What it knows is in the spool; forgetting it costs a question, no bytes."""

    def __init__(self, client: Client, link: Connection, spool: Spool, base: Path) -> None:
        self.client = client
        self.connection = link
        self.spool = spool
        self.base = base
        self._done: dict[str, str] = dict(spool.read(DONE, most=LARGE_BYTES) or {})
        self._seen: set[tuple[str, int, int]] = set()
        self._busy = asyncio.Lock()

    @property
    def saw_manifest(self) -> bool:
        """Whether this program saves with manifests: then it needs no implicit checkpoint.

        One that was put back counts. What lies there after an attempt that ended before its first save is that
        checkpoint alone, and kept as another it would take the place of the real one.
        """
        return any(":" in key for key in self._done) or bool(self._seen) or bool(find_checkpoints(self.base))

    async def upload_new_checkpoints(self) -> None:
        """Store every checkpoint that is not stored yet, the newest first."""
        async with self._busy:
            for manifest in reversed(find_checkpoints(self.base)):
                await self._upload_checkpoint(manifest)

    async def _upload_checkpoint(self, manifest: Path) -> None:
        mark = _mark(manifest)
        if mark in self._seen or not manifest.exists():
            return  # the latter: pruned when a newer one was stored
        try:
            found = read_checkpoint(manifest, self.base)
        except (NotWhole, OSError) as error:
            self._seen.add(mark)
            if _is_gone(manifest):
                return  # the program has put it away in favour of a newer one
            self.connection.report("error", code="checkpoint_not_whole", message=str(error))
            return
        if found is None:
            return  # put back by ourselves
        self._seen.add(mark)
        if found.key not in self._done:
            await self.keep(found, stands=lambda: _mark(manifest) == mark)
            prune(
                self.base, [key for key, state in self._done.items() if state == "COMMITTED"], keep=KEEP_LOCAL
            )

    async def keep(self, files: FileSet, stands: Callable[[], bool] = lambda: True) -> bool:
        """Bring one set to the server; False if it can never be kept, which has then been reported.

        stands: whether it still lies there as it was found. A checkpoint that the program has put away, or saved again,
        in favour of a newer one is let go without a word.
        """
        for _ in range(TRIES):
            try:
                state = await self._bring(files, stands)
            except (Refused, NotWhole, OSError) as error:
                if isinstance(error, Refused) and error.code == "hash_mismatch":
                    continue  # damaged on the way, or on this disk: once more, and _upload looks at the disk
                if stands():
                    self._settle(files.key, "REFUSED")
                    self.connection.report(
                        "error", code=f"{files.offer.what}_not_kept", message=str(error)[:1000]
                    )
                return False
            self._settle(files.key, state)
            return True
        self._settle(files.key, "REFUSED")
        self.connection.report(
            "error",
            code=f"{files.offer.what}_not_kept",
            message=f"{files.key}: damaged {TRIES} times on the way",
        )
        return False

    def _settle(self, key: str, state: str) -> None:
        self._done[key] = state
        with contextlib.suppress(OSError):  # a full disk; forgetting it costs a question
            self.spool.write(DONE, self._done)

    async def _bring(self, files: FileSet, stands: Callable[[], bool]) -> str:
        while True:
            answer = await self.connection.offer(files.offer)
            if answer.state == "REFUSED":
                raise NotWhole(answer.message)
            if answer.state == "COMMITTED" or not answer.need:
                return "COMMITTED"  # or our part is there and the gang's other parts are on their way
            for index, upload, offset in answer.need:
                path, size, sha256 = files.offer.files[index]
                await self._upload(files.folder / path, upload, offset, size, sha256, stands)

    async def _upload(
        self, place: Path, upload: int, offset: int, size: int, sha256: str, stands: Callable[[], bool]
    ) -> None:
        """Send one file from offset on. Raises NotWhole if the file is not what its manifest says.

        Its last piece goes only if the set still stands: a folder that was replaced meanwhile gave the file another's
        bytes, and the server would tell of damage where there is none.
        """
        tries = 0
        while offset < size or size == 0:
            with place.open("rb") as source:
                source.seek(offset)
                piece = source.read(min(PIECE_BYTES, size - offset))
            if not piece and size:
                raise NotWhole(f"{place.name} became shorter than its manifest says")
            if offset + len(piece) >= size and not stands():
                raise NotWhole(f"{place.name} was saved again")
            last = max(offset, offset + len(piece) - 1)
            span = f"bytes {offset}-{last}/{size}" if size else "bytes */0"
            try:
                answer = await self.client.json(
                    f"/agent/v1/uploads/{upload}", method="PUT", body=piece, headers={"Content-Range": span}
                )
                tries = 0
            except Unreachable:
                tries += 1
                await asyncio.sleep(random.uniform(0, min(30.0, 0.5 * 2**tries)))
                continue
            except Refused as refusal:
                if refusal.code == "wrong_offset":
                    offset = int(refusal.body.get("received", 0))
                    continue
                if refusal.code == "hash_mismatch" and sha256_of(place) != sha256:
                    raise NotWhole(f"{place.name} is not the file that its manifest promises") from refusal
                raise
            offset = int(answer.get("received", offset + len(piece)))
            if answer.get("verified"):
                return


def _mark(manifest: Path) -> tuple[str, int, int]:
    """What tells one writing of a manifest from another: two within one tick of the clock have files of their own."""
    try:
        found = manifest.stat()
    except OSError:
        return str(manifest), 0, 0
    return str(manifest), found.st_mtime_ns, found.st_ino


def _is_gone(manifest: Path) -> bool:
    return not manifest.exists()
