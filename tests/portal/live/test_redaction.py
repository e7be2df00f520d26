"""A guest of one shared job learns why it waits, and by no way how much its tenant may use: REST, page and socket."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.test import Client

from gpu_scheduler.checks import check_of
from gpu_scheduler.cycle import plan
from jobs import events
from jobs.models import ClusterNode, Job
from jobs.selectors.nodes import scheduler_nodes
from jobs.selectors.snapshot import snapshot
from jobs.services.sharing import SharePermission, job_share
from jobs.states import EventCode, Intent, State
from tenants.models import Quota, Tenant, User
from tests import factories

Open = Callable[..., Any]
LIMIT, USED = 7717, 7711
"""Numbers that nothing else on a page has."""
SECRET = re.compile(rf"{LIMIT}|{LIMIT:,}|{USED}|{USED:,}")


@pytest.fixture
def guest(alice: User) -> User:
    return factories.member(factories.tenant("elsewhere"), "guest")


def shared(job: Job, alice: User) -> Job:
    job_share(user=alice, job_id=job.pk, username="guest", permission=SharePermission.OPERATE)
    return job


def waiting(alice: User, code: str) -> Job:
    """A job that waits for its tenant, as the scheduler itself says it."""
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=9_000)
    slots = {"QUOTA_GPUS": 9, "EXCEEDS_MAX_QUOTA": 7_800, "QUOTA_JOBS": 1}[code]
    Quota.objects.update(limit=LIMIT, used=USED)
    if code == "QUOTA_JOBS":
        for _ in range(2):
            factories.job(owner=alice, state=State.PROCESSING)
        Tenant.objects.filter(slug="vision-lab").update(jobs_limit=2)
    job = factories.job(owner=alice, slots=slots)
    (wait,) = plan(snapshot(nodes=scheduler_nodes(), now=job.created_at)).waits
    assert wait.code == code
    numbers = dict(wait.numbers)
    Job.objects.filter(pk=job.pk).update(
        reason_code=wait.code, reason_message=wait.message, reason_numbers=numbers
    )
    changed = {"from": LIMIT, "to": USED}
    for code_, reason, shown in (
        (EventCode.WAITING, wait.code, numbers),
        (EventCode.QUOTA_CHANGED, "", changed),
    ):
        events.append(
            source="user",
            job_id=job.pk, tenant_id=job.tenant_id, code=code_, reason=reason, message=f"{wait.message} {LIMIT}",
            numbers=shown,
        )  # fmt: skip
    return shared(Job.objects.get(pk=job.pk), alice)


def redacted(code: str) -> str:
    check = check_of(code)
    assert check is not None
    return check.redacted


def browser(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def by_rest_and_page(user: User, job: Job) -> str:
    """All that they say of the job."""
    client, answers = browser(user), []
    for path in ("", "/events"):
        answers.append(client.get(f"/api/v1/jobs/{job.pk}{path}"))
        answers.append(client.get(f"/t/{job.tenant.slug}/jobs/{job.pk}{path}"))
    answers.append(client.get("/api/v1/jobs"))
    answers.append(client.get(f"/api/v1/jobs/{job.pk}/suggestions"))
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    answers.append(client.post(f"/api/v1/jobs/{job.pk}/resume", {}, content_type="application/json"))
    assert answers[-1].status_code == 202, "it waits already: a question that changes nothing"
    return " ".join(answer.content.decode() for answer in answers)


async def by_socket(user: User, job: Job, socket_of: Open) -> str:
    ch = f"job:{job.pk}"
    socket = await socket_of(user)
    await socket.sub(ch, after=0)
    shown = json.dumps(await socket.next(ch=ch, job=...))
    append = sync_to_async(events.append)
    await append(
        source="scheduler", job_id=job.pk, tenant_id=job.tenant_id, code=EventCode.WAITING, reason=job.reason_code,
        message=job.reason_message, numbers=job.reason_numbers,
    )  # fmt: skip
    return shown + json.dumps(await socket.next(ch=ch, job=...))


async def test_a_guest_does_not_read_what_a_start_says_of_the_tenants_limit(alice: User, guest: User) -> None:
    def read() -> tuple[str, str]:
        job = shared(factories.job(owner=alice), alice)
        events.append(
            source="scheduler", job_id=job.pk, tenant_id=job.tenant_id, code=EventCode.PLACED, message="On node-a",
            numbers={"why": "borrowed", "borrowed": USED, "slot_type": "cpu"},
        )  # fmt: skip
        return by_rest_and_page(guest, job), by_rest_and_page(alice, job)

    to_guest, to_alice = await sync_to_async(read)()
    assert "On node-a" in to_guest
    assert not SECRET.search(to_guest)
    assert "borrowed" not in to_guest
    assert "lent by other tenants" not in to_guest
    assert "lent by other tenants" in to_alice
    assert '"why":"borrowed"' in to_alice


@pytest.mark.parametrize("code", ["QUOTA_GPUS", "EXCEEDS_MAX_QUOTA", "QUOTA_JOBS"])
async def test_a_guest_reads_why_it_waits_without_the_tenants_numbers(
    alice: User, guest: User, socket_of: Open, code: str
) -> None:
    job = await sync_to_async(waiting)(alice, code)
    plain = redacted(code)
    shown = await sync_to_async(by_rest_and_page)(guest, job)
    frames = await by_socket(guest, job, socket_of)
    for text in (shown, frames):
        assert plain in text.replace("&#x27;", "'")
        assert not (hit := SECRET.search(text)), text[hit.start() - 200 : hit.end() + 60]
        assert not re.search(r'"jobs_(limit|used)"|runs 2 of 2', text)
    assert SECRET.search(await sync_to_async(by_rest_and_page)(alice, job)), "members see everything"
    assert SECRET.search(await by_socket(alice, job, socket_of))


async def test_a_guests_search_finds_no_hidden_text(alice: User, guest: User) -> None:
    def found() -> list[str]:
        job = waiting(alice, "QUOTA_GPUS")
        address = f"/t/{job.tenant.slug}/jobs/{job.pk}/events?q={LIMIT}"
        pages = [browser(user).get(address) for user in (guest, alice)]
        return [str(sum(kind[2] for kind in page.context["kinds"])) for page in pages]

    to_guest, to_alice = await sync_to_async(found)()
    assert to_guest == "0"
    assert to_alice != "0"


async def test_the_resume_card_hides_the_tenants_numbers_from_guests(alice: User, guest: User) -> None:
    def cards() -> list[str]:
        ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=9_000)
        Quota.objects.update(limit=LIMIT, used=USED)
        job = shared(factories.job(owner=alice, state=State.HALTED, intent=Intent.HALT, slots=9), alice)
        address = f"/t/{job.tenant.slug}/jobs/{job.pk}"
        return [browser(user).get(address).content.decode() for user in (guest, alice)]

    to_guest, to_alice = await sync_to_async(cards)()
    assert "If you resume now" in to_guest
    assert redacted("QUOTA_GPUS") in to_guest
    assert not SECRET.search(to_guest)
    assert SECRET.search(to_alice)
