"""A job's output: by lines, and as the bytes that were printed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.http import HttpResponseBase
from rest_framework import serializers

from jobs.models import Job
from jobs.selectors import log_index, logs
from jobs.selectors.log_index import Level, LevelLine
from jobs.selectors.log_lines import Hole, LogLine
from jobs.selectors.requests import size_range
from jobs.selectors.retention import refuse_removed
from jobs.serialization import ReadSerializer
from portal.api import permissions
from portal.api.downloads import download
from portal.api.errors import NoSuchAttempt, NoSuchLearner
from portal.api.fields import StrictSerializer
from portal.api.openapi import BYTES
from portal.api.operations import Call, operation
from tenants.retention import Kind

MAX_LINES = 5_000
FULL_LINES_MAX = 10


class Number(serializers.IntegerField):
    """A line number, or a number of lines."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, min_value=0, max_value=2**63 - 1, **options)


class StreamQuery(StrictSerializer):
    learner = serializers.IntegerField(
        required=False, default=0, min_value=0, max_value=2**31 - 1, help_text="rank"
    )
    attempt = serializers.IntegerField(
        required=False, min_value=1, max_value=2**31 - 1, help_text="default: the newest"
    )


class LogsQuery(StreamQuery):
    after = Number(help_text="lines above n")
    before = Number(help_text="the last lines below n")
    tail = Number(help_text="the last n lines")
    limit = serializers.IntegerField(
        required=False, default=logs.PAGE_LINES, min_value=1, max_value=MAX_LINES
    )
    q = serializers.CharField(
        required=False,
        default="",
        max_length=200,
        trim_whitespace=False,
        help_text="only lines that contain it",
    )
    level = serializers.ChoiceField(
        required=False,
        choices=[level.value for level in Level],
        help_text="only warnings, or only errors with their tracebacks",
    )
    full = serializers.BooleanField(
        required=False,
        default=False,
        help_text=f"whole lines, however long; at most {FULL_LINES_MAX} of them",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["full"] and attrs["limit"] > FULL_LINES_MAX:
            raise serializers.ValidationError(
                {
                    "full": f"At most {FULL_LINES_MAX} whole lines are returned at a time: set limit={FULL_LINES_MAX}."
                }
            )
        places = [name for name in ("after", "before", "tail") if name in attrs]
        if len(places) > 1:
            raise serializers.ValidationError({places[1]: "Give only one of after, before and tail."})
        chosen = {
            "q": "A search continues from `after`." if attrs["q"] else "",
            "level": "Lines of a level continue from `after`." if "level" in attrs else "",
        }
        wrong = {name: text for name, text in chosen.items() if text and places and places != ["after"]}
        if "level" in attrs and attrs["full"]:
            wrong["full"] = "Whole lines are returned by number: leave out level, set after and limit."
        if wrong:
            raise serializers.ValidationError(wrong)
        return attrs


class LogLineSerializer(ReadSerializer):
    n = serializers.IntegerField(help_text="from 1")
    t = serializers.CharField(help_text="when it was printed")
    text = serializers.CharField()
    cut = serializers.IntegerField(
        required=False, help_text="characters omitted from a very long line; absent if none"
    )
    level = serializers.ChoiceField(
        required=False, choices=[level.value for level in Level], help_text="of a request by level"
    )
    part = serializers.BooleanField(
        required=False,
        help_text="true if the line belongs to the error that began above it, as in a traceback",
    )

    @staticmethod
    def get_cut(line: LogLine, context: object) -> int | None:
        return line.cut or None

    @staticmethod
    def get_level(line: LogLine | LevelLine, context: object) -> str | None:
        return getattr(line, "level", None)

    @staticmethod
    def get_part(line: LogLine | LevelLine, context: object) -> bool | None:
        return getattr(line, "part", None)


class LogGapSerializer(ReadSerializer):
    """Lines that were printed but not stored."""

    from_ = serializers.IntegerField(help_text="number of the first of them")
    to = serializers.IntegerField(help_text="number of the last of them")


class LogPageSerializer(ReadSerializer):
    attempt = serializers.IntegerField()
    learner = serializers.IntegerField()
    lines = LogLineSerializer(many=True)
    first = serializers.IntegerField(allow_null=True, help_text="number of the first line given")
    last = serializers.IntegerField(allow_null=True, help_text="number of the last line given")
    gaps = LogGapSerializer(
        many=True,
        help_text="ranges of lines that were not stored, because the job's log or its learner's spool was full",
    )
    next = serializers.IntegerField(help_text="`after` of the next page")
    more = serializers.BooleanField(help_text="more lines are available now")
    sealed = serializers.BooleanField(help_text="no more lines will be added")
    total = serializers.IntegerField(
        help_text="lines so far; an unfinished last line counts once it is sealed"
    )


@operation(
    Out=LogPageSerializer,
    Query=LogsQuery,
    response_example={
        "attempt": 1,
        "learner": 0,
        "lines": [{"n": 1, "t": "2026-11-21T09:00:02.120Z", "text": "step 1 loss 0.93"}],
        "first": 1,
        "last": 1,
        "gaps": [],
        "next": 1,
        "more": False,
        "sealed": False,
        "total": 1,
    },
    fails=(410,),
)
def log_page(call: Call, job_id: str) -> dict[str, Any]:
    """Lines of one learner's output: after a line, before a line, the last ones, those that contain a text, or those of
    a level.

    Lines are counted from 1 per attempt and learner. By default the page begins at the first line. A search by text,
    level or both returns what it found within two seconds; `more` says whether to continue from `next`.
    """
    job, query = permissions.job(call, job_id), call.query
    refuse_removed(job.pk, Kind.LOGS)
    stream = _stream(job, query)
    if "level" in query:
        page = log_index.lines_of(
            stream, Level(query["level"]), q=query["q"], after=query.get("after", 0), limit=query["limit"]
        )
    elif query["q"]:
        page = logs.search(stream, query["q"], after=query.get("after", 0), limit=query["limit"])
    else:
        places = {name: query[name] for name in ("after", "before", "tail") if name in query} or {"after": 0}
        text_max = logs.WHOLE_LINE if query["full"] else logs.TEXT_MAX
        page = logs.read_lines(stream, limit=query["limit"], text_max=text_max, **places)
    if page.head is None:
        _refuse_unknown(job, stream)
    lines = page.lines
    return LogPageSerializer.render(
        {
            "attempt": stream[1],
            "learner": stream[2],
            "lines": lines,
            "first": lines[0].n if lines else None,
            "last": lines[-1].n if lines else None,
            "gaps": _gaps(page.holes),
            "next": page.next,
            "more": page.more,
            "sealed": page.head.sealed if page.head else False,
            "total": logs.line_count(stream, page.head) if page.head else 0,
        }
    )


class LogLevelsSerializer(ReadSerializer):
    attempt = serializers.IntegerField()
    learner = serializers.IntegerField()
    warnings = serializers.IntegerField(help_text="lines that are warnings; errors are not among them")
    errors = serializers.IntegerField(  # type: ignore[assignment]  # a field, as in portal.api.jobs
        help_text="errors; a traceback is one"
    )
    first_error = serializers.IntegerField(allow_null=True, help_text="number of the line in which it begins")
    errors_at = serializers.ListField(
        child=serializers.IntegerField(),
        help_text="numbers of the lines in which errors begin: all, or an even choice of very many",
    )
    counted = serializers.IntegerField(help_text="number of the last line that is counted")
    complete = serializers.BooleanField(help_text="all lines so far are counted; if not, ask again")
    total = serializers.IntegerField(help_text="as in the page of lines")


@operation(
    Out=LogLevelsSerializer,
    Query=StreamQuery,
    response_example={
        "attempt": 1,
        "learner": 0,
        "warnings": 2,
        "errors": 1,
        "first_error": 1204,
        "errors_at": [1204],
        "counted": 1210,
        "complete": True,
        "total": 1210,
    },
    fails=(410,),
)
def log_levels(call: Call, job_id: str) -> dict[str, Any]:
    """How many warnings and errors one learner's output has so far, and where the errors begin."""
    job = permissions.job(call, job_id)
    refuse_removed(job.pk, Kind.LOGS)
    stream = _stream(job, call.query)
    head = logs.heads([stream]).get(stream)
    if head is None:
        _refuse_unknown(job, stream)
    found = log_index.levels(stream, head) if head else log_index.NO_LEVELS
    total = logs.line_count(stream, head) if head else 0
    return LogLevelsSerializer.render(
        {
            "attempt": stream[1],
            "learner": stream[2],
            "warnings": found.warnings,
            "errors": found.errors,
            "first_error": found.first_error,
            "errors_at": found.errors_at,
            "counted": found.counted,
            "complete": found.counted >= total,
            "total": total,
        }
    )


@operation(Out=BYTES, Query=StreamQuery, fails=(410, 416, 429))
def log_raw(call: Call, job_id: str) -> HttpResponseBase:
    """One learner's output exactly as printed, as an attachment; supports Range."""
    job = permissions.job(call, job_id, "log.download")
    refuse_removed(job.pk, Kind.LOGS)
    stream = _stream(job, call.query)
    head = logs.heads([stream]).get(stream)
    if head is None:
        _refuse_unknown(job, stream)
    return download(
        call,
        size=head.size if head else 0,
        read=lambda start, stop: logs.raw_bytes(stream, start, stop),
        name=f"{job.pk}-{stream[1]}-{stream[2]}.log",
    )


def _stream(job: Job, query: Any) -> logs.Stream:
    return (job.pk, query.get("attempt", job.attempt), query["learner"])


def _refuse_unknown(job: Job, stream: logs.Stream) -> None:
    """A learner that has not started has an empty log; one that cannot exist is not found."""
    _, attempt, learner = stream
    if attempt > job.attempt:
        raise NoSuchAttempt(attempt, job.attempt)
    if learner >= (most := size_range(job).max):
        raise NoSuchLearner("learner", learner, f"this job has learners 0 to {most - 1}")


def _gaps(holes: Iterable[Hole]) -> list[dict[str, int]]:
    """The first and last line of each gap; adjacent gaps are merged."""
    gaps: list[dict[str, int]] = []
    for hole in holes:
        if gaps and hole.first == gaps[-1]["to"] + 1:
            gaps[-1]["to"] = hole.last
        else:
            gaps.append({"from": hole.first, "to": hole.last})
    return gaps
