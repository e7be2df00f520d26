"""What a batch of frames changes in one learner's row: cursors, counts, and chunks and points to write. No I/O.

A frame is taken if it continues the stream, cut if it overlaps, ignored if it is a repeat, and refused with the right
offset if something before it is missing.
"""

from __future__ import annotations

import zlib
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.clusters.base import SHIPPER_REFUSALS
from jobs.humanize import filesize
from jobs.models import POINT_BYTES, StorageKind
from jobs.states import PHASE_ORDER, RESULTS_NOT_KEPT, Phase
from jobs.tokens import Grant
from learner_agent.wire import Ack, Data, Event, Final, Metric, Nack, StreamFrame
from learner_agent.wire_fields import SETUP_FAILED, Point

MAX_CHUNK = 256 * 1024
"""Bytes of one stored chunk; consecutive frames of one commit share chunks up to this size."""
MAX_AGO_S = 90 * 86_400.0
"""Upper bound of the time since a program's end, in seconds, whatever its learner reports."""
CRC_UNKNOWN = -1
DECISIVE = frozenset({*SHIPPER_REFUSALS, RESULTS_NOT_KEPT, SETUP_FAILED})
"""Codes that decide how the job goes on; all others are warnings."""


@dataclass(slots=True)
class NewChunk:
    """Consecutive bytes of one stream, to be stored. lines: newlines in them; times: [[offset, epoch ms], …]."""

    offset: int
    first_line: int
    parts: list[bytes] = field(default_factory=list)
    len: int = 0
    lines: int = 0
    times: list[list[int]] = field(default_factory=list)
    tombstone: bool = False


@dataclass(slots=True)
class LearnerUpdate:
    """A learner's row as it was locked, and how a batch changes it. Fields as in jobs.models.Learner."""

    grant: Grant
    log_bytes: int
    log_lines: int
    log_crc: int
    log_sealed: bool
    metric_cursor: int
    phase: str
    first_step: int | None
    last_step: int | None
    fell_ms: int | None
    steps_by_rule: bool
    error_code: str
    live: bool
    room: int = 0
    """Bytes of log that the job may still keep."""
    cap: int = 0
    """Bytes of log that a job may keep at all."""
    tenant_room: int | None = None
    """Bytes that its tenant may still store; None: any number."""
    left_out: set[StorageKind] = field(default_factory=set)
    """What was not stored because the tenant may store no more."""
    chunks: list[NewChunk] = field(default_factory=list)
    points: list[tuple[str, int, int, float]] = field(default_factory=list)
    points_lost: int = 0
    """Points that are not kept."""
    total: int | None = None
    stepped: bool = False
    """A step was reported, with a number or without."""
    in_order: set[str] = field(default_factory=set)
    """Names of metrics whose points have an order, but no steps of the program's."""
    known_in_order: frozenset[str] = frozenset()
    """Those of them that had none before this batch, so that none of their points counted as a step."""
    no_steps: bool = False
    """What counted as steps until now turned out to be none."""
    began_in_order: bool = False
    """A metric had no steps before any was counted in this attempt: an earlier one may have read them as steps."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Reported columns to set: phase, exit_code …"""
    event: int = 0
    metrics: dict[str, int] = field(default_factory=dict)
    refusal: Nack | None = None
    restart: bool = False
    """The stream starts over: what is stored of it is deleted …"""
    freed: int = 0
    """… which frees this many bytes."""
    exit_ago_s: float = 0
    """How long ago the program ended, by its learner's clock."""
    reached: dict[str, float] = field(default_factory=dict)
    """Phases it reached, and how many seconds ago, by its learner's clock."""
    needs_reconcile: bool = False
    """Something happened that the lifecycle must reconcile."""
    errors: list[tuple[str, str]] = field(default_factory=list)
    """Code and message of each error that the shipper reported."""

    def apply(self, frame: StreamFrame) -> None:
        """Take one frame, in the order in which its connection sent it."""
        if isinstance(frame, Data):
            self._data(frame)
        elif isinstance(frame, Metric):
            self._metric(frame)
        elif isinstance(frame, Event):
            self._event(frame)
        else:
            self._final(frame)

    def response(self) -> list[Ack | Nack]:
        """The frames to send after the commit."""
        ack = Ack(self.log_bytes, dict(self.metrics), self.event, self.log_sealed)
        return [ack] if self.refusal is None else [ack, self.refusal]

    # --- the log

    def _data(self, frame: Data) -> None:
        end = frame.off + frame.size
        if self.log_sealed:
            self.refusal = Nack("log", "SEALED", self.log_bytes, "This stream is complete.")
        elif frame.off > self.log_bytes:
            self.refusal = Nack(
                "log", "GAP", self.log_bytes, f"Bytes {self.log_bytes} to {frame.off} are missing."
            )
        elif end > self.log_bytes:
            skip = self.log_bytes - frame.off
            if frame.gone:
                self._drop(frame.gone - skip, frame.lines)
            else:
                self._append(frame, skip)

    def _append(self, frame: Data, skip: int) -> None:
        data = frame.payload[skip:]
        room = self.room if self.tenant_room is None else min(self.room, self.tenant_room)
        kept, over = data[:room], len(data) - room
        if kept:
            self._use(len(kept))
            chunk = self._open_chunk(tombstone=False, size=len(kept))
            at = chunk.len - skip
            for size, after_ms in frame.reads:
                at += size
                if at > chunk.len:
                    chunk.times.append([max(chunk.len, at - size), frame.t0 + after_ms])
            if over > 0:
                chunk.times = [time for time in chunk.times if time[0] < chunk.len + len(kept)]
            chunk.parts.append(kept)
            self._grow(chunk, len(kept), kept.count(b"\n"))
            if self.log_crc != CRC_UNKNOWN:
                self.log_crc = zlib.crc32(kept, self.log_crc)
        if over > 0:
            if room < self.room:
                self.left_out.add(StorageKind.LOGS)
            # This frame reaches the limit, or nothing of the log was left out before.
            elif kept or self.log_crc != CRC_UNKNOWN:
                self._report(
                    "log_full", f"The job's log has reached {filesize(self.cap)}; the rest is not kept."
                )
            self._drop(over, data[len(kept) :].count(b"\n"))

    def _use(self, size: int) -> None:
        self.room -= size
        if self.tenant_room is not None:
            self.tenant_room -= size

    def _drop(self, size: int, lines: int) -> None:
        """Record bytes that are not kept."""
        self._grow(self._open_chunk(tombstone=True, size=0), size, min(lines, size))
        self.log_crc = CRC_UNKNOWN

    def _open_chunk(self, *, tombstone: bool, size: int) -> NewChunk:
        last = self.chunks[-1] if self.chunks else None
        if last is None or last.tombstone != tombstone or (last.len + size > MAX_CHUNK and not tombstone):
            last = NewChunk(self.log_bytes, self.log_lines + 1, tombstone=tombstone)
            self.chunks.append(last)
        return last

    def _grow(self, chunk: NewChunk, size: int, lines: int) -> None:
        chunk.len += size
        chunk.lines += lines
        self.log_bytes += size
        self.log_lines += lines

    def _final(self, frame: Final) -> None:
        """Seal the stream if it is complete. If its checksum differs, request it again, once, if the spool has it.

        Bytes acknowledged beyond a reported end that is too early are kept: a program can fake any report.
        """
        if self.log_sealed:
            return
        if frame.size > self.log_bytes:
            self.refusal = Nack("log", "GAP", self.log_bytes, "The stream ends later.")
            return
        agrees = frame.crc is None or self.log_crc in (CRC_UNKNOWN, frame.crc)
        if frame.size < self.log_bytes:
            self._report(
                "log_end_disagrees",
                f"Its log was reported to end at byte {frame.size}, but has {self.log_bytes} bytes.",
            )
        elif not agrees:
            self._report("log_damaged", "The checksum of its whole log differs.")
        if agrees or frame.size < self.log_bytes or frame.log_from > 0:
            self.log_sealed = self.needs_reconcile = True
            return
        self.restart = True
        self.freed = self.log_bytes - sum(chunk.len for chunk in self.chunks)
        self.chunks.clear()
        self.log_bytes = self.log_lines = 0
        self.log_crc = CRC_UNKNOWN  # the second time it is sealed as it is
        self.refusal = Nack("log", "CRC", 0, "The checksum of the whole log differs; send it again.")

    def _report(self, code: str, message: str) -> None:
        if self.live:
            self._record_error(code, message)

    def _record_error(self, code: str, message: str) -> None:
        """Record an error. The row keeps the newest, but a warning never replaces one that decides the job's end."""
        self.errors.append((code, message))
        if self.error_code not in DECISIVE or code in DECISIVE:
            self.error_code = self.changes["error_code"] = code
            self.changes["message"] = message

    def leave_out(self, metrics: Set[str], most: int) -> None:
        """Drop the points of these metrics: the job has the most that it may have."""
        kept = [point for point in self.points if point[0] not in metrics]
        if len(kept) < len(self.points):
            self.points_lost += len(self.points) - len(kept)
            self.points = kept
            self._report(
                "too_many_metrics",
                f"The job has {most:,} different metrics; points of further ones are not kept.",
            )

    # --- metrics and what happened

    def _metric(self, frame: Metric) -> None:
        if frame.src == "jsonl":
            if frame.off > self.metric_cursor:
                self.refusal = Nack("jsonl", "GAP", self.metric_cursor, "Points before these are missing.")
                return
            self.metric_cursor = max(self.metric_cursor, frame.next)
        self.metrics[frame.src] = frame.next
        if not self.live:
            return
        self.points.extend(self._points_with_room(frame.points))
        self.total = frame.total if frame.total is not None else self.total
        if frame.src == "rules" and not self.known_in_order | self.in_order >= set(frame.in_order):
            self._forget_steps()
        self.in_order.update(frame.in_order)
        steps = [step for name, step, _, _ in frame.points if name not in self.in_order]
        steps += frame.steps or ()
        if steps:
            high = max(steps) if frame.fell_ms is None or frame.steps is None else frame.steps[1]
            self._note_steps(min(steps), high, by_rule=frame.src == "rules", fell_ms=frame.fell_ms)

    def _points_with_room(self, points: list[Point]) -> list[Point]:
        """Those that the tenant may still store; the others are left out, and their steps count all the same."""
        if self.tenant_room is None:
            return points
        kept = points[: self.tenant_room // POINT_BYTES]
        self.tenant_room -= len(kept) * POINT_BYTES
        self.points_lost += len(points) - len(kept)
        if len(kept) < len(points):
            self.left_out.add(StorageKind.METRICS)
        return kept

    @property
    def has_progress(self) -> bool:
        """Whether the batch says how far the program is."""
        return bool(self.points or self.points_lost or self.stepped or self.total is not None)

    def _note_steps(self, low: int, high: int, *, by_rule: bool, fell_ms: int | None) -> None:
        """The last step is the highest since the program's steps last fell back: of one step, not all metrics are in
        order."""
        self.stepped = True
        self.first_step = low if self.first_step is None else self.first_step
        self.steps_by_rule = by_rule and (self.last_step is None or self.steps_by_rule)
        fell = fell_ms is not None
        self.fell_ms = fell_ms if fell else self.fell_ms
        self.last_step = high if self.last_step is None or fell else max(high, self.last_step)

    def _forget_steps(self) -> None:
        """A counter that falls back never was the program's step; what the program reported by itself still counts."""
        if self.steps_by_rule:
            self.first_step = self.last_step = None
            self.steps_by_rule, self.no_steps = False, True
        self.began_in_order = self.began_in_order or self.last_step is None

    def _event(self, frame: Event) -> None:
        self.event = max(self.event, frame.n)
        if not self.live:
            return
        data = frame.data
        if frame.what == "phase":
            self._advance_phase(str(data.get("phase", "")), frame.ago_ms)
            for mark in ("checks_halt", "checks_save"):
                if data.get(mark) is True:
                    self.changes[mark] = True
            if number := _int_or(data.get("saved_for"), 0, 2**31 - 1):
                self.changes["saved_for"] = number
        elif frame.what == "exit":
            self._advance_phase(Phase.EXITED, frame.ago_ms)
            self.exit_ago_s = min(frame.ago_ms / 1000, MAX_AGO_S)
            self.changes.update(
                # A launcher that died took its program with it: how that would have ended is unknown.
                exit_code=None if data.get("lost") is True else _int_or(data.get("code"), 137),
                halted=data.get("halted") is True,
                finished_mark=data.get("finished") is True,
            )
        elif frame.what == "halt_seen":
            self.changes["gen_seen"] = _int_or(data.get("gen"), 0, 2**53)
        elif frame.what == "error":
            self._record_error(str(data.get("code", ""))[:24], str(data.get("message", ""))[:2000])
        self.needs_reconcile = True

    def _advance_phase(self, phase: str, ago_ms: int) -> None:
        """Phases only advance; a restarted shipper repeats what it knows."""
        if PHASE_ORDER.get(phase, -1) > PHASE_ORDER.get(self.phase, -1):
            self.phase = self.changes["phase"] = phase
            self.reached[phase] = min(ago_ms / 1000, MAX_AGO_S)


def _int_or(value: Any, default: int, high: int = 2**31 - 1) -> int:
    is_valid = isinstance(value, int) and not isinstance(value, bool) and -high <= value <= high
    return value if is_valid else default
