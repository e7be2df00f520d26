"""Submitting and validating by REST: a key submits once, all errors come at once, a check says what would happen."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from django.test import Client

from jobs.models import ClusterNode, Job
from jobs.states import State
from portal.api.examples import SPEC, SPEC_YAML
from tests import factories
from tests.jobs.conftest import People
from tests.nobody import no_superuser
from tests.portal.api.conftest import JOBS, Api

pytestmark = pytest.mark.usefixtures("installation")


def test_a_submitted_job_is_queued_and_says_where_it_is(alice: Api) -> None:
    answer = alice.post(JOBS, SPEC)
    job = answer.json()
    assert answer.status_code == 201
    assert answer["Location"] == f"/api/v1/jobs/{job['id']}"
    assert answer["ETag"] == job["etag"]
    assert (job["state"], job["owner"], job["tenant"]) == ("QUEUED", "alice", "vision-lab")
    assert job["reason"]["message"]
    assert alice.get(f"/jobs/{job['id']}").json() == job


def test_a_job_with_warnings_is_accepted_and_the_response_lists_them(alice: Api) -> None:
    spec = SPEC | {"env": {"API_KEY": "sk-0123456789abcdef0123", "EPOCHS": 5}}
    answer = alice.post(JOBS, spec)
    assert answer.status_code == 201
    warnings = answer.json()["warnings"]
    assert {(one["path"], one["code"]) for one in warnings} == {
        ("env.API_KEY", "env_looks_secret"),
        ("env.EPOCHS", "env_not_text"),
    }
    assert warnings == alice.post(f"{JOBS}:validate", spec).json()["warnings"]


@pytest.mark.parametrize("kind", ["application/yaml", "text/yaml", "application/x-yaml; charset=utf-8"])
def test_a_spec_may_be_yaml(alice: Api, kind: str) -> None:
    answer = alice("POST", JOBS, SPEC_YAML, **{"Content-Type": kind})
    assert answer.status_code == 201, answer.content
    assert answer.json()["name"] == "digits"


def test_all_errors_of_a_spec_come_at_once_with_their_places(alice: Api) -> None:
    wrong = SPEC_YAML.replace("learners: 1", "leraners: 1").replace("memory: 1Gi", "memory: 1Tb")
    answer = alice("POST", JOBS, wrong, **{"Content-Type": "application/yaml"})
    assert (answer.status_code, answer.json()["code"]) == (400, "spec_invalid")
    errors = answer.json()["errors"]
    assert {error["path"] for error in errors} == {"resources.leraners", "resources.memory"}
    assert all(error["line"] for error in errors)
    assert Job.objects.count() == 0


@pytest.mark.parametrize(
    ("kind", "text", "code", "path"),
    [
        ("application/json", '{"name": ', "body_not_json", ""),
        ("application/json", '{"name": "a", "name": "b"}', "duplicate_key", "name"),
        ("application/yaml", "name: [", "yaml_syntax", ""),
        ("application/yaml", SPEC_YAML + "\n---\n" + SPEC_YAML, "yaml_several_documents", ""),
        ("application/yaml", SPEC_YAML + "\ntags: !!python/tuple []\n", "yaml_tag_forbidden", "tags"),
    ],
)
def test_a_spec_that_is_no_proper_document_has_the_code_of_that(
    alice: Api, kind: str, text: str, code: str, path: str
) -> None:
    answer = alice("POST", JOBS, text, **{"Content-Type": kind})
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert (path, code) in [(error["path"], error["code"]) for error in answer.json()["errors"]]
    assert Job.objects.count() == 0


def test_an_error_of_the_document_is_the_code_also_below_more_errors_than_are_listed(alice: Api) -> None:
    fields = "".join(f"unknown{n}: 1\n" for n in range(60))
    answer = alice(
        "POST", JOBS, f"{SPEC_YAML}\n{fields}name: again\n", **{"Content-Type": "application/yaml"}
    )
    listed = {error["code"] for error in answer.json()["errors"]}
    assert (answer.json()["code"], listed) == ("duplicate_key", {"unknown_field"})


def test_validating_shows_what_would_happen_and_changes_nothing(alice: Api) -> None:
    verdict = alice.post(f"{JOBS}:validate", SPEC).json()
    assert verdict["valid"]
    assert verdict["now"]["starts"]
    assert verdict["now"]["nodes"] == ["node-a"]
    assert verdict["spec"]["resources"]["learners"] == 1
    big = SPEC | {"resources": {"learners": 9, "cpus": 1}}
    refused = alice.post(f"{JOBS}:validate", big).json()
    assert not refused["valid"]
    assert refused["errors"][0]["path"] == "resources.learners"
    assert Job.objects.count() == 0


def test_validating_says_why_a_job_would_wait(alice: Api, people: People) -> None:
    people.vision.quotas.update(limit=1)
    verdict = alice.post(f"{JOBS}:validate", SPEC | {"resources": {"learners": 2, "cpus": 1}}).json()
    assert verdict["valid"]
    assert verdict["warnings"][0]["code"] == "above_quota"
    assert not verdict["now"]["starts"]
    assert verdict["now"]["message"]


def looked_at(verdict: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: f"{check['result']}: {check['message']}" for check in verdict["checks"]}


def test_validating_lists_what_was_looked_at_with_the_quota_that_the_job_would_take(
    alice: Api, people: People
) -> None:
    people.vision.quotas.update(limit=4, used=1)
    two = SPEC | {"resources": {"learners": 2, "cpus": 1}}
    verdict = alice.post(f"{JOBS}:validate", two).json()
    assert verdict["quota"] == {"slot_type": "cpu", "limit": 4, "used": 1, "asked": 2}
    assert looked_at(verdict) == {
        "spec": "passed: luthier/v1, no errors",
        "code": "passed: 1 file, 15 B in the spec",
        "data": "passed: None requested",
        "quota": "passed: cpu: 1 in use + 2 of 4",
        "gang": "passed: 2 of 2 learners fit, on node-a",
    }
    people.vision.quotas.update(used=3)
    held = looked_at(alice.post(f"{JOBS}:validate", two).json())
    assert held["quota"] == "waits: Waiting for quota: 3 of 4 CPUs in use, this job needs 2."
    assert held["gang"].startswith("skipped")
    people.vision.quotas.update(limit=99)
    ClusterNode.objects.update(ready=False)
    full = alice.post(f"{JOBS}:validate", two).json()
    assert looked_at(full)["quota"] == "passed: cpu: 3 in use + 2 of 99"
    assert looked_at(full)["gang"] == f"waits: {full['now']['message']}"


def test_the_quota_counts_what_starts_in_the_same_cycle(alice: Api, people: People) -> None:
    """Else the sum says that there is room, beside a sentence that says that there is none."""
    people.vision.quotas.update(limit=4)
    assert alice.post(JOBS, SPEC).status_code == 201  # waits for the scheduler's next look
    held = alice.post(f"{JOBS}:validate", SPEC | {"resources": {"learners": 4, "cpus": 1}}).json()
    assert held["now"]["numbers"]["used"] == held["quota"]["used"] == 1
    assert looked_at(held)["quota"] == f"waits: {held['now']['message']}"


def test_validating_says_which_check_found_the_errors_and_what_was_meant(alice: Api) -> None:
    wrong = SPEC_YAML.replace("framework: sklearn", "framework: sklaern").replace("resources:", "resource:")
    lost = alice("POST", f"{JOBS}:validate", wrong, Content_Type="application/yaml").json()
    assert {each["path"]: each["near"] for each in lost["errors"]} == {
        "resource": "resources",
        "framework": "sklearn",
    }
    named = wrong.replace("resource:", "resources:").replace("train.py: |", "../train.py: |")
    unsafe = looked_at(alice("POST", f"{JOBS}:validate", named, Content_Type="application/yaml").json())
    assert unsafe["code"] == "failed: 1 error, on line 6"
    assert unsafe["spec"] == "failed: 1 error", "the framework, of which no line is known"
    runtime = alice.post(f"{JOBS}:validate", SPEC | {"framework": "sklaern"}).json()
    assert [each["near"] for each in runtime["errors"]] == ["sklearn"]
    big = looked_at(alice.post(f"{JOBS}:validate", SPEC | {"resources": {"learners": 9, "cpus": 1}}).json())
    assert {name: text.partition(":")[0] for name, text in big.items()} == {
        "spec": "skipped", "code": "skipped", "data": "skipped", "quota": "skipped", "gang": "failed",
    }  # fmt: skip
    assert big["spec"].startswith("skipped: No errors so far"), "the other checks found them"


def test_the_same_key_submits_once(alice: Api) -> None:
    first = alice.post(JOBS, SPEC, Idempotency_Key="submit-1")
    again = alice.post(JOBS, SPEC, Idempotency_Key="submit-1")
    assert (again.status_code, again.json()) == (201, first.json())
    assert again["Idempotency-Replayed"] == "true"
    assert again["Location"] == first["Location"]
    assert Job.objects.count() == 1


def test_the_same_key_with_another_body_is_refused(alice: Api) -> None:
    alice.post(JOBS, SPEC, Idempotency_Key="submit-1")
    answer = alice.post(JOBS, SPEC | {"name": "other"}, Idempotency_Key="submit-1")
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")
    assert Job.objects.count() == 1


def test_the_same_key_of_another_person_is_another_key(alice: Api, dave: Api) -> None:
    assert (
        alice.post(JOBS, SPEC, Idempotency_Key="k").json()
        != dave.post(JOBS, SPEC, Idempotency_Key="k").json()
    )


@pytest.mark.parametrize("key", ["", "x" * 129, "with blank", "ünicode"])
def test_a_key_of_another_shape_is_refused(alice: Api, key: str) -> None:
    answer = alice.post(JOBS, SPEC, Idempotency_Key=key)
    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_invalid")
    assert Job.objects.count() == 0


def test_a_refused_request_leaves_its_key_free(alice: Api) -> None:
    assert alice.post(JOBS, {"name": "x"}, Idempotency_Key="k").status_code == 400
    assert alice.post(JOBS, {"name": "x"}, Idempotency_Key="k").status_code == 400
    people_job = alice.post(JOBS, SPEC, Idempotency_Key="k")
    assert people_job.status_code == 201


def test_a_check_of_missing_data_names_the_folders_that_are_there(
    alice: Api, settings: Any, tmp_path: Path
) -> None:
    settings.LUTHIER_DATA_ROOT = tmp_path
    for name in ("mnist", "cifar", ".mnist-abc"):
        (tmp_path / name).mkdir()
    asked = SPEC | {"data": [{"name": "x", "path": "imagenet"}]}
    (error,) = alice.post(f"{JOBS}:validate", asked).json()["errors"]
    assert (error["path"], error["code"]) == ("data[0].path", "data_not_found")
    assert error["message"].endswith("which holds cifar, mnist")


@pytest.mark.parametrize("mode", [0o000, 0o311], ids=["closed", "not to be listed"])
def test_a_data_root_that_cannot_be_read_is_not_reported_as_empty(
    alice: Api, settings: Any, mode: int
) -> None:
    with TemporaryDirectory() as root:  # not below the test's own folder, which no other user may enter
        settings.LUTHIER_DATA_ROOT = Path(root)
        Path(root).chmod(mode)
        asked = SPEC | {"data": [{"name": "x", "path": "imagenet"}]}
        with no_superuser():
            answer = alice.post(f"{JOBS}:validate", asked)
    (error,) = answer.json()["errors"]
    assert (error["path"], error["code"]) == ("data[0].path", "data_not_found")
    assert "which cannot be read" in error["message"]


def test_a_suspended_tenant_submits_nothing_and_halts_what_runs(alice: Api, people: People) -> None:
    job = factories.job(owner=people.alice, state=State.PROCESSING)
    type(people.vision).objects.filter(pk=people.vision.pk).update(state="suspended")
    assert alice.post(JOBS, SPEC).json()["code"] == "tenant_suspended"
    assert alice.post(f"/jobs/{job.pk}/halt").status_code == 202


def test_what_a_person_does_by_cookie_needs_the_csrf_token(people: People) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(people.alice)
    assert client.get("/api/v1/me").status_code == 200
    refused = client.post(f"/api/v1{JOBS}", SPEC, content_type="application/json")
    assert (refused.status_code, refused.json()["code"]) == (403, "csrf_failed")
    assert Job.objects.count() == 0
