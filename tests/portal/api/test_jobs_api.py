"""Jobs by REST: listed in pages, changed, halted, cloned, deleted; a refusal says what is possible."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.models import Job, JobEvent, Learner
from jobs.states import State
from portal.api.examples import SPEC
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import JOBS, Api, submit

pytestmark = pytest.mark.usefixtures("installation")


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


@pytest.mark.parametrize(("saved_ns", "repeated"), [(None, None), (4_999_999, None), (5_000_000, 100)])
def test_repeated_steps_are_unknown_where_steps_fell_back_after_the_save(
    alice: Api, people: People, saved_ns: int | None, repeated: int | None
) -> None:
    job = factories.job(owner=people.alice, of=people.vision, state=State.PROCESSING, attempt=2)
    job.attempts.filter(n=2).update(
        resume_from=factories.checkpoint(job, step=500, attempt=1, saved_ns=saved_ns)
    )
    runs = Learner.objects.filter(job=job)
    runs.filter(attempt=1).update(first_step=1, last_step=600, fell_ms=5, processing_at=timezone.now())
    runs.filter(attempt=2).update(first_step=501, last_step=510, processing_at=timezone.now())
    assert alice.get(f"/jobs/{job.pk}/attempts").json()["items"][0]["repeated_steps"] == repeated


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
