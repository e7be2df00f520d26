"""Logs by lines and as bytes: what is not there is 404, what makes no sense is 400, and the last line counts."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.models import Job
from jobs.states import State
from tests import factories
from tests.jobs.conftest import People
from tests.jobs.test_log_lines import store
from tests.portal.api.conftest import Api


@pytest.fixture
def job(people: People) -> Job:
    made = factories.job(owner=people.alice, state=State.PROCESSING, learners=2)
    store(made, [b"one\ntwo\n", b"three\nno line end"], sealed=True)
    return made


def numbers(answer: Any) -> list[int]:
    return [line["n"] for line in answer.json()["lines"]]


def test_the_last_bytes_count_as_a_line_once_the_stream_is_sealed(carol: Api, job: Job) -> None:
    whole = carol.get(f"/jobs/{job.pk}/logs").json()
    assert (whole["total"], whole["last"], whole["sealed"]) == (4, 4, True)
    store(job, [b"one\ntwo"], rank=1)
    growing = carol.get(f"/jobs/{job.pk}/logs?learner=1").json()
    assert (growing["total"], growing["last"], growing["sealed"]) == (1, 1, False)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("before=100&limit=2", [3, 4]),
        ("before=4&limit=1", [3]),
        ("before=1", []),
        ("tail=1", [4]),
        ("tail=0", []),
        ("after=3", [4]),
        ("after=9", []),
        ("q=LINE", [4]),
    ],
)
def test_lines_are_found_from_either_end(carol: Api, job: Job, query: str, expected: list[int]) -> None:
    assert numbers(carol.get(f"/jobs/{job.pk}/logs?{query}")) == expected


def test_a_search_that_found_the_last_line_does_not_find_it_again(carol: Api, job: Job) -> None:
    found = carol.get(f"/jobs/{job.pk}/logs?q=no line end").json()
    assert (found["last"], found["next"]) == (4, 4)
    again = carol.get(f"/jobs/{job.pk}/logs?q=no line end&after={found['next']}")
    assert numbers(again) == []


@pytest.mark.parametrize(
    ("query", "expected", "gaps"),
    [
        ("", [1, 2, 7], [[3, 6]]),
        ("after=4", [7], [[5, 6]]),
        ("after=2&limit=1", [7], [[3, 6]]),
        ("before=6", [1, 2], [[3, 5]]),
        ("before=3", [1, 2], []),
        ("tail=2", [7], [[6, 6]]),
        ("q=e", [1, 7], [[3, 6]]),
    ],
)
def test_lines_that_were_not_kept_are_named(
    carol: Api, people: People, query: str, expected: list[int], gaps: list[list[int]]
) -> None:
    """Else a reader takes a log that stops at its limit for one that ended there."""
    full = factories.job(owner=people.alice, state=State.PROCESSING)
    store(full, [b"one\ntwo\n", b"a\nb\n", b"c\nd\n", b"seven\n"], lost=frozenset({1, 2}), sealed=True)
    answer = carol.get(f"/jobs/{full.pk}/logs?{query}")
    assert numbers(answer) == expected
    assert [[gap["from"], gap["to"]] for gap in answer.json()["gaps"]] == gaps


@pytest.mark.parametrize("place", ["logs", "logs/raw"])
@pytest.mark.parametrize(
    ("query", "path", "message"),
    [
        ("attempt=9", "attempt", "this job has no attempt 9: the newest is 1"),
        ("learner=2", "learner", "this job has learners 0 to 1"),
    ],
)
def test_an_attempt_or_learner_that_never_was_is_not_found(
    carol: Api, job: Job, place: str, query: str, path: str, message: str
) -> None:
    answer = carol.get(f"/jobs/{job.pk}/{place}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (404, f"{path}_not_found")
    (error,) = answer.json()["errors"]
    assert (error["path"], error["message"]) == (path, message)


@pytest.mark.parametrize("place", ["logs", "logs/raw"])
def test_an_older_attempt_is_there_although_it_never_had_such_a_learner(
    carol: Api, job: Job, place: str
) -> None:
    Job.objects.filter(pk=job.pk).update(attempt=2)
    answer = carol.get(f"/jobs/{job.pk}/{place}?attempt=1&learner=2")
    assert (answer.status_code, answer.json()["code"]) == (404, "learner_not_found")


def test_learners_of_an_attempt_that_never_was_are_not_found(carol: Api, job: Job, people: People) -> None:
    newest = carol.get(f"/jobs/{job.pk}/learners?attempt=1").json()["items"]
    assert [learner["rank"] for learner in newest] == [0, 1]
    answer = carol.get(f"/jobs/{job.pk}/learners?attempt=2")
    assert (answer.status_code, answer.json()["code"]) == (404, "attempt_not_found")
    assert answer.json()["errors"][0]["message"] == "this job has no attempt 2: the newest is 1"
    waits = factories.job(owner=people.alice)
    assert carol.get(f"/jobs/{waits.pk}/learners?attempt=1").status_code == 404
    assert carol.get(f"/jobs/{waits.pk}/learners").json()["items"] == []


@pytest.mark.parametrize("query", ["attempt=0", "attempt=x", "learner=-1", "learner=x", "after=1&before=2"])
def test_an_attempt_or_learner_that_makes_no_sense_is_refused(carol: Api, job: Job, query: str) -> None:
    answer = carol.get(f"/jobs/{job.pk}/logs?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")


def test_a_job_that_waits_has_printed_nothing_yet(carol: Api, people: People) -> None:
    waits = factories.job(owner=people.alice, learners=2)
    for learner in (0, 1):
        page = carol.get(f"/jobs/{waits.pk}/logs?learner={learner}").json()
        assert (page["lines"], page["total"], page["sealed"]) == ([], 0, False)
    assert carol.get(f"/jobs/{waits.pk}/logs?learner=2").status_code == 404


def test_a_range_beyond_the_end_reports_the_size(carol: Api, job: Job) -> None:
    answer = carol.get(f"/jobs/{job.pk}/logs/raw", Range="bytes=100-")
    assert (answer.status_code, answer["Content-Range"]) == (416, "bytes */25")


@pytest.fixture
def failed(people: People) -> Job:
    made = factories.job(owner=people.alice, state=State.FAILED, learners=2)
    text = (
        b"ok\nWARNING: slow\nTraceback (most recent call last):\n  File \"a.py\"\nKeyError: 'x'\nERROR: y\n"
    )
    store(made, [text], sealed=True)
    return made


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("level=error", [3, 4, 5, 6]),
        ("level=warn", [2]),
        ("level=error&after=4", [5, 6]),
        ("level=error&limit=1", [3]),
        ("level=error&q=key", [5]),
        ("level=error&learner=1", []),
    ],
)
def test_lines_are_found_by_level(carol: Api, failed: Job, query: str, expected: list[int]) -> None:
    assert numbers(carol.get(f"/jobs/{failed.pk}/logs?{query}")) == expected


def test_a_line_of_a_level_says_which_and_whether_it_is_part_of_an_error(carol: Api, failed: Job) -> None:
    lines = carol.get(f"/jobs/{failed.pk}/logs?level=error").json()["lines"]
    assert [(line["level"], line["part"]) for line in lines] == [
        ("error", False), ("error", True), ("error", True), ("error", False),
    ]  # fmt: skip
    assert "level" not in carol.get(f"/jobs/{failed.pk}/logs").json()["lines"][0]


def test_levels_are_counted(carol: Api, failed: Job) -> None:
    counts = carol.get(f"/jobs/{failed.pk}/logs/levels").json()
    assert counts == {
        "attempt": 1, "learner": 0, "warnings": 1, "errors": 2, "first_error": 3, "errors_at": [3, 6],
        "counted": 6, "complete": True, "total": 6,
    }  # fmt: skip
    none = carol.get(f"/jobs/{failed.pk}/logs/levels?learner=1").json()
    assert (none["errors"], none["first_error"], none["complete"]) == (0, None, True)
    assert carol.get(f"/jobs/{failed.pk}/logs/levels?learner=2").status_code == 404


def test_all_that_is_wrong_with_a_request_by_level_is_said_at_once(carol: Api, failed: Job) -> None:
    answer = carol.get(f"/jobs/{failed.pk}/logs?level=error&q=x&tail=3")
    assert answer.status_code == 400
    assert {error["path"] for error in answer.json()["errors"]} == {"q", "level"}
    assert carol.get(f"/jobs/{failed.pk}/logs?level=fatal").status_code == 400
    assert carol.get(f"/jobs/{failed.pk}/logs?level=error&full=true&limit=5").status_code == 400
