"""What a place for bytes must be able to do, and which one this installation uses (LUTHIER_BLOBS).

A key is made by the server from a row's number, so it is used once: the bytes under it never change, and a late removal
can never meet those of a newer row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from django.conf import settings

BLOCK = 1024 * 1024
MAX_PIECE = 8 * BLOCK
"""Bytes that learners send in one request."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a file in the store: its number from 1 on, its bytes, and their SHA-256 in hexadecimal."""

    number: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Link:
    """Where to send or fetch bytes without further credentials; headers go with them."""

    url: str
    headers: dict[str, str]


class Partial(Protocol):
    """The bytes of one file that have arrived so far, while no other process adds to them."""

    @property
    def size(self) -> int:
        """Bytes that are there, of which the last ones may not be on disk."""

    def write(self, offset: int, piece: bytes) -> None:
        """Add a piece, on disk when this returns. What was there behind it is cut off."""

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from offset on, fewer at the end."""

    def place(self) -> None:
        """Make it the bytes of its key, on disk when this returns."""

    def discard(self) -> None:
        """Remove what is there."""


class Store(Protocol):
    """Bytes by key. Every verb may be repeated. Raises StoreUnavailable or OSError where the store fails."""

    receives_pieces: bool
    """False: large files travel between learners and the store, and `jobs.blobs.direct` is in use."""

    def check(self) -> None:
        """Raise StoreUnavailable or OSError, with what is wrong, if nothing can be stored now."""

    def room(self) -> int | None:
        """Bytes that may still be stored; None: unknown."""

    def put(self, key: str, content: IO[bytes], sha256: str) -> None:
        """Store content, durable when this returns. content is read from its beginning."""

    def scratch(self) -> AbstractContextManager[IO[bytes]]:
        """An empty temporary file for what is to be `put`."""

    def partial(self, key: str) -> AbstractContextManager[Partial]:
        """What has arrived of a file in pieces, locked against other processes. Only where receives_pieces."""

    def open(self, key: str, start: int = 0, *, streamed: bool = False) -> BinaryIO:
        """The bytes from start on. Raises FileNotFoundError. streamed: read block by block in threads that do nothing
        else, which need no place among the calls of requests."""

    def exists(self, key: str) -> bool:
        """Whether the bytes of this key are there, whole."""

    def remove(self, key: str) -> None:
        """Remove everything under this key, what has arrived of it included."""

    def changed_since(self, key: str, moment: float) -> bool:
        """Whether pieces of this key have arrived since (Unix time)."""

    def older_than(self, moment: float, after: str = "") -> Iterator[tuple[str, int]]:
        """Keys last written before moment (Unix time), each with its row's number; 0 for what a dead process left while
        it wrote. Nothing but what the platform itself writes. Always in the same order; after: from behind this key."""

    def mark(self, new: str = "") -> str:
        """The mark of the installation that uses this place; empty if none does. new: set it."""


MARK = ".luthier"
"""Name of the mark, which no key has."""
KEY = re.compile(r"\d+/\d{6,}/(\d+)")


def number_of(key: str) -> int | None:
    """The row's number in a key; None for anything else in this place."""
    found = KEY.fullmatch(key)
    return int(found[1]) if found else None


def key_of(tenant_id: int, blob_id: int) -> str:
    return f"{tenant_id}/{blob_id // 1000:06d}/{blob_id}"


def store() -> Store:
    """This installation's store."""
    return _store(settings.LUTHIER_BLOBS or str(Path(settings.LUTHIER_DATA) / "blobs"))


@cache
def _store(place: str) -> Store:
    if place.startswith("s3://"):
        from jobs.blobs.s3 import S3Store  # its library takes 40 MiB, which only an installation with S3 pays

        return S3Store(place)
    from jobs.blobs.folder import FolderStore

    return FolderStore(Path(place))
