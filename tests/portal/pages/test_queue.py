"""The queue of a tenant, as page and API: the order of the next plan, other tenants' jobs counted and not named."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from gpu_scheduler.checks import check_of
from jobs.lifecycle import cycle
from jobs.models import Estimate, Job
from jobs.states import State
from tenants.models import Tenant, User
from tests import factories
from tests.jobs.lifecycle.world import two_nodes
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db


def waits(code: str, place: int, ahead: int, **fields: Any) -> Job:
    check = check_of(code)
    assert check
    numbers = {"position": place, "nodes_ahead": ahead, "slot_type": "cpu", "scope": check.scope.value}
    return factories.job(reason_code=code, reason_message="Waiting.", reason_numbers=numbers, **fields)


def queue(client: Client, query: str = "") -> dict[str, Any]:
    answer = client.get(f"/api/v1/tenants/vision-lab/queue{query}")
    assert answer.status_code == 200, answer.content
    found: dict[str, Any] = answer.json()
    return found


def test_the_queue_names_the_tenants_jobs_and_counts_the_others(
    alice: User,
    signed_in: SignIn,
) -> None:
    other = factories.tenant("nlp-research")
    foreign = waits("INSUFFICIENT_CAPACITY", 1, 0, of=other, slots=3, name="nightingale")
    waits("QUOTA_GPUS", 2, 1, of=other, name="nightingale")  # ahead of no other tenant
    first = waits("QUOTA_GPUS", 2, 1, owner=alice)
    second = waits("INSUFFICIENT_CAPACITY", 3, 1, owner=alice, learners=2)
    never = factories.job(
        owner=alice, reason_code="EXCEEDS_MAX_QUOTA", reason_message="Too large.", reason_numbers={}
    )
    client = signed_in(alice)
    items = queue(client, "?gpu_type=cpu")["items"]
    assert [(one["position"], one["id"], one["asks"]) for one in items] == [
        (1, None, 3),
        (2, first.pk, 1),
        (3, second.pk, 2),
        (None, never.pk, 1),
    ]
    assert items[1]["waits_for"] == "Waiting."
    assert items[0]["waits_for"] is items[0]["owner"] is items[0]["starts"] is None
    assert queue(client, "?gpu_type=a100") == {"items": [], "next": None}
    page = markup(client.get("/t/vision-lab/queue?gpu_type=cpu"))
    for text in (page, str(items)):
        assert "nightingale" not in text
        assert foreign.pk not in text
    assert page.count("A job of another tenant") == 1
    assert "1 job of other tenants" in " ".join(page.split())


def test_the_page_says_how_many_first_estimates_were_right(alice: User, signed_in: SignIn) -> None:
    """Of the tenant's own jobs of the last 30 days; without any it says nothing."""
    now, client = timezone.now(), signed_in(alice)
    assert "estimate-hits" not in markup(client.get("/t/vision-lab/queue"))
    other = factories.tenant("nlp-research")
    for tenant, days, minutes in ((None, 1, 5), (None, 1, 12), (None, 1, 40), (None, 31, 5), (other, 1, 5)):
        job = factories.job(of=tenant) if tenant else factories.job(owner=alice)
        at = now - timedelta(days=days)
        Estimate.objects.create(
            job=job,
            tenant=job.tenant,
            first_at=at,
            first_soonest=at + timedelta(minutes=6),
            first_latest=at + timedelta(minutes=20),
            started_at=at + timedelta(minutes=minutes),
        )
    page = " ".join(re.sub(r"<[^>]*>", " ", markup(client.get("/t/vision-lab/queue"))).split())
    assert (
        "2 of 3 jobs of Vision-Lab started by the later time of their first estimate, 1 by the earlier one"
        in page
    )


def test_the_queue_comes_in_pages(alice: User, signed_in: SignIn) -> None:
    for n in range(5):
        waits("INSUFFICIENT_CAPACITY", n + 1, n, owner=alice)
    client, seen, cursor = signed_in(alice), [], ""
    while True:
        page = queue(client, f"?page_size=2{cursor}")
        seen += [one["position"] for one in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert seen == [1, 2, 3, 4, 5]


def test_a_planned_queue_has_the_position_of_the_job_itself(alice: User, signed_in: SignIn) -> None:
    """The list, the card and the API read one number of one plan."""
    with two_nodes():
        lab = Tenant.objects.get(slug="vision-lab")
        other = factories.tenant("nlp-research", quotas={"cpu": 8})
        for n in range(3):
            factories.job(owner=alice, slots=4, learners=2, name=f"own-{n}")
            factories.job(of=other, slots=4, learners=2)
        cycle.run(request=True)
        waiting = Job.objects.filter(state=State.QUEUED, tenant=lab)
        client = signed_in(alice)
        items = queue(client, "?gpu_type=cpu")["items"]
        own = {one["id"]: one["position"] for one in items if one["id"]}
        assert len(own) == len(waiting) >= 2
        assert [one["position"] for one in items] == list(range(1, len(items) + 1))
        for job in waiting:
            rest = client.get(f"/api/v1/jobs/{job.pk}").json()
            assert rest["reason"]["numbers"]["position"] == own[job.pk]
            page = markup(client.get(f"/t/vision-lab/jobs/{job.pk}"))
            assert f'aria-current="true"><td class="number hide-on-phone">{own[job.pk]}</td>' in page
