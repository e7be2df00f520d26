"""The levels of docs/security.md, "Data, and who sees them": each promise of each level, one by one.

A promise that is added or reworded there fails here until a test keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection, models, transaction
from django.test import Client, override_settings

from portal.settings.env import Environment
from portal.settings.secret import SecretsKeys
from portal.settings.single_sign_on import providers
from tenants.models import (
    AuditEntry,
    AuthenticatorApp,
    Membership,
    OneTimePassword,
    Passkey,
    RecoveryCode,
    Secret,
    Session,
    Tenant,
    Token,
    User,
)
from tenants.services.secrets import secret_set
from tenants.services.users import user_reset
from tests import factories
from tests.architecture import rows
from tests.architecture.rows import IN
from tests.architecture.test_isolation_matrix import OPERATIONS
from tests.architecture.test_page_matrix import ROUTES
from tests.architecture.world import ISSUER, LEARNERS, Who, World, build

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[2]
HERE, BROWSERS = "tests/architecture/test_data_levels.py::", "tests/portal/test_browsers.py::"
PERIODIC, RETENTION = "tests/jobs/lifecycle/test_periodic.py::", "tests/portal/api/test_retention_api.py::"
HEADERS = "tests/portal/test_response_headers.py::"
KEPT_BY = {
    "secret": {
        "be hashed or encrypted wherever they are stored": f"{HERE}test_no_secret_is_in_the_database",
        "be shown once or never": f"{HERE}test_no_answer_has_a_secret",
        "be in no log, page, address or cache": f"{HERE}test_no_answer_has_a_secret",
        "be deleted with their owner": f"{HERE}test_secrets_go_with_their_owner",
    },
    "confidential": {
        "be read by its members, whom a job is shared with, and platform admins, which is recorded with the reason if "
        "one is given":
            f"{HERE}test_a_job_is_read_by_whom_its_level_names",
        "leave by TLS": f"{HEADERS}test_over_https_no_cookie_is_another_hosts_and_nothing_goes_without_tls",
        "be removed by retention and, 90 days after it was deleted, with their job":
            f"{PERIODIC}test_a_deleted_job_is_purged_with_every_row_and_byte_once_its_time_is_over "
            f"{RETENTION}test_a_size_rule_removes_the_data_of_the_jobs_that_ended_first",
    },
    "personal": {
        "be seen by their user and platform admins": f"{HERE}test_users_are_seen_by_admins_and_themselves",
        "of members an address after they accepted": f"{HERE}test_an_address_is_seen_once_its_member_accepted",
        "the audit log by admins, of a tenant by its managers":
            f"{HERE}test_the_audit_log_is_read_by_whom_its_level_names",
        "be kept as the rule for `audit` says, sessions 14 days":
            f"{BROWSERS}test_a_session_ends_two_weeks_after_it_began_however_it_is_used "
            f"{RETENTION}test_the_audit_log_is_shortened_by_its_own_rule_alone",
    },
    "internal": {
        "be seen by its members, its numbers by all users without names of other tenants' jobs":
            f"{HERE}test_numbers_of_the_cluster_name_no_job_of_another_tenant",
    },
    "public": {"say nothing of tenants and users": f"{HERE}test_what_is_public_names_no_tenant_and_no_user"},
}  # fmt: skip
"""The test, or tests, of each promise."""
ROW = re.compile(r"^\| (\w+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@pytest.fixture(scope="module")
def made(
    django_db_setup: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[World, dict[str, str]]]:
    """A world, and one secret of every kind in it, as its owner knows it."""
    keys = SecretsKeys((), tmp_path_factory.mktemp("keys") / "secrets_keys")
    known = providers(Environment(luthier_oidc_issuer=ISSUER, luthier_oidc_client_id="luthier"))
    more = override_settings(
        LUTHIER_OIDC_ISSUER=ISSUER, SOCIALACCOUNT_PROVIDERS=known, LUTHIER_SECRETS_KEYS=keys
    )
    with django_db_blocker.unblock(), transaction.atomic(), more:
        world = build()
        alice, admin = world.users[Who.OWNER], world.users[Who.ADMIN]
        alice.set_password("the password of alice")
        alice.save()
        app, codes = factories.authenticator_app(alice, beside=True)
        _, token = Token.objects.create(user=alice, name="laptop")
        secret_set(user=alice, name="wandb", value="the value of a secret")
        secrets = {
            "password": "the password of alice",
            "app": app,
            "recovery code": codes[0],
            "token": token,
            "value of a secret": "the value of a secret",
            "one-time password": user_reset(user=admin, username="carol").secret,
            "learner's secret": world.secrets[Who.LEARNER],
            "session": _session_of(alice),
        }
        world.users[Who.VIEWER].refresh_from_db()
        yield world, secrets
        transaction.set_rollback(True)


@pytest.fixture(autouse=True)
def _fresh_budgets() -> None:
    cache.clear()


def test_each_promise_of_each_level_has_its_test() -> None:
    page = (ROOT / "docs" / "security.md").read_text().partition("## Data, and who sees them")[2]
    table = {level: must.strip() for level, must in ROW.findall(page.partition("## ")[0]) if level in KEPT_BY}
    assert table.keys() == KEPT_BY.keys()
    for level, must in table.items():
        assert LINK.sub(r"\1", must).split("; ") == list(KEPT_BY[level]), level
    for test in " ".join(test for level in KEPT_BY.values() for test in level.values()).split():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), test


def test_no_secret_is_in_the_database(made: tuple[World, dict[str, str]]) -> None:
    _, known = made
    stored = "\n".join(_stored())
    assert "vision-lab" in stored, "it is read"
    assert [kind for kind, text in known.items() if text in stored] == []


def test_no_answer_has_a_secret(made: tuple[World, dict[str, str]], caplog: pytest.LogCaptureFixture) -> None:
    """Of every page and every operation that reads, to who made them and to an admin."""
    world, known = made
    caplog.set_level("DEBUG")
    seen = 0
    for address, headers, text in _answers(world):
        assert [kind for kind, secret in known.items() if secret in text] == [], address
        assert "no-store" in headers.get("Cache-Control", ""), address
        assert not any(secret in address for secret in known.values())
        seen += 1
    assert seen > 150
    assert [kind for kind, secret in known.items() if secret in caplog.text] == []


def test_secrets_go_with_their_owner(made: tuple[World, dict[str, str]]) -> None:
    for model in (AuthenticatorApp, OneTimePassword, Passkey, RecoveryCode, Secret, Session, Token):
        field = model._meta.get_field("user")
        assert isinstance(field, models.ForeignKey | models.OneToOneField)
        assert field.remote_field.on_delete is models.CASCADE, model
    of_tenant = Secret._meta.get_field("tenant")
    assert isinstance(of_tenant, models.ForeignKey)
    assert of_tenant.remote_field.on_delete is models.CASCADE
    with transaction.atomic():
        user = factories.user("mallory")
        number = user.pk
        factories.authenticator_app(user)
        secret_set(user=user, name="mine", value="of mallory alone")
        assert RecoveryCode.objects.filter(user_id=number).exists()
        user.delete()
        left = [AuthenticatorApp, RecoveryCode, Secret]
        assert [model for model in left if model._default_manager.filter(user_id=number).exists()] == []
        transaction.set_rollback(True)


def test_a_job_is_read_by_whom_its_level_names(made: tuple[World, dict[str, str]]) -> None:
    world, _ = made
    path = f"/jobs/{world.things['job_id']}"
    reads = {who: _get(world, who, path)[0] for who in Who if who not in LEARNERS}
    shut_out = {Who.ANONYMOUS: 401, Who.STRANGER: 404}
    assert reads == {who: shut_out.get(who, 200) for who in reads}
    with transaction.atomic():
        before = AuditEntry.objects.count()
        client = Client(headers={"X-Access-Reason": "asked by alice"})
        client.force_login(world.users[Who.ADMIN])
        client.get(f"/api/v1{path}")
        assert AuditEntry.objects.order_by("pk")[before:].get().reason == "asked by alice"
        transaction.set_rollback(True)


def test_users_are_seen_by_admins_and_themselves(made: tuple[World, dict[str, str]]) -> None:
    world, _ = made
    reads = {who: _get(world, who, "/users/carol")[0] for who in Who if who not in LEARNERS}
    assert {who for who, status in reads.items() if status == 200} == {Who.ADMIN}
    for who, user in world.users.items():
        assert f'"{user.username}"' in _get(world, who, "/me")[1]


def test_an_address_is_seen_once_its_member_accepted(made: tuple[World, dict[str, str]]) -> None:
    world, _ = made
    with transaction.atomic():
        User.objects.filter(username="erin").update(email="erin@example.org")
        of_erin = Membership.objects.filter(user__username="erin")
        of_erin.update(accepted_at=None)
        path = f"/tenants/{world.tenant.slug}/members"
        assert "erin@example.org" not in _get(world, Who.VIEWER, path)[1]
        of_erin.update(accepted_at=world.tenant.created_at)
        assert "erin@example.org" in _get(world, Who.VIEWER, path)[1]
        transaction.set_rollback(True)


def test_the_audit_log_is_read_by_whom_its_level_names(made: tuple[World, dict[str, str]]) -> None:
    world, _ = made
    people = [who for who in Who if who not in LEARNERS]
    whole = {who for who in people if _get(world, who, "/audit")[0] == 200}
    of_tenant = {who for who in people if _get(world, who, f"/tenants/{world.tenant.slug}/audit")[0] == 200}
    assert (whole, of_tenant) == ({Who.ADMIN}, {Who.MANAGER, Who.ADMIN})


def test_numbers_of_the_cluster_name_no_job_of_another_tenant(made: tuple[World, dict[str, str]]) -> None:
    world, _ = made
    for path in ("/cluster", "/cluster/nodes"):
        status, text = _get(world, Who.STRANGER, path)
        assert status == 200
        assert "secret-" not in text
        assert world.things["job_id"] not in text
    assert _get(world, Who.STRANGER, f"/tenants/{world.tenant.slug}/usage")[0] == 404
    assert _get(world, Who.VIEWER, f"/tenants/{world.tenant.slug}/usage")[0] == 200


def test_what_is_public_names_no_tenant_and_no_user(made: tuple[World, dict[str, str]]) -> None:
    names = [*Tenant.objects.values_list("slug", flat=True), *User.objects.values_list("username", flat=True)]
    assert len(names) > 8
    for path in ("login", "welcome", "healthz", "readyz", ".well-known/security.txt"):
        text = Client().get(f"/{path}").content.decode()
        assert [name for name in names if re.search(rf"\b{re.escape(name)}\b", text)] == [], path


def _session_of(user: User) -> str:
    """The key of a new session, as its cookie has it."""
    client = Client()
    client.force_login(user)
    assert client.get("/me").status_code == 200
    return client.session.session_key or ""


def _stored() -> Iterator[str]:
    """Every row of every table, as text; bytes as text where they are some."""
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT * FROM "{table}"')
            for row in cursor.fetchall():
                yield " ".join(
                    bytes(each).decode(errors="replace")
                    if isinstance(each, bytes | memoryview)
                    else str(each)
                    for each in row
                )


def _get(world: World, who: Who, path: str) -> tuple[int, str]:
    client = Client()
    if who is not Who.ANONYMOUS:
        client.force_login(world.users[who])
    answer = client.get(f"/api/v1{path}")
    return answer.status_code, answer.content.decode()


def _answers(world: World) -> Iterator[tuple[str, Any, str]]:
    """Address, headers and text of all that the owner of the secrets, and an admin, may read."""
    things = world.things
    pages = [
        (
            ROUTES[name].path(things | {part: things[thing] for part, thing in page.things.items()}),
            page.let_in,
        )
        for name, cells in rows.PAGES.items()
        for page in cells
        if not (page.post or page.open_to_all or page.own_token or page.for_learners)
    ]
    reads = [
        (
            OPERATIONS[name][0].path(things | {part: things[thing] for part, thing in row.things.items()}),
            row.rule,
        )
        for name, row in rows.API.items()
        if name.startswith("GET ")
    ]
    for who in (Who.OWNER, Who.ADMIN):
        for address, rule in pages + reads:
            if rule[who] != IN:
                continue
            with transaction.atomic():
                client = Client()
                client.force_login(world.users[who])
                answer = client.get(address)
                body = b"".join(answer.streaming_content) if answer.streaming else answer.content
                transaction.set_rollback(True)
            yield address, answer.headers, body.decode(errors="replace")
