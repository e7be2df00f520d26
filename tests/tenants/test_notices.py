"""Security notices: what happened to an account reaches its user, and only them, however busy an attacker is."""

from __future__ import annotations

from copy import copy

import pytest
from django.conf import LazySettings
from django.db import DatabaseError, connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from tenants import audit, notices, outbox, two_factor
from tenants.errors import ServiceError
from tenants.models import AuditEntry, SecurityNotice, User
from tenants.roles import Role
from tenants.services import users
from tenants.services.accounts import account_create, account_token_create
from tenants.tokens import public_id, token_create, token_revoke
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice(settings: LazySettings) -> User:
    settings.LUTHIER_SENDS_MAIL = True
    return factories.member(factories.tenant("vision"), "alice")


def kinds(of: User) -> list[str]:
    return [each.kind for each in of.security_notices.order_by("pk")]


def fail(of: User, times: int = 1, **details: object) -> None:
    for _ in range(times):
        audit.record(
            actor=None,
            action="login.failure",
            target=of.get_username(),
            details={"known_name": True, **details},
        )


def enter(of: User, address: str | None, browser: str = "Firefox on Linux") -> None:
    token = audit.source_address.set(address)
    try:
        audit.record(actor=of, action="login.success", target=of.get_username(), details={"browser": browser})
    finally:
        audit.source_address.reset(token)


def test_what_an_admin_does_to_an_account_is_noted_for_its_user_alone(alice: User) -> None:
    admin = factories.user("admin", is_superuser=True)
    users.user_reset(user=admin, username="alice")
    users.user_change(user=admin, username="alice", changes={"is_superuser": True})
    assert kinds(alice) == ["user.reset", "admin.granted"]
    assert not admin.security_notices.exists()
    assert [notices.sentence(each) for each in alice.security_notices.order_by("pk")] == [
        "A platform admin replaced your password by a one-time password.",
        "A platform admin made you a platform admin.",
    ]


def test_a_changed_address_is_said_to_the_address_before(alice: User) -> None:
    admin = factories.user("admin", is_superuser=True)
    users.user_change(user=admin, username="alice", changes={"email": "mallory@example.org"})
    notice = alice.security_notices.get()
    assert (notice.kind, notice.to) == ("email.change", "alice@example.org")


def test_what_follows_a_changed_address_goes_to_both(alice: User) -> None:
    """Who takes an account over may change its address first."""
    admin = factories.user("admin", is_superuser=True)
    users.user_change(user=admin, username="alice", changes={"email": "mallory@example.org"})
    users.user_reset(user=admin, username="alice")
    rows = alice.security_notices.filter(kind="user.reset").order_by("pk")
    assert {row.to for row in rows} == {"alice@example.org", "mallory@example.org"}
    assert len(notices.recent(alice)) == 2, "one for each event on the profile"


def test_second_factors_tokens_and_passkeys_are_noted(alice: User) -> None:
    factories.authenticator_app(alice)
    factories.passkey(alice, name="laptop")
    two_factor.codes_renew(alice)
    token, _secret = token_create(user=alice, owner=alice, name="night runs")
    token_revoke(user=alice, owner=alice, token_id=public_id(token))
    two_factor.turn_off(alice)
    assert kinds(alice) == [
        "two_factor.enable",
        "passkey.add",
        "two_factor.codes",
        "token.create",
        "token.revoke",
        "two_factor.disable",
    ]
    created = alice.security_notices.get(kind="token.create")
    assert notices.sentence(created) == "The API token “night runs” was created."


def test_what_is_undone_leaves_no_notice(alice: User) -> None:
    with transaction.atomic():
        token_create(user=alice, owner=alice, name="one")
        transaction.set_rollback(True)
    with pytest.raises(ServiceError):
        token_create(user=alice, owner=alice, name="")
    assert kinds(alice) == []


@pytest.mark.django_db(transaction=True)
def test_an_entry_without_its_notice_is_not_kept(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed sign-ins are recorded outside of any other transaction."""

    def fall(*_: object) -> None:
        raise DatabaseError("the connection is gone")

    monkeypatch.setattr(notices, "_write", fall)
    with pytest.raises(DatabaseError):
        fail(alice, by="passkey", copied=True)
    assert not AuditEntry.objects.exists()


def test_service_accounts_and_disabled_users_get_none(alice: User) -> None:
    tenant = factories.tenant("other")
    manager = factories.member(tenant, "dave", role=Role.MANAGER)
    account_create(user=manager, tenant=tenant, name="bot")
    account_token_create(user=manager, tenant=tenant, name="bot", token_name="ci")
    User.objects.filter(pk=alice.pk).update(is_active=False)
    fail(alice, 50)
    notices.watch()
    assert not SecurityNotice.objects.exists()


def test_failed_sign_ins_are_noted_once_a_day_however_many(alice: User) -> None:
    fail(alice, notices.FAILURES - 1)
    notices.watch()
    assert kinds(alice) == []
    fail(alice, 500)
    assert notices.watch() == 1
    fail(alice)
    assert notices.watch() == 0
    notice = alice.security_notices.get()
    assert notice.kind == "login.failures"
    fail(factories.user("bob"), 2)
    notices.watch()
    assert SecurityNotice.objects.count() == 1


def test_failures_before_midnight_are_not_noted_again_after_it(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(alice, notices.FAILURES)
    assert notices.watch() == 1
    monkeypatch.setattr(notices, "_today", lambda kind: f"{kind}:2100-01-01")
    assert notices.watch() == 0
    fail(alice, notices.FAILURES)
    assert notices.watch() == 1


def test_a_flood_over_many_names_hides_none(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "GUESSED_READ", 2)
    people = [alice, *(factories.user(f"user{n}") for n in range(4))]
    for each in people:
        fail(each, notices.FAILURES)
    assert [notices.watch() for _ in range(4)] == [2, 2, 1, 0]
    assert [kinds(each) for each in people] == [["login.failures"]] * 5


def test_failed_sign_ins_of_an_hour_ago_are_not_noted(alice: User) -> None:
    entry = AuditEntry(action="login.failure", target="alice", at=Now() - notices.WATCHED)
    AuditEntry.objects.bulk_create([copy(entry) for _ in range(notices.FAILURES)])
    assert notices.watch() == 0


def test_wrong_codes_after_a_right_password_are_noted_sooner(alice: User) -> None:
    fail(alice, notices.WRONG_CODES, by="code")
    assert kinds(alice) == ["login.codes"]


def test_a_copied_passkey_is_noted_at_once(alice: User) -> None:
    fail(alice, by="passkey", copied=True)
    assert kinds(alice) == ["login.copied_passkey"]


def test_a_name_that_is_none_leaves_nothing() -> None:
    for name in ("", "mallory") * 20:
        audit.record(actor=None, action="login.failure", target=name, details={"known_name": False})
    assert notices.watch() == 0
    assert not SecurityNotice.objects.exists()


def test_a_sign_in_from_a_new_place_is_noted_and_from_a_known_one_is_not(alice: User) -> None:
    enter(alice, "192.0.2.7")
    enter(alice, "192.0.2.99")  # of the same network
    assert kinds(alice) == [], "the first sign-in has nothing to differ from"
    enter(alice, "198.51.100.1")
    enter(alice, "198.51.100.2")
    assert kinds(alice) == ["login.new_place"]
    enter(alice, "192.0.2.7", "Edge on Windows")
    assert kinds(alice) == ["login.new_place"] * 2
    enter(alice, "2001:db8:1:2::1")
    enter(alice, "2001:db8:1:ffff::9")  # of the same site
    enter(alice, "192.0.2.7", "Edge on Windows")
    assert kinds(alice) == ["login.new_place"] * 3


def test_entries_of_earlier_versions_name_no_browser_and_make_none_new(alice: User) -> None:
    audit.record(actor=alice, action="login.success", target="alice")
    enter(alice, None)
    assert kinds(alice) == []


def test_a_sign_in_that_worked_after_failures_is_noted(alice: User) -> None:
    enter(alice, "192.0.2.7")
    fail(alice, notices.GUESSES)
    enter(alice, "192.0.2.7")
    assert kinds(alice) == ["login.after_failures"]


def test_who_makes_a_user_sign_in_after_failures_hides_no_sign_in_of_theirs(alice: User) -> None:
    """Failures of a known name cost nothing; alice signs in all day, and has mails for the stranger's sign-in."""
    enter(alice, "192.0.2.7")
    fail(alice, notices.GUESSES)
    for _ in range(3 * notices.MAILS_A_DAY):
        enter(alice, "192.0.2.7")
    assert kinds(alice) == ["login.after_failures"]
    enter(alice, "198.51.100.1")
    assert kinds(alice) == ["login.after_failures", "login.after_failures", "login.new_place"]
    assert not alice.security_notices.filter(to="").exists()


def test_what_can_be_repeated_hides_nothing_else_on_the_profile(alice: User) -> None:
    audit.record(actor=alice, action="password.change", target="alice")
    for n in range(100):
        SecurityNotice.objects.create(user=alice, kind="token.create", details={"name": str(n)})
    shown = notices.recent(alice)
    assert len(shown) == notices.SHOWN >= len(notices.KINDS)
    assert shown[0].details == {"name": "99"}
    assert shown[-1].kind == "password.change"


def test_what_can_be_repeated_removes_no_mail_and_no_address_of_before(alice: User) -> None:
    admin = factories.user("admin", is_superuser=True)
    users.user_change(user=admin, username="alice", changes={"email": "mallory@example.org"})
    for n in range(notices.KEPT + 30):
        if n < notices.MAILS_A_DAY:
            token_create(user=alice, owner=alice, name=f"token {n}")
        SecurityNotice.objects.create(user=alice, kind="token.create")
    for _ in range(notices.KEPT + 30):
        SecurityNotice.objects.create(user=alice, kind="email.change")
    notices.forget()
    waiting = alice.security_notices.filter(try_at__isnull=False)
    assert waiting.filter(kind="token.create").count() == 2 * notices.MAILS_A_DAY
    alice.refresh_from_db()
    audit.record(actor=alice, action="password.change", target="alice")
    assert {row.to for row in alice.security_notices.filter(kind="password.change")} == {
        "alice@example.org",
        "mallory@example.org",
    }


def test_users_do_not_see_where_an_admin_is(alice: User) -> None:
    admin = factories.user("admin", is_superuser=True)
    token = audit.source_address.set("192.0.2.7")
    try:
        users.user_reset(user=admin, username="alice")
        audit.record(actor=alice, action="password.change", target="alice")
    finally:
        audit.source_address.reset(token)
    by_admin, own = alice.security_notices.order_by("pk")
    assert (by_admin.address, own.address) == (None, "192.0.2.7")
    assert "192.0.2.7" not in str(outbox.message(by_admin).body)
    assert "By: a platform admin" in str(outbox.message(by_admin).body)


def test_mapped_addresses_are_those_that_they_map(alice: User) -> None:
    enter(alice, "::ffff:192.0.2.7")
    enter(alice, "192.0.2.9")
    assert kinds(alice) == []
    enter(alice, "::ffff:198.51.100.1")
    assert kinds(alice) == ["login.new_place"]


def test_a_flood_of_failures_costs_the_same_each_time(alice: User) -> None:
    with CaptureQueriesContext(connection) as asked:
        fail(alice)
    assert [each["sql"][:6] for each in asked if "SAVEPOINT" not in each["sql"]] == ["INSERT"]
    fail(alice, notices.WRONG_CODES, by="code")
    assert kinds(alice) == ["login.codes"]
    with CaptureQueriesContext(connection) as asked:
        fail(alice, by="code")
    assert not [each["sql"] for each in asked if 'FROM "tenants_auditentry"' in each["sql"]]
    fail(alice, notices.FAILURES)
    with CaptureQueriesContext(connection) as asked:
        notices.watch()
        before = len(asked)
        fail(alice, 100)
        assert notices.watch() == 0
    assert before < 12


def test_no_kind_uses_up_the_mails_of_another(alice: User) -> None:
    """Who has a session of alice could make tokens until nothing more is sent, and then change the password."""
    for n in range(40):
        token_create(user=alice, owner=alice, name=f"token {n}")
    audit.record(actor=alice, action="password.change", target="alice")
    rows = alice.security_notices
    assert rows.filter(kind="token.create").exclude(to="").count() == notices.MAILS_A_DAY
    assert rows.get(kind="password.change").to == "alice@example.org"


def test_old_notices_are_removed_and_new_ones_are_bounded(alice: User) -> None:
    old = SecurityNotice.objects.create(user=alice, kind="password.set")
    for n in range(notices.KEPT + 30):
        SecurityNotice.objects.create(user=alice, kind="token.create", details={"name": str(n)})
    SecurityNotice.objects.filter(pk=old.pk).update(at="2020-01-01T00:00Z")
    notices.forget()
    left = alice.security_notices.order_by("pk")
    assert left.count() == notices.KEPT
    assert left[0].details == {"name": "30"}
    assert not left.filter(kind="password.set").exists()


def test_without_a_mail_server_the_notice_is_on_the_profile_alone(
    alice: User, settings: LazySettings
) -> None:
    settings.LUTHIER_SENDS_MAIL = False
    audit.record(actor=alice, action="password.change", target="alice")
    notice = alice.security_notices.get()
    assert (notice.to, notice.try_at) == ("", None)


@pytest.mark.parametrize("address", ["", "nonsense", "a@example.org\nBcc: b@example.org", "a@x.org, b@x.org"])
def test_what_is_no_address_gets_no_mail(alice: User, address: str) -> None:
    User.objects.filter(pk=alice.pk).update(email=address)
    audit.record(actor=alice, action="password.change", target="alice")
    assert alice.security_notices.get().to == ""


def test_every_kind_has_a_title_and_a_sentence(alice: User) -> None:
    for kind in notices.KINDS:
        notice = SecurityNotice(user=alice, kind=kind, details={})
        assert notices.KINDS[kind].title[:1].isupper()
        assert "{" not in notices.KINDS[kind].title
        assert notices.sentence(notice).endswith(".")
        assert "{" not in notices.sentence(notice)
    assert notices.sentence(SecurityNotice(user=alice, kind="of a later version")).endswith(".")


def test_the_log_of_the_installation_has_them_as_before(alice: User) -> None:
    """Notices come from the audit log; they are no part of it."""
    audit.record(actor=alice, action="password.change", target="alice")
    assert list(AuditEntry.objects.values_list("action", flat=True)) == ["password.change"]
