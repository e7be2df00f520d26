"""Hides the values of the program's secrets in what it prints, before a byte of it is stored or has an offset.

Each occurrence becomes ``***``, whatever its length. Offsets, line numbers and checksums of the log are those of the
masked bytes: the spool holds nothing else, so a resend is the same bytes again. Of a value with several lines, each
line is hidden by itself. Other spellings of a value (quoted, base64, URL-encoded, in parts) are not recognized.

Memory is bounded: bytes that may be the beginning of a value wait for the next read, fewer than the longest value has.
Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import os
from typing import Iterable, Iterator, List, Mapping, Tuple

STARS = b"***"
LEAST_BYTES = 6
"""Shorter ones would hide ordinary words. A secret has at least as many; a line of one may have fewer."""


def masks(env: Mapping[str, str]) -> List[bytes]:
    """What to hide: the values of the variables that LUTHIER_SECRET_NAMES lists, and their lines."""
    found = []
    for name in env.get("LUTHIER_SECRET_NAMES", "").split():
        value = os.fsencode(env.get(name, ""))
        whole = value.strip()  # the newline at its end is the output's: the next line must stay one
        found += [
            whole if len(whole) >= LEAST_BYTES else value,
            *(line.strip() for line in value.splitlines()),
        ]
    return sorted({mask for mask in found if len(mask) >= LEAST_BYTES})


class Mask:
    """Masks a stream. ``feed`` returns what may be shown so far, ``flush`` the rest."""

    def __init__(self, values: Iterable[bytes]) -> None:
        self.values = list(values)
        self._held = b""
        self._hidden = 0
        """Bytes at the beginning of _held that belong to an occurrence whose stars are already shown."""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes of the stream, and return those that can no longer be part of a value."""
        if not self.values:
            return data
        data = self._held + data
        return self._show(data, min((_open_end(data, value) for value in self.values), default=len(data)))

    def flush(self) -> bytes:
        """The stream has ended: the beginning of a value is only that."""
        return self._show(self._held, len(self._held))

    def _show(self, data: bytes, until: int) -> bytes:
        """Mask the bytes before `until`, and hold the rest."""
        shown: List[bytes] = []
        at = hidden = self._hidden
        for start, end in self._occurrences(data):
            if start >= until:
                break
            if start >= hidden:
                shown += [data[at:start], STARS]
            at = hidden = max(hidden, end)
        shown.append(data[at:until])
        self._held, self._hidden = data[until:], max(0, hidden - until)
        return b"".join(shown)

    def _occurrences(self, data: bytes) -> Iterator[Tuple[int, int]]:
        """Start and end of every occurrence of every value, by their starts; they may overlap."""
        found = []
        for value in self.values:
            start = data.find(value)
            while start >= 0:
                found.append((start, start + len(value)))
                start = data.find(value, start + 1)
        return iter(sorted(found))


def _open_end(data: bytes, value: bytes) -> int:
    """Where the longest beginning of the value starts with which the data ends; the data's length if there is none."""
    start = data.find(value[:1], max(0, len(data) - len(value) + 1))
    while start >= 0:
        if value.startswith(data[start:]):
            return start
        start = data.find(value[:1], start + 1)
    return len(data)
