"""Who signed in, failed to and signed out, and who downloaded what, from which address; read by REST and as JSON."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.management import call_command
from django.test import Client

from jobs.states import State
from tenants import audit_chain
from tenants.models import AuditEntry, Token, User
from tests import factories

pytestmark = pytest.mark.django_db
BROWSER = {"REMOTE_ADDR": "10.0.0.7"}


@pytest.fixture
def alice() -> User:
    return factories.user("alice", password=factories.PASSWORD)


def trail() -> list[tuple[str, str | None, str, str | None]]:
    rows = AuditEntry.objects.select_related("actor").order_by("pk")
    return [
        (row.action, row.actor.get_username() if row.actor else None, row.target, row.address) for row in rows
    ]


def test_a_login_a_new_password_and_the_logout_are_recorded_with_the_address(alice: User) -> None:
    client = Client(**BROWSER)
    client.post("/login", {"username": "alice", "password": factories.PASSWORD})
    changed = {
        "old_password": factories.PASSWORD,
        "new_password1": "tuba horn bass 47",
        "new_password2": "tuba horn bass 47",
    }
    assert client.post("/me/password", changed).status_code == 302
    client.post("/me/sign-out-others")
    client.post("/logout")
    actions = ["login.success", "password.change", "session.end", "logout.success"]
    assert trail() == [(action, "alice", "alice", "10.0.0.7") for action in actions]


def test_what_admins_change_of_users_is_recorded_with_their_address(alice: User) -> None:
    root = factories.user("root", is_superuser=True)
    browser = Client(**BROWSER)
    browser.force_login(root)
    for path, body in (
        ("", {"username": "erin"}),
        ("/erin/reset", {}),
        ("/erin/disable", {}),
        ("/erin/enable", {}),
        ("/alice/reset", {}),
    ):
        answer = browser.post(f"/api/v1/users{path}", body, content_type="application/json")
        assert answer.status_code in (200, 201), answer.content
    actions = ["user.create", "user.reset", "user.disable", "user.enable", "user.reset"]
    names = ["erin"] * 4 + ["alice"]
    assert [each for each in trail() if each[0].startswith("user.")] == [
        (action, "root", name, "10.0.0.7") for action, name in zip(actions, names, strict=True)
    ]


def test_a_failed_login_names_a_user_and_nothing_that_may_be_a_password(alice: User) -> None:
    for name in ("alice", "my secret password"):
        Client(**BROWSER).post("/login", {"username": name, "password": "wrong"})
    assert trail() == [("login.failure", None, "alice", "10.0.0.7"), ("login.failure", None, "", "10.0.0.7")]


def test_guesses_above_the_budget_fill_no_table(alice: User, settings: LazySettings) -> None:
    settings.AXES_ENABLED, settings.AXES_FAILURE_LIMIT = True, 3
    for _ in range(10):
        Client(**BROWSER).post("/login", {"username": "alice", "password": "wrong"})
    assert len(trail()) == 3


def api(user: User) -> Client:
    _, secret = Token.objects.create(user=user, name="test", expiry=None)
    return Client(headers={"Authorization": f"Bearer {secret}"}, **BROWSER)


@pytest.mark.parametrize(
    ("path", "action"), [("logs/raw", "log.download"), ("metrics.csv", "metrics.download")]
)
def test_a_download_by_a_member_is_recorded_once(path: str, action: str) -> None:
    job = factories.job(state=State.PROCESSING)
    client = api(job.owner)
    for _ in range(3):
        assert client.get(f"/api/v1/jobs/{job.pk}/{path}").status_code == 200
    assert trail() == [(action, job.owner.get_username(), job.pk, "10.0.0.7")]


def test_reading_without_a_download_by_a_member_is_not_recorded() -> None:
    job = factories.job(state=State.PROCESSING)
    assert api(job.owner).get(f"/api/v1/jobs/{job.pk}").status_code == 200
    assert trail() == []


def exported(*arguments: str) -> list[dict[str, Any]]:
    out = StringIO()
    call_command("audit", *arguments, stdout=out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_admins_read_all_entries_by_rest_and_operators_as_json_lines(alice: User) -> None:
    Client(**BROWSER).post("/login", {"username": "alice", "password": factories.PASSWORD})
    audit_chain.seal_new()
    Client(**BROWSER).post("/login", {"username": "alice", "password": "wrong"})
    admin = factories.user("root", is_superuser=True)
    items = api(admin).get("/api/v1/audit").json()["items"]
    assert [(item["action"], item["actor"], item["tenant"], item["address"]) for item in items] == [
        ("login.failure", None, None, "10.0.0.7"),
        ("login.success", "alice", None, "10.0.0.7"),
    ]
    assert api(alice).get("/api/v1/audit").status_code == 403
    lines = exported()
    assert [line["id"] for line in lines] == [item["id"] for item in items][::-1]
    assert lines[0]["seal"]["n"] == 1
    assert lines[1]["seal"] is None
    assert exported("--after", str(lines[0]["id"])) == lines[1:]
