"""While the database is away, answers say so and when to retry; a defect of the platform is a 500."""

from unittest import mock

import pytest
from django.db import OperationalError
from django.test import Client

from portal.health import views


@pytest.fixture
def calm() -> Client:
    """A browser that is shown the answer, as outside of tests, instead of the exception."""
    return Client(raise_request_exception=False)


def failing(error: Exception) -> mock._patch:  # type: ignore[type-arg]
    return mock.patch.object(views, "JsonResponse", side_effect=error)


def test_people_get_a_page_and_when_to_come_back(calm: Client) -> None:
    with failing(OperationalError("server closed the connection")):
        answer = calm.get("/healthz")
    assert answer.status_code == 503
    assert answer["Retry-After"] == "2"
    assert b"The database is not responding" in answer.content
    assert b"server closed" not in answer.content


@pytest.mark.django_db
def test_programs_get_problem_details(calm: Client) -> None:
    with mock.patch("django.urls.resolvers.URLResolver.resolve", side_effect=OperationalError("gone")):
        answer = calm.get("/api/v1/jobs")
    assert answer.status_code == 503
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == "database_unavailable"


def test_a_fault_of_ours_shows_no_trace(calm: Client) -> None:
    with failing(ZeroDivisionError("secret detail")):
        answer = calm.get("/healthz")
    assert answer.status_code == 500
    assert "Retry-After" not in answer
    assert b"secret detail" not in answer.content
