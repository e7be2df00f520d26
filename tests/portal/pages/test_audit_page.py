"""The audit page: entries and limits that were set in one order of time, page by page, none twice and none left out."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.http import HttpResponse
from django.utils import timezone

from portal.pages import audit_log as page
from tenants import audit
from tenants.models import AuditEntry, QuotaChange, Tenant, User
from tenants.roles import Role
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
PATH = "/admin-console/audit"


def limit_set(lab: Tenant, admin: User, old: int, new: int, **fields: object) -> QuotaChange:
    return QuotaChange.objects.create(
        tenant=lab, actor=admin, gpu_type="cpu", old_limit=old, new_limit=new, reason=f"reason {new}",
        change_set=uuid.uuid4(), **fields,
    )  # fmt: skip


def test_a_changed_limit_is_listed_among_the_entries_with_who_what_and_why(
    signed_in: SignIn, lab: Tenant, admin: User
) -> None:
    client = signed_in(admin)
    change = {"limit:vision-lab:cpu": "1200", "if:vision-lab:cpu": "8"}
    lower = {
        "limit:vision-lab:cpu": "6",
        "if:vision-lab:cpu": "8",
        "action": "apply",
        "reason": "Two go back",
    }
    assert (
        client.post("/admin-console/quotas", change | {"action": "apply", "reason": "x"}).status_code == 422
    )
    client.post("/admin-console/tenants/vision-lab/state", {"state": "suspended", "reason": "unpaid"})
    client.post("/admin-console/quotas", lower)
    client.post("/admin-console/tenants/vision-lab/state", {"state": "active", "reason": "paid"})
    text = markup(client.get(PATH)).split("<tbody>")[1].split("</tbody>")[0]
    text = re.sub(r"<dl>.*?</dl>", "", text, flags=re.DOTALL)
    rows = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in text.split("</tr>")]
    entries = [re.sub(r"^\d+ \w+ \d+ [\d:]+ ", "", row) for row in rows if "tenant" in row or "quota" in row]
    assert entries[:3] == [
        "admin Reopened a tenant vision-lab vision-lab 127.0.0.1 paid",
        "admin Changed a quota cpu 8 to 6 vision-lab 127.0.0.1 Two go back",
        "admin Suspended a tenant vision-lab vision-lab 127.0.0.1 unpaid",
    ]


def test_on_a_phone_every_cell_of_an_entry_has_its_place(signed_in: SignIn, lab: Tenant, admin: User) -> None:
    """There a row is a grid: a cell without a place comes first, before what was done."""
    client = signed_in(admin)
    client.get("/admin-console/tenants/vision-lab")
    cells = re.findall(r"<td[^>]*>", markup(client.get(PATH)))
    assert len(cells) >= 7
    assert [cell for cell in cells if " phone-" not in cell and '"phone-' not in cell] == []


@pytest.mark.parametrize("per_page", [1, 2, 3, 7])
def test_the_pages_hold_each_row_once_in_order_also_where_many_share_an_instant(
    signed_in: SignIn, lab: Tenant, admin: User, monkeypatch: pytest.MonkeyPatch, per_page: int
) -> None:
    monkeypatch.setattr(page, "PER_PAGE", per_page)
    now = timezone.now()
    expected = []
    for minutes in (3, 2, 1):
        at = now - timedelta(minutes=minutes)
        for n in range(3):
            expected.append((at, 0, AuditEntry.objects.create(tenant=lab, action="job.read", at=at).pk))
            expected.append((at, 1, limit_set(lab, admin, n, n + 1, at=at).pk))
    client, address, seen = signed_in(admin), PATH, []
    while address:
        answer = client.get(address)
        shown = [one["row"] for one in answer.context["rows"]]
        assert len(shown) <= per_page
        seen += [(row.at, int(isinstance(row, QuotaChange)), row.pk) for row in shown]
        audit.record(actor=admin, action="job.list")  # what comes meanwhile moves nothing
        found = re.search(r'href="([?][^"]*before=[^"]*)"[^>]*>(?:(?!</a>).)*Older', markup(answer))
        address = PATH + found.group(1).replace("&amp;", "&") if found else ""
    assert seen == sorted(expected, reverse=True)


def test_a_search_finds_limits_by_type_person_tenant_and_action(
    signed_in: SignIn, lab: Tenant, admin: User
) -> None:
    limit_set(lab, admin, 8, 6)
    audit.record(actor=None, action="job.read", target="3f9k2m7qx4ta")
    client = signed_in(admin)
    for q, count in (("cpu", 1), ("admin", 1), ("vision-lab", 1), ("quota", 1), ("3f9k", 0), ("job.read", 0)):
        rows = client.get(PATH, {"q": q}).context["rows"]
        assert sum(isinstance(one["row"], QuotaChange) for one in rows) == count, q
    for nonsense in ("x", "2026-11-22T08:00:00~0~1", "2026-99-22T08:00:00+00:00~0~1", "~", "0~1~2"):
        assert len(client.get(PATH, {"before": nonsense}).context["rows"]) == 2


def test_managers_see_what_was_done_in_their_tenant_and_nothing_of_others(
    signed_in: SignIn, lab: Tenant, admin: User, dave: User, alice: User
) -> None:
    other = factories.tenant("nlp-research")
    limit_set(lab, admin, 8, 12)
    limit_set(other, admin, 8, 5)
    for tenant, target in ((lab, "zoe"), (other, "yan")):
        AuditEntry.objects.create(tenant=tenant, actor=admin, action="member.add", target=target)

    shown = markup(signed_in(dave).get("/t/vision-lab/audit"))

    assert "reason 12" in shown
    assert "zoe" in shown
    assert "reason 5" not in shown
    assert "yan" not in shown
    assert 'href="/t/vision-lab/audit"' in markup(signed_in(dave).get("/t/vision-lab/members"))
    assert 'href="/t/vision-lab/audit"' not in markup(signed_in(alice).get("/t/vision-lab/members"))
    refused = signed_in(alice).get("/t/vision-lab/audit")
    assert refused.status_code == 403


def listed(answer: HttpResponse) -> list[str]:
    return [row["row"].reason for row in answer.context["rows"]]


def test_days_narrow_both_kinds_of_rows_and_the_last_day_counts(
    signed_in: SignIn, lab: Tenant, admin: User
) -> None:
    client = signed_in(admin)
    for day, hour in ((9, 23), (10, 0), (11, 12), (12, 23), (13, 0)):
        at = datetime(2026, 11, day, hour, tzinfo=UTC)
        AuditEntry.objects.create(tenant=lab, action="job.read", reason=f"read {day}", at=at)
        limit_set(lab, admin, 1, day, at=at)
    both = ["reason 12", "read 12", "reason 11", "read 11", "reason 10", "read 10"]
    assert listed(client.get(PATH, {"from": "2026-11-10", "to": "2026-11-12"})) == both
    assert listed(client.get(PATH, {"from": "2026-11-13", "to": "2026-11-13"})) == ["reason 13", "read 13"]
    assert listed(client.get(PATH, {"to": "2026-11-09"})) == ["reason 9", "read 9"]
    answer = client.get(PATH, {"q": "job.read", "from": "2026-11-12", "to": "2026-11-12"})
    assert listed(answer) == ["read 12"]
    assert "No matches" in markup(client.get(PATH, {"to": "2020-01-01"}))


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"from": "tomorrow"}, "Give days such as 2026-11-25, or leave them empty."),
        ({"to": "2026-02-30"}, "Give days such as 2026-11-25, or leave them empty."),
        ({"from": "2026-11-12", "to": "2026-11-11"}, "The first day must not be after the last one."),
    ],
)
def test_a_wrong_day_is_named_and_narrows_nothing(
    signed_in: SignIn, lab: Tenant, admin: User, asked: dict[str, str], problem: str
) -> None:
    client = signed_in(admin)
    limit_set(lab, admin, 1, 2)
    answer = client.get(PATH, asked)
    assert answer.status_code == 422
    assert problem in markup(answer)
    assert 'aria-invalid="true"' in markup(answer)
    assert "reason 2" in listed(answer)


def test_an_entry_shows_what_was_kept_with_it(signed_in: SignIn, lab: Tenant, admin: User) -> None:
    AuditEntry.objects.create(
        tenant=lab,
        actor=admin,
        action="retention.change",
        request_id="a1b2c3",
        details={"from": {"days": 30}, "known_name": "<b>x</b>"},
    )
    text = markup(signed_in(admin).get(PATH))
    facts = re.search(r"<details class=.entry-facts.*?</details>", text, re.DOTALL)
    assert facts is not None
    words = " ".join(re.sub(r"<[^>]+>", " ", facts[0]).split())
    assert words == ("Details from {&quot;days&quot;: 30} known name &lt;b&gt;x&lt;/b&gt; request id a1b2c3")


def test_a_changed_limit_shows_what_its_entry_adds_and_terms_alone_are_no_limit(
    signed_in: SignIn, lab: Tenant, admin: User
) -> None:
    client = signed_in(admin)
    change = {
        "limit:vision-lab:cpu": "8",
        "if:vision-lab:cpu": "8",
        "term:vision-lab:cpu:gang_limit": "4",
        "was:vision-lab:cpu:gang_limit": "",
        "action": "apply",
        "reason": "Four each",
    }
    assert client.post("/admin-console/quotas", change).status_code == 302
    (row,) = [row for row in client.get(PATH).context["rows"] if row["action"] == "quota.set"]
    assert (row["limit"], row["target"], row["row"].address) == (None, "cpu", "127.0.0.1")
    assert [name for name, _ in row["facts"]] == ["gang limit"]


def test_the_managers_of_a_tenant_see_that_an_admin_gave_no_reason(
    signed_in: SignIn, lab: Tenant, admin: User
) -> None:
    factories.member(lab, "boss", Role.MANAGER)
    boss, client = signed_in(User.objects.get(username="boss")), signed_in(admin)
    owner = factories.member(lab, "owner")
    job, other = factories.job(owner=owner), factories.job(owner=owner)
    client.get(f"/t/{lab.slug}/jobs/{job.pk}")
    client.get(f"/t/{lab.slug}/jobs/{other.pk}", headers={"X-Access-Reason": "asked by alice"})
    audit.record(actor=owner, action="job.share", tenant_id=lab.pk, target=job.pk)
    text = markup(boss.get(f"/t/{lab.slug}/audit"))
    rows = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in text.split("</tr>")]

    def line(target: str, action: str) -> str:
        (found,) = [row for row in rows if target in row and action in row]
        return found

    assert "No reason given" in line(job.pk, "Viewed a job")
    assert "No reason given" not in line(other.pk, "Viewed a job")
    assert "asked by alice" in line(other.pk, "Viewed a job")
    assert "No reason given" not in line(job.pk, "Shared a job"), "a member needs none"
