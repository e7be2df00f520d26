"""What the log of a failure ends with: the learner that failed first, and the last words of its program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jobs.models import Checkpoint, Job, Learner
from jobs.selectors import logs
from jobs.selectors.log_lines import LogLine
from portal.pages import job_cards

SHOWN = 13  # lines on the card
LOOK = 200  # lines that are searched for the beginning of the last traceback

Marked = list[tuple[LogLine, bool]]
"""Lines, each with whether it belongs to a traceback."""


def failure(job: Job, kept: Checkpoint | None) -> dict[str, Any]:
    """The learner that failed first, and the end of its log. kept: the checkpoint to resume from."""
    failed = _first_to_fail(job)
    marked = _end_of_log(job, failed)
    return {
        "learner": failed,
        "others": job.learners - 1,
        "lines": marked[-SHOWN:],
        "words": _last_words(marked),
        "exit": job_cards.exit_words(failed.exit_code) if failed else "",
        "rank": failed.rank if failed else 0,
        "kept": kept,
    }


def words(job: Job) -> str:
    """What its last traceback ends with, such as "ValueError: no such shard"; empty without one."""
    return words_of(job, [job.attempt]).get(job.attempt, "")


def words_of(job: Job, attempts: Iterable[int]) -> dict[int, str]:
    """The same for each of these attempts of which a learner failed; as many queries as for one."""
    failed = (
        Learner.objects.filter(job=job, attempt__in=attempts).exclude(exit_code=None).exclude(exit_code=0)
    )
    first: dict[int, int] = {}
    for attempt, rank in failed.order_by("exited_at").values_list("attempt", "rank"):
        first.setdefault(attempt, rank)
    ends = logs.read_ends([(job.pk, attempt, rank) for attempt, rank in first.items()], LOOK)
    return {attempt: _last_words(_marked(lines)) for (_, attempt, _), lines in ends.items()}


def _first_to_fail(job: Job) -> Learner | None:
    rows = Learner.objects.filter(job=job, attempt=job.attempt).exclude(exit_code=None).exclude(exit_code=0)
    return rows.order_by("exited_at").first()


def _end_of_log(job: Job, failed: Learner | None) -> Marked:
    return _marked(logs.read_lines((job.pk, job.attempt, failed.rank if failed else 0), tail=LOOK).lines)


def _marked(lines: Iterable[LogLine]) -> Marked:
    marked, inside = [], False
    for line in lines:
        began = line.text.startswith("Traceback")
        ended = inside and not line.text.startswith((" ", "\t"))
        marked.append((line, inside or began))
        inside = began or (inside and not ended)
    return marked


def _last_words(marked: Marked) -> str:
    ends = [
        line.text for line, wrong in marked if wrong and not line.text.startswith((" ", "\t", "Traceback"))
    ]
    return ends[-1].strip() if ends else ""
