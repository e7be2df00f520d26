"""Bad input gets its own stable code, names every wrong field at once, and changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.conf import settings

from jobs.models import Job
from jobs.states import State
from tenants.models import Token
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

MEMBERS = "/tenants/vision-lab/members"


def nested(depth: int) -> bytes:
    return b'{"name":' + b"[" * depth + b"]" * depth + b"}"


BODIES: dict[str, tuple[bytes, int, str]] = {
    "no JSON": (b"{nope", 400, "body_not_json"),
    "cut off": (b'{"name": "x', 400, "body_not_json"),
    "not UTF-8": (b'{"name": "\xff"}', 400, "body_not_json"),
    "no object": (b"[1, 2]", 400, "invalid"),
    "a bare number": (b"12", 400, "invalid"),
    "too deep": (nested(65), 400, "body_too_deep"),
    "absurdly deep": (nested(100_000), 400, "body_too_deep"),
    "too many keys": (json.dumps({f"k{n}": 1 for n in range(10_002)}).encode(), 400, "body_too_large"),
    "too large": (b'{"name": "' + b"x" * 1024 * 1024 + b'"}', 413, "body_too_large"),
    "a key twice": (b'{"name": "x", "name": "y"}', 400, "duplicate_key"),
    "NaN": (b'{"name": "x", "expires_in_days": NaN}', 400, "not_a_number"),
    "infinity": (b'{"name": "x", "expires_in_days": Infinity}', 400, "not_a_number"),
    "1e400": (b'{"name": "x", "expires_in_days": 1e400}', 400, "not_a_number"),
    "a huge number": (b'{"name": "x", "expires_in_days": ' + b"9" * 400 + b"}", 400, "not_a_number"),
    "half a surrogate": (b'{"name": "\\ud800"}', 400, "lone_surrogate"),
    "NUL in a text": (b'{"name": "a\\u0000b"}', 400, "nul_in_text"),
    "NUL in a name": (b'{"name": "x", "a\\u0000": 1}', 400, "nul_in_text"),
    "a byte order mark": (b'\xef\xbb\xbf{"name": "x"}', 400, "body_not_json"),
    "only a space": (b" ", 400, "invalid"),
    "nothing": (b"", 400, "invalid"),
}
IN_A_SPEC = {
    "not UTF-8": "encoding_not_utf8",
    "a byte order mark": "byte_order_mark",
    "NaN": "number_not_finite",
    "infinity": "number_not_finite",
    "1e400": "number_not_finite",
    "a huge number": "number_not_finite",
    "NUL in a text": "nul_forbidden",
    "NUL in a name": "nul_forbidden",
    "only a space": "body_empty",
    "nothing": "media_type",
    "no object": "spec_invalid",
    "a bare number": "spec_invalid",
}
"""Where a job spec has another code for the same mistake (docs/adr/0139)."""


@pytest.mark.parametrize("case", BODIES)
def test_a_bad_body_is_refused_by_name(alice: Api, case: str) -> None:
    body, status, code = BODIES[case]
    answer = alice.post("/me/tokens", body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert Token.objects.count() == 1  # alice's own


@pytest.mark.parametrize("case", BODIES)
def test_a_bad_job_spec_is_refused_by_name(alice: Api, case: str) -> None:
    body, status, code = BODIES[case]
    answer = alice.post("/tenants/vision-lab/jobs", body)
    assert (answer.status_code, answer.json()["code"]) == (status, IN_A_SPEC.get(case, code))


FIELDS: dict[str, tuple[Any, set[str]]] = {
    "an unknown field": ({"username": "bob", "role": "viewer", "tenant": "x"}, {"tenant"}),
    "a mistyped field": ({"user_name": "bob", "role": "viewer"}, {"user_name", "username"}),
    "a wrong choice": ({"username": "bob", "role": "king"}, {"role"}),
    "everything at once": ({"username": 7, "role": "king", "x": 1}, {"username", "role", "x"}),
    "null": ({"username": None, "role": None}, {"username", "role"}),
    "lists": ({"username": ["bob"], "role": ["viewer"]}, {"username", "role"}),
    "too long": ({"username": "b" * 151, "role": "viewer"}, {"username"}),
    "empty": ({"username": "", "role": ""}, {"username", "role"}),
}


@pytest.mark.parametrize("case", FIELDS)
def test_every_wrong_field_is_named_at_once(dave: Api, case: str) -> None:
    body, paths = FIELDS[case]
    answer = dave.post(MEMBERS, body)
    assert answer.status_code == 400
    assert {error["path"] for error in answer.json()["errors"]} == paths
    assert all(error["message"] and error["code"] for error in answer.json()["errors"])


def test_a_near_name_is_suggested(dave: Api) -> None:
    errors = dave.post(MEMBERS, {"usernme": "bob", "role": "viewer"}).json()["errors"]
    assert "did you mean username" in next(e["message"] for e in errors if e["path"] == "usernme")


def test_an_error_is_a_problem_document(dave: Api) -> None:
    answer = dave.post(MEMBERS, {}, X_Request_ID="abc-1")
    assert answer["Content-Type"] == "application/problem+json"
    assert answer["X-Request-ID"] == answer.json()["request_id"] == "abc-1"
    assert set(answer.json()) == {"type", "title", "status", "code", "detail", "errors", "request_id"}


def test_a_request_id_that_would_forge_a_log_line_is_replaced(dave: Api) -> None:
    answer = dave.get("/me", X_Request_ID="a b; drop")
    assert answer["X-Request-ID"] != "a b; drop"


def test_a_query_of_too_many_parameters_gets_a_problem_like_any_other(dave: Api) -> None:
    answer = dave.get("/me?" + "&".join(["a=1"] * (settings.DATA_UPLOAD_MAX_NUMBER_FIELDS + 1)))
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert answer["X-Request-ID"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/xml", ""])
def test_another_kind_of_body_is_refused(dave: Api, kind: str) -> None:
    answer = dave("POST", MEMBERS, b"username=bob&role=viewer", **{"Content-Type": kind})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary=x"])
def test_a_form_that_is_none_is_refused(alice: Api, kind: str) -> None:
    answer = alice("POST", "/tenants/vision-lab/uploads", b"not a form", **{"Content-Type": kind})
    assert answer.status_code == 400
    assert answer.json()["code"] in ("body_not_readable", "invalid")


def test_a_packed_body_is_refused(dave: Api) -> None:
    answer = dave.post(MEMBERS, b"\x1f\x8b", Content_Encoding="gzip")
    assert answer.status_code == 415


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
def test_a_method_that_is_none_is_answered_with_those_that_are(dave: Api, method: str) -> None:
    answer = dave(method, MEMBERS)
    assert answer.status_code == 405
    assert "GET" in answer["Allow"]
    assert answer.json()["code"] == "method_not_allowed"


def test_a_method_cannot_be_smuggled_in(dave: Api) -> None:
    assert (
        dave.post("/tenants/vision-lab/members/carol", {}, X_HTTP_Method_Override="DELETE").status_code == 405
    )
    assert dave.get("/tenants/vision-lab/members?_method=DELETE").status_code == 400


@pytest.mark.parametrize(
    "query",
    [
        "page_size=0",
        "page_size=-1",
        "page_size=201",
        "page_size=1000000000",
        "page_size=ten",
        "page_size=1&page_size=2",
        "cursor=forged",
        "cursor=" + "x" * 3000,
        "order=created_at",
        "order=-tenant__owner",
        "state=RUNNING",
        "state=QUEUED,NOPE",
        "owner__password=x",
        "tenant__slug=vision-lab",
        "name__regex=.*",
        "unknown=1",
        "owner=%00",
        "q=" + "x" * 201,
    ],
)
def test_a_query_that_is_not_understood_is_refused(alice: Api, query: str) -> None:
    answer = alice.get(f"/jobs?{query}")
    assert answer.status_code == 400
    assert answer.json()["errors"], answer.json()


def test_one_parameter_twice_is_refused(alice: Api) -> None:
    answer = alice.get("/jobs?owner=alice&owner=bob")
    assert answer.status_code == 400
    assert [(each["path"], each["code"]) for each in answer.json()["errors"]] == [("owner", "repeated")]
    answer = alice.get("/jobs?page_size=0&page_size=2&order=odd&foo=1")
    assert {(each["path"], each["code"]) for each in answer.json()["errors"]} == {
        ("page_size", "repeated"),
        ("page_size", "min_value"),
        ("order", "invalid_choice"),
        ("foo", "unknown_field"),
    }


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/%00",
        "/jobs/..%2f..%2fetc",
        "/jobs/%ff%fe",
        "/tenants/%00/members",
        "/tenants/" + "x" * 5000,
        "/jobs/000000000000/checkpoints/99999999999999999999",
        "/me/tokens/",
        "//me",
        "/jobs/" + "0" * 12 + "/events/",
        "/nonsense",
        "/a%0Ab",
        "/jobs/000000000000/results/a%0A",
    ],
)
def test_an_address_that_leads_nowhere_answers_as_any_missing_thing(alice: Api, path: str) -> None:
    answer = alice.get(path)
    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"


@pytest.mark.parametrize(
    "path",
    [
        "..%2fx",
        "%252e%252e%252fx",
        "..\\x",
        "%2fetc%2fpasswd",
        "a%00b",
        ".",
        "x.",
        "a%E2%88%95b",
        "x" * 5000,
        "part-" + "9" * 4400,
    ],
)
@pytest.mark.parametrize("place", ["results", "checkpoints/1/files", "code"])
def test_a_file_s_path_is_compared_never_opened(alice: Api, people: People, path: str, place: str) -> None:
    job = factories.job(owner=people.alice, state=State.COMPLETED)
    factories.checkpoint(job)
    answer = alice.get(f"/jobs/{job.pk}/{place}/{path}")
    code = "not_found" if "%00" in path else "artifact_not_found"  # no path of any address has a NUL
    assert (answer.status_code, answer.json()["code"]) == (404, code)


@pytest.mark.parametrize("place", ["results/a", "checkpoints/1/files/a", "code/a", "code", "results.zip"])
def test_whether_a_job_of_others_has_a_file_is_not_said(alice: Api, people: People, place: str) -> None:
    job = factories.job(owner=people.bob, state=State.COMPLETED)
    factories.checkpoint(job)
    answer = alice.get(f"/jobs/{job.pk}/{place}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_numbers_and_truth_values_are_not_bent(alice: Api) -> None:
    for days in ("90", 90.0, True, -1, 0, 367, 10**18):
        answer = alice.post("/me/tokens", {"name": "x", "expires_in_days": days})
        assert answer.status_code == 400, days
        assert answer.json()["errors"][0]["path"] == "expires_in_days"


def test_fields_that_are_not_yours_are_refused_not_ignored(alice: Api, people: People) -> None:
    job = factories.job(owner=people.alice)
    for field in ("tenant", "owner", "state", "attempt", "intent", "spec", "id", "slot_seconds"):
        answer = alice.patch(f"/jobs/{job.pk}", {field: "x"})
        assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, "unknown_field")
    assert Job.objects.get(pk=job.pk).owner == people.alice


def test_an_id_of_another_shape_is_a_missing_job(alice: Api) -> None:
    bodies = set()
    for job_id in ("000000000000", "x", "3F9K2M7QX4TA", "'; drop table jobs_job; --", "0" * 300):
        answer = alice.get(f"/jobs/{job_id}")
        assert answer.status_code == 404
        bodies.add(json.dumps({**answer.json(), "request_id": ""}))
    assert len(bodies) == 1
