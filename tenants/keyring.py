"""Encryption of secrets at rest: AES-256-GCM under the newest of the installation's keys, any of which can decrypt.

A sealed value is bound to the row that it belongs to: moved to another tenant, user or name, it does not open. A key is
known by an id, so that a value whose key is missing is recognized as such. A value names its algorithm as well: another
one begins to be used by a line in ALGORITHMS, and `manage.py secrets rotate` encrypts everything with it.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from django.conf import settings

from tenants.errors import SecretsUnavailable

NONCE_BYTES = 12
ID_CHARS = 16


class Cipher(Protocol):
    """Authenticated encryption with nonces of NONCE_BYTES."""

    def encrypt(self, nonce: bytes, data: bytes, bound_to: bytes, /) -> bytes: ...
    def decrypt(self, nonce: bytes, data: bytes, bound_to: bytes, /) -> bytes: ...


def _aes_gcm(key: bytes) -> Cipher:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # most processes never need it

    return AESGCM(key)


ALGORITHMS: dict[str, Callable[[bytes], Cipher]] = {"A256GCM": _aes_gcm}
"""By the name that a value has, as JSON Web Algorithms name them (RFC 7518). The last encrypts; all decrypt."""


def algorithm() -> str:
    """The one that encrypts now."""
    return next(reversed(ALGORITHMS))


@dataclass(frozen=True, slots=True)
class Sealed:
    """An encrypted value, the id of the key that opens it, and how."""

    key_id: str
    data: bytes
    algorithm: str


def seal(value: str, *, bound_to: str) -> Sealed:
    """Encrypt with the newest key. bound_to: what the value belongs to. Raises SecretsUnavailable."""
    keys = _keys()
    if not keys:
        raise SecretsUnavailable(f"There is no key to encrypt secrets with in {_place()}.")
    key_id, key = next(iter(keys.items()))
    nonce, name = os.urandom(NONCE_BYTES), algorithm()
    data = nonce + ALGORITHMS[name](key).encrypt(nonce, value.encode(), bound_to.encode())
    return Sealed(key_id, data, name)


def unseal(sealed: Sealed, *, bound_to: str) -> str:
    """The value. Raises SecretsUnavailable where its key is missing, or where it was damaged or moved."""
    from cryptography.exceptions import InvalidTag

    key = _keys().get(sealed.key_id)
    if key is None:
        raise SecretsUnavailable(
            f"The key {sealed.key_id} of this secret is missing: an operator must put it back into {_place()}."
        )
    cipher = ALGORITHMS.get(sealed.algorithm)
    if cipher is None:
        raise SecretsUnavailable(f"It was encrypted by {sealed.algorithm}, which this version does not know.")
    nonce, data = sealed.data[:NONCE_BYTES], sealed.data[NONCE_BYTES:]
    try:
        return cipher(key).decrypt(nonce, data, bound_to.encode()).decode()
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
