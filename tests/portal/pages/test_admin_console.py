"""The admin console: hidden from others; tenants, limits as a draft, their effects, all or none, and the way back."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import ClusterNode, PeriodicTask, PlatformStop
from jobs.services.quotas import quotas_change
from jobs.states import State
from portal.health import checks
from portal.health.checks import HealthCheck
from portal.pages.admin import quota_history, system
from portal.pages.admin.quota_history import PER_PAGE, Fate
from tenants import audit_chain
from tenants.models import AuditEntry, Membership, Quota, QuotaChange, Tenant, User
from tenants.services.quotas import Change
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
HISTORY = "/admin-console/quota-history"
PLACES = [
    "",
    "system",
    "tenants",
    "tenants/new",
    "tenants/vision-lab",
    "quotas",
    "quota-history",
    "users",
    "new-user",
    "users/admin",
    "audit",
]


@pytest.fixture(autouse=True)
def _nodes() -> None:
    for name in ("node-a", "node-b"):
        ClusterNode.objects.create(name=name, cluster="memory", slot_type="cpu", slots=8)


@pytest.fixture(autouse=True)
def _parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No health check runs in a thread that outlives its test."""
    monkeypatch.setattr(system, "run_checks", lambda: [HealthCheck("database", "PostgreSQL 17.2")])


@pytest.mark.parametrize("place", PLACES)
def test_the_console_exists_for_platform_admins_only(
    signed_in: SignIn, lab: Tenant, dave: User, admin: User, place: str
) -> None:
    assert signed_in(admin).get(f"/admin-console/{place}").status_code == 200
    assert signed_in(dave).get(f"/admin-console/{place}").status_code == 404


def test_a_draft_says_what_it_would_start_and_changes_nothing(
    signed_in: SignIn, lab: Tenant, alice: User, admin: User
) -> None:
    Quota.objects.filter(tenant=lab).update(limit=0)
    factories.job(of=lab, owner=alice, state=State.QUEUED, name="patient", slots=4)
    draft = {"limit:vision-lab:cpu": "8", "if:vision-lab:cpu": "0", "action": "review"}
    page = markup(signed_in(admin).post("/admin-console/quotas", draft))
    assert "patient of vision-lab starts" in page
    assert Quota.objects.get(tenant=lab).limit == 0


def test_a_draft_below_the_use_says_by_how_much(
    signed_in: SignIn, lab: Tenant, alice: User, admin: User
) -> None:
    factories.job(of=lab, owner=alice, state=State.PROCESSING, slots=6)
    draft = {"limit:vision-lab:cpu": "4", "if:vision-lab:cpu": "8", "action": "review"}
    assert "vision-lab is 2 over its new limit" in markup(
        signed_in(admin).post("/admin-console/quotas", draft)
    )


def test_several_limits_are_applied_as_one_set_and_a_revert_drafts_the_old_ones(
    signed_in: SignIn, lab: Tenant, admin: User
) -> None:
    factories.tenant("nlp-research")
    client = signed_in(admin)
    limits = {f"limit:{slug}:cpu": "6" for slug in ("vision-lab", "nlp-research")}
    seen = {f"if:{slug}:cpu": "8" for slug in ("vision-lab", "nlp-research")}
    client.post("/admin-console/quotas", limits | seen | {"action": "apply", "reason": "fair"})
    assert set(Quota.objects.values_list("limit", flat=True)) == {6}
    sets = set(QuotaChange.objects.values_list("change_set", flat=True))
    assert len(sets) == 1
    assert "fair" in markup(client.get("/admin-console/quota-history"))
    (change,) = client.get("/admin-console/").context["changes"]
    assert (change[0].reason, change[1]) == ("fair", 1)
    draft = client.get(f"/admin-console/quotas?revert={sets.pop()}")
    assert sorted(cell.limit for cell in draft.context["matrix"].changes) == [8, 8]
    assert draft.context["reason"] == "Revert: fair"
    assert set(Quota.objects.values_list("limit", flat=True)) == {6}


def test_a_revert_points_out_what_has_changed_since(signed_in: SignIn, lab: Tenant, admin: User) -> None:
    """The newer value would have been overwritten without a word."""
    client = signed_in(admin)
    changes = [Change("vision-lab", "cpu", 6, terms={"weight": 2})]
    quotas_change(user=admin, changes=changes, reason="fair")
    change_set = QuotaChange.objects.values_list("change_set", flat=True).get()
    page = markup(client.get(f"/admin-console/quotas?revert={change_set}"))
    assert "but the limit is now" not in page
    quotas_change(user=admin, changes=[Change("vision-lab", "cpu", 10, terms={"weight": 3})], reason="newer")
    answer = client.get(f"/admin-console/quotas?revert={change_set}")
    page = markup(answer)
    assert "The change to revert left 6, but the limit is now 10. Apply it to overwrite that." in page
    assert "The change to revert left 2, but it is now 3. Apply it to overwrite that." in page
    assert [(cell.before, cell.limit) for cell in answer.context["matrix"].changes] == [(10, 8)]


def test_a_tenants_live_jobs_lead_to_all_of_them_where_there_are_some(
    signed_in: SignIn, lab: Tenant, alice: User, admin: User
) -> None:
    to_all = "/t/vision-lab/jobs?state=active"
    assert to_all not in markup(signed_in(admin).get("/admin-console/tenants/vision-lab"))
    factories.job(of=lab, owner=alice)
    assert to_all in markup(signed_in(admin).get("/admin-console/tenants/vision-lab"))


def test_the_history_says_what_became_of_each_set_and_is_narrowed_and_exported(
    signed_in: SignIn, lab: Tenant, admin: User
) -> None:
    other = factories.tenant("nlp-research")
    eve = factories.user("eve", is_superuser=True)
    client = signed_in(admin)

    def set_limits(by: User, reason: str, **limits: int) -> None:
        named = {"lab": lab, "other": other}
        wanted = [Change(named[name].slug, "cpu", limit) for name, limit in limits.items()]
        quotas_change(user=by, changes=wanted, reason=reason)

    QuotaChange.objects.create(
        tenant=lab, gpu_type="a100", old_limit=0, new_limit=1, actor=eve, reason="old",
        change_set=uuid.uuid4(), at=timezone.now() - timedelta(days=31),
    )  # fmt: skip
    factories.job(of=lab, state=State.PROCESSING, slots=7)
    set_limits(admin, "both", lab=6, other=6)
    set_limits(eve, "back", lab=8, other=8)
    set_limits(admin, "=cmd()", lab=5, other=4)
    set_limits(eve, "one", lab=6)
    fates = {each["rows"][0].reason: each for each in client.get(HISTORY).context["sets"]}
    assert fates["both"]["fate"] == Fate("Reverted", fates["back"]["number"])
    assert fates["back"]["fate"] == Fate("Superseded", fates["=cmd()"]["number"])
    assert fates["=cmd()"]["fate"] is fates["one"]["fate"] is None
    page = markup(client.get(HISTORY))
    assert f"Reverted by #{fates['back']['number']}" in page
    assert f'href="{HISTORY}?set={fates["back"]["number"]}#set-{fates["back"]["number"]}"' in page
    assert page.count("?revert=") == 3
    (part,) = client.get(f"{HISTORY}?tenant=nlp-research&who=eve").context["sets"]
    assert (part["rows"][0].reason, part["fate"]) == ("back", fates["back"]["fate"])
    assert len(client.get(HISTORY).context["sets"]) == 5
    assert len(client.get(f"{HISTORY}?days=30").context["sets"]) == 4
    lines = client.get(f"{HISTORY}.csv?who=admin&days=30").getvalue().decode().splitlines()
    assert [line.split(",")[2:] for line in lines[1:]] == [
        ["admin", "nlp-research", "cpu", "8", "4", "0", "'=cmd()", ""],
        ["admin", "vision-lab", "cpu", "8", "5", "7", "'=cmd()", ""],
        ["admin", "nlp-research", "cpu", "8", "6", "0", "both", ""],
        ["admin", "vision-lab", "cpu", "8", "6", "7", "both", ""],
    ]
    assert "7 of 6</td>" in page
    old = client.get(f"{HISTORY}.csv?type=a100").getvalue().decode().splitlines()[1]
    assert old.endswith(",eve,vision-lab,a100,0,1,,old,")  # from before this was kept


def test_the_export_of_a_long_history_is_bounded_and_says_so(
    signed_in: SignIn, lab: Tenant, admin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_history, "CSV_LINES", 5)
    monkeypatch.setattr(quota_history, "CSV_BATCH", 2)
    client = signed_in(admin)
    for n in range(1, 6):
        quotas_change(user=admin, changes=[Change(lab.slug, "cpu", n)], reason=f"to {n}")
    whole = client.get(f"{HISTORY}.csv").getvalue().decode().splitlines()[1:]
    assert [line.split(",")[6] for line in whole] == ["5", "4", "3", "2", "1"]
    quotas_change(user=admin, changes=[Change(lab.slug, "cpu", 6)], reason="one more")
    *newest, last = client.get(f"{HISTORY}.csv").getvalue().decode().splitlines()[1:]
    assert [line.split(",")[6] for line in newest] == ["6", "5", "4", "3", "2"]
    assert last == ",,,,,,,,Only the newest 5 changes: narrow the period for older ones."


def test_a_set_on_another_page_is_linked(signed_in: SignIn, lab: Tenant, admin: User) -> None:
    client = signed_in(admin)
    for n in range(3 * PER_PAGE):
        QuotaChange.objects.create(
            tenant=lab,
            gpu_type="cpu",
            old_limit=n,
            new_limit=n + 1,
            reason="why",
            actor=admin,
            change_set=uuid.uuid4(),
        )
    numbers = sorted(QuotaChange.objects.values_list("pk", flat=True))
    for number in (numbers[0], numbers[PER_PAGE - 1], numbers[PER_PAGE], numbers[-1]):
        page = markup(client.get(f"{HISTORY}?set={number}"))
        assert f'id="set-{number}"' in page
        assert "set=" not in "".join(re.findall(r'href="(\?[^"]*)"', page)), (
            "its neighbors are pages, not the set"
        )
    assert client.get(f"{HISTORY}?set=nothing").status_code == 200


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"limit:vision-lab:cpu": "6", "if:vision-lab:cpu": "5", "reason": "x"},
            "You saw 5, but the limit is now 8",
        ),
        (
            {"limit:vision-lab:cpu": "6", "if:vision-lab:cpu": "8", "reason": " "},
            "A reason is required; tenants see it",
        ),
        ({"limit:vision-lab:cpu": "-1", "reason": "x"}, "is no limit; give a whole number"),
        ({"limit:vision-lab:cpu": "1e3", "reason": "x"}, "is no limit; give a whole number"),
        (
            {"limit:vision-lab:cpu": "900", "if:vision-lab:cpu": "8", "reason": "x"},
            "at most 20 may be allocated",
        ),
        ({"limit:vision-lab:cpu": "8", "if:vision-lab:cpu": "8", "reason": "x"}, "Change at least one limit"),
    ],
)
def test_a_bad_draft_is_refused_whole_and_says_why(
    signed_in: SignIn, lab: Tenant, admin: User, fields: dict[str, str], text: str
) -> None:
    answer = signed_in(admin).post("/admin-console/quotas", fields | {"action": "apply"})
    assert answer.status_code == 422
    assert text in markup(answer)
    assert Quota.objects.get(tenant=lab).limit == 8


def test_everything_wrong_is_said_at_once_each_beside_its_field_and_the_draft_is_kept(
    signed_in: SignIn, lab: Tenant, admin: User
) -> None:
    factories.tenant("nlp-research", quotas={"cpu": 8, "a100": 2})
    draft = {
        "limit:vision-lab:cpu": "900",
        "if:vision-lab:cpu": "8",
        "limit:nlp-research:cpu": "6",
        "if:nlp-research:cpu": "5",
        "limit:nlp-research:a100": "many",
        "reason": "  ",
        "action": "apply",
    }
    answer = signed_in(admin).post("/admin-console/quotas", draft)
    review = answer.context["review"]
    assert set(review.limits) == {("vision-lab", "cpu"), ("nlp-research", "cpu"), ("nlp-research", "a100")}
    assert "the over-commit limit is 125%" in review.limits["vision-lab", "cpu"]
    assert review.reason
    page = markup(answer)
    for name, shown in (("vision-lab-cpu", "900"), ("nlp-research-cpu", "6"), ("nlp-research-a100", "many")):
        field = page.split(f'id="limit-{name}"')[1].split(">")[0]
        assert f'value="{shown}"' in field
        assert 'aria-invalid="true"' in field
        assert f'id="problem-limit-{name}"' in page
    assert 'aria-invalid="true"' in page.split('id="reason"')[1].split(">")[0]
    assert not QuotaChange.objects.exists()


def test_a_review_asks_for_no_reason_yet(signed_in: SignIn, lab: Tenant, admin: User) -> None:
    draft = {"limit:vision-lab:cpu": "6", "if:vision-lab:cpu": "8", "reason": "", "action": "review"}
    answer = signed_in(admin).post("/admin-console/quotas", draft)
    assert answer.status_code == 200
    assert answer.context["review"].effects is not None


def test_the_sums_steps_end_at_what_the_limits_are(signed_in: SignIn, lab: Tenant, admin: User) -> None:
    client = signed_in(admin)
    for limit, before in ((12, 8), (4, 12)):
        change = {"limit:vision-lab:cpu": str(limit), "if:vision-lab:cpu": str(before)}
        client.post("/admin-console/quotas", change | {"action": "apply", "reason": "step"})
    (drawn,) = client.get("/admin-console/quota-history").context["steps"]
    top = 1.1 * 16
    heights = [float(part.split("H")[0]) for part in drawn["steps"].line.split("V")[1:]]
    assert heights == [pytest.approx(100 - 100 * limit / top, abs=0.01) for limit in (12, 4)]
    assert float(drawn["steps"].line.split()[1].split("H")[0]) == pytest.approx(100 - 800 / top, abs=0.01)
    assert drawn["column"].total == 4


def test_a_change_set_is_one_step_of_the_sum(signed_in: SignIn, lab: Tenant, admin: User) -> None:
    other = factories.tenant("speech-lab")
    client = signed_in(admin)
    moved = {"limit:vision-lab:cpu": "3", "if:vision-lab:cpu": "8", f"limit:{other.slug}:cpu": "7"}
    seen = {f"if:{other.slug}:cpu": str(other.quotas.get(gpu_type="cpu").limit)}
    client.post("/admin-console/quotas", moved | seen | {"action": "apply", "reason": "move"})
    assert QuotaChange.objects.count() == 2
    (drawn,) = client.get("/admin-console/quota-history").context["steps"]
    assert drawn["steps"].line.count("V") == 1


def test_who_holds_the_cluster_adds_up(signed_in: SignIn, lab: Tenant, alice: User, admin: User) -> None:
    factories.job(of=lab, owner=alice, state=State.PROCESSING, slots=3)
    (held,) = signed_in(admin).get("/admin-console/tenants").context["held"]
    assert held["used"] == 3
    assert [bar.width for bar in held["meter"].bars] == ["18.75", "81.25"]


def test_a_review_renders_the_draft_and_every_cell_as_a_part(
    signed_in: SignIn, lab: Tenant, admin: User
) -> None:
    draft = {"limit:vision-lab:cpu": "4", "if:vision-lab:cpu": "8", "action": "review"}
    text = markup(signed_in(admin).post("/admin-console/quotas", draft))
    for part in ("review", "cell-vision-lab-cpu", "sum-cpu"):
        assert re.search(rf'id="{part}"[^>]* data-part', text)
    assert "1 change, not applied" in text


def test_an_unknown_change_set_is_missing(signed_in: SignIn, admin: User) -> None:
    for text in ("nonsense", "0f1f7b3e-6a53-4b7a-9a0e-6b8a2b8a2f11"):
        assert signed_in(admin).get(f"/admin-console/quotas?revert={text}").status_code == 404


def test_a_tenant_is_made_with_limits_and_manager_or_not_at_all(signed_in: SignIn, admin: User) -> None:
    client = signed_in(admin)
    form = {
        "name": "Genomics",
        "slug": "genomics",
        "manager": "nobody",
        "reason": "new group",
        "limit:new:cpu": "4",
    }
    refused = client.post("/admin-console/tenants/new", form)
    assert refused.status_code == 422
    assert "No such user" in markup(refused)
    assert 'value="Genomics"' in markup(refused)
    assert not Tenant.objects.filter(slug="genomics").exists()
    factories.user("trent")
    client.post("/admin-console/tenants/new", form | {"manager": "trent"})
    made = Tenant.objects.get(slug="genomics")
    assert made.quotas.get().limit == 4
    assert Membership.objects.get(tenant=made).role == "manager"


def test_a_new_tenants_form_says_all_that_is_wrong_beside_each_field(
    signed_in: SignIn, lab: Tenant, admin: User
) -> None:
    form = {"name": "", "slug": "vision-lab", "manager": "nobody", "reason": "", "limit:new:cpu": "900"}
    answer = signed_in(admin).post("/admin-console/tenants/new", form)
    assert answer.status_code == 422
    assert set(answer.context["problems"]) == {"name", "slug", "manager", "reason", "limit-cpu"}
    assert "over-commit limit" in answer.context["problems"]["limit-cpu"]
    assert 'value="900"' in markup(answer)
    assert list(Tenant.objects.values_list("slug", flat=True)) == ["vision-lab"]


def test_suspending_takes_a_reason_and_is_audited(signed_in: SignIn, lab: Tenant, admin: User) -> None:
    client = signed_in(admin)
    client.post("/admin-console/tenants/vision-lab/state", {"state": "suspended", "reason": ""})
    lab.refresh_from_db()
    assert lab.state == "active"
    page = markup(client.get("/admin-console/tenants/vision-lab"))
    assert "Keep it open</button>" in page
    assert '<button class="button danger">Suspend' in page
    form = {"state": "suspended", "reason": "unpaid"}
    answer = markup(client.post("/admin-console/tenants/vision-lab/state", form, follow=True))
    assert '<p class="banner warning"' in answer
    lab.refresh_from_db()
    assert lab.state == "suspended"
    assert AuditEntry.objects.filter(action="tenant.suspend", reason="unpaid").exists()
    page = markup(client.get("/admin-console/tenants/vision-lab"))
    assert "Reopen submission" in page
    assert "Keep it suspended</button>" in page
    assert '<button class="button primary">Reopen' in page, "the harmless way is not red"


@pytest.mark.parametrize(
    ("running", "queued", "text"),
    [
        (0, 0, "No job is running and none is queued. Jobs can"),
        (1, 0, "<b>1 running job continues</b>. Jobs can"),
        (2, 1, "<b>2 running jobs continue</b>, 1 queued job stays queued. Jobs can"),
    ],
)
def test_suspending_says_what_goes_on(
    signed_in: SignIn, lab: Tenant, alice: User, admin: User, running: int, queued: int, text: str
) -> None:
    for state, count in ((State.PROCESSING, running), (State.QUEUED, queued)):
        for _ in range(count):
            factories.job(of=lab, owner=alice, state=state, slots=1)
    assert text in markup(signed_in(admin).get("/admin-console/tenants/vision-lab"))


def test_reading_a_tenant_is_recorded_once(signed_in: SignIn, lab: Tenant, admin: User) -> None:
    client = signed_in(admin)
    for _ in range(3):
        client.get("/admin-console/tenants/vision-lab")
    assert AuditEntry.objects.filter(action="tenant.read").count() == 1


def test_the_reason_of_a_reading_is_stored_printable_and_short(
    signed_in: SignIn, lab: Tenant, alice: User, admin: User
) -> None:
    job = factories.job(of=lab, owner=alice)
    client = signed_in(admin)
    client.get("/t/vision-lab/", {"access_reason": "ticket\n17 \x1b[31m" + "x" * 600})
    client.get(f"/t/vision-lab/jobs/{job.pk}", headers={"X-Access-Reason": "ticket 18"})
    reasons = dict(AuditEntry.objects.values_list("action", "reason"))
    assert reasons["tenant.read"] == ("ticket17 [31m" + "x" * 600)[:500]
    assert reasons["job.read"] == "ticket 18"


def test_the_matrix_adds_up(signed_in: SignIn, lab: Tenant, alice: User, admin: User) -> None:
    factories.job(of=lab, owner=alice, state=State.PROCESSING, slots=3)
    drawn = signed_in(admin).get("/admin-console/quotas").context["matrix"]
    column = drawn.columns[0]
    assert column.total == sum(row.cells[0].limit for row in drawn.rows) == 8
    assert column.pool.used + column.pool.free + column.pool.down == column.capacity == 16
    assert sum(row.cells[0].used for row in drawn.rows) == column.pool.used == 3


def test_members_are_people_in_a_tenant_and_people_are_all_who_have_an_account(
    signed_in: SignIn, lab: Tenant, alice: User, dave: User, admin: User
) -> None:
    second = factories.tenant("nlp-research")
    Membership.objects.create(user=alice, tenant=second, role="viewer")  # one person in two tenants
    factories.user("gone", is_active=False)
    robot = factories.user("vision-lab.ci", is_service_account=True)
    Membership.objects.create(user=robot, tenant=lab, role="researcher")
    client = signed_in(admin)
    tenants = client.get("/admin-console/tenants")
    assert tenants.context["members"] == 2
    assert {each["row"].tenant.slug: each["members"] for each in tenants.context["rows"]} == {
        "vision-lab": 2,
        "nlp-research": 1,
    }
    people = client.get("/admin-console/users")
    assert people.context["people_count"] == people.context["page"].paginator.count == 4
    page = markup(client.get("/admin-console/tenants/vision-lab"))
    assert "2 members<" in page
    assert "2 and 1 service account" in page


def test_a_draft_that_was_only_looked_at_is_not_said_to_be_refused(
    signed_in: SignIn, lab: Tenant, admin: User
) -> None:
    draft = {"limit:vision-lab:cpu": "900", "if:vision-lab:cpu": "8", "reason": "x"}
    looked = signed_in(admin).post("/admin-console/quotas", draft | {"action": "review"})
    assert "This cannot be applied as is." in markup(looked)
    assert "Nothing was applied." not in markup(looked)
    tried = signed_in(admin).post("/admin-console/quotas", draft | {"action": "apply"})
    assert "Nothing was applied." in markup(tried)


def test_the_role_offered_first_is_manager_only_in_a_tenant_without_members(
    signed_in: SignIn, lab: Tenant, dave: User, admin: User
) -> None:
    factories.tenant("empty")
    page = markup(signed_in(admin).get("/admin-console/tenants/vision-lab"))
    assert '<option value="researcher" selected>' in page
    assert "not resumed until" in page
    page = markup(signed_in(admin).get("/admin-console/tenants/empty"))
    assert '<option value="manager" selected>' in page


@pytest.mark.parametrize("place", ["tenants", "quotas"])
def test_tenants_are_found_by_name_and_nothing_of_the_others_is_lost(
    signed_in: SignIn, lab: Tenant, admin: User, place: str
) -> None:
    factories.tenant("nlp-research")
    shown = re.findall(
        r'data-search-text="([a-z-]+)[^"]*"( hidden)?',
        markup(signed_in(admin).get(f"/admin-console/{place}?q=%20NLP ")),
    )
    assert sorted(shown) == [("nlp-research", ""), ("vision-lab", " hidden")]  # in the draft's form, too


def test_the_system_card_says_what_works_and_what_to_do_about_the_rest(
    signed_in: SignIn, admin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        HealthCheck("database", "PostgreSQL 17.2"),
        HealthCheck(
            "workers", "0 alive", "no worker was seen in the last 15 s", "Look into logs/worker-1.log."
        ),
    ]
    monkeypatch.setattr(system, "run_checks", lambda: found)
    monkeypatch.setattr(
        system, "broker", lambda: HealthCheck("broker", "no response", "Valkey is not responding", "Slower.")
    )
    client = signed_in(admin)
    assert 'data-fetch="/admin-console/system"' in client.get("/admin-console/").content.decode()
    card = client.get("/admin-console/system").content.decode()
    assert re.findall(r'data-part-state="(\w+)"', card) == ["good", "bad", "slow", "good", "good", "good"], (
        "the last: mail, audit log, variables"
    )
    assert "PostgreSQL 17.2" in card
    assert "No worker was seen in the last 15 s. Look into logs/worker-1.log." in card


def test_the_system_card_says_when_the_last_scheduling_pass_was_completed(
    signed_in: SignIn, admin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "run_checks", lambda: [checks.scheduler()])
    client = signed_in(admin)
    assert "No scheduling pass has completed yet" in client.get("/admin-console/system").content.decode()
    PeriodicTask.objects.update_or_create(
        name=PeriodicTask.CYCLE, defaults={"done_at": timezone.now() - timedelta(seconds=4)}
    )
    assert re.search(r"last pass \d+ s ago", client.get("/admin-console/system").content.decode())
    PeriodicTask.objects.update(done_at=timezone.now() - timedelta(hours=1))
    card = client.get("/admin-console/system").content.decode()
    assert re.search(r"No scheduling pass has completed for 3[67]\d\d s", card)


def test_the_system_card_says_that_the_audit_log_does_not_leave(
    signed_in: SignIn, admin: User, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr(system, "run_checks", list)
    settings.LUTHIER_AUDIT_URL = "https://logs.example/luthier"
    AuditEntry(action="job.edit", at=timezone.now() - timedelta(hours=2)).save(force_insert=True)
    audit_chain.seal_new()
    card = signed_in(admin).get("/admin-console/system").content.decode()
    assert "entries of the audit log have waited for 2 h" in card
    assert "logs.example, " in card


def test_a_job_that_came_back_has_waited_since_then_and_says_that_it_backs_off(
    signed_in: SignIn, lab: Tenant, admin: User
) -> None:
    now = timezone.now()
    factories.job(of=lab, name="new", queued_at=now - timedelta(minutes=5), reason_code="QUOTA_GPUS")
    factories.job(
        of=lab,
        name="never",
        queued_at=now - timedelta(minutes=3),
        reason_code="EXCEEDS_MAX_QUOTA",
        reason_numbers={"limit": 0, "asked": 1},
    )
    factories.job(of=lab, name="late", queued_at=now - timedelta(minutes=2), reason_code="TENANT_SUSPENDED")
    factories.job(
        of=lab,
        name="again",
        attempt=1,
        queued_at=now - timedelta(hours=9),
        start_after=now + timedelta(hours=1),
        reason_code="QUOTA_GPUS",
    )
    page = signed_in(admin).get("/admin-console/")
    seen = page.context
    assert 'aria-label="Raise quota for never"' in page.content.decode()
    assert 'aria-label="Raise quota for new"' not in page.content.decode(), (
        "its own page says: no action needed"
    )
    assert 'aria-label="Open the tenant of late"' in page.content.decode()
    rows = [(row["job"].name, row["why"], row["acts"]) for row in seen["waiting"]]
    assert rows == [
        ("new", "over quota", ""),
        ("never", seen["waiting"][1]["why"], "admin"),
        ("late", "tenant suspended", "admin"),
        ("again", "backing off", ""),
    ]
    assert seen["waiting"][2]["waits_s"] < seen["queue"].longest_s < timedelta(hours=8).total_seconds()


def test_no_job_waits_while_the_platform_is_stopped(signed_in: SignIn, lab: Tenant, admin: User) -> None:
    """Two jobs queued 600 and 400 s ago; the platform was stopped from 500 to 200 s ago."""
    now = timezone.now()
    for name, ago in (("first", 600), ("second", 400)):
        factories.job(of=lab, name=name, queued_at=now - timedelta(seconds=ago))
    PlatformStop.objects.create(began_at=now - timedelta(seconds=500), ended_at=now - timedelta(seconds=200))
    seen = signed_in(admin).get("/admin-console/").context
    waits = [row["waits_s"] for row in seen["waiting"]]
    assert waits == [pytest.approx(300, abs=60), pytest.approx(200, abs=60)]
    assert seen["queue"].longest_s == pytest.approx(300, abs=60)
    assert seen["queue"].median_s == pytest.approx(250, abs=60)
