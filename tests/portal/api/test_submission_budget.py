"""How many jobs a user may submit within a minute: far more than people do, and what is over it says so."""

from __future__ import annotations

import json
import re

import pytest
from django.conf import LazySettings
from django.conf import settings as django_settings
from django.test import Client

from jobs.models import Job, Upload
from portal.api.examples import SPEC
from portal.settings.env import Environment
from portal.submissions import UPLOADS_COST
from tests.architecture.rows import UPLOAD
from tests.jobs.conftest import People
from tests.markup import markup
from tests.portal.api.conftest import JOBS, Api

MOST = 2
SUBMITS_PER_S = re.compile(r'"submits_per_s": ([\d.]+)')


@pytest.fixture(autouse=True)
def _few_submissions(installation: None, settings: LazySettings) -> None:
    settings.LUTHIER_SUBMISSIONS_PER_MINUTE = MOST


def test_what_is_over_the_limit_is_refused_with_its_remedy_and_others_are_served(
    alice: Api, dave: Api
) -> None:
    for _ in range(MOST):
        assert alice.post(JOBS, SPEC).status_code == 201
    held = alice.post(JOBS, SPEC)
    assert (held.status_code, held["Retry-After"], held.json()["code"]) == (429, "60", "too_many_requests")
    said = held.json()["detail"]
    assert said.startswith(f"You have {MOST} jobs submitted within a minute"), said
    assert "LUTHIER_SUBMISSIONS_PER_MINUTE" in said
    assert dave.post(JOBS, SPEC).status_code == 201, "of the same tenant"
    assert Job.objects.filter(owner__username="alice").count() == MOST
    assert (
        alice.post(f"/jobs/{Job.objects.filter(owner__username='alice')[0].pk}/clone", {}).status_code == 429
    )
    assert alice.get("/me").status_code == 200


def test_by_default_it_is_below_what_a_small_server_takes() -> None:
    measured = json.loads((django_settings.BASE_DIR / "bench" / "results" / "submits.json").read_text())
    per_s = SUBMITS_PER_S.search(json.dumps(measured))
    assert per_s is not None
    assert Environment().luthier_submissions_per_minute < 60 * float(per_s[1])


def test_a_repeat_gets_its_first_answer_above_the_limit(alice: Api) -> None:
    first = alice.post(JOBS, SPEC, Idempotency_Key="one")
    for _ in range(MOST):
        alice.post(JOBS, SPEC)
    assert alice.post(JOBS, SPEC, Idempotency_Key="one").json() == first.json()
    assert alice.post(JOBS, SPEC, Idempotency_Key="two").status_code == 429


def test_validations_and_uploads_have_limits_of_their_own(alice: Api, settings: LazySettings) -> None:
    kind = {"Content-Type": "multipart/form-data; boundary=matrix"}
    settings.LUTHIER_SUBMISSIONS_PER_MINUTE = MOST * UPLOADS_COST
    for _ in range(MOST * UPLOADS_COST):
        assert alice.post(f"{JOBS}:validate", SPEC).status_code == 200
    for _ in range(MOST):
        assert alice.post("/tenants/vision-lab/uploads", UPLOAD, **kind).status_code == 201
    assert alice.post(f"{JOBS}:validate", SPEC).status_code == 429
    assert alice.post("/tenants/vision-lab/uploads", UPLOAD, **kind).status_code == 429
    assert Upload.objects.count() == MOST
    assert alice.post(JOBS, SPEC).status_code == 201


def test_the_page_counts_with_rest_and_keeps_what_was_written(alice: Api, people: People) -> None:
    for _ in range(MOST):
        alice.post(JOBS, SPEC)
    browser = Client()
    browser.force_login(people.alice)
    text = "# mine\n" + browser.get("/t/vision-lab/jobs/new").context["text"]
    page = browser.post("/t/vision-lab/jobs/new", {"spec": text})
    assert (page.status_code, page.context["text"]) == (422, text)
    assert "Try again in a minute" in re.sub(r"\s+", " ", markup(page))
