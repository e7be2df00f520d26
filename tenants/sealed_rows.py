"""Rows with an encrypted value, of every kind: sealed and unsealed by the keyring, and encrypted again at a rotation.

Each has key_id, algorithm, sealed and bound_to; its str() is what an error calls it.
"""

from __future__ import annotations

from collections import Counter

from django.db import transaction
from django.db.models import Count

from tenants import audit, keyring
from tenants.errors import SecretsUnavailable
from tenants.models import AuthenticatorApp, Secret

KINDS = (Secret, AuthenticatorApp)
Row = Secret | AuthenticatorApp


def seal(row: Row, value: str) -> None:
    """Put the encrypted value into the row, which the caller saves. The first of all makes a key.

    Raises SecretsUnavailable.
    """
    if not any(kind._default_manager.exists() for kind in KINDS):
        keyring.make_first_key()
    sealed = keyring.seal(value, bound_to=row.bound_to)
    row.key_id, row.algorithm, row.sealed = sealed.key_id, sealed.algorithm, sealed.data


def unseal(row: Row) -> str:
    """The value. Raises SecretsUnavailable, which names the row."""
    try:
        sealed = keyring.Sealed(row.key_id, bytes(row.sealed), row.algorithm)
        return keyring.unseal(sealed, bound_to=row.bound_to)
    except SecretsUnavailable as error:
        raise SecretsUnavailable(f"{row} cannot be decrypted. {error}") from None


def key_uses() -> dict[str, int]:
    """How many values each key encrypts, by its id; keys that encrypt none are not listed."""
    uses: Counter[str] = Counter()
    for kind in KINDS:
        uses.update(dict(kind._default_manager.order_by().values_list("key_id").annotate(n=Count("pk"))))
    return dict(uses)


def unreadable() -> int:
    """How many values the installation has no key for. Raises SecretsUnavailable."""
    known = keyring.key_ids()
    return sum(count for key_id, count in key_uses().items() if key_id not in known)


@transaction.atomic
def reencrypt() -> int:
    """Encrypt every value with the newest key and today's algorithm; returns how many were not. All or none. Raises
    SecretsUnavailable."""
    ids = keyring.key_ids()
    done = 0
    for kind in KINDS:
        old = kind._default_manager.exclude(key_id__in=ids[:1], algorithm=keyring.algorithm())
        for row in old.select_for_update(no_key=True).order_by("pk"):
            seal(row, unseal(row))
            row.save(update_fields=["key_id", "algorithm", "sealed"])
            done += 1
    if done:
        audit.record(actor=None, action="secret.reencrypt", details={"secrets": done, "key": ids[0]})
    return done
