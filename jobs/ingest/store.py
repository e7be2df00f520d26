"""One commit: locks the learners that sent frames, applies the frames in order, writes everything together.

Locks are taken in one order: learners by number, then the progress rows of their jobs, and rows of jobs by id only
where an error belongs in their history.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import zstandard
from django.conf import settings
from django.db import connection, transaction
from psycopg2 import Binary
from psycopg2.extras import execute_values

from jobs import events, pubsub
from jobs.failpoints import fp
from jobs.ingest import no_room
from jobs.ingest.learner_update import LearnerUpdate, NewChunk
from jobs.models import JobEvent, MetricRollup
from jobs.rollups import roll_up
from jobs.selectors import log_cache
from jobs.selectors.log_lines import StoredChunk
from jobs.selectors.logs import Head
from jobs.selectors.metrics import ORDER
from jobs.states import EventCode, Phase
from jobs.storage import StorageFull, used_by
from jobs.tokens import LIVE, Grant
from learner_agent.wire import Ack, Metric, Nack, StreamFrame, number_out

ZSTD_LEVEL = 3
_of_thread = threading.local()
MAX_ERRORS = 100
"""Errors that the learners of one attempt may add to a job's history: a program can cause any number of them."""
PHASE_TIMES = {
    Phase.DOWNLOADING: "downloading_at",
    Phase.READY: "ready_at",
    Phase.PROCESSING: "processing_at",
}
"""Phases whose time is stored, and its column."""
MAX_METRICS = 5_000
"""Different metrics of a job. Pages show hundreds of charts; a program that counts in a name makes millions."""
MAX_NAMES = 200
"""Metrics of a job whose newest value is in its progress row."""

LOCK_LEARNERS = f"""
SELECT l.id, l.log_bytes, l.log_lines, l.log_crc, l.log_sealed, l.metric_cursor, l.phase, l.first_step,
       l.last_step, l.fell_ms, l.steps_by_rule, l.error_code, {LIVE}, t.storage_limit
FROM jobs_learner l
JOIN tenants_tenant t ON t.id = l.tenant_id
JOIN jobs_job j ON j.id = l.job_id
JOIN jobs_attempt a ON a.job_id = l.job_id AND a.n = l.attempt
WHERE l.id = ANY(%s)
ORDER BY l.id
FOR NO KEY UPDATE OF l
"""
EARLIER_BY_RULE = """
SELECT l.id FROM jobs_learner l JOIN unnest(%s, %s::int[]) AS v(job_id, attempt) USING (job_id)
WHERE l.attempt < v.attempt AND l.steps_by_rule
"""
LOCK_PROGRESS = """
SELECT job_id, step, total, metrics, log_seq, log_bytes, metric_names, metric_lost, metric_seq, metric_rolled
FROM jobs_progress WHERE job_id = ANY(%s) ORDER BY job_id FOR NO KEY UPDATE
"""
UPDATE_LEARNERS = """
UPDATE jobs_learner l
SET log_bytes = v.log_bytes, log_lines = v.log_lines, log_crc = v.log_crc, log_sealed = v.log_sealed,
    stored_at = CASE WHEN (l.log_bytes, l.log_sealed, l.metric_cursor)
      IS DISTINCT FROM (v.log_bytes, v.log_sealed, v.metric_cursor) THEN now() ELSE l.stored_at END,
    metric_cursor = v.metric_cursor, first_step = v.first_step, last_step = v.last_step,
    fell_ms = v.fell_ms, steps_by_rule = v.steps_by_rule
FROM (VALUES %s) AS v
    (id, log_bytes, log_lines, log_crc, log_sealed, metric_cursor, first_step, last_step, fell_ms, steps_by_rule)
WHERE l.id = v.id
"""
FORGET_EARLIER_STEPS = """
UPDATE jobs_learner SET first_step = NULL, last_step = NULL, steps_by_rule = false
WHERE id = ANY(%s) AND job_id = %s AND attempt < %s AND steps_by_rule
"""
"""An earlier attempt that ended before its counter fell back read the same counter for steps. Which metric's counter
that was is not kept: where one falls back and another counts on, the earlier attempt's steps become unknown, too."""
INSERT_CHUNKS = """
INSERT INTO jobs_logchunk
    (job_id, tenant_id, attempt, rank, "offset", len, first_line, lines, seq, data, times, tombstone)
VALUES %s
"""
STORED_METRICS = """
SELECT name FROM unnest(%s::text[]) AS asked (name)
WHERE EXISTS (SELECT FROM jobs_metricpoint p WHERE p.job_id = %s AND p.name = asked.name)
"""
INSERT_POINTS = """
INSERT INTO jobs_metricpoint (job_id, tenant_id, attempt, rank, name, step, value, at, seq)
SELECT v.job_id, v.tenant_id, v.attempt, v.rank, v.name, v.step, v.value,
       CASE WHEN v.at_ms = 0 THEN now() ELSE to_timestamp(v.at_ms / 1000.0) END,
       v.base + row_number() OVER (PARTITION BY v.job_id ORDER BY v.place)
FROM (VALUES %s) AS v (place, base, job_id, tenant_id, attempt, rank, name, step, at_ms, value)
WHERE NOT EXISTS (
    SELECT FROM jobs_metricpoint p
    WHERE p.job_id = v.job_id AND p.attempt = v.attempt AND p.rank = v.rank AND p.name = v.name AND p.step = v.step
)
RETURNING job_id, seq, rank, name, step, value
"""
UPDATE_PROGRESS = """
UPDATE jobs_progress p
SET step = v.step, total = v.total, metrics = v.metrics::jsonb, log_seq = v.log_seq, log_bytes = v.log_bytes,
    metric_names = v.metric_names, metric_lost = v.metric_lost, metric_seq = v.metric_seq,
    metric_rolled = v.metric_rolled, reported_at = now()
FROM (VALUES %s) AS v
    (job_id, step, total, metrics, log_seq, log_bytes, metric_names, metric_lost, metric_seq, metric_rolled)
WHERE p.job_id = v.job_id
"""


@dataclass(slots=True)
class _Progress:
    step: int | None
    total: int | None
    metrics: dict[str, Any]
    log_seq: int
    log_bytes: int
    metric_names: int
    metric_lost: int
    metric_seq: int
    metric_rolled: int
    changed: bool = False

    def names_in_order(self, rank: int) -> frozenset[str]:
        """Metrics without steps, of those whose newest value is this learner's."""
        mine = ((name, one) for name, one in self.metrics.items() if one.get("rank") == rank)
        return frozenset(name for name, one in mine if one.get("axis") == ORDER)


@dataclass(frozen=True, slots=True)
class Committed:
    """Responses by learner id, what notifies viewers, the ids of jobs that the lifecycle must reconcile, and how much
    was stored."""

    responses: dict[int, list[Ack | Nack]]
    publish: Callable[[], None]
    to_reconcile: frozenset[str]
    lines: int
    bytes: int
    points: int


def commit(batch: Sequence[tuple[Grant, StreamFrame]]) -> Committed:
    """Write frames of any learners in one transaction.

    A learner whose row is gone gets no response. Raises Django's database errors; then nothing was written.
    """
    frames: dict[int, list[StreamFrame]] = defaultdict(list)
    grants: dict[int, Grant] = {}
    for grant, frame in batch:
        grants[grant.learner_id] = grant
        frames[grant.learner_id].append(frame)
    with transaction.atomic(), connection.cursor() as cursor:
        earlier = _whose_steps_may_be_forgotten(cursor, grants, frames)
        rows, limits = _lock_learners(cursor, grants, earlier)
        progress = _lock_progress(cursor, rows)
        used = {tenant_id: sum(used_by(tenant_id).values()) for tenant_id in limits}
        rooms = {tenant_id: max(0, limits[tenant_id] - used[tenant_id]) for tenant_id in limits}
        for row in rows:
            job = progress[row.grant.job_id]
            row.cap = settings.LUTHIER_LOG_JOB_MAX_BYTES
            row.room = max(0, row.cap - job.log_bytes)
            row.tenant_room = rooms.get(row.grant.tenant_id)
            row.known_in_order = job.names_in_order(row.grant.rank)
            for frame in frames[row.grant.learner_id]:
                row.apply(frame)
            job.log_bytes += sum(chunk.len for chunk in row.chunks if not chunk.tombstone)
            job.log_bytes = max(0, job.log_bytes - row.freed)
            if row.tenant_room is not None:
                rooms[row.grant.tenant_id] = row.tenant_room
        _limit_metrics(cursor, rows, progress)
        _write_logs(cursor, rows, progress)
        fp("ingest.after_logs")
        _write_points(cursor, rows, progress, earlier)
        fp("ingest.after_points")
        _write_learners(cursor, rows, earlier)
        fp("ingest.after_learners")
        _write_progress(cursor, progress)
        full = {tenant_id: StorageFull(used[tenant_id], limits[tenant_id], 0) for tenant_id in limits}
        _record_errors(rows, full)
        fp("ingest.before_commit")
    _cache(rows)
    kept = [chunk for row in rows for chunk in row.chunks if not chunk.tombstone]
    return Committed(
        responses={row.grant.learner_id: row.response() for row in rows},
        publish=partial(_publish, rows, progress),
        to_reconcile=frozenset(row.grant.job_id for row in rows if row.needs_reconcile),
        lines=sum(chunk.lines for chunk in kept),
        bytes=sum(chunk.len for chunk in kept),
        points=sum(len(row.points) for row in rows),
    )


def _whose_steps_may_be_forgotten(
    cursor: Any, grants: dict[int, Grant], frames: dict[int, list[StreamFrame]]
) -> list[int]:
    """Learners of earlier attempts that the frames may leave without steps, to be locked with those that sent them."""
    attempts = {
        grant.job_id: grant.attempt
        for learner_id, grant in grants.items()
        if grant.attempt > 1
        and any(
            isinstance(frame, Metric) and frame.in_order and frame.src == "rules"
            for frame in frames[learner_id]
        )
    }
    if not attempts:
        return []
    cursor.execute(EARLIER_BY_RULE, [list(attempts), list(attempts.values())])
    return [learner_id for (learner_id,) in cursor.fetchall()]


def _lock_learners(
    cursor: Any, grants: dict[int, Grant], earlier: list[int]
) -> tuple[list[LearnerUpdate], dict[int, int]]:
    """The learners, and the storage limits of their tenants, by number, as far as they have one. earlier: others, which
    are locked with them."""
    cursor.execute(LOCK_LEARNERS, [[*grants, *earlier]])
    rows, limits = [], {}
    for learner_id, *columns, limit in cursor.fetchall():
        if learner_id not in grants:
            continue
        rows.append(LearnerUpdate(grants[learner_id], *columns))
        if limit is not None:
            limits[grants[learner_id].tenant_id] = limit
    return rows, limits


def _lock_progress(cursor: Any, rows: list[LearnerUpdate]) -> dict[str, _Progress]:
    cursor.execute(LOCK_PROGRESS, [sorted({row.grant.job_id for row in rows})])
    found = {}
    for job_id, step, total, metrics, *counters in cursor.fetchall():
        names = metrics if isinstance(metrics, dict) else json.loads(metrics)
        found[job_id] = _Progress(step, total, names, *counters)
    return found


def _limit_metrics(cursor: Any, rows: list[LearnerUpdate], progress: dict[str, _Progress]) -> None:
    """Leave out points of new metrics of jobs that have MAX_METRICS of them."""
    asked: dict[str, dict[str, None]] = defaultdict(dict)
    for row in rows:
        known = progress[row.grant.job_id].metrics
        asked[row.grant.job_id] |= dict.fromkeys(point[0] for point in row.points if point[0] not in known)
    over: dict[str, set[str]] = {}
    for job_id, names in asked.items():
        job = progress[job_id]
        stored = _stored_metrics(cursor, job_id, list(names)) if names and job.metric_seq else set()
        new = [name for name in names if name not in stored]
        room = max(0, MAX_METRICS - job.metric_names)
        job.metric_names += len(new[:room])
        over[job_id] = set(new[room:])
    for row in rows:
        if metrics := over[row.grant.job_id]:
            row.leave_out(metrics, MAX_METRICS)
        if row.points_lost:
            job = progress[row.grant.job_id]
            job.metric_lost, job.changed = job.metric_lost + row.points_lost, True


def _stored_metrics(cursor: Any, job_id: str, names: list[str]) -> set[str]:
    cursor.execute(STORED_METRICS, [names, job_id])
    return {name for (name,) in cursor.fetchall()}


def _write_logs(cursor: Any, rows: list[LearnerUpdate], progress: dict[str, _Progress]) -> None:
    values = []
    for chunk in (chunk for row in rows for chunk in row.chunks):
        chunk.parts = [b"".join(chunk.parts)]
    packed = iter(_pack([chunk.parts[0] for row in rows for chunk in row.chunks if not chunk.tombstone]))
    for row in rows:
        job, grant = progress[row.grant.job_id], row.grant
        if row.restart:
            for table in ("jobs_logchunk", "jobs_logindex"):
                cursor.execute(
                    f"DELETE FROM {table} WHERE job_id = %s AND attempt = %s AND rank = %s",
                    [grant.job_id, grant.attempt, grant.rank],
                )
            cursor.execute("UPDATE jobs_learner SET log_merged = 0 WHERE id = %s", [grant.learner_id])
        for place, chunk in enumerate(row.chunks):
            if (
                place == 0
                and chunk.tombstone
                and _grow_tombstone(cursor, grant, chunk.offset, chunk.len, chunk.lines)
            ):
                continue
            job.log_seq += 1
            data = b"" if chunk.tombstone else next(packed)
            values.append((
                grant.job_id, grant.tenant_id, grant.attempt, grant.rank, chunk.offset, chunk.len, chunk.first_line,
                chunk.lines, job.log_seq, Binary(data), json.dumps(chunk.times), chunk.tombstone,
            ))  # fmt: skip
        job.changed = job.changed or row.restart or bool(row.chunks)
    if values:
        execute_values(cursor.cursor, INSERT_CHUNKS, values, page_size=500)


def _pack(texts: list[bytes | bytearray | memoryview]) -> list[bytes]:
    """Compress each text by itself, but all in one call: each call releases the interpreter and has to get it back."""
    if len(texts) == 1:
        return [_compressor().compress(texts[0])]
    packed = _compressor().multi_compress_to_buffer(texts, threads=1) if texts else ()
    return [packed[n].tobytes() for n in range(len(packed))]


def _compressor() -> zstandard.ZstdCompressor:
    """One per thread: creating one costs more than compressing a short line."""
    found: zstandard.ZstdCompressor | None = getattr(_of_thread, "compressor", None)
    if found is None:
        found = _of_thread.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    return found


def _grow_tombstone(cursor: Any, grant: Grant, offset: int, size: int, lines: int) -> bool:
    """Extend the tombstone that ends at offset, so that a job above its cap does not keep adding rows."""
    cursor.execute(
        """
        UPDATE jobs_logchunk SET len = len + %s, lines = lines + %s
        WHERE job_id = %s AND attempt = %s AND rank = %s AND tombstone AND "offset" + len = %s
          AND "offset" = (SELECT max("offset") FROM jobs_logchunk WHERE job_id = %s AND attempt = %s AND rank = %s)
        """,
        [
            size,
            lines,
            grant.job_id,
            grant.attempt,
            grant.rank,
            offset,
            grant.job_id,
            grant.attempt,
            grant.rank,
        ],
    )
    return bool(cursor.rowcount)


def _write_points(
    cursor: Any, rows: list[LearnerUpdate], progress: dict[str, _Progress], earlier: list[int]
) -> None:
    values: dict[tuple[int, str, int], tuple[Any, ...]] = {}
    for row in rows:
        job, grant = progress[row.grant.job_id], row.grant
        for name, step, at_ms, value in row.points:
            values.setdefault(
                (grant.learner_id, name, step),
                (len(values), job.metric_seq, grant.job_id, grant.tenant_id, grant.attempt, grant.rank, name, step,
                 at_ms, value),
            )  # fmt: skip
        if row.has_progress:
            _note_progress(cursor, job, row, earlier)
    if not values:
        return
    template = "(%s, %s::bigint, %s, %s, %s, %s, %s, %s::bigint, %s::bigint, %s::float8)"
    written = execute_values(
        cursor.cursor,
        INSERT_POINTS,
        list(values.values()),
        template=template,
        page_size=len(values),
        fetch=True,
    )
    in_order = {(row.grant.job_id, name) for row in rows for name in row.in_order}
    for job_id, seq, rank, name, step, value in sorted(written, key=itemgetter(1)):
        progress[job_id].metric_seq = seq
        _note_value(progress[job_id], rank, name, step, value, in_order=(job_id, name) in in_order)
    for job_id in {row[0] for row in written}:
        job = progress[job_id]
        if job.metric_seq - job.metric_rolled >= MetricRollup.SEGMENT:
            job.metric_rolled = roll_up(cursor, job_id, job.metric_rolled, job.metric_seq)


def _note_progress(cursor: Any, job: _Progress, row: LearnerUpdate, earlier: list[int]) -> None:
    """Record the newest step for lists of jobs."""
    job.changed = True
    if row.began_in_order and row.grant.attempt > 1:
        cursor.execute(FORGET_EARLIER_STEPS, [earlier, row.grant.job_id, row.grant.attempt])
        row.no_steps = row.no_steps or cursor.rowcount > 0
    job.step = row.last_step if row.last_step is not None or row.no_steps else job.step
    job.total = row.total if row.total is not None else job.total


def _note_value(job: _Progress, rank: int, name: str, step: int, value: float, *, in_order: bool) -> None:
    """Record the newest stored value of a metric: of a repeated step the first, as in the chart; of a gang rank 0's."""
    shown = job.metrics.get(name)
    if shown is None and len(job.metrics) >= MAX_NAMES:
        return
    if shown is None or rank <= shown.get("rank", 0):
        axis = ORDER if in_order else "step"
        job.metrics[name] = {"last": number_out(value), "step": step, "rank": rank, "axis": axis}


def _write_learners(cursor: Any, rows: list[LearnerUpdate], earlier: list[int]) -> None:
    values = [
        (
            row.grant.learner_id, row.log_bytes, row.log_lines, row.log_crc, row.log_sealed, row.metric_cursor,
            row.first_step, row.last_step, row.fell_ms, row.steps_by_rule,
        )
        for row in rows
    ]  # fmt: skip
    if values:
        template = f"(%s, %s::bigint, %s::bigint, %s::bigint, %s{', %s::bigint' * 4}, %s)"
        execute_values(cursor.cursor, UPDATE_LEARNERS, values, template=template, page_size=len(values))
    for row in rows:
        if row.no_steps:
            cursor.execute(FORGET_EARLIER_STEPS, [earlier, row.grant.job_id, row.grant.attempt])
        if row.changes:
            _write_report(cursor, row)


def _write_report(cursor: Any, row: LearnerUpdate) -> None:
    """Set what a learner reported about itself; times are by the database's clock."""
    columns = dict(row.changes)
    times, values = [], list(columns.values())
    if "exit_code" in columns:
        times.append("exited_at = coalesce(exited_at, now() - make_interval(secs => %s))")
        values.append(row.exit_ago_s)
    if "gen_seen" in columns or columns.get(
        "halted"
    ):  # a program that ended halted has seen the halt, reported or not
        times.append("halt_seen_at = coalesce(halt_seen_at, now())")
    for phase, column in PHASE_TIMES.items():
        if phase in row.reached:
            times.append(f"{column} = coalesce({column}, now() - make_interval(secs => %s))")
            values.append(row.reached[phase])
    if "phase" in columns:
        times.append("stored_at = now()")
    if columns.get("phase") == Phase.DONE:
        times.append("done_at = coalesce(done_at, now())")
    assignments = ", ".join([f"{name} = %s" for name in columns] + times)
    cursor.execute(f"UPDATE jobs_learner SET {assignments} WHERE id = %s", [*values, row.grant.learner_id])


def _record_errors(rows: list[LearnerUpdate], full: dict[int, StorageFull]) -> None:
    """Add to the jobs' histories what shippers reported, and what was left out. full: by tenant."""
    notes = [
        (row.grant.job_id, partial(_record_error, row.grant, code, message))
        for row in rows
        for code, message in row.errors
        if not no_room.is_noted(code, message)
    ]
    notes += [
        (row.grant.job_id, partial(no_room.note, row.grant, kind, full[row.grant.tenant_id]))
        for row in rows
        for kind in sorted(row.left_out)
    ]
    for _, record in sorted(notes, key=itemgetter(0)):
        record()


def _record_error(grant: Grant, code: str, message: str) -> None:
    """Once per attempt, however often a shipper restarts."""
    event: dict[str, Any] = {
        "job_id": grant.job_id,
        "attempt": grant.attempt,
        "code": EventCode.CONDITION,
        "reason": code,
        "message": f"Learner {grant.rank}: {message}",
    }
    before = JobEvent.objects.filter(**{name: event[name] for name in ("job_id", "attempt", "code")})
    if not before.filter(**event).exists() and before.count() < MAX_ERRORS:
        events.append(tenant_id=grant.tenant_id, source="learner", **event)


def _write_progress(cursor: Any, progress: dict[str, _Progress]) -> None:
    values = [
        (
            job_id,
            job.step,
            job.total,
            json.dumps(job.metrics),
            job.log_seq,
            job.log_bytes,
            job.metric_names,
            job.metric_lost,
            job.metric_seq,
            job.metric_rolled,
        )
        for job_id, job in progress.items()
        if job.changed
    ]
    if values:
        template = f"(%s, %s::bigint, %s::bigint, %s{', %s::bigint' * 6})"
        execute_values(cursor.cursor, UPDATE_PROGRESS, values, template=template, page_size=len(values))


def _cache(rows: list[LearnerUpdate]) -> None:
    """After the commit: cache the new chunks for viewers."""
    for row in rows:
        stream = (row.grant.job_id, row.grant.attempt, row.grant.rank)
        if row.restart or any(chunk.tombstone for chunk in row.chunks):
            log_cache.forget(stream)
        elif row.chunks or row.log_sealed:
            log_cache.remember(
                stream, Head(row.log_lines, row.log_bytes, row.log_sealed), map(_stored, row.chunks)
            )


def _stored(chunk: NewChunk) -> StoredChunk:
    times = [(at, ms) for at, ms in chunk.times]
    return StoredChunk(chunk.offset, chunk.len, chunk.first_line, chunk.lines, chunk.parts[0], times)


def _publish(rows: list[LearnerUpdate], progress: dict[str, _Progress]) -> None:
    """After the commit: notify viewers of the new lines and points."""
    for row in rows:
        grant = row.grant
        if row.chunks or row.log_sealed:
            pubsub.logs_grew(grant.job_id, attempt=grant.attempt, rank=grant.rank, upto=row.log_lines)
    for grant in {row.grant.job_id: row.grant for row in rows if Phase.READY in row.reached}.values():
        pubsub.job_changed(grant.job_id, grant.tenant_id, 0)  # the gang's other learners may start now
    for job_id in {row.grant.job_id for row in rows if row.has_progress}:
        pubsub.metrics_grew(job_id, upto=progress[job_id].metric_seq)
