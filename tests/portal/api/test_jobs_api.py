"""Jobs by REST: submitted once, listed in pages, validated, halted, cloned; a refusal says what is possible."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import archives
from jobs.models import ClusterNode, Job, JobEvent, Learner, Runtime, Upload
from jobs.states import State
from portal.api.examples import SPEC, SPEC_YAML
from tenants.models import Membership
from tenants.roles import Role
from tests import factories
from tests.architecture.rows import UPLOAD
from tests.jobs.conftest import People
from tests.nobody import no_superuser
from tests.portal.api.conftest import Api

JOBS = "/tenants/vision-lab/jobs"
UPLOAD_KIND = {"Content-Type": "multipart/form-data; boundary=matrix"}


@pytest.fixture(autouse=True)
def installation(people: People) -> None:
    """What a spec is judged against: one node and one runtime."""
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=8)
    Runtime.objects.create(slug="sklearn", title="scikit-learn")


def submit(caller: Api, **changes: Any) -> dict[str, Any]:
    answer = caller.post(JOBS, SPEC | changes)
    assert answer.status_code == 201, answer.content
    return dict(answer.json())


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


def test_a_job_that_has_changed_since_it_was_seen_is_not_deleted(alice: Api, people: People) -> None:
    job = factories.job(owner=people.alice, state=State.COMPLETED).pk
    seen = alice.get(f"/jobs/{job}").json()["etag"]
    now = alice.patch(f"/jobs/{job}", {"tags": ["keep"]}).json()["etag"]
    stale = alice.delete(f"/jobs/{job}", If_Match=seen)
    assert (stale.status_code, stale.json()["code"], stale["ETag"]) == (412, "version_changed", now)
    assert alice.get(f"/jobs/{job}").status_code == 200
    assert alice.delete(f"/jobs/{job}", If_Match=now).status_code == 204
    assert alice.get(f"/jobs/{job}").status_code == 404


@pytest.mark.parametrize(
    ("field", "longest"), [("name", "x" * 100), ("tags", ["x" * 50]), ("tags", [f"t{n}" for n in range(20)])]
)
def test_an_edit_has_the_bounds_of_a_spec(alice: Api, people: People, field: str, longest: Any) -> None:
    job = factories.job(owner=people.alice).pk
    assert alice.patch(f"/jobs/{job}", {field: longest}).status_code == 200
    longer = [longest[0] + "x"] if len(longest) == 1 else longest + longest[:1]
    answered = alice.patch(f"/jobs/{job}", {field: longer})
    bound = str(50 if len(longest) == 1 else len(longest))
    assert (answered.status_code, answered.json()["code"]) == (400, "invalid")
    assert bound in answered.json()["errors"][0]["message"]


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


def test_pages_show_every_job_once_while_others_come(alice: Api, people: People) -> None:
    made = {factories.job(owner=people.alice, name=f"n{n}").pk for n in range(7)}
    seen: list[str] = []
    cursor = ""
    while True:
        page = alice.get(f"/jobs?page_size=3{cursor}").json()
        seen += [job["id"] for job in page["items"]]
        factories.job(owner=people.alice)
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert len(seen) == len(set(seen))
    assert made <= set(seen)
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize("order", ["oldest", "name", "-name", "state", "priority"])
def test_every_order_pages_without_a_hole(alice: Api, people: People, order: str) -> None:
    made = {factories.job(owner=people.alice, name="ab"[n % 2]).pk for n in range(5)}
    first = alice.get(f"/jobs?order={order}&page_size=2").json()
    second = alice.get(f"/jobs?order={order}&page_size=2&cursor={first['next']}").json()
    third = alice.get(f"/jobs?order={order}&page_size=2&cursor={second['next']}").json()
    ids = [job["id"] for page in (first, second, third) for job in page["items"]]
    assert (len(ids), set(ids), third["next"]) == (5, made, None)


def test_a_cursor_serves_its_own_list_only(alice: Api, dave: Api, people: People) -> None:
    for _ in range(2):
        factories.job(owner=people.alice)
    cursor = alice.get("/jobs?page_size=1").json()["next"]
    assert alice.get(f"/jobs?page_size=1&cursor={cursor}").status_code == 200
    assert alice.get(f"/jobs?page_size=1&order=oldest&cursor={cursor}").json()["code"] == "cursor_invalid"
    assert alice.get(f"/tenants?cursor={cursor}").json()["code"] == "cursor_invalid"
    assert dave.get(f"/jobs?page_size=1&cursor={cursor}").json()["code"] == "cursor_invalid"


def test_filters_narrow_the_list(alice: Api, people: People) -> None:
    halted = factories.job(owner=people.alice, state=State.HALTED, tags=["vision"], name="resnet")
    factories.job(owner=people.dave, name="bert")
    for query in ("state=HALTED,FAILED", "state=HALTED&state=FAILED", "tag=vision", "owner=alice", "q=resn"):
        assert [job["id"] for job in alice.get(f"/jobs?{query}").json()["items"]] == [halted.pk], query
    assert alice.get("/jobs?tenant=nlp-research").json()["items"] == []


def test_a_change_needs_the_version_it_was_made_for(alice: Api) -> None:
    job = submit(alice)
    changed = alice.patch(f"/jobs/{job['id']}", {"tags": ["x"]}, If_Match=job["etag"])
    assert (changed.status_code, changed.json()["tags"]) == (200, ["x"])
    stale = alice.patch(f"/jobs/{job['id']}", {"tags": ["y"]}, If_Match=job["etag"])
    assert (stale.status_code, stale.json()["code"]) == (412, "version_changed")
    assert stale["ETag"] == changed["ETag"]
    assert alice.patch(f"/jobs/{job['id']}", {"tags": ["z"]}).status_code == 200


def test_a_request_returns_the_job_and_a_repeat_the_same(alice: Api, people: People) -> None:
    job = factories.job(owner=people.alice, state=State.PROCESSING)
    first, again = (alice.post(f"/jobs/{job.pk}/halt") for _ in range(2))
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["intent"] == again.json()["intent"] == "HALT"
    assert first.json()["phase"] == "Halting"
    assert len(Job.objects.get(pk=job.pk).events.filter(code="REQUESTED")) == 1


def test_what_is_impossible_says_what_is_possible(alice: Api, people: People) -> None:
    job = factories.job(owner=people.alice, state=State.COMPLETED)
    answer = alice.post(f"/jobs/{job.pk}/resume")
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "illegal_transition")
    assert "clone" in problem["allowed_actions"]
    assert problem["state"] == "COMPLETED"


def test_resume_takes_a_checkpoint_and_refuses_one_that_is_not_there(alice: Api, people: People) -> None:
    job = factories.job(owner=people.alice, state=State.HALTED, intent="HALT")
    factories.checkpoint(job)
    wrong = alice.post(f"/jobs/{job.pk}/resume", {"checkpoint": 7})
    assert (wrong.status_code, wrong.json()["code"], wrong.json()["checkpoints"]) == (
        400,
        "checkpoint_not_found",
        [1],
    )
    (error,) = wrong.json()["errors"]
    assert (error["path"], error["got"], error["allowed"]) == ("checkpoint", "7", [1])
    assert alice.post(f"/jobs/{job.pk}/resume", {"checkpoint": 1}).status_code == 202


def test_a_change_names_all_its_wrong_fields_by_the_rules_of_specs(alice: Api) -> None:
    job = submit(alice)
    wrong = {"name": "two\nlines", "tags": ["a b", "", 1], "priority": "most", "state": "HALTED"}
    errors = alice.patch(f"/jobs/{job['id']}", wrong).json()["errors"]
    assert {each["path"]: each["code"] for each in errors} == {
        "name": "bad_format",
        "tags[0]": "bad_format",
        "tags[1]": "blank",
        "tags[2]": "invalid",
        "priority": "invalid_choice",
        "state": "unknown_field",
    }


def test_a_text_of_a_change_has_one_error_the_one_that_a_spec_would_have(alice: Api) -> None:
    job = submit(alice)
    (name, tag) = alice.patch(f"/jobs/{job['id']}", {"name": "a\nb" * 200, "tags": ["a b"]}).json()["errors"]
    assert (name["path"], tag["path"]) == ("name", "tags[0]")
    refused = alice.post(JOBS, SPEC | {"tags": ["a b"]}).json()["errors"]
    assert [(each["code"], each["allowed"]) for each in refused] == [(tag["code"], tag["allowed"])]


def test_a_clone_changes_fields_and_stays_whole(alice: Api) -> None:
    job = submit(alice)
    clone = alice.post(f"/jobs/{job['id']}/clone", {"spec": {"name": "again", "env": {"LR": "0.1"}}})
    assert clone.status_code == 202
    assert clone.json()["cloned_from"] == job["id"]
    assert clone.json()["spec"]["env"] == {"LR": "0.1"}
    wrong = alice.post(f"/jobs/{job['id']}/clone", {"spec": {"resources": {"learners": 0}}})
    assert (wrong.status_code, wrong.json()["errors"][0]["path"]) == (400, "resources.learners")


def test_a_deleted_job_is_gone_and_a_live_one_is_not(alice: Api, people: People) -> None:
    live, done = factories.job(owner=people.alice), factories.job(owner=people.alice, state=State.FAILED)
    assert alice.delete(f"/jobs/{live.pk}").status_code == 409
    assert alice.delete(f"/jobs/{done.pk}").status_code == 204
    assert alice.get(f"/jobs/{done.pk}").status_code == 404
    assert [job["id"] for job in alice.get("/jobs").json()["items"]] == [live.pk]


def test_a_suspended_tenant_submits_nothing_and_halts_what_runs(alice: Api, people: People) -> None:
    job = factories.job(owner=people.alice, state=State.PROCESSING)
    type(people.vision).objects.filter(pk=people.vision.pk).update(state="suspended")
    assert alice.post(JOBS, SPEC).json()["code"] == "tenant_suspended"
    assert alice.post(f"/jobs/{job.pk}/halt").status_code == 202


def test_the_spec_comes_as_yaml_that_may_be_sent_again(alice: Api) -> None:
    job = submit(alice)
    text = alice.get(f"/jobs/{job['id']}/spec", Accept="application/yaml")
    assert text["Content-Type"].startswith("application/yaml")
    again = alice("POST", JOBS, text.content, **{"Content-Type": "application/yaml"})
    assert again.status_code == 201, again.content
    assert alice.get(f"/jobs/{job['id']}/spec").json() == alice.get(f"/jobs/{again.json()['id']}/spec").json()


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/yaml;q=0.1, application/json", "application/json"),
        ("application/json;q=0.5, text/yaml", "application/yaml"),
        ("application/yaml", "application/yaml"),
        ("*/*", "application/json"),
        ("application/yaml, */*;q=0.1", "application/yaml"),
        ("text/html", "application/json"),
    ],
)
def test_the_spec_comes_in_the_form_that_is_preferred(alice: Api, accept: str, kind: str) -> None:
    job = submit(alice)
    assert alice.get(f"/jobs/{job['id']}/spec", Accept=accept)["Content-Type"].startswith(kind)


def test_the_spec_has_its_keys_in_the_order_of_the_format(alice: Api) -> None:
    """The database keeps an object's keys by their length."""
    job = submit(alice, tags=["a"], time_limit="1h", checkpoint={"keep": 1, "every": "5m"})
    spec = alice.get(f"/jobs/{job['id']}/spec").json()
    assert list(spec)[:5] == ["apiVersion", "name", "tags", "framework", "code"]
    assert list(spec)[-2:] == ["max_restarts", "time_limit"]
    assert list(spec["checkpoint"]) == ["every", "keep", "grace"]
    assert list(spec["resources"]) == ["learners", "gpus", "cpus", "memory"]


def test_an_upload_becomes_a_job_s_code(alice: Api) -> None:
    sent = alice("POST", "/tenants/vision-lab/uploads", UPLOAD, **UPLOAD_KIND)
    assert (sent.status_code, sent.json()["files"]) == (201, 1)
    job = submit(alice, code={"upload": sent.json()["id"]})
    assert Job.objects.get(pk=job["id"]).code is not None


def test_an_upload_of_another_tenant_is_a_missing_one(alice: Api, bob: Api) -> None:
    sent = alice("POST", "/tenants/vision-lab/uploads", UPLOAD, **UPLOAD_KIND).json()
    answered = set()
    for upload in (sent["id"], "000000000000"):
        answer = bob.post("/tenants/nlp-research/jobs", SPEC | {"code": {"upload": upload}})
        assert (answer.status_code, answer.json()["code"]) == (400, "upload_not_found")
        (wrong,) = answer.json()["errors"]
        assert (wrong["path"], wrong.pop("got")) == ("code.upload", upload)
        answered.add(str({**answer.json(), "request_id": "", "errors": [wrong]}))
    assert len(answered) == 1


def test_validating_finds_a_missing_upload_beside_everything_else(alice: Api) -> None:
    lost = SPEC | {"code": {"upload": "000000000000"}}
    verdict = alice.post(f"{JOBS}:validate", lost).json()
    assert not verdict["valid"]
    assert [(each["path"], each["code"]) for each in verdict["errors"]] == [
        ("code.upload", "upload_not_found")
    ]
    both = lost | {"resources": {"learners": 9, "cpus": 1}}
    for refused in (alice.post(f"{JOBS}:validate", both), alice.post(JOBS, both)):
        assert {each["path"] for each in refused.json()["errors"]} == {"code.upload", "resources.learners"}
    sent = alice("POST", "/tenants/vision-lab/uploads", UPLOAD, **UPLOAD_KIND).json()
    assert alice.post(f"{JOBS}:validate", SPEC | {"code": {"upload": sent["id"]}}).json()["valid"]


def test_a_clone_keeps_its_code_after_the_upload_is_gone_and_is_judged_so(alice: Api, people: People) -> None:
    sent = alice("POST", "/tenants/vision-lab/uploads", UPLOAD, **UPLOAD_KIND).json()
    job = submit(alice, code={"upload": sent["id"]})
    Upload.objects.all().delete()
    spec = SPEC | {"code": {"upload": sent["id"]}}
    assert not alice.post(f"{JOBS}:validate", spec).json()["valid"]
    assert alice.post(f"{JOBS}:validate?cloned_from={job['id']}", spec).json()["valid"]
    assert alice.post(f"/jobs/{job['id']}/clone", {}).status_code == 202
    foreign = factories.job(of=people.nlp, owner=people.bob).pk
    assert alice.post(f"{JOBS}:validate?cloned_from={foreign}", spec).status_code == 404
    Membership.objects.create(user=people.alice, tenant=people.nlp, role=Role.VIEWER)
    assert alice.post(f"{JOBS}:validate?cloned_from={foreign}", spec).status_code == 404


def test_an_edited_clone_is_judged_by_the_requirements_in_the_code_that_it_keeps(alice: Api) -> None:
    content = archives.pack([("train.py", "1"), ("conf/needs", "lower>=1")])
    form = {"file": SimpleUploadedFile("x.tar.gz", content)}
    sent = alice.client.post("/api/v1/tenants/vision-lab/uploads", form, headers=alice.headers).json()
    code = {"code": {"upload": sent["id"]}}
    job = submit(alice, **code, requirements={"file": "conf/needs"})
    validated = f"{JOBS}:validate?cloned_from={job['id']}"
    edited = SPEC | code | {"name": "edited", "requirements": {"file": "conf/needs"}}
    assert alice.post(validated, edited).json()["errors"] == []
    missing = alice.post(validated, edited | {"requirements": {"file": "conf/other"}}).json()
    assert [(each["path"], each["code"]) for each in missing["errors"]] == [
        ("requirements.file", "requirements_not_found")
    ]


def test_an_archive_that_climbs_out_is_refused_with_every_name_that_does(alice: Api) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("../x", "a.py", "/y"):
            archive.writestr(name, "1")
    answer = alice.client.post(
        "/api/v1/tenants/vision-lab/uploads",
        {"archive": SimpleUploadedFile("x.zip", packed.getvalue())},
        headers=alice.headers,
    )
    answered = answer.json()
    assert (answer.status_code, answered["code"]) == (400, "archive_unsafe_path")
    assert answered["detail"] == (
        "The archive was rejected: ../x: the name leaves its folder with .. (2 problems in total)."
    )
    assert [(error["path"], error["got"]) for error in answered["errors"]] == [
        ("archive", "../x"),
        ("archive", "/y"),
    ]


def test_what_is_no_archive_is_refused(alice: Api) -> None:
    answer = alice.client.post(
        "/api/v1/tenants/vision-lab/uploads",
        {"archive": SimpleUploadedFile("x.zip", b"PK\x03\x04nonsense")},
        headers=alice.headers,
    )
    assert answer.status_code == 400
    assert answer.json()["code"].startswith("archive_")


@pytest.mark.parametrize(
    ("parts", "path", "code"),
    [
        ({"archive": True, "note": "x"}, "note", "unknown_field"),
        ({"archive": True, "second": True}, "second", "unknown_field"),
        ({"archve": True}, "archve", "unknown_field"),
        ({"archve": True}, "archive", "required"),
        ({"archive": "no file"}, "archive", "invalid"),
        ({"archive": [True, True]}, "archive", "repeated"),
        ({"archive": True, "file": True}, "file", "unknown_field"),
        ({}, "archive", "required"),
    ],
)
def test_an_upload_s_form_has_one_part_and_no_other(alice: Api, parts: Any, path: str, code: str) -> None:
    def filled(part: Any) -> Any:
        if isinstance(part, list):
            return [filled(each) for each in part]
        return SimpleUploadedFile("x.tar.gz", archives.pack([])) if part is True else part

    form = {name: filled(part) for name, part in parts.items()}
    answer = alice.client.post("/api/v1/tenants/vision-lab/uploads", form, headers=alice.headers)
    assert answer.status_code == 400
    assert (path, code) in [(each["path"], each["code"]) for each in answer.json()["errors"]]
    assert not Upload.objects.exists()


def test_what_a_person_does_by_cookie_needs_the_csrf_token(people: People) -> None:
    from django.test import Client

    client = Client(enforce_csrf_checks=True)
    client.force_login(people.alice)
    assert client.get("/api/v1/me").status_code == 200
    refused = client.post(f"/api/v1{JOBS}", SPEC, content_type="application/json")
    assert (refused.status_code, refused.json()["code"]) == (403, "csrf_failed")
    assert Job.objects.count() == 0


def test_a_database_that_is_away_is_503_and_never_500(alice: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(**_: object) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr("portal.api.permissions.job_get", away)
    answer = alice.get("/jobs/000000000000")
    assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
    assert int(answer["Retry-After"]) > 0


def test_a_bug_is_500_without_its_secrets(alice: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("portal.api.permissions.job_get", broken)
    answer = alice.get("/jobs/000000000000")
    assert answer.status_code == 500
    assert "secret detail" not in answer.content.decode()
    assert answer.json()["request_id"] in answer.json()["detail"]


def test_the_receipt_of_a_halt_is_the_reason_of_its_halted_event(alice: Api, people: People) -> None:
    job = factories.job(owner=people.alice)
    receipt = {"step": 33, "steps_lost": 0, "seconds": 0.9, "checkpoint": 1, "parts": {}}
    JobEvent.objects.create(
        job=job, tenant=job.tenant, n=2, code="MOVED", from_state="STOPPING", to_state="HALTED",
        reason="halt_requested", message="Halted.", numbers=receipt,
    )  # fmt: skip
    events = alice.get(f"/jobs/{job.pk}/events").json()["items"]
    halted = next(event for event in events if event["code"] == "HALTED")
    no_check = {"title": None, "actor": None, "meter": None}
    assert halted["reason"] == {"code": "halt_requested", "message": "Halted.", "numbers": receipt} | no_check
    assert (events[0]["from_state"], halted["from_state"]) == (None, "STOPPING")


def test_a_stale_member_is_not_changed(dave: Api) -> None:
    path = "/tenants/vision-lab/members/carol"
    etag = next(
        m["etag"] for m in dave.get("/tenants/vision-lab/members").json()["items"] if m["username"] == "carol"
    )
    assert dave.patch(path, {"role": "researcher"}, If_Match=etag).status_code == 200
    stale = dave.patch(path, {"role": "viewer"}, If_Match=etag)
    assert (stale.status_code, stale.json()["code"]) == (412, "version_changed")


def audit_of(caller: Api, tenant: str) -> list[tuple[str, str, str]]:
    """What a manager reads of a platform admin's deeds, oldest first."""
    items = caller.get(f"/tenants/{tenant}/audit").json()["items"]
    return [(each["action"], each["target"], each["reason"]) for each in items if each["actor"] == "admin"][
        ::-1
    ]


def test_managers_of_every_tenant_shown_see_that_an_admin_listed_their_jobs(
    admin: Api, dave: Api, alice: Api, people: People
) -> None:
    submit(alice)
    factories.job(of=people.nlp, owner=people.bob)
    erin = Api(factories.member(people.nlp, "erin", Role.MANAGER))
    assert len(admin.get("/jobs", X_Access_Reason="asked by alice").json()["items"]) == 2
    admin.get("/jobs", X_Access_Reason="asked by alice")  # the same looking again is no entry of its own
    assert audit_of(dave, "vision-lab") == [("job.list", "vision-lab", "asked by alice")]
    assert audit_of(erin, "nlp-research") == [("job.list", "nlp-research", "asked by alice")]


def test_an_admins_list_leaves_nothing_where_nothing_of_the_tenant_was_shown(
    admin: Api, dave: Api, people: People
) -> None:
    factories.job(of=people.nlp, owner=people.bob)
    admin.get("/jobs")
    assert audit_of(dave, "vision-lab") == []
    assert admin.get("/jobs?tenant=vision-lab").json()["items"] == []  # but the read was recorded
    assert audit_of(dave, "vision-lab") == [("job.list", "vision-lab", "")]


def test_managers_see_what_an_admin_did_to_their_jobs(admin: Api, dave: Api, people: People) -> None:
    waiting = factories.job(owner=people.alice, state=State.PROCESSING).pk
    over = factories.job(owner=people.alice, state=State.COMPLETED).pk
    assert admin.patch(f"/jobs/{waiting}", {"tags": ["looked-at"]}).status_code == 200
    assert admin.patch(f"/jobs/{waiting}", {"tags": ["looked-at"]}).status_code == 200  # changes nothing
    assert admin.post(f"/jobs/{waiting}/halt", X_Access_Reason="asked by dave\x07").status_code == 202
    assert admin.post(f"/jobs/{waiting}/resume?access_reason=done").status_code == 202
    assert admin.post(f"/jobs/{waiting}/cancel").status_code == 202
    assert admin.post(f"/jobs/{waiting}/cancel").status_code == 202  # requested already
    assert admin.delete(f"/jobs/{over}").status_code == 204
    assert admin.post(f"/jobs/{over}/halt").status_code == 404
    assert audit_of(dave, "vision-lab") == [
        ("job.edit", waiting, ""),
        ("job.halt", waiting, "asked by dave"),
        ("job.resume", waiting, "done"),
        ("job.cancel", waiting, ""),
        ("job.delete", over, ""),
    ]


def test_what_a_member_or_an_admin_among_them_does_is_in_the_job_s_history_alone(
    dave: Api, admin: Api, people: People
) -> None:
    Membership.objects.create(user=people.admin, tenant=people.vision, role=Role.RESEARCHER)
    job = factories.job(owner=people.alice, state=State.PROCESSING).pk
    assert dave.patch(f"/jobs/{job}", {"tags": ["a"]}).status_code == 200
    assert admin.patch(f"/jobs/{job}", {"tags": ["b"]}).status_code == 200
    assert dave.post(f"/jobs/{job}/halt").status_code == 202
    assert admin.get("/jobs").status_code == 200
    assert dave.get("/tenants/vision-lab/audit").json()["items"] == []


def test_of_an_ended_job_name_and_tags_may_be_edited_and_the_refusal_of_a_priority_says_so(
    alice: Api, people: People
) -> None:
    job = factories.job(owner=people.alice, state=State.COMPLETED).pk
    assert alice.patch(f"/jobs/{job}", {"name": "kept", "tags": ["best"]}).status_code == 200
    refused = alice.patch(f"/jobs/{job}", {"priority": "low"})
    assert refused.status_code == 409
    assert "another priority, only another name or other tags. Actions possible" in refused.json()["detail"]


def test_an_attempt_says_which_image_it_ran(alice: Api, people: People) -> None:
    job = factories.job(owner=people.alice, of=people.vision, state=State.PROCESSING, attempt=2)
    digest = f"sha256:{'a' * 64}"
    job.attempts.filter(n=2).update(image="team/train:1", image_digests=[digest])
    found = alice.get(f"/jobs/{job.pk}/attempts").json()["items"]
    assert [(one["image"], one["image_digests"]) for one in found] == [("team/train:1", [digest]), ("", [])]


def test_an_attempt_says_how_many_steps_it_repeated_if_that_is_known(alice: Api, people: People) -> None:
    job = factories.job(owner=people.alice, of=people.vision, state=State.PROCESSING, attempt=3)
    runs = Learner.objects.filter(job=job)
    runs.filter(attempt=1).update(first_step=1, last_step=344, processing_at=timezone.now())
    runs.filter(attempt=2).update(first_step=301, last_step=400, processing_at=timezone.now())
    found = alice.get(f"/jobs/{job.pk}/attempts").json()["items"]
    assert [(one["n"], one["repeated_steps"]) for one in found] == [(3, None), (2, 44), (1, None)]
    runs.filter(attempt=3).update(first_step=402, processing_at=timezone.now())
    assert alice.get(f"/jobs/{job.pk}/attempts").json()["items"][0]["repeated_steps"] == 0
    runs.filter(attempt=2).update(last_step=None)
    assert alice.get(f"/jobs/{job.pk}/attempts").json()["items"][0]["repeated_steps"] is None


@pytest.mark.parametrize(("step", "repeated"), [(None, None), (0, 344)])
def test_whether_steps_were_repeated_that_are_counted_again_is_known_from_the_step_of_the_checkpoint_alone(
    alice: Api, people: People, step: int | None, repeated: int | None
) -> None:
    job = factories.job(owner=people.alice, of=people.vision, state=State.PROCESSING, attempt=2)
    job.attempts.filter(n=2).update(
        resume_from=factories.checkpoint(job, step=step, implicit=True, attempt=1)
    )
    Learner.objects.filter(job=job).update(first_step=1, last_step=344, processing_at=timezone.now())
    assert alice.get(f"/jobs/{job.pk}/attempts").json()["items"][0]["repeated_steps"] == repeated


@pytest.mark.parametrize(("first", "last", "repeated"), [(10, 60, 60), (1, 60, 60), (0, 60, 61)])
def test_an_attempt_from_scratch_repeats_the_steps_before_its_first_report_too(
    alice: Api, people: People, first: int, last: int, repeated: int
) -> None:
    """Many programs print every tenth step only."""
    job = factories.job(owner=people.alice, of=people.vision, state=State.PROCESSING, attempt=2)
    runs = Learner.objects.filter(job=job)
    runs.update(first_step=first, last_step=last, processing_at=timezone.now())
    assert alice.get(f"/jobs/{job.pk}/attempts").json()["items"][0]["repeated_steps"] == repeated


def test_the_number_of_queries_of_a_list_does_not_follow_the_number_of_jobs(
    people: People, alice: Api, client: Client
) -> None:
    """Of each job that waits for its tenant's quota, its numbers are for members; the role is read once."""
    client.force_login(people.alice)
    counts = []
    for _ in range(2):
        submit(alice)
        Job.objects.update(reason_code="QUOTA_GPUS", reason_numbers={"used": 8, "limit": 8})
        for get in (lambda: alice.get("/jobs"), lambda: client.get("/api/v1/jobs")):
            with CaptureQueriesContext(connection) as queries:
                assert get().status_code == 200
            counts.append(sum("tenants_membership" in each["sql"] for each in queries.captured_queries))
        submit(alice)
        submit(alice)
    assert counts[:2] == counts[2:]


def test_a_part_named_file_is_taken_for_the_archive(alice: Api) -> None:
    form = {"file": SimpleUploadedFile("x.tar.gz", archives.pack([("train.py", "1")]))}
    answer = alice.client.post("/api/v1/tenants/vision-lab/uploads", form, headers=alice.headers)
    assert answer.status_code == 201
    assert Upload.objects.get().pk == answer.json()["id"]
