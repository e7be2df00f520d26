"""A job's results: what each learner left in RESULT_DIR, and what the spec keeps, at its most recent end.

Nothing here checks permission: callers have fetched the job (job_get). A path from a request is compared with rows
and never opened.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Count, F, Func, Max, QuerySet, Sum, TextField, Value

from jobs.models import Blob, ResultFile


def result_list(job_id: str) -> list[dict[str, Any]]:
    """All files: path, rank, attempt, size, sha256. Files of rank 0 keep their path, those of other learners are listed
    as learner-<rank>/<path>."""
    return [_view(entry) for entry in _ordered(job_id)]


def result_summary(job_id: str, most: int) -> dict[str, Any]:
    """How many files there are, their bytes together, the newest attempt at whose end some of them were stored, the
    first few of them, and how many more."""
    whole = _files(job_id).aggregate(count=Count("pk"), bytes=Sum("blob__size"), attempt=Max("attempt"))
    files = [_view(entry) for entry in _ordered(job_id)[:most]]
    return whole | {"files": files, "more": whole["count"] - len(files)}


def result_blobs(job_id: str) -> list[tuple[str, Blob]]:
    """Every listed path with its blob."""
    return [(_shown_path(entry), entry.blob) for entry in _ordered(job_id)]


def result_file(job_id: str, path: str) -> Blob | None:
    """The blob of one result by its listed path; None if there is none."""
    rows = _files(job_id).select_related("blob")
    entry = rows.filter(rank=0, path=path).first()
    if entry is None:
        head, _, inner = path.partition("/")
        number = head.removeprefix("learner-")
        if (
            head.startswith("learner-")
            and number.isdecimal()
            and str(int(number)) == number
            and int(number) > 0
        ):
            entry = rows.filter(rank=int(number), path=inner).first()
    return entry.blob if entry is not None and entry.blob.verified else None


def _ordered(job_id: str) -> QuerySet[ResultFile]:
    return _files(job_id).select_related("blob").order_by("rank", _naturally("path"), "path")


def _naturally(field: str) -> Func:
    """A text in whose order epoch-2 comes before epoch-10: its numbers are filled up with zeros to ten digits."""
    longer = _replaced(F(field), r"(\d+)", r"0000000000\1")
    return _replaced(longer, r"0*(\d{10})(?!\d)", r"\1")


def _replaced(text: F | Func, pattern: str, by: str) -> Func:
    return Func(
        text, Value(pattern), Value(by), Value("g"), function="REGEXP_REPLACE", output_field=TextField()
    )


def _view(entry: ResultFile) -> dict[str, Any]:
    return {
        "path": _shown_path(entry),
        "rank": entry.rank,
        "attempt": entry.attempt,
        "size": entry.blob.size,
        "sha256": entry.blob.sha256,
        "etag": f'"{entry.blob.sha256}"',
    }


def _files(job_id: str) -> QuerySet[ResultFile]:
    return ResultFile.objects.filter(job_id=job_id)


def _shown_path(entry: ResultFile) -> str:
    return entry.path if entry.rank == 0 else f"learner-{entry.rank}/{entry.path}"
