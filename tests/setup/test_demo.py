"""`manage.py demo`: creates what is missing, sets new secrets, touches nobody else."""

import json
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.core.management import call_command

from jobs.models import Job
from portal import demo
from portal.runtimes import register_runtimes
from tenants.models import Membership, Quota, Tenant, Token, User

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
    assert [user.username for user in User.objects.filter(is_superuser=True)] == ["admin"]
    assert authenticate(None, username="alice", password="wrong") is None


def test_a_second_run_sets_new_secrets_and_leaves_the_old_ones_dead() -> None:
    first, second = run(), run()
    for name in first:
        assert not User.objects.get(username=name).check_password(first[name]["password"])
        assert User.objects.get(username=name).check_password(second[name]["password"])
    assert Token.objects.count() == len(second)


def test_nobody_else_is_touched() -> None:
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


def test_the_second_tenant_gets_a_quarter() -> None:
    run()
    limits = dict(Quota.objects.values_list("tenant__slug", "limit"))
    assert limits == {"vision-lab": 16, "nlp-research": 4}


def test_a_first_start_submits_the_example_as_alice() -> None:
    register_runtimes()
    made = demo.first_start()
    job = Job.objects.get()
    assert made["job"] == f"/t/vision-lab/jobs/{job.pk}"
    assert (job.owner.username, job.framework, job.state) == ("alice", "sklearn", "QUEUED")


def test_a_first_start_happens_only_on_an_empty_database() -> None:
    User.objects.create_user("erin")
    assert demo.first_start() == {}
    assert User.objects.count() == 1
    assert not Job.objects.exists()
