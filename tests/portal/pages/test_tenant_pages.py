"""Members, tokens, usage, profile and cluster: who sees them, and what their forms do."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import humanize
from jobs.models import Attempt, ClusterNode, PeriodicTask, PlatformStop, SchedulingLease
from jobs.selectors import installation
from jobs.states import State
from portal.pages.charts import stacked_days
from portal.templatetags import ui
from tenants.models import Membership, Tenant, Token, User
from tenants.roles import Role
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
OWN = {"password": factories.PASSWORD}


def test_a_manager_adds_changes_and_removes_a_member(signed_in: SignIn, lab: Tenant, dave: User) -> None:
    factories.user("erin")
    client = signed_in(dave)
    client.post("/t/vision-lab/members/add", {"username": "erin", "role": "viewer"})
    assert Membership.objects.get(user__username="erin").role == "viewer"
    client.post("/t/vision-lab/members/erin", {"role": "researcher"})
    assert Membership.objects.get(user__username="erin").role == "researcher"
    client.post("/t/vision-lab/members/erin", {"remove": "yes"})
    assert not Membership.objects.filter(user__username="erin").exists()


def test_an_unknown_member_is_refused_with_the_field_and_the_remedy(signed_in: SignIn, dave: User) -> None:
    answer = signed_in(dave).post("/t/vision-lab/members/add", {"username": "nobody", "role": "viewer"})
    page = markup(answer)
    assert answer.status_code == 422
    assert "Username: no such user" in page
    assert 'value="nobody"' in page, "what was typed is still there"
    assert '<option value="viewer" selected>' in page


def test_the_last_manager_stays(signed_in: SignIn, dave: User) -> None:
    answer = signed_in(dave).post("/t/vision-lab/members/dave", {"remove": "yes"}, follow=True)
    assert Membership.objects.filter(user=dave).exists()
    assert "at least one manager" in markup(answer)


def test_a_researcher_sees_members_but_no_forms(signed_in: SignIn, alice: User, carol: User) -> None:
    page = markup(signed_in(alice).get("/t/vision-lab/members"))
    assert "carol" in page
    assert "Add a member" not in page
    refused = signed_in(alice).post("/t/vision-lab/members/carol", {"role": "manager"})
    assert refused.status_code == 403
    assert Membership.objects.get(user=carol).role == "viewer"


def test_a_tokens_secret_is_shown_once_and_opens_the_api(signed_in: SignIn, alice: User) -> None:
    client = signed_in(alice)
    answer = client.post(
        "/t/vision-lab/tokens/new", {"name": "laptop", "role": "viewer", "days": "30", "bound": "yes"} | OWN
    )
    assert answer.status_code == 302, "a reload of what it leads to makes no second token"
    cookie = answer.cookies["made-token"]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (
        True,
        "Strict",
        "/t/vision-lab/tokens",
    )
    made = client.get(answer.headers["Location"])
    secret = made.context["made"]["secret"]
    assert secret.startswith("lut_")
    assert secret in markup(made)
    assert "no-store" in made.headers["Cache-Control"]
    listed = markup(client.get("/t/vision-lab/tokens"))
    assert secret not in listed
    assert f"{secret[:8]}…</td>" in listed
    me = Client().get("/api/v1/me", headers={"Authorization": f"Bearer {secret}"})
    assert "alice" in markup(me)


def test_the_secret_of_a_token_is_shown_to_no_other_user_of_the_browser(
    signed_in: SignIn, alice: User, dave: User
) -> None:
    client = signed_in(alice)
    client.post("/t/vision-lab/tokens/new", {"name": "laptop", "role": "viewer", "days": "30"} | OWN)
    kept = client.cookies["made-token"].value
    client.force_login(dave)
    client.cookies["made-token"] = kept
    assert "made" not in client.get("/t/vision-lab/tokens").context
    client.force_login(alice)
    client.cookies["made-token"] = f"{kept[:-4]}AAAA"
    assert "made" not in client.get("/t/vision-lab/tokens").context


def test_a_token_without_a_name_is_refused_and_the_rest_is_kept(signed_in: SignIn, alice: User) -> None:
    answer = signed_in(alice).post("/t/vision-lab/tokens/new", {"name": "", "role": "viewer", "days": "7"})
    assert answer.status_code == 422
    assert "Enter a name of at most 80 characters" in markup(answer)
    assert 'aria-invalid="true"' in markup(answer).split('id="again-name"')[1].split(">")[0]
    assert answer.context["values"]["days"] == 7
    assert not Token.objects.exists()


def test_the_form_for_a_token_has_a_page_of_its_own_that_is_not_cached(
    signed_in: SignIn, alice: User
) -> None:
    client = signed_in(alice)
    form = client.get("/t/vision-lab/tokens/new")
    assert form.status_code == 200
    assert 'id="again-name"' in markup(form)
    made = client.post("/t/vision-lab/tokens/new", {"name": "laptop", "role": "viewer", "days": "30"} | OWN)
    assert "no-store" in made.headers["Cache-Control"]
    assert "private" in client.get("/t/vision-lab/tokens").headers["Cache-Control"]


def test_a_revoked_token_is_gone_and_a_foreign_one_stays(signed_in: SignIn, alice: User, dave: User) -> None:
    client = signed_in(alice)
    client.post("/t/vision-lab/tokens/new", {"name": "mine", "role": "viewer", "days": "7"} | OWN)
    signed_in(dave).post("/t/vision-lab/tokens/new", {"name": "foreign", "role": "viewer", "days": "7"})
    for token in Token.objects.all():
        client.post(f"/t/vision-lab/tokens/{token.pk[:16]}/revoke")
    assert list(Token.objects.values_list("name", flat=True)) == ["foreign"]


def test_a_refused_service_account_keeps_its_name_and_role(
    signed_in: SignIn, lab: Tenant, dave: User, carol: User
) -> None:
    form = {"name": "CI nightly", "role": "viewer"}
    answer = signed_in(dave).post("/t/vision-lab/tokens/accounts", form)
    page = markup(answer)
    assert answer.status_code == 422
    assert 'id="again-account-name" name="name" value="CI nightly"' in page
    assert '<option value="viewer" selected>' in page
    assert page.count('id="account-name"') == page.count('id="again-account-name"') == 1
    assert "Name: " in page
    assert signed_in(carol).post("/t/vision-lab/tokens/accounts", form).status_code == 403
    assert not User.objects.filter(is_service_account=True).exists()


def test_a_search_that_finds_service_accounts_alone_says_so(
    signed_in: SignIn, lab: Tenant, dave: User
) -> None:
    client = signed_in(dave)
    client.post("/t/vision-lab/tokens/accounts", {"name": "nightly", "role": "viewer"})
    found = markup(client.get("/t/vision-lab/members?q=nightly"))
    assert "No member has nightly in the name or as role. 1 service account below does." in found
    assert "vision-lab.nightly" in found
    nothing = markup(client.get("/t/vision-lab/members?q=never-was"))
    assert "No member has never-was in the name or as role.</p>" in nothing


def test_a_service_account_is_made_given_a_token_and_closed(signed_in: SignIn, dave: User) -> None:
    client = signed_in(dave)
    client.post("/t/vision-lab/tokens/accounts", {"name": "ci", "role": "researcher"})
    made = client.post(
        "/t/vision-lab/tokens/new", {"name": "runner", "account": "ci", "days": "30"}, follow=True
    )
    assert Token.objects.get(name="runner").user.is_service_account
    assert made.context["made"]["account"] == "ci"
    client.post("/t/vision-lab/tokens/accounts/ci/close")
    assert not Token.objects.exists()


HALF_AN_HOUR = timedelta(minutes=30)


def end_within_a_month() -> datetime:
    """Now; in a month's first half hour its begin, so that half an hour before it is of one month."""
    now = timezone.now().astimezone(UTC)
    return (
        now
        if (now - HALF_AN_HOUR).month == now.month
        else now.replace(hour=0, minute=0, second=0, microsecond=0)
    )


def test_use_of_the_month_adds_up_over_users_and_days(signed_in: SignIn, lab: Tenant, alice: User) -> None:
    job = factories.job(of=lab, owner=alice, state=State.PROCESSING, name="paid", slots=2)
    end = end_within_a_month()
    month = f"month={end - HALF_AN_HOUR:%Y-%m}"
    Attempt.objects.filter(job=job).update(
        opened_at=end - HALF_AN_HOUR, closed_at=end, held=False, outcome="COMPLETED"
    )
    page = signed_in(alice).get(f"/t/vision-lab/usage?of=cpu&{month}")
    assert page.context["total"]["cpu"]["used"] == pytest.approx(1.0, abs=0.01)
    assert sum(key.total for key in page.context["chart"].keys) == pytest.approx(1.0, abs=0.01)
    assert "paid" in markup(page)
    csv = signed_in(alice).get(f"/t/vision-lab/usage.csv?{month}").getvalue().decode().splitlines()
    assert csv[0].startswith("day,user,type")
    assert sum(float(line.split(",")[3]) for line in csv[1:]) == pytest.approx(1.0, abs=0.01)


def test_gpu_hours_and_cpu_slot_hours_are_never_added_up(signed_in: SignIn, lab: Tenant, alice: User) -> None:
    end = end_within_a_month()
    for kind, slots in (("a100", 2), ("cpu", 4)):
        job = factories.job(
            of=lab, owner=alice, state=State.FAILED, slots=slots, gpus=slots if kind == "a100" else 0,
            gpu_type=kind if kind == "a100" else "", attempt=0, name=f"lost-{kind}",
            created_at=end - timedelta(minutes=40),
        )  # fmt: skip
        Attempt.objects.create(
            job=job, tenant=lab, n=1, cluster="memory", slot_type=kind, slots=slots, learners=1, nodes=["node-a"],
            held=False, opened_at=end - HALF_AN_HOUR, closed_at=end, outcome="FAILED",
        )  # fmt: skip
    month = f"month={end - HALF_AN_HOUR:%Y-%m}"
    answer = signed_in(alice).get(f"/t/vision-lab/usage?of=gpu&{month}")
    (one,) = answer.context["people"]
    for line in (one, answer.context["total"]):
        assert line["gpu"] == pytest.approx({"used": 1.0, "lost": 1.0}, abs=0.01)
        assert line["cpu"] == pytest.approx({"used": 2.0, "lost": 2.0}, abs=0.01)
        assert line["wait"] == pytest.approx(600, abs=5)
    assert answer.context["sum"]["lost"] == pytest.approx(1.0, abs=0.01)
    assert [job["name"] for job in answer.context["jobs"]] == ["lost-a100"]
    on_cpu = signed_in(alice).get(f"/t/vision-lab/usage?of=cpu&{month}")
    assert on_cpu.context["sum"]["lost"] == pytest.approx(2.0, abs=0.01)
    assert [job["name"] for job in on_cpu.context["jobs"]] == ["lost-cpu"]


def test_many_users_are_summed_up_in_the_table_and_in_the_chart(
    signed_in: SignIn, lab: Tenant, alice: User
) -> None:
    end = end_within_a_month()
    lab.quotas.filter(gpu_type="cpu").update(limit=60)
    for n in range(60):
        person = factories.user(f"person-{n:02}")
        job = factories.job(of=lab, owner=person, state=State.PROCESSING, created_at=end - HALF_AN_HOUR)
        Attempt.objects.filter(job=job).update(
            opened_at=end - timedelta(minutes=n % 30 + 1), closed_at=end, held=False, outcome="COMPLETED"
        )
    query = f"of=cpu&month={end - HALF_AN_HOUR:%Y-%m}"
    page = signed_in(alice).get(f"/t/vision-lab/usage?{query}")
    others, total = page.context["others"], page.context["total"]
    assert (len(page.context["people"]), others["name"], others["jobs"]) == (50, "10 others", 10)
    assert others["cpu"]["used"] + sum(one["cpu"]["used"] for one in page.context["people"]) == pytest.approx(
        total["cpu"]["used"]
    )
    names = [key.name for key in page.context["chart"].keys]
    assert (len(names), names[-1]) == (13, "others")
    assert "10 others" in markup(page)
    csv = signed_in(alice).get(f"/t/vision-lab/usage.csv?{query}").getvalue().decode()
    assert {line.split(",")[1] for line in csv.splitlines()[1:]} >= {f"person-{n:02}" for n in range(60)}


@pytest.mark.parametrize(
    ("hours", "words"),
    [(0, "—"), (0.004, "< 0.01"), (0.05, "0.05"), (0.994, "0.99"), (0.996, "1.0"), (1234.56, "1,234.6")],
)
def test_the_use_of_a_short_job_is_not_nought(hours: float, words: str) -> None:
    assert ui.hours(hours) == words


def test_a_tenant_without_gpus_has_no_column_for_them(signed_in: SignIn, lab: Tenant, alice: User) -> None:
    factories.job(of=lab, owner=alice, state=State.PROCESSING, slots=2)
    lab.quotas.exclude(gpu_type="cpu").update(limit=0)
    column = '<th scope="col" class="number">GPU-hours</th>'
    assert column not in markup(signed_in(alice).get("/t/vision-lab/usage?of=cpu"))
    lab.quotas.update_or_create(gpu_type="a100", defaults={"limit": 2})
    assert column in markup(signed_in(alice).get("/t/vision-lab/usage?of=cpu"))


def test_a_past_month_ends_with_its_own_last_day(signed_in: SignIn, alice: User) -> None:
    page = markup(signed_in(alice).get("/t/vision-lab/usage", {"month": "2026-01", "of": "gpu"}))
    assert "GPU-hours, 1–31 Jan" in page


@pytest.mark.parametrize("month", ["", "2026-13", "1-1", "9999-01", "x" * 500])
def test_a_strange_month_shows_the_present_one(signed_in: SignIn, alice: User, month: str) -> None:
    answer = signed_in(alice).get("/t/vision-lab/usage", {"month": month})
    assert answer.status_code == 200
    assert answer.context["month"].following == ""


def test_the_clusters_numbers_add_up(signed_in: SignIn, lab: Tenant, alice: User) -> None:
    for name, ready in (("node-a", True), ("node-b", True), ("node-c", False)):
        ClusterNode.objects.create(name=name, cluster="memory", slot_type="cpu", slots=4, ready=ready)
    factories.job(of=lab, owner=alice, state=State.PROCESSING, name="mine", slots=3)
    page = signed_in(alice).get("/cluster")
    pool = page.context["pools"][0]["pool"]
    assert pool.used + pool.free + pool.down == pool.slots == 12
    assert 'mine</a><span class="tertiary num">×&nbsp;3</span>' in markup(page)


OUTDATED = " Nothing starts now. What this page shows may have changed."
BUG = "RuntimeError: timed out"


@pytest.mark.parametrize(
    ("age_s", "problem", "said"),
    [
        (2, "", ""),
        (48, "the cluster did not respond: timed out", "The cluster was last seen {age} ago."),
        (7, "the cluster did not respond: timed out", "The cluster was last seen {age} ago."),
        (None, "the cluster did not respond: timed out", "The cluster was never seen."),
        (120, "", "No scheduling pass has completed for {age}."),
        (7, BUG, "The last scheduling pass failed. None has completed for {age}."),
        (None, BUG, "The last scheduling pass failed. None has completed yet."),
    ],
)
def test_the_cluster_page_says_when_no_pass_completes_and_of_the_cluster_only_what_is_known(
    age_s: int | None,
    problem: str,
    said: str,
    signed_in: SignIn,
    alice: User,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, seen = installation.last_pass, []
    monkeypatch.setattr(installation, "last_pass", lambda: seen.append(read()) or seen[-1])
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=4)
    done_at = None if age_s is None else Now() - timedelta(seconds=age_s, milliseconds=5)
    PeriodicTask.objects.update_or_create(name=PeriodicTask.CYCLE, defaults={"done_at": done_at})
    SchedulingLease.objects.update_or_create(name=PeriodicTask.CYCLE, defaults={"problem": problem})

    text = markup(signed_in(alice).get("/cluster"))

    assert all((last.age_s or 0) >= (age_s or 0) for last in seen)
    ages = {humanize.duration(round(last.age_s or 0)) for last in seen}
    assert (OUTDATED in text) == bool(said)
    assert any(f"{said.format(age=age)}{OUTDATED if said else ''}" in text for age in ages)
    assert ("The cluster was" in text) == ("cluster" in problem)
    assert "timed out" not in text  # that is for operators


def test_the_cluster_page_and_rest_show_cpus_and_memory_with_what_others_hold(
    signed_in: SignIn, lab: Tenant, alice: User
) -> None:
    ClusterNode.objects.create(
        name="node-a",
        cluster="memory",
        slot_type="a100",
        slots=8,
        cpus=64,
        divided_mib=512 * 1024,
        learner_mib=256,
        others_slots=1,
        others_cpus=0.5,
        others_mib=2048,
    )
    ClusterNode.objects.create(name="node-b", cluster="memory", slot_type="a100", slots=8, cordoned=True)
    spec = factories.spec(resources={"gpus": 4, "gpu_type": "a100", "cpus": 12, "memory": "100Gi"})
    fields = {"gpus": 4, "gpu_type": "a100", "slots": 4, "spec": spec}
    factories.job(of=lab, owner=alice, state=State.PROCESSING, **fields)
    first, second = signed_in(alice).get("/api/v1/cluster/nodes").json()["items"]
    assert first["cpus"] == {"total": 64, "used": 12, "others": 0.5, "free": 51.5}
    assert first["memory_mib"] == {"total": 524_288, "used": 102_656, "others": 2048, "free": 419_584}
    assert (first["used"], first["others"], first["free"]) == (4, 1, 3)
    assert (second["cpus"], second["memory_mib"], second["cordoned"], second["free"]) == (None, None, True, 0)
    page = signed_in(alice).get("/cluster")
    text = markup(page)
    assert "CPUs used</th>" in text
    assert '12<span class="tertiary">of 64</span><small class="tertiary">0.5 by others</small>' in text
    assert '100.2<span class="tertiary">of 512.0</span><small class="tertiary">2.0 by others</small>' in text
    assert "Cordoned" in text
    pool = page.context["pools"][0]["pool"]
    assert pool.used + pool.others + pool.free + pool.down == pool.slots == 16


def test_a_nodes_rack_and_block_are_on_the_page_and_in_rest_where_they_are_known(
    signed_in: SignIn, alice: User
) -> None:
    fields = {"cluster": "memory", "slot_type": "a100", "slots": 8}
    ClusterNode.objects.create(name="node-a", rack="r1", block="b7", **fields)
    ClusterNode.objects.create(name="node-b", **fields)
    first, second = signed_in(alice).get("/api/v1/cluster/nodes").json()["items"]
    assert [(each["rack"], each["block"]) for each in (first, second)] == [("r1", "b7"), ("", "")]
    text = markup(signed_in(alice).get("/cluster"))
    assert text.count("rack r1</small>") == text.count("block b7</small>") == 1
    assert text.count(">rack ") == text.count(">block ") == 1


def test_what_keeps_learners_from_a_node_is_said_on_the_page_and_in_rest(
    signed_in: SignIn, alice: User
) -> None:
    fields = {"cluster": "memory", "slot_type": "a100", "slots": 6}
    ClusterNode.objects.create(name="node-a", unhealthy=2, **fields)
    ClusterNode.objects.create(
        name="node-b", cordoned=True, why="Tainted with team=nlp:NoSchedule.", **fields
    )
    first, second = signed_in(alice).get("/api/v1/cluster/nodes").json()["items"]
    assert (first["unhealthy"], first["free"], first["why"]) == (2, 6, "")
    assert (second["why"], second["free"]) == ("Tainted with team=nlp:NoSchedule.", 0)
    page = markup(signed_in(alice).get("/cluster"))
    assert "2 unhealthy" in page
    assert "Tainted with team=nlp:NoSchedule." in page


def test_a_node_that_failed_a_gang_is_marked_on_the_page_and_in_rest_until_it_is_not_avoided_any_more(
    signed_in: SignIn, alice: User
) -> None:
    now = timezone.now()
    for name, minutes in (("node-a", 10), ("node-b", -10)):
        ClusterNode.objects.create(
            name=name,
            cluster="memory",
            slot_type="cpu",
            slots=4,
            avoid_until=now + timedelta(minutes=minutes),
            avoid_reason=f"Learner 0 on {name} did not start.",
        )
    first, second = signed_in(alice).get("/api/v1/cluster/nodes").json()["items"]
    assert first["avoid"]["reason"] == "Learner 0 on node-a did not start."
    assert (first["free"], second["avoid"]) == (4, None)
    page = markup(signed_in(alice).get("/cluster"))
    assert "Learner 0 on node-a did not start." in page
    assert "Learner 0 on node-b" not in page
    assert page.count(">Avoided<") == 1


def test_a_foreign_job_has_no_name_on_the_cluster_page(signed_in: SignIn, lab: Tenant, alice: User) -> None:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=4)
    other = factories.tenant("nlp-research")
    factories.job(of=other, owner=factories.member(other, "bob"), state=State.PROCESSING, name="secret-llm")
    page = markup(signed_in(alice).get("/cluster"))
    assert "secret-llm" not in page
    assert "1 of other tenants" in page


def test_over_https_the_cookie_of_the_theme_is_no_other_hosts(signed_in: SignIn, alice: User) -> None:
    browser = signed_in(alice)
    answer = browser.post("/me/appearance", {"theme": "dark", "shortcuts": "on"}, secure=True)
    cookie = answer.cookies["__Host-theme"]
    assert "theme" not in answer.cookies
    assert (cookie.value, cookie["secure"], cookie["path"], cookie["domain"]) == ("dark", True, "/", "")
    assert cookie["samesite"] == "Lax"
    assert 'data-theme="dark"' in markup(browser.get("/me", secure=True))
    browser.cookies["theme"] = "light"
    assert 'data-theme="dark"' in markup(browser.get("/me", secure=True)), "another host's counts for nothing"


def test_the_theme_is_a_cookie_and_shortcuts_are_the_accounts(signed_in: SignIn, alice: User) -> None:
    client = signed_in(alice)
    answer = client.post("/me/appearance", {"theme": "dark"})
    assert answer.cookies["theme"].value == "dark"
    page = markup(client.get("/me"))
    assert 'data-theme="dark"' in page
    assert 'data-shortcuts="off"' in page


def test_signing_out_others_keeps_this_session(signed_in: SignIn, alice: User) -> None:
    here, there = signed_in(alice), signed_in(alice)
    here.post("/me/sign-out-others")
    assert here.get("/me").status_code == 200
    assert there.get("/me").status_code == 302


def test_a_changed_password_ends_other_sessions(signed_in: SignIn, alice: User) -> None:
    here, there = signed_in(alice), signed_in(alice)
    new = "purple monkey dishwasher 9"
    passwords = {"old_password": factories.PASSWORD, "new_password1": new, "new_password2": new}
    assert here.post("/me/password", passwords | {"old_password": "wrong"}).status_code == 422
    assert here.post("/me/password", passwords).status_code == 302
    assert here.get("/me").status_code == 200
    assert there.get("/me").status_code == 302


@pytest.mark.parametrize("place", ["members", "usage", "tokens", "usage.csv"])
def test_strangers_get_the_page_of_a_missing_tenant(signed_in: SignIn, alice: User, place: str) -> None:
    factories.tenant("nlp-research")
    client = signed_in(alice)
    foreign, missing = client.get(f"/t/nlp-research/{place}"), client.get(f"/t/nowhere/{place}")
    assert foreign.status_code == missing.status_code == 404
    assert foreign.content == missing.content


def test_a_person_without_a_tenant_sees_profile_and_cluster(signed_in: SignIn) -> None:
    client = signed_in(factories.user("erin"))
    assert client.get("/me").status_code == 200
    assert client.get("/cluster").status_code == 200


def test_the_only_manager_is_marked_as_such_and_cannot_leave(
    signed_in: SignIn, lab: Tenant, alice: User, dave: User, admin: User
) -> None:
    page = markup(signed_in(dave).get("/t/vision-lab/members"))
    assert ">the only manager<" in page
    assert 'popovertarget="leave"' not in page
    assert 'id="leave"' not in page
    as_admin = markup(signed_in(admin).get("/t/vision-lab/members"))
    assert 'aria-label="Remove dave"' not in as_admin
    assert 'aria-label="Role of dave"' not in as_admin, "nor can the role be changed: it would be refused"
    assert 'aria-label="Remove alice"' in as_admin
    factories.member(lab, "erin", role=Role.MANAGER)
    both = markup(signed_in(dave).get("/t/vision-lab/members"))
    assert ">the only manager<" not in both
    assert 'popovertarget="leave"' in both


def test_any_member_may_leave_and_is_redirected_to_a_page_that_they_may_see(
    signed_in: SignIn, lab: Tenant, alice: User, carol: User
) -> None:
    client = signed_in(carol)
    page = markup(client.get("/t/vision-lab/members"))
    assert page.count("Leave<span") == 1
    assert 'aria-label="Remove alice"' not in page
    left = client.post("/t/vision-lab/members/carol", {"remove": "yes"}, follow=True)
    assert "You are no longer a member of" in markup(left)
    assert not Membership.objects.filter(user=carol).exists()


@pytest.mark.parametrize(
    ("lives_days", "left_hours", "words", "warns"),
    [
        (7, 7 * 24 - 1, "", False),
        (7, 30, "", True),
        (90, 15 * 24, "", False),
        (90, 13 * 24, "in 13 days", True),
        (90, 0.001, "today", True),
    ],
)
def test_a_token_warns_near_its_end_and_not_on_its_first_day(
    signed_in: SignIn, alice: User, lives_days: int, left_hours: float, words: str, warns: bool
) -> None:
    token, _ = Token.objects.create(user=alice, name="laptop", expiry=None)
    ends = timezone.now() + timedelta(hours=left_hours)
    Token.objects.filter(pk=token.pk).update(expiry=ends, created=ends - timedelta(days=lives_days))
    answer = signed_in(alice).get("/t/vision-lab/tokens")
    assert bool(answer.context["soon"]) is warns
    if words:
        assert f"laptop expires {words}" in " ".join(markup(answer).split())


def test_the_jobs_submitted_in_a_month_add_up_with_canceled_and_live_ones(
    signed_in: SignIn, lab: Tenant, alice: User
) -> None:
    states = [State.COMPLETED] * 3 + [
        State.FAILED,
        State.CANCELED,
        State.CANCELED,
        State.QUEUED,
        State.HALTED,
    ]
    for state in states:
        factories.job(of=lab, owner=alice, state=state)
    answer = signed_in(alice).get("/t/vision-lab/usage")
    assert answer.context["ends"] == {
        "submitted": 8,
        "parts": [("completed", 3), ("failed", 1), ("canceled", 2), ("active", 2)],
    }
    assert "3 completed · 1 failed · 2 canceled · 2 active" in markup(answer)


def test_the_jobs_submitted_in_a_month_are_counted_from_an_index_alone(
    signed_in: SignIn, lab: Tenant, alice: User
) -> None:
    """A tenant of a busy year has tens of thousands of them, each in a page of its own."""
    for _ in range(3):
        factories.job(of=lab, owner=alice)
    with CaptureQueriesContext(connection) as queries:
        assert signed_in(alice).get("/t/vision-lab/usage").context["ends"]["submitted"] == 3
    [counts] = [
        one["sql"] for one in queries if "BETWEEN" in one["sql"] and '"jobs_job"."state"' in one["sql"]
    ]
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("SET LOCAL enable_bitmapscan = off")
        cursor.execute(f"EXPLAIN {counts}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Index Only Scan using job_by_creation" in plan, plan


def test_waits_say_over_which_time_they_are(signed_in: SignIn, lab: Tenant, alice: User) -> None:
    factories.job(of=lab, owner=alice, state=State.PROCESSING)
    month = f"{timezone.now():%B}"
    assert f"<dt>Wait in {month}</dt>" in markup(signed_in(alice).get("/t/vision-lab/usage"))
    assert "Time to start, last 24 h" in markup(signed_in(alice).get("/t/vision-lab/"))


def test_a_refused_password_says_what_is_wrong_at_each_field(signed_in: SignIn, alice: User) -> None:
    new = {"old_password": "wrong", "new_password1": "short", "new_password2": "short"}
    page = markup(signed_in(alice).post("/me/password", new))
    assert "The password was not changed." in page
    for field in ("old", "new2"):
        assert f'aria-describedby="problem-{field}"' in page
        assert f'id="problem-{field}"' in page


def test_members_are_found_by_name_and_role(signed_in: SignIn, lab: Tenant, alice: User, dave: User) -> None:
    client = signed_in(dave)
    assert shown_members(client, "q=ali") == ["alice"]
    assert shown_members(client, "q=Manager") == ["dave"]
    assert shown_members(client, "q=vision") == [], "an address that was not accepted is not searched"
    assert "No member has vision in the name or as role." in markup(
        client.get("/t/vision-lab/members?q=vision")
    )


def test_members_come_in_pages_and_an_action_returns_to_its_page(
    signed_in: SignIn, lab: Tenant, dave: User
) -> None:
    people = [factories.member(lab, f"person-{n:03}") for n in range(120)]
    client = signed_in(dave)
    assert len(shown_members(client, "")) == 50
    last = shown_members(client, "q=person-&page=3")
    assert last == [f"person-{n:03}" for n in range(100, 120)]
    page = markup(client.get("/t/vision-lab/members?q=person-&page=3"))
    assert "Page 3 of 3" in page
    assert "120 of 121" in page
    action = f"/t/vision-lab/members/{people[-1].username}?q=person-&amp;page=3"
    assert page.count(f'action="{action}"') == 2, "the forms of its role and of its removal"
    done = client.post(action.replace("&amp;", "&"), {"role": "viewer"})
    assert done.headers["Location"] == "/t/vision-lab/members?q=person-&page=3"


def test_the_only_manager_is_known_on_a_page_without_the_others(
    signed_in: SignIn, lab: Tenant, dave: User, admin: User
) -> None:
    assert ">the only manager<" in markup(signed_in(admin).get("/t/vision-lab/members?q=dave"))
    factories.member(lab, "erin", role=Role.MANAGER)
    assert ">the only manager<" not in markup(signed_in(admin).get("/t/vision-lab/members?q=dave"))


def shown_members(client: Client, query: str) -> list[str]:
    return re.findall(
        r'<b class="medium truncate" title="([^"]+)">', markup(client.get(f"/t/vision-lab/members?{query}"))
    )


@pytest.mark.parametrize(
    ("used", "possible", "limit"),
    [
        (90.0, 96.0, "4.00"),  # the plot ends at 100
        (30.0, 96.0, "4.00"),  # it makes room for the line
        (20.0, 96.0, ""),  # the line would leave the bars less than a quarter
        (0.0, 96.0, ""),
        (90.0, 0.0, ""),
    ],
)
def test_the_chart_shows_what_the_limits_allow_where_its_bars_stay_readable(
    used: float, possible: float, limit: str
) -> None:
    day = date(2026, 11, 1)
    chart = stacked_days({(day, "alice"): used}, first=day, days=30, today=day, possible=possible)
    assert (chart.limit, chart.possible) == (limit, possible)


def test_the_usage_page_says_how_long_the_platform_was_stopped(
    signed_in: SignIn, lab: Tenant, dave: User
) -> None:
    def said() -> str:
        return " ".join(markup(signed_in(dave).get("/t/vision-lab/usage")).split())

    assert "from submission to the first start. CPUs" in said()
    now = timezone.now()
    PlatformStop.objects.create(began_at=now - timedelta(seconds=90), ended_at=now - timedelta(seconds=30))
    assert f"first start, without {ui.duration(60)} in which the platform was stopped. CPUs" in said()


def test_the_usage_page_names_what_the_limits_allow_a_day(signed_in: SignIn, lab: Tenant, dave: User) -> None:
    assert "Daily maximum (limits × 24 h): 192" in markup(signed_in(dave).get("/t/vision-lab/usage?of=cpu"))


def test_on_a_phone_every_value_of_a_token_and_an_account_has_its_heading(
    signed_in: SignIn, lab: Tenant, dave: User
) -> None:
    """There a row becomes a block without the table's head, and what has no heading there is hidden."""
    client = signed_in(dave)
    client.post("/t/vision-lab/tokens/accounts", {"name": "ci-nightly", "role": "viewer"})
    client.post("/t/vision-lab/tokens/new", {"name": "laptop", "role": "viewer", "days": "30"} | OWN)
    client.get("/t/vision-lab/tokens")  # shows the new secret, once
    page = markup(client.get("/t/vision-lab/tokens"))
    rows = re.findall(r"<tr>\s*(<td.*?)</tr>", page, re.DOTALL)
    assert len(rows) == 2
    for row in rows:
        cells = re.findall(r"<td[^>]*>", row)[1:-1]
        assert [cell for cell in cells if "data-label=" not in cell and "hide-on-phone" not in cell] == []


def test_the_profile_of_a_user_without_a_tenant_says_where_tokens_are(signed_in: SignIn, admin: User) -> None:
    page = markup(signed_in(admin).get("/me"))
    assert "you are not a member of a tenant" in page
    assert "Manage tokens per tenant" not in page
