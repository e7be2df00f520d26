"""Merge the chunks of quiet logs: a program that prints a line every few seconds leaves a row per line.

One transaction per merge, under the lock of the learner's row that ingest takes to append: a kill leaves the log as it
was or merged. Bytes, offsets, line numbers and times stay the same, so cursors, resends and readers do not notice. What
is merged is not merged again: a stream's learner says up to where it is done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import zstandard
from django.db import connection, transaction

from jobs.selectors import chunk_times
from jobs.selectors.log_lines import StoredChunk
from jobs.selectors.logs import COLUMNS, chunk_of

logger = logging.getLogger(__name__)

LEARNERS_PER_RUN = 500
RUN_S = 5.0
"""One run takes little longer than this; the next continues behind it."""
CHUNK_BYTES = 256 * 1024
"""As large as ingest makes them: a reader decompresses a whole chunk for one line of it."""
LARGE_BYTES = 32 * 1024
"""Rows of this size on average stay as they are: to merge them would save nothing."""
ROWS = 4096
LIVE_ROWS = 256
"""A log that may grow is merged by this many rows at a time, or full chunks, so that no byte is merged twice."""
LATE_H = 24
"""Hours after its end in which an attempt's unsealed log may still grow (see jobs.tokens)."""
ZSTD_LEVEL = 9
"""Merging happens once and in no request, so it can take longer than at ingest."""


@dataclass(frozen=True, slots=True)
class Merge:
    """What a merge did. rows: those that went into others. more: the stream has more to merge now."""

    rows: int = 0
    more: bool = False


def compact(before: dict[str, Any]) -> dict[str, Any]:
    """The periodic task: visit learners in order of their ids, from where the last run stopped."""
    at, merged = int(before.get("learner", 0)), 0
    deadline = time.monotonic() + RUN_S
    learners = _unmerged(at)
    for learner in learners:
        try:
            merged += compact_learner(learner, deadline=deadline)
        except zstandard.ZstdError:  # it stays as it is; the others are merged
            logger.exception("a stored log is damaged", extra={"learner": learner})
        at = learner
        if time.monotonic() > deadline:
            return {"learner": at, "rows": merged}
    return {"learner": at if len(learners) == LEARNERS_PER_RUN else 0, "rows": merged}


def compact_learner(learner: int, *, deadline: float = float("inf")) -> int:
    """Merge what can be merged of one learner's log; returns the number of rows that were merged into others."""
    rows = 0
    while True:
        step = merge_once(learner)
        rows += step.rows
        if not step.more or time.monotonic() > deadline:
            return rows


def _unmerged(after: int) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM jobs_learner WHERE log_unmerged AND id > %s ORDER BY id LIMIT %s",
            [after, LEARNERS_PER_RUN],
        )
        return [learner for (learner,) in cursor.fetchall()]


LOCK = f"""
SELECT l.job_id, l.attempt, l.rank, l.log_merged,
       l.log_sealed OR coalesce(a.closed_at < now() - interval '{LATE_H} hours', false), a.closed_at IS NOT NULL
FROM jobs_learner l JOIN jobs_attempt a ON a.job_id = l.job_id AND a.n = l.attempt
WHERE l.id = %s AND l.log_merged IS NOT NULL FOR NO KEY UPDATE OF l SKIP LOCKED
"""
"""Skipped where ingest is writing: the next run comes soon enough."""
NEXT = f"""
SELECT c.id, {COLUMNS}
FROM (SELECT *, sum(len) OVER (ORDER BY "offset") - len AS before FROM jobs_logchunk
      WHERE job_id = %s AND attempt = %s AND rank = %s AND "offset" >= %s ORDER BY "offset" LIMIT {ROWS}) c
WHERE c.before <= %s ORDER BY c."offset"
"""
"""Rows of one chunk's bytes, and at least one more if there is one."""


@transaction.atomic
def merge_once(learner: int) -> Merge:
    """Merge one chunk's worth of rows."""
    with connection.cursor() as cursor:
        cursor.execute(LOCK, [learner])
        found = cursor.fetchone()
        if found is None:
            return Merge()
        *stream, done_to, over, closed = found
        cursor.execute(NEXT, [*stream, done_to, CHUNK_BYTES])
        rows = [(row[0], chunk_of(row[1:])) for row in cursor.fetchall()]
        group = _group(rows)
        is_full = len(group) < len(rows) or len(rows) == ROWS
        ready = over or closed or is_full or len(group) >= LIVE_ROWS
        if ready and _is_small(group):
            _replace(cursor, group)
        end = group[-1][1].offset + group[-1][1].length if ready and group else done_to
        at_end = len(group) == len(rows)
        _note(cursor, learner, None if over and at_end else end if is_full or not closed else done_to)
        merged = len(group) - 1 if ready and _is_small(group) else 0
        return Merge(merged, more=ready and not at_end)


def _group(rows: Sequence[tuple[int, StoredChunk]]) -> Sequence[tuple[int, StoredChunk]]:
    """The first rows that fit in one chunk; bytes that were not stored are a row of their own."""
    if not rows or rows[0][1].lost:
        return rows[:1]
    start = rows[0][1].offset
    fits = takewhile(
        lambda row: not row[1].lost and row[1].offset + row[1].length - start <= CHUNK_BYTES, rows[1:]
    )
    return [rows[0], *fits]


def _is_small(group: Sequence[tuple[int, StoredChunk]]) -> bool:
    return len(group) > 1 and sum(chunk.length for _, chunk in group) < LARGE_BYTES * len(group)


def _replace(cursor: Any, group: Sequence[tuple[int, StoredChunk]]) -> None:
    """Let the first row have the bytes of all, and delete the others."""
    (kept, first), *others = group
    chunks = [chunk for _, chunk in group]
    data = b"".join(chunk.data for chunk in chunks)
    times = [(chunk.offset - first.offset + at, ms) for chunk in chunks for at, ms in chunk.times]
    cursor.execute("DELETE FROM jobs_logchunk WHERE id = ANY(%s)", [[row for row, _ in others]])
    cursor.execute(
        "UPDATE jobs_logchunk SET len = %s, lines = %s, data = %s, times = '[]', packed_times = %s WHERE id = %s",
        [
            len(data),
            sum(chunk.lines for chunk in chunks),
            zstandard.compress(data, ZSTD_LEVEL),
            chunk_times.pack(times),
            kept,
        ],
    )


def _note(cursor: Any, learner: int, merged: int | None) -> None:
    cursor.execute(
        "UPDATE jobs_learner SET log_merged = %s WHERE id = %s AND log_merged IS DISTINCT FROM %s",
        [merged, learner, merged],
    )
