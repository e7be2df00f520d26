"""A device with one passkey, in software: it answers challenges as a browser does, rightly or as a test wants it."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from fido2.cose import ES256
from fido2.utils import websafe_encode
from fido2.webauthn import (
    Aaguid,
    AttestationObject,
    AttestedCredentialData,
    AuthenticatorData,
    CollectedClientData,
)

from tenants.models import Passkey

ORIGIN = "http://localhost"
PRESENT, WITH_KEY = AuthenticatorData.FLAG.UP, AuthenticatorData.FLAG.AT


class Device:
    """One passkey. count: at its last use, raised by each; None: it does not count, as synced passkeys do not."""

    row: Passkey
    codes: list[str]

    def __init__(self, origin: str = ORIGIN, *, count: int | None = 0) -> None:
        self.origin, self.count = origin, count
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.credential_id = os.urandom(32)

    def create(self, options: dict[str, Any], **changes: Any) -> str:
        """The answer to a challenge for a new passkey."""
        asked = options["publicKey"]
        public = ES256.from_cryptography_key(self.key.public_key())
        credential = AttestedCredentialData.create(Aaguid.NONE, self.credential_id, public)
        signed = self._data(asked["rp"]["id"], changes.get("flags", PRESENT) | WITH_KEY, credential)
        said = self._said("webauthn.create", asked["challenge"], changes)
        made = AttestationObject.create("none", signed, {})
        return self._answer(
            {"clientDataJSON": said, "attestationObject": made}, transports=["usb", "a new one"]
        )

    def get(self, options: dict[str, Any], **changes: Any) -> str:
        """The answer to a challenge at a sign-in."""
        asked = options["publicKey"]
        if self.count is not None:
            self.count += 1
        signed = self._data(changes.get("host", asked["rpId"]), changes.get("flags", PRESENT))
        said = self._said("webauthn.get", asked["challenge"], changes)
        signature = self.key.sign(signed + hashlib.sha256(said).digest(), ec.ECDSA(SHA256()))
        parts = {"clientDataJSON": said, "authenticatorData": signed, "signature": signature}
        return self._answer(parts)

    def _data(self, host: str, flags: int, credential: bytes = b"") -> AuthenticatorData:
        hashed = hashlib.sha256(host.encode()).digest()
        return AuthenticatorData.create(hashed, AuthenticatorData.FLAG(flags), self.count or 0, credential)

    def _said(self, kind: str, challenge: str, changes: dict[str, Any]) -> CollectedClientData:
        return CollectedClientData.create(
            changes.get("type", kind),
            changes.get("challenge", challenge),
            changes.get("origin", self.origin),
            cross_origin=changes.get("cross_origin", False),
        )

    def _answer(self, parts: dict[str, bytes], **more: Any) -> str:
        own = websafe_encode(self.credential_id)
        response = {name: websafe_encode(part) for name, part in parts.items()} | more
        return json.dumps(
            {
                "id": own,
                "rawId": own,
                "type": "public-key",
                "response": response,
                "clientExtensionResults": {},
            }
        )
