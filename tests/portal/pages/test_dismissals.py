"""Failures that a user has dismissed need that user's attention no more: their own, counted everywhere, undone."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from jobs.models import Dismissal, Job
from jobs.states import Intent, State
from portal.pages import attention
from tenants.models import Tenant, User
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
OVERVIEW, FORM = "/t/vision-lab/", "/t/vision-lab/attention"


def failed(owner: User, *names: str) -> list[Job]:
    return [factories.job(owner=owner, name=name, state=State.FAILED) for name in names]


def found(client: Client, address: str = OVERVIEW) -> attention.Attention:
    judged: attention.Attention = client.get(address).context["attention"]
    return judged


def names(judged: attention.Attention) -> set[str]:
    return {one.job.name for one in judged.shown}


def test_a_dismissed_failure_leaves_the_list_and_its_count_and_is_named_below(
    alice: User, signed_in: SignIn
) -> None:
    one, _ = failed(alice, "one", "other")
    client = signed_in(alice)
    client.post(FORM, {"act": "dismiss", "job": one.pk})
    judged = found(client)
    assert (names(judged), judged.total, judged.summary) == ({"other"}, 1, "1 failed")
    assert ([job.name for job in judged.dismissed], judged.dismissed_count) == (["one"], 1)
    page = markup(client.get(OVERVIEW))
    assert re.search(r'count-badge red">\s*1\s*<', page)
    assert "1 failure of the last 24 hours dismissed by you" in " ".join(page.split())


def test_nothing_needs_attention_once_all_is_dismissed_and_what_is_not_shown_is_counted(
    alice: User, signed_in: SignIn
) -> None:
    failed(alice, *(f"failed-{n}" for n in range(attention.SHOWN + 3)))
    client = signed_in(alice)
    assert "Dismiss 11 failed" in markup(client.get(OVERVIEW))
    client.post(FORM, {"act": "dismiss", "until": found(client).seen_until})
    judged = found(client)
    assert (judged.total, judged.more, judged.dismissed_count) == (0, [], attention.SHOWN + 3)
    assert "Nothing needs attention." in markup(client.get(OVERVIEW))


def test_what_failed_after_the_page_was_read_is_not_dismissed_with_all(
    alice: User, signed_in: SignIn
) -> None:
    seen, unseen = failed(alice, "seen", "unseen")
    client = signed_in(alice)
    until = Job.objects.get(pk=seen.pk).finished_at
    assert until is not None
    Job.objects.filter(pk=unseen.pk).update(finished_at=until + timedelta(seconds=1))
    client.post(FORM, {"act": "dismiss", "until": until.isoformat()})
    assert names(found(client)) == {"unseen"}


def test_a_dismissal_hides_nothing_from_colleagues(alice: User, dave: User, signed_in: SignIn) -> None:
    (job,) = failed(alice, "ours")
    signed_in(dave).post(FORM, {"act": "dismiss", "job": job.pk})
    assert names(found(signed_in(dave))) == set()
    assert names(found(signed_in(alice))) == {"ours"}


def test_those_without_a_line_of_their_own_are_counted_and_restored_with_all(
    alice: User, signed_in: SignIn
) -> None:
    failed(alice, *(f"failed-{n}" for n in range(attention.SHOWN)))
    client = signed_in(alice)
    client.post(FORM, {"act": "dismiss"})
    assert "restored with all" not in markup(client.get(OVERVIEW))
    failed(alice, "one-more", "two-more")
    client.post(FORM, {"act": "dismiss"})
    page = client.get(OVERVIEW)
    assert "2 more that failed earlier are restored with all." in " ".join(markup(page).split())
    assert len(page.context["attention"].dismissed) == attention.SHOWN
    client.post(FORM, {"act": "restore"})
    assert found(client).failed == attention.SHOWN + 2


def test_an_undo_restores_what_was_dismissed_last_and_nothing_else(alice: User, signed_in: SignIn) -> None:
    first, *_ = failed(alice, "first", "second", "third")
    client = signed_in(alice)
    client.post(FORM, {"act": "dismiss", "job": first.pk})
    address = client.post(FORM, {"act": "dismiss"})["Location"]
    page = client.get(address)
    assert "2 failed jobs" in markup(page)
    client.post(FORM, {"act": "restore", "since": page.context["undo"].since})
    judged = found(client, address)
    assert (names(judged), [job.name for job in judged.dismissed]) == ({"second", "third"}, ["first"])
    assert client.get(address).context["undo"] is None


def test_the_last_dismissal_names_its_job_and_each_can_be_restored_later(
    alice: User, signed_in: SignIn
) -> None:
    one, other = failed(alice, "one", "other")
    client = signed_in(alice)
    address = client.post(FORM, {"act": "dismiss", "job": one.pk})["Location"]
    undo = client.get(address).context["undo"]
    assert (undo.name, undo.count) == ("one", 1)
    client.post(FORM, {"act": "dismiss", "job": other.pk})
    client.post(FORM, {"act": "restore", "job": one.pk})
    assert names(found(client)) == {"one"}
    client.post(FORM, {"act": "restore"})
    assert names(found(client)) == {"one", "other"}


def test_only_what_is_over_can_be_dismissed(alice: User, signed_in: SignIn) -> None:
    """What is still so would be forgotten: a halted job holds its checkpoint until it is resumed or canceled."""
    job = factories.job(owner=alice, name="forgotten", state=State.HALTED, intent=Intent.HALT)
    Job.objects.filter(pk=job.pk).update(stop_at=timezone.now() - timedelta(hours=25))
    client = signed_in(alice)
    assert not any(one.can_dismiss for one in found(client).shown)
    assert client.post(FORM, {"act": "dismiss", "job": job.pk}).status_code == 404
    assert (names(found(client)), Dismissal.objects.count()) == ({"forgotten"}, 0)


@pytest.mark.parametrize(
    "data", [{}, {"act": "purge"}, {"act": "dismiss", "until": "yesterday"}, {"act": "restore", "since": "x"}]
)
def test_what_no_form_sends_is_not_found(alice: User, signed_in: SignIn, data: dict[str, str]) -> None:
    assert signed_in(alice).post(FORM, data).status_code == 404


@pytest.mark.parametrize("since", ["x", "2026-13-40", "2026-01-01T00:00:00"])
def test_an_address_that_no_form_led_to_offers_no_undo(alice: User, signed_in: SignIn, since: str) -> None:
    (job,) = failed(alice, "one")
    client = signed_in(alice)
    client.post(FORM, {"act": "dismiss", "job": job.pk})
    assert client.get(f"{OVERVIEW}?dismissed={since}").context["undo"] is None


def test_dismissals_go_with_their_user(alice: User) -> None:
    (job,) = failed(alice, "one")
    guest = factories.member(Tenant.objects.get(slug="vision-lab"), "leaves")
    Dismissal.objects.create(user=guest, job=job, tenant=job.tenant)
    guest.delete()
    assert not Dismissal.objects.exists()
