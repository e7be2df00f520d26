"""The document is complete, made without a warning, and its page needs nothing but ourselves."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema

from portal.api.schema import document
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api


def test_the_document_is_valid_and_made_without_a_warning() -> None:
    with GENERATOR_STATS.silence():
        GENERATOR_STATS.reset()
        validate_schema(SchemaGenerator(urlconf="portal.urls").get_schema(request=None, public=True))
        answered = [
            text for kind in (GENERATOR_STATS._warn_cache, GENERATOR_STATS._error_cache) for text in kind
        ]
    assert answered == []


def test_every_operation_has_a_summary_and_no_two_share_a_name() -> None:
    names = []
    for path, methods in document()["paths"].items():
        for method, each in methods.items():
            assert each["summary"], (method, path)
            assert set(each["responses"]) >= {"400", "401", "404", "503"}
            names.append(each["operationId"])
    assert len(names) == len(set(names)) >= 55


def test_every_download_says_that_a_user_may_have_too_many() -> None:
    downloads = {
        each["operationId"]: set(each["responses"])
        for methods in document()["paths"].values()
        for each in methods.values()
        if "application/octet-stream" in each["responses"].get("200", {}).get("content", {})
    }
    assert len(downloads) >= 5
    assert [name for name, statuses in downloads.items() if "429" not in statuses] == []


def test_every_list_is_read_in_pages() -> None:
    lists = []
    for methods in document()["paths"].values():
        for each in methods.values():
            fields = _fields(each["responses"].get("200", {}))
            if {"items", "next"} <= set(fields):
                lists.append(each["operationId"])
                assert {"cursor", "page_size"} <= {given["name"] for given in each["parameters"]}, lists[-1]
    assert len(lists) >= 15


def _fields(answer: dict[str, Any]) -> dict[str, Any]:
    schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" in schema:
        schema = document()["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    fields: dict[str, Any] = schema.get("properties", {})
    return fields


def test_every_body_has_an_example() -> None:
    for methods in document()["paths"].values():
        for each in methods.values():
            if "requestBody" in each and each["operationId"] not in {"halt", "cancel", "upload_create"}:
                assert "examples" in str(each["requestBody"]), each["operationId"]


def test_anybody_logged_in_reads_the_document(alice: Api, anybody: Api) -> None:
    answer = alice.get("/openapi.json")
    assert answer.json()["openapi"].startswith("3.")
    assert anybody.get("/openapi.json").status_code == 401


@pytest.mark.parametrize("word", ["jobs:validate", "Idempotency-Key", "quota-changes", "lut_"])
def test_the_page_shows_every_group_without_a_foreign_address(people: People, word: str) -> None:
    client = Client()
    client.force_login(people.alice)
    text = client.get("/docs/api").content.decode()
    assert word in text
    assert 'src="http' not in text
    assert 'href="http' not in text


def test_a_spec_is_documented_in_both_of_its_forms() -> None:
    answer = document()["paths"]["/api/v1/jobs/{job_id}/spec"]["get"]["responses"]["200"]
    assert set(answer["content"]) == {"application/json", "application/yaml"}
