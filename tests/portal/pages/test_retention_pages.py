"""Retention on pages: the form previews before it acts, and a job says what was removed instead of showing nothing."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs import retention
from tenants.models import RetentionRule, Tenant, User
from tests.jobs.ended import ended
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
PAGE = "/admin-console/tenants/vision-lab/retention"


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_a_rule_is_previewed_and_then_applied_with_a_reason(
    lab: Tenant, alice: User, root: User, signed_in: SignIn
) -> None:
    ended(alice, 100)
    client = signed_in(root)
    first = markup(client.get(PAGE))
    etag = re.search(r'name="etag" value="([^"]+)"', first)[1].replace("&quot;", '"')  # type: ignore[index]
    typed = {
        "logs-own": "yes",
        "logs-days": "90",
        "checkpoints-own": "yes",
        "checkpoints-size": "1Gi",
        "etag": etag,
    }
    shown = client.post(PAGE, typed | {"verb": "preview"})
    assert "1 line, 1000 B of 1 job," in words(markup(shown))
    assert not RetentionRule.objects.exists(), "a preview changes nothing"
    refused = client.post(PAGE, typed | {"verb": "apply"})
    assert (refused.status_code, RetentionRule.objects.count()) == (422, 0)
    assert "A reason is required" in markup(refused)
    done = client.post(PAGE, typed | {"verb": "apply", "reason": "The disk is full"}, follow=True)
    assert "Retention rules updated" in markup(done)
    assert set(RetentionRule.objects.values_list("kind", "days", "bytes")) == {
        ("logs", 90, None),
        ("checkpoints", None, 2**30),
    }
    assert 'value="1Gi"' in markup(done)
    assert "90 days" in words(markup(client.get("/admin-console/tenants/vision-lab")))
    stale = client.post(PAGE, {"verb": "apply", "reason": "again", "etag": etag})
    assert "This has changed since you read it" in markup(stale)
    assert RetentionRule.objects.count() == 2


def test_the_form_reads_the_jobs_for_a_preview_alone_and_only_of_limited_kinds(
    lab: Tenant, alice: User, root: User, signed_in: SignIn
) -> None:
    """For a year of jobs that takes seconds."""
    ended(alice, 100)
    RetentionRule.objects.create(tenant=lab, kind="events", days=30)
    client = signed_in(root)
    with CaptureQueriesContext(connection) as queries:
        assert "preview to see" in markup(client.get(PAGE))
    assert not [query for query in queries if "jobs_jobevent" in query["sql"]]
    with CaptureQueriesContext(connection) as queries:
        shown = words(markup(client.post(PAGE, {"logs-own": "yes", "logs-days": "90", "verb": "preview"})))
    assert "1 line, 1000 B of 1 job," in shown
    assert not [query for query in queries if "jobs_jobevent" in query["sql"]]


def test_everything_that_is_wrong_is_said_beside_its_field_and_nothing_is_lost(
    lab: Tenant, root: User, signed_in: SignIn
) -> None:
    typed = {
        "logs-own": "yes",
        "logs-days": "soon",
        "audit-own": "yes",
        "audit-days": "3",
        "results-own": "yes",
    }
    answer = signed_in(root).post(PAGE, typed | {"results-size": "big", "verb": "apply"})
    said = markup(answer)
    assert answer.status_code == 422
    for text in (
        "Enter a whole number",
        "Must be 30 to",
        "Enter a size such as 500Gi",
        "A reason is required",
    ):
        assert text in said, text
    assert 'value="soon"' in said
    assert 'value="big"' in said
    assert "correct the fields first" in said


@pytest.mark.parametrize("tab", ["", "logs", "metrics", "checkpoints", "events"])
def test_a_job_says_what_retention_removed(lab: Tenant, alice: User, signed_in: SignIn, tab: str) -> None:
    job = ended(alice, 100)
    for kind in ("logs", "metrics", "checkpoints", "results", "events"):
        RetentionRule.objects.create(tenant=lab, kind=kind, days=90)
    client = signed_in(alice)
    before = words(markup(client.get(f"/t/vision-lab/jobs/{job.pk}/{tab}".rstrip("/"))))
    assert "removed" not in before.lower()
    retention.enforce(float("inf"))
    said = words(markup(client.get(f"/t/vision-lab/jobs/{job.pk}/{tab}".rstrip("/"))))
    if tab == "events":
        assert "Events older than 90 days were removed: 1 event." in said
        return
    assert "Removed by retention on" in said
    if tab in ("", "logs"):
        assert "Logs older than 90 days were removed: 1000 B." in said
    if tab in ("", "metrics"):
        assert "Metrics older than 90 days were removed: 1 point." in said
