"""Secrets over REST: written, never read; a name in a spec is checked when the job is submitted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Job, Runtime
from tenants.models import AuditEntry, Secret
from tenants.services import secrets
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

pytestmark = pytest.mark.django_db

VALUE = "s3cr3t-value-of-wandb"
HERE = "/tenants/vision-lab"


@pytest.fixture(autouse=True)
def runtime(people: People) -> None:
    Runtime.objects.get_or_create(slug="sklearn", defaults={"title": "scikit-learn"})


def spec(**granted: str) -> dict[str, Any]:
    return factories.spec(secrets=granted)


def errors(answer: Any) -> list[dict[str, Any]]:
    assert answer.status_code == 400, answer.content
    return list(answer.json()["errors"])


def test_a_value_is_in_no_answer(dave: Api, alice: Api) -> None:
    made = dave.put(f"{HERE}/secrets/wandb", {"value": VALUE})
    again = dave.put(f"{HERE}/secrets/wandb", {"value": VALUE + "2"})
    listed = alice.get(f"{HERE}/secrets")
    assert (made.status_code, again.status_code, listed.status_code) == (200, 200, 200)
    (item,) = listed.json()["items"]
    assert item | {"updated_at": "", "etag": ""} == {
        "name": "wandb",
        "updated_at": "",
        "updated_by": "dave",
        "used_by": [],
        "etag": "",
    }
    assert VALUE not in made.content.decode() + again.content.decode() + listed.content.decode()


def test_there_is_no_way_to_read_one(dave: Api) -> None:
    dave.put(f"{HERE}/secrets/wandb", {"value": VALUE})
    assert dave.get(f"{HERE}/secrets/wandb").status_code == 405
    assert VALUE not in dave.get(f"{HERE}/audit").content.decode()


@pytest.mark.parametrize(
    "body",
    [
        {"value": "12345"},
        {"valeu": VALUE},
        {"value": VALUE, "note": VALUE},
        {"value": {"inner": VALUE}},
        {"value": [VALUE]},
        {"value": 123456789012},
        {"value": VALUE * 2000},
        {},
    ],
)
def test_a_refused_value_is_not_repeated(dave: Api, body: dict[str, Any]) -> None:
    answer = dave.put(f"{HERE}/secrets/wandb", body)
    assert errors(answer)
    for sent in (VALUE, "12345"):
        assert sent not in answer.content.decode()
    assert not Secret.objects.exists()


def test_the_name_must_be_usable(dave: Api) -> None:
    (wrong,) = errors(dave.put(f"{HERE}/secrets/-wandb", {"value": VALUE}))
    assert (wrong["path"], wrong["code"]) == ("name", "bad_name")
    assert "1 to 63 letters and digits" in wrong["message"]


def test_white_space_in_a_value_is_kept(dave: Api, people: People) -> None:
    value = " two\nlines \n"
    dave.put(f"{HERE}/secrets/key", {"value": value})
    found = secrets.values_for(owner=people.alice, tenant=people.vision, names=["key"])
    assert found == {"key": value}


def test_another_tenants_secrets_do_not_exist(dave: Api, bob: Api) -> None:
    dave.put(f"{HERE}/secrets/wandb", {"value": VALUE})
    missing = bob.get("/tenants/no-such/secrets").json() | {"request_id": ""}
    for answer in (
        bob.get(f"{HERE}/secrets"),
        bob.put(f"{HERE}/secrets/wandb", {"value": "other-value"}),
        bob.delete(f"{HERE}/secrets/wandb"),
    ):
        assert (answer.status_code, answer.json() | {"request_id": ""}) == (404, missing)
    assert Secret.objects.get().updated_by.get_username() == "dave"  # type: ignore[union-attr]


def test_own_secrets_are_the_callers_alone(alice: Api, dave: Api) -> None:
    alice.put("/me/secrets/hf", {"value": VALUE})
    assert [item["name"] for item in alice.get("/me/secrets").json()["items"]] == ["hf"]
    assert dave.get("/me/secrets").json()["items"] == []
    assert dave.delete("/me/secrets/hf").status_code == 404
    assert alice.delete("/me/secrets/hf").status_code == 204
    assert AuditEntry.objects.filter(action__startswith="secret.", tenant=None).count() == 2


def test_a_stale_version_changes_nothing(dave: Api) -> None:
    first = dave.put(f"{HERE}/secrets/wandb", {"value": VALUE}).json()["etag"]
    second = dave.put(f"{HERE}/secrets/wandb", {"value": VALUE + "2"}, If_Match=first)
    assert second.status_code == 200
    assert dave.put(f"{HERE}/secrets/wandb", {"value": VALUE}, If_Match=first).status_code == 412
    assert dave.delete(f"{HERE}/secrets/wandb", If_Match=first).status_code == 412
    assert dave.delete(f"{HERE}/secrets/wandb", If_Match=second.json()["etag"]).status_code == 204


def test_the_spec_of_a_job_has_the_names_and_the_list_names_the_job(alice: Api, dave: Api) -> None:
    dave.put(f"{HERE}/secrets/wandb", {"value": VALUE})
    made = alice.post(f"{HERE}/jobs", spec(WANDB_API_KEY="wandb"))
    assert made.status_code == 201, made.content
    job = made.json()
    assert job["spec"]["secrets"] == {"WANDB_API_KEY": "wandb"}
    for path in ("", "/spec", "/events", "/attempts", "/learners"):
        assert VALUE not in alice.get(f"/jobs/{job['id']}{path}").content.decode()
    assert dave.get(f"{HERE}/secrets").json()["items"][0]["used_by"] == [job["id"]]
    alice.put("/me/secrets/wandb", {"value": VALUE})
    assert dave.get(f"{HERE}/secrets").json()["items"][0]["used_by"] == [], "alice's own wins"
    assert alice.get("/me/secrets").json()["items"][0]["used_by"] == [job["id"]]
    Job.objects.filter(pk=job["id"]).update(deleted_at=timezone.now())
    assert alice.get("/me/secrets").json()["items"][0]["used_by"] == []


def test_an_unknown_name_is_refused_with_the_nearest(alice: Api, dave: Api) -> None:
    dave.put(f"{HERE}/secrets/wandb", {"value": VALUE})
    (wrong,) = errors(alice.post(f"{HERE}/jobs", spec(WANDB_API_KEY="wandbb")))
    assert (wrong["path"], wrong["code"], wrong["near"]) == (
        "secrets.WANDB_API_KEY",
        "secret_not_found",
        "wandb",
    )
    assert "Did you mean wandb?" in wrong["message"]


def test_a_personal_secret_is_used_by_its_owner_alone(alice: Api, dave: Api) -> None:
    alice.put("/me/secrets/mine", {"value": VALUE})
    job = alice.post(f"{HERE}/jobs", spec(MINE="mine")).json()
    assert errors(dave.post(f"{HERE}/jobs", spec(MINE="mine")))[0]["code"] == "secret_not_found"
    assert errors(dave.post(f"/jobs/{job['id']}/clone"))[0]["code"] == "secret_not_found"
    assert alice.post(f"/jobs/{job['id']}/clone").json()["spec"]["secrets"] == {"MINE": "mine"}


@pytest.mark.parametrize(
    ("changes", "path", "code"),
    [
        ({"env": {"KEY_A": "x"}, "secrets": {"KEY_A": "wandb"}}, "secrets.KEY_A", "duplicate"),
        ({"secrets": {"MASTER_ADDR": "wandb"}}, "secrets.MASTER_ADDR", "env_reserved"),
        ({"secrets": {"LUTHIER_X": "wandb"}}, "secrets.LUTHIER_X", "env_reserved"),
        ({"secrets": {"1A": "wandb"}}, "secrets.1A", "bad_name"),
        ({"secrets": {"A": "not a name"}}, "secrets.A", "bad_format"),
        ({"secrets": {"A": 5}}, "secrets.A", "wrong_type"),
    ],
)
def test_a_grant_that_cannot_be_given_is_refused_at_its_field(
    alice: Api, dave: Api, changes: dict[str, Any], path: str, code: str
) -> None:
    dave.put(f"{HERE}/secrets/wandb", {"value": VALUE})
    found = {
        wrong["path"]: wrong["code"]
        for wrong in errors(alice.post(f"{HERE}/jobs", factories.spec(**changes)))
    }
    assert found == {path: code}


def test_a_key_in_the_place_of_a_name_is_refused_and_not_repeated(alice: Api) -> None:
    answer = alice.post(f"{HERE}/jobs", spec(HF_TOKEN="hf_abcdefghijklmnopqrstuvwxyz"))
    (wrong,) = errors(answer)
    assert (wrong["path"], wrong["code"], wrong["got"]) == ("secrets.HF_TOKEN", "bad_format", None)
    assert "hf_abc" not in answer.content.decode()


@pytest.mark.parametrize(
    ("name", "value", "warns"),
    [
        ("WANDB_API_KEY", "0123456789abcdef", True),
        ("MY_TOKEN", "abc", True),
        ("DB_PASSWORD", "pass word", True),
        ("NOTE", "hf_abcdefghijklmnop", True),
        ("NOTE", "see ghp_abcdefghijklmnop1234", True),
        ("AWS_ACCESS_KEY_ID", "AKIAABCDEFGHIJKLMNOP", True),
        ("X", "sk-abcdefghijklmnop", True),
        ("STORE", "postgres://runs:pw12@db.example:5432/runs", True),
        ("CACHE", "redis://:pw12@cache.example/0", True),
        ("MIRROR", "https://mirror.example:8080/a@b", False),
        ("MIRROR", "https://anna@mirror.example/a:b@c", False),
        ("MAX_TOKEN", "512", False),
        ("USE_SECRET", "true", False),
        ("MONKEY", "banana", False),
        ("LR", "0.1", False),
        ("TASK", "sk-learn", False),
        ("TOKENIZER", "bert-base", False),
    ],
)
def test_a_literal_that_looks_like_a_key_is_a_warning_that_does_not_repeat_it(
    alice: Api, name: str, value: str, warns: bool
) -> None:
    answer = alice.post(f"{HERE}/jobs:validate", factories.spec(env={name: value})).json()
    assert answer["valid"]
    found = [warning for warning in answer["warnings"] if warning["code"] == "env_looks_secret"]
    assert [warning["path"] for warning in found] == ([f"env.{name}"] if warns else [])
    assert value not in json.dumps(found)


def test_the_schema_says_that_the_value_is_written_only(alice: Api) -> None:
    schemas = alice.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["SecretRequestRequest"]["properties"]["value"]["writeOnly"]
    assert "value" not in schemas["Secret"]["properties"]
