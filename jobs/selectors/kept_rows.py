"""The waiting jobs as a process keeps them that makes passes: each pass reads again only the rows that changed.

A queue of thousands hardly changes from pass to pass, and to read it took longer than to plan for it. So did writing
it down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import TextField
from django.db.models.expressions import RawSQL

from gpu_scheduler.model import Gang
from gpu_scheduler.record import gang_text
from jobs.selectors.snapshot import gang_columns, gang_of_row, waiting_rows

VERSION = RawSQL("jobs_job.xmin::text || jobs_job.ctid::text", (), output_field=TextField())
"""Which version of its row this is: the transaction that wrote it, and where it is. A transaction can write a row
twice, at two places, and a place can be used again, by a later transaction."""
BESIDE = ("tenant__slug", "owner__username")
"""What a gang has from other rows than its job's."""
READ_NUMBERS = ("position", "nodes_ahead", "scope", "month_ends")
"""The numbers of an explanation from which people see their position in a queue, and which queue that is, and of a
budget what can be expected. What else changes in them is in the message."""
SHOWN = ("reason_code", "reason_message", *(f"reason_numbers__{key}" for key in READ_NUMBERS))
"""What people see of why a job waits."""
TOGETHER = 1000
"""Rows that are asked for by id in one statement."""


@dataclass(frozen=True, slots=True)
class _Kept:
    version: tuple[str, ...]
    gang: Gang
    shown: tuple[Any, ...]


class KeptRows:
    """What the last read found. A thread that comes back late from a read finds nothing of another's in its answer."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._texts: dict[str, tuple[Gang, str]] = {}

    def forget(self) -> None:
        """Read everything again the next time: the database may be another one, or nothing waits."""
        self._kept, self._texts = {}, {}

    @property
    def shown(self) -> Mapping[str, tuple[Any, ...]]:
        """By job, what its row said of why it waits (SHOWN) when it was read."""
        return {job: kept.shown for job, kept in self._kept.items()}

    def read(self, broken: dict[str, Exception]) -> tuple[Gang, ...]:
        """All waiting jobs as gangs, in the order in which they queued. Within a transaction that sees one moment.

        broken: gets those whose rows cannot be read, with the error; they are left out.
        """
        rows = waiting_rows().order_by("queued_at", "pk").values_list("pk", VERSION, *BESIDE)
        versions: dict[str, tuple[str, ...]] = {job: tuple(version) for job, *version in rows}
        before = self._kept
        same = {
            job: kept
            for job, version in versions.items()
            if (kept := before.get(job)) is not None and kept.version == version
        }
        found = dict(self._read([job for job in versions if job not in same], versions, broken))
        read = {job: kept for job in versions if (kept := same.get(job) or found.get(job)) is not None}
        self._kept = read
        return tuple(kept.gang for kept in read.values())

    def texts(self, gangs: Iterable[Gang]) -> list[str]:
        """The text of each of these in the record of a snapshot. Written once for one that is kept."""
        before, texts = self._texts, dict[str, tuple[Gang, str]]()
        for gang in gangs:
            known = before.get(gang.job)
            texts[gang.job] = known if known is not None and known[0] is gang else (gang, gang_text(gang))
        self._texts = texts
        return [text for _, text in texts.values()]

    def _read(
        self, jobs: list[str], versions: Mapping[str, tuple[str, ...]], broken: dict[str, Exception]
    ) -> Iterator[tuple[str, _Kept]]:
        for first in range(0, len(jobs), TOGETHER):
            rows = waiting_rows().filter(pk__in=jobs[first : first + TOGETHER])
            for row in rows.values_list(*gang_columns(), *SHOWN):
                job, columns, shown = row[0], row[: -len(SHOWN)], row[-len(SHOWN) :]
                try:
                    yield job, _Kept(versions[job], gang_of_row(*columns), tuple(shown))
                except (ArithmeticError, TypeError, ValueError) as error:
                    broken[job] = error
