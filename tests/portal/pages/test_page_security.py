"""What holds for every page: forms take the token of their session, no frame, nothing kept by a cache between."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import URLPattern

from portal.pages.urls import urlpatterns
from tenants.models import Membership, Tenant, User
from tenants.roles import Role
from tests import factories
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
FILLED = {"slug": "vision-lab", "username": "carol", "token_id": "0" * 16, "name": "ci", "job_id": "0" * 12,
          "verb": "halt", "session_id": "0" * 16, "manage_verb": "share", "tab": "logs",
          "passkey_id": 1}  # fmt: skip


def _addresses() -> list[URLPattern]:
    return [pattern for pattern in urlpatterns if pattern.name not in ("home",)]


@pytest.mark.parametrize("pattern", _addresses(), ids=lambda pattern: str(pattern.name))
def test_no_page_takes_a_post_without_the_sessions_token(
    lab: Tenant, admin: User, pattern: URLPattern
) -> None:
    from django.urls import reverse

    keys = pattern.pattern.regex.groupindex
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin)
    answer = client.post(reverse(str(pattern.name), kwargs={key: FILLED[key] for key in keys}), {})
    assert answer.status_code in (403, 405)


def test_pages_refuse_frames_and_caches_between(signed_in: SignIn, lab: Tenant, alice: User) -> None:
    for path in ("/t/vision-lab/", "/t/vision-lab/tokens", "/me", "/never-was"):
        headers = signed_in(alice).get(path).headers
        assert headers["X-Frame-Options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "no-store" in headers["Cache-Control"]


def test_a_manager_raises_neither_their_own_role_nor_any_role_elsewhere(
    signed_in: SignIn, lab: Tenant, carol: User, dave: User
) -> None:
    other = factories.tenant("nlp-research")
    factories.member(other, "bob")
    client = signed_in(dave)
    for path, form in (
        ("/t/nlp-research/members/add", {"username": "dave", "role": "manager"}),
        ("/t/nlp-research/members/bob", {"role": "viewer"}),
        ("/t/nlp-research/tokens/accounts", {"name": "ci", "role": "researcher"}),
        ("/admin-console/quotas", {"limit:vision-lab:cpu": "9", "action": "apply", "reason": "mine"}),
        ("/admin-console/tenants/vision-lab/state", {"state": "suspended", "reason": "mine"}),
    ):
        assert client.post(path, form).status_code == 404, path
    assert Membership.objects.get(user__username="bob").role == Role.RESEARCHER
    Membership.objects.filter(user=dave).update(role=Role.VIEWER)
    assert client.post("/t/vision-lab/members/dave", {"role": "manager"}).status_code == 403
    assert Membership.objects.get(user=dave).role == Role.VIEWER


def test_no_page_allows_scripts_or_evaluation_in_line(signed_in: SignIn, lab: Tenant, admin: User) -> None:
    client = signed_in(admin)
    for path in ("/login", "/welcome", "/me", "/admin-console/", "/admin-console/users", "/docs/api"):
        rules = dict(rule.split(" ", 1) for rule in client.get(path)["Content-Security-Policy"].split("; "))
        assert "unsafe" not in rules.get("script-src", rules["default-src"]), path
        assert "unsafe" not in rules["style-src"], path


def test_there_is_no_database_admin(signed_in: SignIn, admin: User) -> None:
    client = signed_in(admin)
    assert {client.get(path).status_code for path in ("/staff/", "/staff/tenants/user/", "/admin/")} == {404}
