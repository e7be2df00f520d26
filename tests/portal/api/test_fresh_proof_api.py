"""By REST, too, a session that is not fresh changes nothing of how someone signs in, and ends no session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.cache import cache
from django.test import Client

from portal.settings.secret import SecretsKeys
from tenants import two_factor
from tenants.models import Membership, Session, Token, User
from tenants.roles import Role
from tests import factories
from tests.portal.api.conftest import Api
from tests.stale_session import grow_stale

pytestmark = pytest.mark.django_db
USER = "/users/erin"
CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("DELETE", "/me/sessions", {}),
    ("DELETE", "/me/sessions/0123456789abcdef", {}),
    ("POST", "/users", {"username": "mallory", "is_platform_admin": True}),
    ("PATCH", USER, {"email": "mallory@example.org"}),
    *(("POST", f"{USER}/{verb}", {}) for verb in ("reset", "reset-two-factor", "disable", "enable")),
    ("POST", f"{USER}/identities", {"subject": "248289761001"}),
    ("DELETE", f"{USER}/identities/0123456789abcdef", {}),
    ("DELETE", f"{USER}/sessions", {}),
    ("DELETE", f"{USER}/sessions/0123456789abcdef", {}),
]


@pytest.fixture(autouse=True)
def _budgets_and_keys(settings: LazySettings, tmp_path: Path) -> None:
    cache.clear()
    settings.LUTHIER_OIDC_ISSUER = "https://id.example.org"
    settings.LUTHIER_SECRETS_KEYS = SecretsKeys((), tmp_path / "secrets_keys")


@pytest.fixture
def admin() -> User:
    return factories.user("admin", is_superuser=True, password=factories.PASSWORD)


def send(client: Client, method: str, path: str, body: dict[str, Any]) -> Any:
    return client.generic(method, f"/api/v1{path}", json.dumps(body), "application/json")


@pytest.mark.parametrize(("method", "path", "body"), CHANGES, ids=[f"{m} {p}" for m, p, _ in CHANGES])
def test_a_stale_session_is_refused_and_a_fresh_one_and_a_token_are_not(
    admin: User, method: str, path: str, body: dict[str, Any]
) -> None:
    factories.user("erin")
    browser, there = Client(), Client()
    browser.force_login(admin)
    there.force_login(User.objects.get(username="erin"))
    grow_stale(browser)
    before = User.objects.order_by("pk").values()
    was = list(before)
    refused = send(browser, method, path, body)
    assert (refused.status_code, refused.json()["code"]) == (403, "proof_required"), refused.content
    assert "/me/confirm" in refused.json()["detail"]
    assert (list(before.all()), Session.objects.count()) == (was, 2)
    fresh = Client()
    fresh.force_login(admin)
    assert send(fresh, method, path, body).status_code in (200, 201, 204, 404)
    assert Api(admin).get("/me/sessions").status_code == 200
    assert Api(admin)(method, path, body).status_code in (200, 201, 204, 404, 409)


def test_of_a_user_with_a_second_factor_a_stale_session_shows_it(admin: User) -> None:
    secret, codes = factories.authenticator_app(admin)
    browser = Client()
    browser.force_login(admin)
    password = {"password": factories.PASSWORD}
    lab = factories.tenant("vision-lab")
    Membership.objects.create(tenant=lab, user=admin, role=Role.MANAGER)
    accounts = "/tenants/vision-lab/service-accounts"
    assert send(browser, "POST", accounts, {"name": "ci"}).status_code == 201
    grow_stale(browser)
    for path, code in (("/me/tokens", codes[0]), (f"{accounts}/ci/tokens", codes[1])):
        refused = send(browser, "POST", path, password | {"name": "laptop"})
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (400, "code"), path
        assert not Token.objects.filter(name="laptop").exists()
        assert send(browser, "POST", path, password | {"name": "laptop", "code": code}).status_code == 201
        Token.objects.all().delete()
    refused = send(browser, "POST", "/me/two-factor/remove", password)
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (400, "code")
    assert two_factor.is_on(admin)
    given = password | {"code": factories.app_code(secret)}
    assert send(browser, "POST", "/me/two-factor/remove", given).status_code == 200
    assert not two_factor.is_on(admin)
