"""Authenticator apps and recovery codes: what counts, how often, and what is stored of them."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command

from portal.settings.secret import SecretsKeys, new_secrets_key
from tenants import one_time, sealed_rows, two_factor
from tenants.errors import AdminOnly, FieldsInvalid, SecretsUnavailable, TwoFactorRequired
from tenants.models import AuditEntry, AuthenticatorApp, RecoveryCode, User
from tenants.services.users import user_two_factor_reset
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def key_file(settings: LazySettings, tmp_path: Path) -> Path:
    settings.LUTHIER_SECRETS_KEYS = SecretsKeys((), tmp_path / "data" / "secrets_keys")
    return tmp_path / "data" / "secrets_keys"


@pytest.fixture
def alice() -> User:
    return factories.user("alice")


def test_an_app_counts_once_a_code_of_it_was_right(alice: User) -> None:
    app_id = two_factor.app_begin(alice)
    begun = two_factor.app_begun(alice, app_id)
    assert begun is not None
    assert begun.uri.startswith(f"otpauth://totp/Luthier:alice?digits=6&secret={begun.secret}")
    right = factories.app_code(begun.secret)
    for wrong in ("", "12345", "not a code", factories.app_code(begun.secret, steps=9)):
        with pytest.raises(FieldsInvalid):
            two_factor.app_confirm(alice, app_id, wrong)
    assert not two_factor.is_on(alice)
    assert two_factor.check(alice, right) is None
    assert len(set(two_factor.app_confirm(alice, app_id, f"{right[:3]} {right[3:]}"))) == 10
    assert two_factor.factors_of(alice).codes_left == 10
    assert two_factor.app_begun(alice, app_id) is None, "its secret is shown again"
    entry = AuditEntry.objects.get(action="two_factor.enable")
    assert (entry.actor, entry.target) == (alice, "alice")


def test_a_code_works_once_and_none_before_it(alice: User) -> None:
    secret, _ = factories.authenticator_app(alice)
    code = factories.app_code(secret)
    assert two_factor.check(alice, code) == two_factor.APP
    assert two_factor.check(alice, code) is None
    assert two_factor.check(alice, factories.app_code(secret, steps=-1)) is None
    assert two_factor.check(alice, factories.app_code(secret, steps=1)) == two_factor.APP
    assert two_factor.check(alice, factories.app_code(secret, steps=5)) is None


def test_the_code_with_which_it_was_set_up_does_not_sign_in(alice: User) -> None:
    app_id = two_factor.app_begin(alice)
    begun = two_factor.app_begun(alice, app_id)
    assert begun is not None
    code = factories.app_code(begun.secret)
    two_factor.app_confirm(alice, app_id, code)
    assert two_factor.check(alice, code) is None


def test_a_recovery_code_works_once_and_for_its_user_only(alice: User) -> None:
    _, codes = factories.authenticator_app(alice)
    bob = factories.user("bob")
    factories.authenticator_app(bob)
    assert two_factor.check(bob, codes[0]) is None
    assert two_factor.check(alice, codes[0].upper().replace("-", " ")) == two_factor.RECOVERY
    assert two_factor.check(alice, codes[0]) is None
    assert two_factor.factors_of(alice).codes_left == 9
    renewed = two_factor.codes_renew(alice)
    assert two_factor.check(alice, codes[1]) is None
    assert two_factor.check(alice, renewed[0]) == two_factor.RECOVERY


def test_neither_secret_nor_recovery_codes_are_stored_in_the_clear(alice: User) -> None:
    secret, codes = factories.authenticator_app(alice)
    stored = repr([*AuthenticatorApp.objects.values(), *RecoveryCode.objects.values()])
    stored += repr([bytes(app.sealed) for app in AuthenticatorApp.objects.all()])
    assert secret not in stored
    assert not [code for code in codes if code in stored or code.replace("-", "") in stored]


def test_a_recovery_code_has_more_bits_than_a_fast_hash_needs_to_hide_it(alice: User) -> None:
    """112 are enough (ASVS 6.5.2)."""
    _, codes = factories.authenticator_app(alice)
    assert len(one_time.ALPHABET) == 32
    assert {len(code.replace("-", "")) * 5 for code in codes} == {140}


def test_a_secret_that_was_moved_to_another_user_does_not_open(alice: User) -> None:
    secret, _ = factories.authenticator_app(alice)
    AuthenticatorApp.objects.update(user=factories.user("mallory"))
    with pytest.raises(SecretsUnavailable):
        two_factor.check(User.objects.get(username="mallory"), factories.app_code(secret))


def test_it_follows_the_rotation_of_keys_and_a_lost_key_leaves_the_recovery_codes(
    alice: User, key_file: Path
) -> None:
    secret, codes = factories.authenticator_app(alice)
    before = AuthenticatorApp.objects.get().key_id
    out = StringIO()
    call_command("secrets", "rotate", stdout=out)
    assert "1 secrets encrypted" in out.getvalue()
    assert AuthenticatorApp.objects.get().key_id != before
    assert two_factor.check(alice, factories.app_code(secret)) == two_factor.APP
    key_file.write_text(new_secrets_key())
    assert sealed_rows.unreadable() == 1
    with pytest.raises(SecretsUnavailable, match="The authenticator app of alice cannot be decrypted"):
        two_factor.check(alice, factories.app_code(secret, steps=1))
    assert two_factor.check(alice, codes[0]) == two_factor.RECOVERY


def test_another_app_replaces_the_first_once_it_has_shown_a_code(alice: User) -> None:
    first, _ = factories.authenticator_app(alice)
    begun_id = two_factor.app_begin(alice)
    assert two_factor.check(alice, factories.app_code(first)) == two_factor.APP
    second = two_factor.app_begun(alice, begun_id)
    assert second is not None
    with pytest.raises(FieldsInvalid, match="invalid"):  # who sets up a first one has not shown this one
        two_factor.app_confirm(alice, begun_id, factories.app_code(second.secret))
    two_factor.app_confirm(alice, begun_id, factories.app_code(second.secret), replaces=True)
    assert two_factor.check(alice, factories.app_code(first, steps=1)) is None
    assert AuthenticatorApp.objects.count() == 1


def test_where_it_is_required_it_is_replaced_but_not_removed(alice: User, settings: LazySettings) -> None:
    factories.authenticator_app(alice)
    settings.LUTHIER_TWO_FACTOR_REQUIRED = True
    with pytest.raises(TwoFactorRequired):
        two_factor.app_remove(alice)
    settings.LUTHIER_TWO_FACTOR_REQUIRED = False
    two_factor.app_remove(alice)
    assert not two_factor.is_on(alice)
    assert not RecoveryCode.objects.exists()
    assert AuditEntry.objects.filter(action="two_factor.disable", actor=alice).exists()


def test_an_admin_resets_it_and_no_one_else(alice: User) -> None:
    admin = factories.user("admin", is_superuser=True)
    factories.authenticator_app(alice)
    with pytest.raises(AdminOnly):
        user_two_factor_reset(user=alice, username="alice")
    user_two_factor_reset(user=admin, username="alice")
    assert not two_factor.is_on(alice)
    entry = AuditEntry.objects.get(action="two_factor.reset")
    assert (entry.actor, entry.target, entry.details) == (admin, "alice", {"sessions": 0})


def test_the_last_admin_gets_back_in_from_the_shell(alice: User) -> None:
    factories.authenticator_app(alice)
    out = StringIO()
    call_command("two_factor", "alice", stdout=out)
    call_command("two_factor", "alice", "--reset", stdout=out)
    said = out.getvalue().splitlines()
    assert [line.partition(": ")[2][:3] for line in said] == ["on ", "off"]
    entry = AuditEntry.objects.get(action="two_factor.reset")
    assert (entry.actor, entry.details) == (None, {"sessions": 0, "by": "manage.py two_factor"})
    factories.authenticator_app(alice)
    call_command("admin", "alice", "--reset", stdout=out)
    assert not two_factor.is_on(alice)
    assert AuditEntry.objects.filter(action="two_factor.reset", details={"by": "manage.py admin"}).exists()
    with pytest.raises(CommandError, match="no user nobody"):
        call_command("two_factor", "nobody", "--reset")
