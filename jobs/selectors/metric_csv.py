"""All stored points of a job as CSV, for spreadsheets and scripts.

Nothing here checks permission: callers have fetched the job (job_get).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Generator, Iterable, Sequence
from typing import Any

from jobs.models import MetricPoint
from jobs.selectors.metrics import newest
from jobs.serialization import rfc3339
from learner_agent.wire import number_out

COLUMNS = ("name", "learner", "attempt", "step", "time", "value")
BLOCK_POINTS = 5_000
"""Points read at a time, of all metrics of the job: a block is one range of an index, whatever names are asked for."""
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A spreadsheet takes a cell that begins with one of these for a formula."""


def csv_blocks(
    job_id: str, *, names: Sequence[str] | None = None, q: str = ""
) -> Generator[bytes, None, None]:
    """The header, then a line for each point of these names, or with q in the name, in the order of arrival.

    Ends at the point that was the newest when it began. Superseded points are included, each with its `attempt`.
    NaN and infinities are the words that `float()` reads. A name that a spreadsheet would take for a formula gets an
    apostrophe in front.
    """
    points = MetricPoint.objects.filter(job=job_id, name__icontains=q)
    if names is not None:
        points = points.filter(name__in=names)
    upto = newest(job_id)
    yield _lines([COLUMNS])
    for after in range(0, upto, BLOCK_POINTS):
        found = points.filter(seq__gt=after, seq__lte=min(upto, after + BLOCK_POINTS)).order_by("seq")
        rows = found.values_list("name", "rank", "attempt", "step", "at", "value")
        if block := _lines(
            (harmless(name), rank, attempt, step, rfc3339(at), number_out(value))
            for name, rank, attempt, step, at, value in rows
        ):
            yield block


def harmless(text: str) -> str:
    """A text that others chose, such as the name of a metric or a user, as a cell that no spreadsheet computes."""
    return f"'{text}" if text.startswith(FORMULA) else text


def _lines(rows: Iterable[Sequence[Any]]) -> bytes:
    target = io.StringIO()
    csv.writer(target).writerows(rows)
    return target.getvalue().encode()
