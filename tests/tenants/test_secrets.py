"""Secrets at rest: encrypted, bound to their owner, rotated, and never readable without their key."""

from __future__ import annotations

import io
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from django.core.management import call_command

from portal.health import diagnosis
from portal.settings.secret import SecretsKeys, new_secrets_key
from tenants import keyring, sealed_rows
from tenants.errors import FieldsInvalid, NotAllowed, NotFound, SecretsUnavailable
from tenants.models import AuditEntry, Membership, Secret, Tenant, Token, User
from tenants.roles import Role
from tenants.services import secrets
from tests import factories

pytestmark = pytest.mark.django_db

VALUE = "hunter2-hunter2-value"


@pytest.fixture
def key_file(settings: Any, tmp_path: Path) -> Path:
    """The installation's key file, which does not exist yet."""
    settings.LUTHIER_SECRETS_KEYS = SecretsKeys((), tmp_path / "data" / "secrets_keys")
    return tmp_path / "data" / "secrets_keys"


@pytest.fixture
def team(key_file: Path) -> Tenant:
    return factories.tenant("vision-lab")


@pytest.fixture
def dave(team: Tenant) -> User:
    return factories.member(team, "dave", Role.MANAGER)


@pytest.fixture
def alice(team: Tenant) -> User:
    return factories.member(team, "alice")


def opened(owner: User, tenant: Tenant, name: str = "wandb") -> str:
    return secrets.values_for(owner=owner, tenant=tenant, names=[name])[name]


def command(*args: str) -> str:
    out = io.StringIO()
    call_command("secrets", *args, stdout=out, stderr=out)
    return out.getvalue()


def test_the_first_secret_makes_a_key_that_only_the_platform_can_read(
    team: Tenant, dave: User, key_file: Path
) -> None:
    assert not key_file.exists()
    row = secrets.secret_set(user=dave, tenant=team, name="wandb", value=VALUE)
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert VALUE.encode() not in bytes(row.sealed)
    assert opened(dave, team) == VALUE


def test_the_same_value_is_stored_differently_each_time(team: Tenant, dave: User) -> None:
    rows = [
        secrets.secret_set(user=dave, tenant=team, name=name, value=VALUE) for name in ("one", "two", "one")
    ]
    assert len({bytes(row.sealed) for row in rows}) == 3


def test_a_value_that_was_moved_to_another_row_does_not_open(team: Tenant, dave: User) -> None:
    row = secrets.secret_set(user=dave, tenant=team, name="wandb", value=VALUE)
    other = factories.tenant("speech")
    Secret.objects.create(tenant=other, name="wandb", key_id=row.key_id, sealed=row.sealed)
    with pytest.raises(SecretsUnavailable, match=r"wandb cannot be decrypted.*damaged"):
        opened(dave, other)
    Secret.objects.filter(pk=row.pk).update(name="renamed")
    with pytest.raises(SecretsUnavailable):
        opened(dave, team, "renamed")


def test_rotation_encrypts_everything_with_a_new_key_and_the_old_one_may_go(
    team: Tenant, dave: User, alice: User, key_file: Path
) -> None:
    secrets.secret_set(user=dave, tenant=team, name="wandb", value=VALUE)
    secrets.secret_set(user=alice, name="mine", value=VALUE + "2")
    old = key_file.read_text()
    assert "2 secrets encrypted" in command("rotate")
    new, kept = key_file.read_text().split()
    assert kept == old.strip()
    assert set(sealed_rows.key_uses()) == {keyring.key_ids()[0]}
    assert "may be removed" in command()
    key_file.write_text(new + "\n")
    assert opened(alice, team) == VALUE
    assert opened(alice, team, "mine") == VALUE + "2"
    assert "0 secrets encrypted" in command("reencrypt")


def test_another_algorithm_is_used_for_what_is_new_and_at_a_rotation_for_all(
    team: Tenant, dave: User, alice: User, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets.secret_set(user=dave, tenant=team, name="wandb", value=VALUE)
    assert Secret.objects.get().algorithm == "A256GCM"
    monkeypatch.setitem(keyring.ALGORITHMS, "C20P", ChaCha20Poly1305)
    assert opened(alice, team) == VALUE
    secrets.secret_set(user=alice, name="mine", value=VALUE + "2")
    assert Secret.objects.get(name="mine").algorithm == "C20P"
    assert "1 secrets encrypted" in command("reencrypt")
    assert set(Secret.objects.values_list("algorithm", flat=True)) == {"C20P"}
    assert opened(alice, team) == VALUE
    assert opened(alice, team, "mine") == VALUE + "2"
    monkeypatch.delitem(keyring.ALGORITHMS, "C20P")
    with pytest.raises(SecretsUnavailable, match="encrypted by C20P, which this version does not know"):
        opened(alice, team)


def test_a_missing_key_stops_everything_with_a_message_that_names_it(
    team: Tenant, dave: User, key_file: Path
) -> None:
    secrets.secret_set(user=dave, tenant=team, name="wandb", value=VALUE)
    key_id = keyring.key_ids()[0]
    key_file.unlink()
    with pytest.raises(SecretsUnavailable, match=f"The key {key_id} of this secret is missing"):
        opened(dave, team)
    with pytest.raises(SecretsUnavailable, match="no key to encrypt"):
        secrets.secret_set(user=dave, tenant=team, name="other", value=VALUE)
    assert not key_file.exists(), "a new key would hide that the old one is lost"
    key_file.write_text(new_secrets_key())
    with pytest.raises(SystemExit):
        command()
    with pytest.raises(SystemExit):
        command("rotate")
    with pytest.raises(SecretsUnavailable, match=key_id):
        sealed_rows.reencrypt()


def test_a_damaged_key_file_is_refused_and_not_repeated(team: Tenant, dave: User, key_file: Path) -> None:
    key_file.parent.mkdir()
    key_file.write_text("not-a-key-but-private\n")
    with pytest.raises(SecretsUnavailable, match="not 32 bytes") as error:
        secrets.secret_set(user=dave, tenant=team, name="wandb", value=VALUE)
    assert "not-a-key" not in str(error.value)


def test_keys_from_the_environment_are_not_changed_by_the_platform(
    team: Tenant, dave: User, settings: Any
) -> None:
    first, second = new_secrets_key(), new_secrets_key()
    settings.LUTHIER_SECRETS_KEYS = SecretsKeys((first,), Path("/nowhere"))
    secrets.secret_set(user=dave, tenant=team, name="wandb", value=VALUE)
    with pytest.raises(SystemExit):
        command("rotate")
    settings.LUTHIER_SECRETS_KEYS = SecretsKeys((second, first), Path("/nowhere"))
    assert "1 secrets encrypted" in command("reencrypt")
    settings.LUTHIER_SECRETS_KEYS = SecretsKeys((second,), Path("/nowhere"))
    assert opened(dave, team) == VALUE


def test_the_users_own_secret_wins_in_their_jobs_alone(team: Tenant, dave: User, alice: User) -> None:
    secrets.secret_set(user=dave, tenant=team, name="wandb", value="of-the-tenant")
    secrets.secret_set(user=alice, name="wandb", value="of-alice")
    assert opened(alice, team) == "of-alice"
    assert opened(dave, team) == "of-the-tenant"
    secrets.secret_set(user=alice, name="only-alice", value=VALUE)
    with pytest.raises(secrets.SecretMissing):
        opened(dave, team, "only-alice")


def test_the_secrets_of_a_user_who_left_are_not_used(team: Tenant, dave: User, alice: User) -> None:
    secrets.secret_set(user=alice, name="mine", value=VALUE)
    Membership.objects.filter(user=alice).delete()
    with pytest.raises(secrets.SecretMissing, match="mine"):
        opened(alice, team, "mine")


def test_only_managers_change_a_tenants_secrets(team: Tenant, dave: User, alice: User) -> None:
    with pytest.raises(NotAllowed):
        secrets.secret_set(user=alice, tenant=team, name="wandb", value=VALUE)
    secrets.secret_set(user=dave, tenant=team, name="wandb", value=VALUE)
    with pytest.raises(NotAllowed):
        secrets.secret_delete(user=alice, tenant=team, name="wandb")
    with pytest.raises(NotFound):
        secrets.secret_delete(user=alice, name="wandb")


def test_a_viewers_token_changes_no_secret_of_its_owner(team: Tenant, alice: User) -> None:
    alice.token = Token(role_ceiling=Role.VIEWER)
    with pytest.raises(NotAllowed):
        secrets.secret_set(user=alice, name="mine", value=VALUE)


@pytest.mark.parametrize("value", ["12345", "x" * (secrets.MOST_BYTES + 1), "       ", "nul\0inside"])
def test_a_value_that_cannot_be_used_is_refused_without_repeating_it(
    team: Tenant, dave: User, value: str
) -> None:
    with pytest.raises(FieldsInvalid) as error:
        secrets.secret_set(user=dave, tenant=team, name="wandb", value=value)
    (wrong,) = error.value.details["errors"]
    assert wrong["path"] == "value"
    assert value not in str(error.value.details)


def test_the_audit_log_has_the_name_and_never_the_value(team: Tenant, dave: User) -> None:
    secrets.secret_set(user=dave, tenant=team, name="wandb", value=VALUE)
    secrets.secret_set(user=dave, tenant=team, name="wandb", value=VALUE + "2")
    secrets.secret_delete(user=dave, tenant=team, name="wandb")
    rows = AuditEntry.objects.order_by("pk").values("action", "target", "details", "actor__username")
    assert [row["action"] for row in rows] == ["secret.create", "secret.replace", "secret.delete"]
    assert {row["target"] for row in rows} == {"wandb"}
    assert VALUE not in str(list(rows))


def test_the_doctor_says_how_many_secrets_a_missing_key_costs(
    team: Tenant, dave: User, key_file: Path
) -> None:
    assert diagnosis.secrets_keys().found == "none stored"
    secrets.secret_set(user=dave, tenant=team, name="wandb", value=VALUE)
    assert diagnosis.secrets_keys().found == "1 key"
    key_file.write_text(new_secrets_key())
    check = diagnosis.secrets_keys()
    assert "1 cannot be decrypted" in check.reason
    assert str(key_file) in check.remedy
