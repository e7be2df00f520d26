"""The console edits all of the quota tree: drafted, previewed, applied as one set, and undone."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from jobs.models import ClusterNode, JobEvent
from jobs.states import State
from tenants.models import Quota, QuotaChange, Tenant, User
from tenants.services.tenants import tenant_change
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db

PAGE = "/admin-console/quotas"


@pytest.fixture
def other(lab: Tenant) -> Tenant:
    """Beside the lab: each has a limit of 8 of 16 CPUs."""
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=16)
    return factories.tenant("nlp-research", quotas={"cpu": 8})


@pytest.fixture
def drafted(lab: Tenant, other: Tenant) -> dict[str, str]:
    """A draft that changes something of every kind, as a form."""
    return {
        "limit:vision-lab:cpu": "6",
        "if:vision-lab:cpu": "8",
        "term:vision-lab:cpu:borrowing_limit": "4",
        "was:vision-lab:cpu:borrowing_limit": "",
        "term:vision-lab:cpu:weight": "2",
        "was:vision-lab:cpu:weight": "1",
        "term:vision-lab:cpu:gang_limit": "4",
        "was:vision-lab:cpu:gang_limit": "",
        "term:vision-lab::cohort": "research",
        "was:vision-lab::cohort": "",
        "term:nlp-research::cohort": "research",
        "was:nlp-research::cohort": "",
        "term:vision-lab::max_time_s": "12h",
        "was:vision-lab::max_time_s": "",
    }


def terms(lab: Tenant) -> tuple[object, ...]:
    lab = Tenant.objects.get(pk=lab.pk)
    quota = Quota.objects.get(tenant=lab, gpu_type="cpu")
    return (
        quota.limit,
        quota.borrowing_limit,
        quota.weight,
        quota.gang_limit,
        lab.cohort,
        lab.max_time_s,
        Tenant.objects.get(slug="nlp-research").cohort,
    )


def test_a_draft_of_everything_is_applied_as_one_set_and_undone_by_one(
    lab: Tenant, admin: User, drafted: dict[str, str], signed_in: SignIn
) -> None:
    client, before = signed_in(admin), terms(lab)
    waiting = factories.job(of=lab)
    review = client.post(PAGE, drafted | {"action": "review"})
    page = markup(review)
    assert review.status_code == 200
    assert terms(lab) == before
    assert "7 changes, not applied" in page
    for words in ("Borrows at most", "Longest time limit", "Cohort"):
        assert words in page
    applied = client.post(PAGE, drafted | {"action": "apply", "reason": "One grant"})
    assert applied.status_code == 302
    assert terms(lab) == (6, 4, 2, 4, "research", 43_200, "research")
    (change_set,) = set(QuotaChange.objects.values_list("change_set", flat=True))
    messages = list(
        JobEvent.objects.filter(job=waiting, code="QUOTA_CHANGED").values_list("message", flat=True)
    )
    assert any("Cohort changed from none to research" in message for message in messages)
    assert any("ax time changed from no limit to 12h" in message for message in messages)

    draft = client.get(f"{PAGE}?revert={change_set}")
    assert draft.context["matrix"].count == 7
    back = {
        f"limit:{cell.tenant}:{cell.kind}": cell.shown
        for row in draft.context["matrix"].rows
        for cell in row.cells
    } | {
        f"term:{term.form_name}": term.shown
        for row in draft.context["matrix"].rows
        for part in (row.terms, *(cell.terms for cell in row.cells))
        for term in part
    }
    assert client.post(PAGE, back | {"action": "apply", "reason": "Undo"}).status_code == 302
    assert terms(lab) == before
    history = client.get("/admin-console/quota-history")
    assert "Longest time limit: none needed" in " ".join(re.sub(r"<[^>]*>", " ", markup(history)).split())
    (first, *_) = history.context["sets"][::-1]
    assert first["fate"].word == "Reverted"


class Inputs(HTMLParser):
    """The fields of a page as its form posts them without scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        if tag == "input" and (name := of.get("name")):
            self.found[name] = of.get("value") or ""


def test_forty_tenants_with_five_types_are_reviewed_and_applied_without_scripts(
    lab: Tenant, admin: User, signed_in: SignIn
) -> None:
    """The form posts each field then, changed or not."""
    for kind in ("a100", "cpu", "h100", "h200", "v100"):
        ClusterNode.objects.create(name=f"node-{kind}", cluster="memory", slot_type=kind, slots=64)
    for number in range(39):
        factories.tenant(f"tenant-{number}")
    client = signed_in(admin)
    draft = Inputs(markup(client.get(PAGE))).found
    assert len([name for name in draft if name.startswith("term:")]) == 40 * (5 * 5 + 6)
    draft |= {"limit:vision-lab:cpu": "7", "reason": "Smaller"}
    review = client.post(PAGE, draft | {"action": "review"})
    assert "1 change, not applied" in markup(review)
    assert client.post(PAGE, draft | {"action": "apply"}).status_code == 302
    assert Quota.objects.get(tenant=lab, gpu_type="cpu").limit == 7


def test_a_cohort_in_a_draft_shows_who_starts_on_borrowed_devices(
    lab: Tenant, admin: User, drafted: dict[str, str], signed_in: SignIn
) -> None:
    factories.job(of=lab, state=State.PROCESSING, slots=8)
    waiting = factories.job(of=lab, slots=4, name="borrower")
    joined = {name: text for name, text in drafted.items() if "cohort" in name}
    review = signed_in(admin).post(PAGE, joined | {"action": "review"}).context["review"]
    assert [job.job for job in review.effects.starts] == [waiting.pk]


def test_everything_wrong_with_terms_is_said_at_once_and_nothing_typed_is_lost(
    lab: Tenant, admin: User, drafted: dict[str, str], signed_in: SignIn
) -> None:
    wrong = {
        "term:vision-lab:cpu:borrowing_limit": "many",
        "term:vision-lab:cpu:weight": "0",
        "term:vision-lab:cpu:gang_limit": "0",
        "term:vision-lab::cohort": "No such name",
        "term:vision-lab::max_time_s": "12",
    }
    answer = signed_in(admin).post(PAGE, drafted | wrong | {"action": "apply", "reason": ""})
    review, page = answer.context["review"], markup(answer)
    assert answer.status_code == 422
    assert {key[2] for key in review.terms} == {
        "borrowing_limit",
        "weight",
        "gang_limit",
        "cohort",
        "max_time_s",
    }
    assert review.reason
    for text in ("many", "No such name", 'value="12"', 'value="6"'):
        assert text in page
    assert QuotaChange.objects.count() == 0


def test_a_time_is_bounded_as_it_is_over_rest_and_shown_as_a_duration(
    lab: Tenant, admin: User, signed_in: SignIn
) -> None:
    client = signed_in(admin)
    field, was = "term:vision-lab::max_time_s", "was:vision-lab::max_time_s"
    assert client.post(PAGE, {field: "30d", was: "", "action": "apply", "reason": "r"}).status_code == 302
    assert Tenant.objects.get(pk=lab.pk).max_time_s == 30 * 86_400
    answer = client.post(PAGE, {field: "3651d", was: "30d", "action": "apply", "reason": "r"})
    assert answer.context["review"].terms == {("vision-lab", "", "max_time_s"): "Must be 1s to 3650d."}
    answer = client.post(PAGE, {field: "12h", was: "2d", "action": "apply", "reason": "r"})
    assert answer.context["review"].terms["vision-lab", "", "max_time_s"] == (
        "You saw 2d, but it is now 30d. Apply again to overwrite it."
    )
    assert client.post(PAGE, {field: "14d", was: "30d", "action": "apply", "reason": "r"}).status_code == 302
    change_set = QuotaChange.objects.latest("pk").change_set
    draft = client.get(f"{PAGE}?revert={change_set}")
    assert (draft.status_code, draft.context["matrix"].count) == (200, 1)


def test_a_term_that_another_admin_changed_meanwhile_is_not_overwritten(
    lab: Tenant, admin: User, drafted: dict[str, str], signed_in: SignIn
) -> None:
    Quota.objects.filter(tenant=lab).update(weight=3)
    Tenant.objects.filter(pk=lab.pk).update(cohort="other")
    answer = signed_in(admin).post(PAGE, drafted | {"action": "apply", "reason": "r"})
    review = answer.context["review"]
    assert answer.status_code == 422
    assert review.terms["vision-lab", "cpu", "weight"] == (
        "You saw 1, but it is now 3. Apply again to overwrite it."
    )
    assert "it is now other" in review.terms["vision-lab", "", "cohort"]


def test_what_was_changed_over_rest_is_in_the_history_and_supersedes_the_consoles_set(
    lab: Tenant, alice: User, admin: User, signed_in: SignIn
) -> None:
    client = signed_in(admin)
    draft = {"term:vision-lab::max_time_s": "1d", "was:vision-lab::max_time_s": ""}
    client.post(PAGE, draft | {"action": "apply", "reason": "Fair use"})
    tenant_change(user=admin, slug=lab.slug, changes={"max_time_s": 172_800, "name": "Lab"}, reason="Thesis")
    newest, first = client.get("/admin-console/quota-history").context["sets"]
    assert (first["fate"].word, first["fate"].by) == ("Superseded", newest["number"])
    assert (newest["rows"][0].reason, newest["fate"]) == ("Thesis", None)
    assert list(newest["terms"].values()) == [[("Longest time limit", "1d", "2d")]]
    tenant_change(user=admin, slug=lab.slug, changes={"name": "The lab"}, reason="r")
    assert QuotaChange.objects.count() == 2, "a name is no term"
    for page in ("/admin-console/", "/t/vision-lab/usage"):
        shown = " ".join(re.sub(r"<[^>]*>", " ", markup(client.get(page))).split())
        assert "all types Longest time limit: 1d 2d" in shown


def test_the_page_shows_who_lends_to_whom_and_each_tenant_its_own_part(
    lab: Tenant, other: Tenant, alice: User, admin: User, signed_in: SignIn
) -> None:
    assert "Nothing is borrowed now" in markup(signed_in(admin).get(PAGE))
    Tenant.objects.update(cohort="research")
    factories.job(of=lab, owner=alice, state=State.PROCESSING, slots=8)
    factories.job(of=lab, owner=alice, state=State.PROCESSING, slots=3)
    answer = signed_in(admin).get(PAGE)
    (loan,) = answer.context["loans"]
    assert (loan.lender, loan.borrower, loan.slots) == ("nlp-research", "vision-lab", 3)
    assert "Lent in all" in markup(answer)
    assert "3 borrowed" in markup(answer)
    assert "3 lent" in markup(answer)
    assert "3 over" not in markup(answer), "it is borrowed"
    client = signed_in(alice)
    assert "3 borrowed from cohort research" in markup(client.get("/t/vision-lab/usage"))
    assert "3 borrowed" in markup(client.get("/t/vision-lab/"))
    Quota.objects.filter(tenant=lab).update(limit=2)
    Quota.objects.filter(tenant=other).update(lending_limit=3)
    page = markup(client.get("/t/vision-lab/usage"))
    assert "3 borrowed from cohort research" in page
    assert "6 over the limit" in page, "of 11 in use, 2 are its own and 3 are borrowed"
    Quota.objects.filter(tenant=other).update(lending_limit=None)
    Quota.objects.filter(tenant=lab).update(limit=8)
    lender = factories.member(other, "bob")
    assert "3 lent to cohort research" in markup(signed_in(lender).get("/t/nlp-research/usage"))
