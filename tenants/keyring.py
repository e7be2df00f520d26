"""Encryption of secrets at rest: AES-256-GCM under the newest of the installation's keys, any of which can decrypt.

A sealed value is bound to the row that it belongs to: moved to another tenant, user or name, it does not open. A key is
known by an id, so that a value whose key is missing is recognized as such.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.conf import settings

from tenants.errors import SecretsUnavailable

if TYPE_CHECKING:  # imported where it is used: most processes never need it
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES = 12
ID_CHARS = 16


@dataclass(frozen=True, slots=True)
class Sealed:
    """An encrypted value, and the id of the key that opens it."""

    key_id: str
    data: bytes


def seal(value: str, *, bound_to: str) -> Sealed:
    """Encrypt with the newest key. bound_to: what the value belongs to. Raises SecretsUnavailable."""
    keys = _keys()
    if not keys:
        raise SecretsUnavailable(f"There is no key to encrypt secrets with in {_place()}.")
    key_id, key = next(iter(keys.items()))
    nonce = os.urandom(NONCE_BYTES)
    return Sealed(key_id, nonce + _cipher(key).encrypt(nonce, value.encode(), bound_to.encode()))


def unseal(sealed: Sealed, *, bound_to: str) -> str:
    """The value. Raises SecretsUnavailable where its key is missing, or where it was damaged or moved."""
    from cryptography.exceptions import InvalidTag

    key = _keys().get(sealed.key_id)
    if key is None:
        raise SecretsUnavailable(
            f"The key {sealed.key_id} of this secret is missing: an operator must put it back into {_place()}."
        )
    nonce, data = sealed.data[:NONCE_BYTES], sealed.data[NONCE_BYTES:]
    try:
        return _cipher(key).decrypt(nonce, data, bound_to.encode()).decode()
    except InvalidTag:
        raise SecretsUnavailable("A stored secret is damaged: set it again.") from None


def key_ids() -> tuple[str, ...]:
    """Ids of the installation's keys, newest first. Raises SecretsUnavailable."""
    return tuple(_keys())


def make_first_key() -> None:
    """Make the first key if there is none. Raises SecretsUnavailable."""
    if not _keys():
        _change(settings.LUTHIER_SECRETS_KEYS.make)


def add_key() -> None:
    """Make a new key; from now on it encrypts. Raises SecretsUnavailable."""
    _change(settings.LUTHIER_SECRETS_KEYS.add)


def _keys() -> dict[str, bytes]:
    """Keys by their ids, newest first."""
    try:
        texts = settings.LUTHIER_SECRETS_KEYS.read()
    except ValueError as error:
        raise SecretsUnavailable(str(error)) from None
    raw = [base64.urlsafe_b64decode(text) for text in texts]
    return {hashlib.sha256(b"luthier secrets key\0" + key).hexdigest()[:ID_CHARS]: key for key in raw}


def _change(change: Callable[[], None]) -> None:
    try:
        change()
    except ValueError as error:
        raise SecretsUnavailable(str(error)) from None


def _place() -> str:
    return str(settings.LUTHIER_SECRETS_KEYS.place)


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)
