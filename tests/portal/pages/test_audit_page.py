"""The audit page: entries and limits that were set in one order of time, page by page, none twice and none left out."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.pages import audit_log as page
from tenants import audit
from tenants.models import AuditEntry, QuotaChange, Tenant, User
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
    rows = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in text.split("</tr>")]
    entries = [re.sub(r"^\d+ \w+ \d+ [\d:]+ ", "", row) for row in rows if "tenant" in row or "quota" in row]
    assert entries[:3] == [
        "admin Reopened a tenant vision-lab vision-lab 127.0.0.1 paid",
        "admin Changed a quota cpu 8 to 6 vision-lab — Two go back",
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
