"""Large files that the server's store takes itself: sent in parts to links that the server signs.

Each part's SHA-256 and that of the whole file come from the same bytes, and the store accepts no others: a file that
changes while it is sent is noticed before the server learns that it is complete.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

from learner_agent.shipper.http import Client, Refused, Unreachable, Unreadable, patiently
from learner_agent.shipper.outputs import NotWhole

AT_ONCE = 3
"""Parts of one file on their way at the same time."""
BLOCK = 1024 * 1024
TRIES = 3
LOOK_S = 10.0
"""So long after the server last looked at what the store has, it looks again once another part is there: a job whose
files arrive slowly advances, and its page says how far."""
BEGIN_AGAIN = frozenset({"parts_wrong", "NoSuchUpload"})
"""Another learner has finished the same file meanwhile, or the store has ended the upload: ask what has arrived."""
CHANGED = frozenset({"BadDigest", "XAmzContentChecksumMismatch"})
"""The store found other bytes than the hashed ones."""


@dataclass(frozen=True)
class Sending:
    """An open file that is being sent, as its manifest describes it."""

    source: BufferedReader
    name: str
    size: int
    sha256: str


async def send(client: Client, file: Sending, upload: int, is_unchanged: Callable[[], bool]) -> None:
    """Send what the store lacks of a file, and have it verified.

    Raises NotWhole if the file is not what its manifest says, or nothing of it was taken for a day; Refused if the
    server or the store refuses it.
    """
    try:
        await _send(client, file, upload, is_unchanged)
    except Unreachable as error:
        raise NotWhole(f"Nothing of {file.name} was taken for a day: {error}") from error


async def _send(client: Client, file: Sending, upload: int, is_unchanged: Callable[[], bool]) -> None:
    for _ in range(TRIES):
        state = await patiently(lambda: client.json(f"/agent/v1/uploads/{upload}/parts"))
        if state.get("verified"):
            return
        try:
            hashes = await _send_parts(client, file, upload, state)
            if not is_unchanged():
                raise NotWhole(f"{file.name} was saved again")
            await patiently(lambda: _post(client, f"/agent/v1/uploads/{upload}/finish", {"parts": hashes}))  # noqa: B023
            return
        except Refused as refusal:
            if refusal.code not in BEGIN_AGAIN:
                raise
    raise NotWhole(f"{file.name} could not be stored in {TRIES} tries")


async def _send_parts(client: Client, file: Sending, upload: int, state: dict[str, Any]) -> list[str]:
    """Send the parts that the store lacks; returns the SHA-256 of all of them, in order."""
    have = {int(number): (int(bytes_), str(digest)) for number, bytes_, digest in state.get("parts") or []}
    step, whole, hashes = int(state["part_bytes"]), hashlib.sha256(), []
    room, arrivals = asyncio.Semaphore(AT_ONCE), _Arrivals(client, upload)
    try:
        async with asyncio.TaskGroup() as tasks:
            for number, start in enumerate(range(0, file.size, step), start=1):
                length = min(step, file.size - start)
                async with room:  # so that hashing is no more than a part ahead of sending
                    digest = await asyncio.to_thread(_hash, file, start, length, whole)
                hashes.append(digest)
                if have.get(number) != (length, digest):
                    part = {"number": number, "size": length, "sha256": digest}
                    tasks.create_task(_send_part(client, file, upload, start, part, room, arrivals))
    except ExceptionGroup as failed:  # of the parts, the first one says why
        raise failed.exceptions[0] from failed
    if whole.hexdigest() != file.sha256:
        raise NotWhole(f"{file.name} is not the file that its manifest lists")
    return hashes


def _hash(file: Sending, start: int, size: int, whole: Any) -> str:
    """SHA-256 of a part, whose bytes are added to the hash of the whole file. Raises NotWhole if it is shorter."""
    digest = whole if size == file.size else hashlib.sha256()
    block = memoryview(bytearray(min(BLOCK, size)))
    while size:
        count = os.preadv(file.source.fileno(), [block[:size]], start)
        if not count:
            raise NotWhole(f"{file.name} became shorter than its manifest says")
        whole.update(block[:count])
        if digest is not whole:
            digest.update(block[:count])
        start += count
        size -= count
    return str(digest.hexdigest())


async def _send_part(
    client: Client,
    file: Sending,
    upload: int,
    start: int,
    part: dict[str, Any],
    room: asyncio.Semaphore,
    arrivals: _Arrivals,
) -> None:
    async with room:
        await patiently(lambda: _send_once(client, file, upload, start, part))
    await arrivals.another()


class _Arrivals:
    """Has the server look at what has arrived of a file. It has just done so at first."""

    def __init__(self, client: Client, upload: int) -> None:
        self._client, self._parts = client, f"/agent/v1/uploads/{upload}/parts"
        self._looked_at = time.monotonic()

    async def another(self) -> None:
        """Another part is in the store."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        with suppress(Unreachable, Refused):  # what is wrong is found with the next part, or at the end
            await self._client.json(self._parts)


async def _send_once(client: Client, file: Sending, upload: int, start: int, part: dict[str, Any]) -> None:
    parts = f"/agent/v1/uploads/{upload}/parts"
    link = await _post(client, parts, part)
    try:
        await client.put_file(str(link["url"]), dict(link["headers"]), file.source, start, int(part["size"]))
    except Unreadable as error:
        raise NotWhole(f"{file.name} cannot be read: {error}") from error
    except Refused as refusal:
        if refusal.code in CHANGED:
            raise NotWhole(f"{file.name} was changed while it was sent") from refusal
        if refusal.status not in (400, 403):  # the link has expired, the connection was too slow …
            raise
        raise Unreachable(str(refusal)) from refusal
    except Unreachable:
        # A store may close the connection in the middle of a part of an upload that it has ended: asked for the parts,
        # the server notices, and begins another one.
        await client.json(parts)
        raise


async def _post(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    return await client.json(path, method="POST", body=json.dumps(body).encode(), headers=headers)
