"""A wrong field says what was got, what is allowed, and which name was probably meant."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.states import State
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api


def only_error(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 400, answer.content
    (error,) = answer.json()["errors"]
    return dict(error)


def test_a_wrong_choice_names_all_choices_and_the_near_one(dave: Api) -> None:
    error = only_error(dave.patch("/tenants/vision-lab/members/carol", {"role": "researchr"}))
    assert error == {
        "path": "role",
        "code": "invalid_choice",
        "message": "must be one of viewer, researcher, manager; did you mean researcher?",
        "got": "researchr",
        "allowed": ["viewer", "researcher", "manager"],
    }


@pytest.mark.parametrize(
    ("query", "path", "meant"),
    [
        ("order=newst", "order", "newest"),
        ("order=NEWEST", "order", "newest"),
        ("state=QUEUD", "state[0]", "QUEUED"),
    ],
)
def test_a_wrong_choice_in_a_query_does_too(alice: Api, query: str, path: str, meant: str) -> None:
    error = only_error(alice.get(f"/jobs?{query}"))
    assert (error["path"], meant in error["allowed"]) == (path, True)
    assert error["message"].endswith(f"did you mean {meant}?")


def test_nothing_is_guessed_where_nothing_is_near(alice: Api, people: People) -> None:
    job = factories.job(owner=people.alice, state=State.QUEUED)
    error = only_error(alice.patch(f"/jobs/{job.pk}", {"priority": "vegetable"}))
    assert error["message"] == "must be one of low, normal, high, urgent"


@pytest.mark.parametrize("size", ["0", "201", "-1"])
def test_a_number_out_of_bounds_reports_the_bounds(alice: Api, size: str) -> None:
    error = only_error(alice.get(f"/jobs?page_size={size}"))
    assert (error["message"], error["got"], error["allowed"]) == ("must be 1 to 200", size, "1 to 200")


def test_a_number_that_is_none_reports_the_bounds_too(alice: Api) -> None:
    assert only_error(alice.get("/jobs?page_size=ten"))["allowed"] == "1 to 200"


def test_bounds_are_reported_inside_lists(admin: Api) -> None:
    wrong = {"tenant": "vision-lab", "gpu_type": "cpu", "limit": -1}
    error = only_error(admin.post("/quota-changes", {"changes": [wrong], "reason": "x"}))
    assert (error["path"], error["got"], error["allowed"]) == ("changes[0].limit", "-1", "0 to 1000000")


def test_a_text_too_long_is_cut_in_the_echo(alice: Api) -> None:
    error = only_error(alice.post("/me/tokens", {"name": "n" * 500}))
    assert (error["allowed"], len(error["got"])) == ("1 to 80 characters", 200)
