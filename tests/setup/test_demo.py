"""`manage.py demo`: creates what is missing, sets new secrets, leaves other users alone."""

import json
from io import StringIO
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.auth.hashers import make_password
from django.core.management import call_command
from django.db import OperationalError, connection
from django.test import Client
from django.urls import reverse

from examples import catalog
from jobs.models import ClusterNode, Job
from jobs.selectors import what_if
from jobs.states import State
from portal import demo
from portal.management.commands import prepare
from portal.runtimes import register_runtimes
from portal.supervisor.welcome import welcome
from tenants.models import Membership, Quota, Tenant, Token, User
from tenants.services.quotas import most_allocatable
from tests import factories

pytestmark = pytest.mark.django_db


def run() -> dict[str, dict[str, Any]]:
    output = StringIO()
    call_command("demo", "--json", stdout=output)
    answer = json.loads(output.getvalue())
    assert set(answer) == {"url", "users"}
    users: dict[str, dict[str, Any]] = answer["users"]
    return users


def test_the_five_people_have_their_roles_passwords_and_tokens() -> None:
    users = run()
    assert {name: (user["tenant"], user["role"]) for name, user in users.items()} == {
        "alice": ("vision-lab", "researcher"),
        "bob": ("nlp-research", "researcher"),
        "carol": ("vision-lab", "viewer"),
        "dave": ("vision-lab", "manager"),
        "admin": (None, "admin"),
    }
    for name, user in users.items():
        assert User.objects.get(username=name).check_password(user["password"])
        assert user["token"].startswith("lut_")
        assert len(user["password"]) >= 22, "of 64 letters: 128 bits"
    assert [user.username for user in User.objects.filter(is_superuser=True)] == ["admin"]
    assert authenticate(None, username="alice", password="wrong") is None


def test_a_job_that_alice_shares_is_bobs_to_read_with_the_demos_own_tokens() -> None:
    users = run()
    alice, bob = ({"Authorization": f"Bearer {users[name]['token']}"} for name in ("alice", "bob"))
    tenant = Tenant.objects.get(slug="vision-lab")
    job = factories.job(of=tenant, owner=User.objects.get(username="alice"))
    client, address = Client(), f"/api/v1/jobs/{job.pk}"
    assert client.get(address, headers=bob).status_code == 404
    share = {"username": "bob", "permission": "view"}
    made = client.post(f"{address}/shares", share, content_type="application/json", headers=alice)
    assert made.status_code == 201
    assert client.get(address, headers=bob).json()["name"] == job.name
    assert client.get("/api/v1/tenants/vision-lab", headers=bob).status_code == 404


def test_a_second_run_sets_new_secrets_and_leaves_the_old_ones_dead() -> None:
    first, second = run(), run()
    for name in first:
        assert not User.objects.get(username=name).check_password(first[name]["password"])
        assert User.objects.get(username=name).check_password(second[name]["password"])
    assert Token.objects.count() == len(second)


def test_other_users_are_left_alone() -> None:
    other = User.objects.create_user("erin", password="kept-as-it-is")
    tenant = Tenant.objects.create(slug="astro", name="Astro")
    Membership.objects.create(user=other, tenant=tenant, role="manager")
    _, secret = Token.objects.create(user=other, name="demo")
    run()
    other.refresh_from_db()
    assert other.check_password("kept-as-it-is")
    assert Token.objects.filter(user=other).count() == 1
    assert secret
    assert not Quota.objects.filter(tenant=tenant).exists()


def test_limits_that_an_administrator_set_stay() -> None:
    run()
    Quota.objects.filter(tenant__slug="vision-lab").update(limit=1)
    run()
    assert set(Quota.objects.filter(tenant__slug="vision-lab").values_list("limit", flat=True)) == {1}


def test_the_first_tenant_may_use_all_and_the_second_an_eighth() -> None:
    run()
    limits = dict(Quota.objects.values_list("tenant__slug", "limit"))
    assert limits == {"vision-lab": 16, "nlp-research": 2}


@pytest.mark.parametrize("slots", [2, 3, 4, 16])
def test_every_example_fits_the_first_tenants_limit(slots: int) -> None:
    """Two cores are a common small machine: a gang of two must not wait for an admin there."""
    asked = [resources(template.spec["resources"]) for template in catalog.templates()]
    assert max(asked) > 1
    assert max(asked) <= demo.limits(slots)[0]


def resources(asked: dict[str, int]) -> int:
    return asked.get("learners", 1) * asked.get("cpus", 1)


@pytest.mark.parametrize("slots", [3, 4, 5, 8, 12, 16, 40, 64])
def test_on_a_larger_cluster_an_admin_can_raise_a_limit_to_what_is_there(slots: int) -> None:
    limits = demo.limits(slots)
    assert min(limits) >= 1
    assert max(limits) <= slots
    assert any(limit < slots for limit in limits)
    assert sum(limits) + 1 <= most_allocatable(slots, settings.LUTHIER_OVERCOMMIT_MAX)


def test_raising_the_second_tenants_limit_lets_its_waiting_job_start() -> None:
    run()
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=16)
    tenant, bob = Tenant.objects.get(slug="nlp-research"), User.objects.get(username="bob")
    factories.job(of=tenant, owner=bob, state=State.PROCESSING, slots=2)
    factories.job(of=tenant, owner=bob, state=State.QUEUED, name="patient", slots=2)
    client = Client()
    client.force_login(User.objects.get(username="admin"))
    draft = {"limit:nlp-research:cpu": "4", "if:nlp-research:cpu": "2", "action": "review"}
    page = client.post("/admin-console/quotas", draft)
    assert page.status_code == 200
    assert "patient of nlp-research starts" in page.content.decode()
    assert not what_if.would_start({}).starting


def test_a_first_start_submits_the_example_as_alice() -> None:
    register_runtimes()
    made = demo.first_start()
    job = Job.objects.get()
    assert made["job"] == reverse("job", args=["vision-lab", job.pk])
    assert (job.owner.username, job.framework, job.state) == ("alice", "sklearn", "QUEUED")


def test_passwords_are_hashed_while_a_start_waits_for_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """They took a second in which everything else waited for a core."""
    tries = iter([OperationalError, OperationalError, None])

    def answer() -> None:
        if error := next(tries):
            raise error

    passwords = demo.Passwords()
    with monkeypatch.context() as patched:
        patched.setattr(connection, "ensure_connection", answer)
        prepare.wait_for_database(passwords.make_one)
    made = [passwords.of(person.name) for person in demo.PEOPLE[:2]]
    hashed: list[str] = []

    def noted(text: str) -> str:
        hashed.append(text)
        return make_password(text)

    with monkeypatch.context() as patched:
        patched.setattr(demo, "make_password", noted)
        users = demo.first_start(passwords)["users"]
    assert len(hashed) == len(demo.PEOPLE) - 2
    assert [users[person.name]["password"] for person in demo.PEOPLE[:2]] == [text for text, _ in made]
    assert all(User.objects.get(username=name).check_password(one["password"]) for name, one in users.items())
    assert not passwords.make_one()


def test_a_first_start_happens_only_on_an_empty_database() -> None:
    User.objects.create_user("erin")
    assert demo.first_start() == {}
    assert User.objects.count() == 1
    assert not Job.objects.exists()


@pytest.mark.parametrize("url", ["https://luthier.example.org", "http://192.0.2.7:8000"])
def test_no_default_users_are_made_where_others_reach_the_platform(settings: Any, url: str) -> None:
    settings.LUTHIER_PUBLIC_URL = url
    output = StringIO()
    call_command("prepare", stdout=output)
    made = json.loads(output.getvalue().splitlines()[1])
    assert list(made) == ["hint"]
    assert "manage.py admin NAME" in welcome(url, made)
    assert not User.objects.exists()
    factories.user("admin", is_superuser=True)
    call_command("prepare", stdout=output)
    assert json.loads(output.getvalue().splitlines()[-1]) == {}, "there is someone who knows"


def test_a_deployment_makes_no_default_users() -> None:
    for name in ("docker-compose.yml", "deploy/kubernetes/prepare.yaml"):
        lines = (settings.BASE_DIR / name).read_text().splitlines()
        prepares = [line for line in lines if "manage.py, prepare" in line]
        assert prepares, name
        assert all("--no-demo" in line for line in prepares), name


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://localhost:8000", True),
        ("http://luthier.localhost", True),
        ("http://[::1]:8000", True),
        ("http://10.0.0.7:8000", False),
        ("https://localhost.example.org", False),
        ("https://luthier.example.org", False),
    ],
)
def test_what_counts_as_ones_own_machine(url: str, own: bool) -> None:
    assert prepare.is_own_machine(url) is own
