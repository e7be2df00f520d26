"""The new-job page without scripts: templates, clone, refusal with everything kept, submission."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from jobs.models import Attempt, ClusterNode, Job, Progress, Runtime
from jobs.spec import to_yaml
from jobs.states import State
from tenants.models import Project, Tenant, User
from tests import factories
from tests.markup import markup

pytestmark = pytest.mark.django_db
SPEC = to_yaml(factories.spec(name="mnist-cnn", framework="plain"))


@pytest.fixture
def lab() -> Tenant:
    Runtime.objects.create(slug="plain", title="Python alone")
    return factories.tenant("vision-lab")


@pytest.fixture
def alice(lab: Tenant) -> User:
    return factories.member(lab, "alice")


@pytest.fixture
def browser(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


def test_the_page_begins_with_an_example_that_could_be_submitted(browser: Client) -> None:
    page = browser.get("/t/vision-lab/jobs/new")
    assert page.status_code == 200
    assert "apiVersion: luthier/v1" in page.context["text"]


def test_submitting_leads_to_the_new_job(browser: Client) -> None:
    answer = browser.post("/t/vision-lab/jobs/new", {"spec": SPEC})
    job = Job.objects.get()
    assert answer.status_code == 302
    assert answer["Location"] == f"/t/vision-lab/jobs/{job.pk}"
    assert (job.name, job.owner.username, job.spec_text) == ("mnist-cnn", "alice", SPEC)


def test_a_refused_spec_keeps_every_character_and_names_every_error(browser: Client) -> None:
    wrong = SPEC.replace("max_restarts", "max_restart") + "leraners: 2\n"
    answer = browser.post("/t/vision-lab/jobs/new", {"spec": wrong})
    assert answer.status_code == 422
    assert answer.context["text"] == wrong
    assert {error["path"] for error in answer.context["errors"]} >= {"max_restart", "leraners"}
    assert "Did you mean" in markup(answer)
    assert not Job.objects.exists()


def test_a_clone_starts_from_the_jobs_spec(browser: Client, lab: Tenant, alice: User) -> None:
    job = factories.job(of=lab, owner=alice, name="original")
    assert "original" in browser.get(f"/t/vision-lab/jobs/new?from={job.pk}").context["text"]


def test_a_submitted_clone_keeps_its_origin_and_code_that_was_not_changed(
    browser: Client, lab: Tenant, alice: User
) -> None:
    browser.post("/t/vision-lab/jobs/new", {"spec": SPEC})
    first = Job.objects.get()
    code = first.spec["code"]
    Job.objects.filter(pk=first.pk).update(spec=first.spec | {"code": {"upload": "upl_00000000000000000000"}})
    path = f"/t/vision-lab/jobs/new?from={first.pk}"
    text = browser.get(path).context["text"].replace("mnist-cnn", "mnist-again")
    assert browser.post(path, {"spec": text}).status_code == 302
    clone = Job.objects.get(name="mnist-again")
    assert (clone.cloned_from, clone.code) == (first, first.code)  # although the upload's id is long gone
    changed = to_yaml(clone.spec | {"code": code, "name": "other"})
    assert browser.post(path, {"spec": changed.replace("print", "pass; print")}).status_code == 302
    assert Job.objects.get(name="other").code != first.code


def test_a_refused_clone_is_still_a_clone(browser: Client, lab: Tenant, alice: User) -> None:
    job = factories.job(of=lab, owner=alice, name="original")
    page = browser.post(f"/t/vision-lab/jobs/new?from={job.pk}", {"spec": SPEC + "leraners: 2\n"})
    assert page.status_code == 422
    assert f'action="/t/vision-lab/jobs/new?from={job.pk}"' in markup(page)


def test_a_strangers_job_cannot_be_cloned(browser: Client) -> None:
    other = factories.tenant("nlp-research")
    job = factories.job(of=other, owner=factories.member(other, "bob"))
    assert browser.get(f"/t/vision-lab/jobs/new?from={job.pk}").status_code == 404


def test_a_viewer_may_not_open_it(client: Client, lab: Tenant) -> None:
    client.force_login(factories.member(lab, "carol", role="viewer"))
    assert client.get("/t/vision-lab/jobs/new").status_code == 403


ENDED = "It starts at step 1,200, where original ended"


@pytest.mark.parametrize(
    ("state", "reported", "saved", "said"),
    [
        (State.COMPLETED, 1200, 1200, True),
        (State.COMPLETED, 1200, 900, False),
        (State.HALTED, 1200, 1200, True),  # of 1,200: nothing is left of it either
        (State.HALTED, 900, 900, False),
    ],
)
def test_a_clone_from_the_last_step_says_that_it_would_end_at_once(
    browser: Client, lab: Tenant, alice: User, state: State, reported: int, saved: int, said: bool
) -> None:
    job = factories.job(of=lab, owner=alice, name="original", state=state)
    Progress.objects.filter(job=job).update(step=reported, total=1200)
    factories.checkpoint(job, step=saved)
    page = markup(browser.get(f"/t/vision-lab/jobs/new?from={job.pk}&checkpoint=1"))
    assert (ENDED in page) == said


@pytest.mark.parametrize("kind", ["cpu", "a100"])
def test_gpus_are_asked_for_only_where_the_cluster_has_some(browser: Client, kind: str) -> None:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type=kind, slots=8)
    page = markup(browser.get("/t/vision-lab/jobs/new"))
    assert ("GPUs each" in page) == ("GPU type" in page) == (kind == "a100")


def test_a_type_shows_what_is_free_and_a_clone_what_its_source_took(
    browser: Client, lab: Tenant, alice: User
) -> None:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="l4", slots=8)
    ClusterNode.objects.create(name="node-b", cluster="memory", slot_type="cpu", slots=4)
    for state in (State.PROCESSING, State.COMPLETED, State.FAILED):
        job = factories.job(
            of=lab,
            owner=alice,
            name="took",
            state=state,
            learners=2,
            slots=1,
            gpus=1,
            gpu_type="l4",
            running_s=5400,
        )
        page = markup(browser.get(f"/t/vision-lab/jobs/new?from={job.pk}"))
        assert ("took 1 h 30 min, 3.0 GPU-hours" in page) == (state == State.COMPLETED)
    held = Attempt.objects.filter(held=True)
    assert held.update(nodes=["node-a", "node-a"], slot_type="l4") == 1
    types = browser.get("/t/vision-lab/jobs/new").context["types"]
    assert [(each["name"], each["free"], each["slots"]) for each in types] == [
        ("any GPU", 6, 8), ("l4", 6, 8), ("cpu", 4, 4),
    ]  # fmt: skip


def choices(browser: Client, address: str = "") -> list[str]:
    page = markup(browser.get(f"/t/vision-lab/jobs/new{address}"))
    if 'id="f-project"' not in page:
        return []
    control = page.partition('id="f-project"')[2].partition("</select>")[0]
    return [" ".join(each.split()) for each in re.findall(r"<option([^<]*)</option>", control)]


def test_the_form_offers_the_tenants_projects_and_marks_the_default(browser: Client, lab: Tenant) -> None:
    Project.objects.create(tenant=factories.tenant("other"), slug="theirs", weight=1)
    assert choices(browser) == [], "no field in a tenant without projects"
    for slug in ("vision", "audio"):
        Project.objects.create(tenant=lab, slug=slug, weight=1)
    assert choices(browser) == ['value="">none', ">audio", ">vision"]
    Project.objects.create(tenant=lab, slug="default", weight=1)
    assert choices(browser) == [">audio", "selected>default", ">vision"]


def test_a_clone_keeps_its_project(browser: Client, lab: Tenant) -> None:
    Project.objects.create(tenant=lab, slug="vision", weight=1)
    browser.post("/t/vision-lab/jobs/new", {"spec": SPEC + "project: vision\n"})
    first = Job.objects.get()
    path = f"/t/vision-lab/jobs/new?from={first.pk}"
    text = browser.get(path).context["text"]
    assert "project: vision\n" in text
    assert browser.post(path, {"spec": text}).status_code == 302
    assert Job.objects.get(cloned_from=first).project == "vision"
