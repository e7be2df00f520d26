"""The card of a failure: the stored diagnosis with its rank and line, and the log around that line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jobs.diagnosis import LOOK, FailureCause
from jobs.models import Checkpoint, Job, Learner
from jobs.selectors import logs
from jobs.selectors.failures import WITHOUT_LOG, exit_code_of, last_failures
from jobs.selectors.log_lines import LogLine
from jobs.states import State, in_restart_loop

BEFORE, AFTER = 10, 2
"""Lines on the card around the one that names the cause."""
CAUSES = {
    FailureCause.COMMAND_NOT_FOUND: "command not found",
    FailureCause.NOT_EXECUTABLE: "not executable",
    FailureCause.BAD_ARGUMENTS: "invalid arguments",
    FailureCause.MISSING_FILE: "missing file",
    FailureCause.ACCESS_DENIED: "access denied",
    FailureCause.IMPORT_ERROR: "import error",
    FailureCause.OUT_OF_MEMORY: "out of memory",
    FailureCause.GPU_OUT_OF_MEMORY: "out of GPU memory",
    FailureCause.TOO_MANY_PROCESSES: "too many processes",
    FailureCause.PEER_LOST: "lost another learner",
    FailureCause.EXCEPTION: "exception",
    FailureCause.SIGNAL: "ended by a signal",
    FailureCause.UNKNOWN: "unknown",
}
"""In a few words, as the card's fact."""

Marked = list[tuple[LogLine, bool]]
"""Lines, each with whether it belongs to a traceback, or names the cause."""


def failure(job: Job, kept: Checkpoint | None) -> dict[str, Any] | None:
    """Of a failed job, or of the last attempt of one that fails again and again; else None. kept: its newest."""
    if job.state == State.FAILED:
        message, numbers = job.reason_message, job.reason_numbers
    elif in_restart_loop(State(job.state), job.early_ends) and (last := last_failures([job]).get(job.pk)):
        message, numbers = last.message, last.numbers
    else:
        return None
    attempt = numbers.get("attempt", job.attempt)
    learner = _failed(job, attempt, numbers.get("learner"))
    line = numbers.get("line")
    return {
        "message": message,
        "cause": _cause(numbers),
        "learner": learner,
        "code": exit_code_of(learner) if learner else None,
        "attempt": attempt,
        "line": line,
        "lines": _around(_end_of_log(job, attempt, learner), line),
        "rank": learner.rank if learner else 0,
        "path": error_path("", numbers, attempt),
        "kept": kept,
    }


def error_path(reason: str, numbers: Mapping[str, Any], attempt: int) -> str:
    """Where the error is, below the job's address: the log of the learner that failed, at the line that says so; the
    failure's card if no program began and nothing was printed before."""
    rank, line = numbers.get("learner"), numbers.get("line")
    if reason in WITHOUT_LOG and line is None:
        return "#failure-title"
    if rank is None:
        return "/logs"
    return f"/logs?learner={rank}&attempt={numbers.get('attempt', attempt)}" + (f"#L{line}" if line else "")


def _cause(numbers: Mapping[str, Any]) -> str:
    cause = numbers.get("cause", "")
    return CAUSES[FailureCause(cause)] if cause in set(FailureCause) else ""


def _failed(job: Job, attempt: int, rank: int | None) -> Learner | None:
    """The diagnosed learner; without a diagnosis the first that ended with an exit code other than 0."""
    rows = Learner.objects.filter(job=job, attempt=attempt)
    if rank is not None:
        return rows.filter(rank=rank).first()
    return rows.exclude(exit_code=None).exclude(exit_code=0).order_by("exited_at").first()


def _end_of_log(job: Job, attempt: int, failed: Learner | None) -> Marked:
    stream = (job.pk, attempt, failed.rank if failed else 0)
    return _marked(logs.read_lines(stream, tail=LOOK).lines)


def _around(marked: Marked, line: int | None) -> Marked:
    """The lines around this one; the last ones if it is not there."""
    at = next((index for index, (each, _) in enumerate(marked) if each.n == line), len(marked) - 1)
    return [(each, wrong or each.n == line) for each, wrong in marked[max(0, at - BEFORE) : at + AFTER + 1]]


def _marked(lines: Iterable[LogLine]) -> Marked:
    marked, inside = [], False
    for line in lines:
        began = line.text.startswith("Traceback")
        ended = inside and not line.text.startswith((" ", "\t"))
        marked.append((line, inside or began))
        inside = began or (inside and not ended)
    return marked
