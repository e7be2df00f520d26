"""Channel names and the frames of viewers. Pure: text in, values or BadFrame out."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

FRAME_MAX = 8 * 1024  # bytes of a viewer's frame
CURSOR_MAX = 2**63 - 1


class Topic(StrEnum):
    """The kinds of channels: what follows one job, one tenant, or the cluster."""

    JOB = "job"
    LOGS = "logs"
    METRICS = "metrics"
    JOBS = "jobs"
    QUOTAS = "quotas"
    CLUSTER = "cluster"


@dataclass(frozen=True)
class Channel:
    """A parsed channel name. Fields that do not apply are empty or 0."""

    name: str
    topic: Topic
    job_id: str = ""
    tenant: str = ""
    attempt: int = 0
    rank: int = 0


class BadFrame(Exception):
    """A malformed frame; the message says what is wrong."""


@dataclass(frozen=True)
class Request:
    """A viewer's frame. name: the channel as it was sent. after: None requests only new items."""

    op: str
    name: str = ""
    after: int | None = None


_PATTERNS = [
    (Topic.JOB, re.compile(r"job:(?P<job_id>[0-9a-z]{12})")),
    (
        Topic.LOGS,
        re.compile(r"job:(?P<job_id>[0-9a-z]{12}):logs:(?P<attempt>[1-9]\d{0,8}):(?P<rank>\d{1,9})"),
    ),
    (Topic.METRICS, re.compile(r"job:(?P<job_id>[0-9a-z]{12}):metrics")),
    (Topic.JOBS, re.compile(r"tenant:(?P<tenant>[-a-zA-Z0-9_]{1,40}):jobs")),
    (Topic.QUOTAS, re.compile(r"tenant:(?P<tenant>[-a-zA-Z0-9_]{1,40}):quotas")),
    (Topic.CLUSTER, re.compile(r"cluster")),
]


def parse_channel(name: str) -> Channel | None:
    """The channel of this name; None if the name is malformed, which is handled like a missing channel."""
    for topic, pattern in _PATTERNS:
        if found := pattern.fullmatch(name):
            parts = found.groupdict()
            return Channel(
                name=name,
                topic=topic,
                job_id=parts.get("job_id", ""),
                tenant=parts.get("tenant", ""),
                attempt=int(parts.get("attempt", 0)),
                rank=int(parts.get("rank", 0)),
            )
    return None


def parse_request(text: str) -> Request:
    """Read one frame of a viewer. Raises BadFrame."""
    if len(text) > FRAME_MAX or len(text.encode("utf-8", "surrogatepass")) > FRAME_MAX:
        raise BadFrame(f"A frame has at most {FRAME_MAX} bytes.")
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError):
        raise BadFrame("A frame is a JSON object.") from None
    if not isinstance(frame, dict):
        raise BadFrame("A frame is a JSON object.")
    op = frame.get("op")
    if op not in ("sub", "unsub", "ping"):
        raise BadFrame('op is one of "sub", "unsub" and "ping".')
    if unknown := sorted(frame.keys() - {"op", "ch", "after"}):
        raise BadFrame(f"A frame has op, ch and after, not {unknown[0][:40]!r}.")
    if op == "ping":
        return Request("ping")
    name = frame.get("ch")
    if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
        raise BadFrame("ch is the name of a channel.")
    return Request(op, name, _cursor(frame.get("after")))


def _cursor(after: Any) -> int | None:
    if after is None:
        return None
    if isinstance(after, bool) or not isinstance(after, int) or not 0 <= after <= CURSOR_MAX:
        raise BadFrame("after is the number of the last item that you have, 0 for none.")
    return after
