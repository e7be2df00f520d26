"""The times of a merged log chunk's reads as bytes: columns of differences, compressed; some three bytes per read.

As rows of JSON they would take more room than the short lines that they belong to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate, pairwise

import zstandard

from jobs.selectors.log_lines import ReadTimes


def pack(times: ReadTimes) -> bytes:
    """Pairs as in StoredChunk.times, in their order; unpack returns the same ones."""
    columns = [_differences([time[column] for time in times]) for column in (0, 1)]
    return zstandard.compress(json.dumps(columns, separators=(",", ":")).encode(), 9)


def unpack(packed: bytes) -> list[tuple[int, int]]:
    """What pack was given."""
    offsets, milliseconds = json.loads(zstandard.decompress(packed))
    return list(zip(accumulate(offsets), accumulate(milliseconds), strict=True))


def _differences(numbers: Sequence[int]) -> list[int]:
    return [*numbers[:1], *(after - before for before, after in pairwise(numbers))]
