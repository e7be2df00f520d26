"""The installation's keys: given, read from a file, or made once and kept in the data folder.

The secret key signs sessions and derives the learners' secrets. The secrets keys encrypt what tenants and users store
as secrets (tenants/keyring.py): several at once, so that they can be rotated.
"""

import base64
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from portal.settings import values
from portal.settings.env import Environment, refuse
from portal.settings.values import SECRET_KEY_MIN_CHARS, SECRETS_KEY_BYTES


def secret_key(environment: Environment, kept: Path) -> str:
    """The key, in this order: SECRET_KEY, SECRET_KEY_FILE, the kept file, which is made (0600) when it is missing."""
    if environment.secret_key:
        return environment.secret_key
    if environment.secret_key_file:
        return _read(environment.secret_key_file, "SECRET_KEY_FILE")
    try:
        return _read(kept, f"SECRET_KEY in {kept}") if kept.exists() else _make(kept)
    except OSError as error:
        refuse([f"LUTHIER_DATA: {kept.parent} cannot hold the secret key: {error.strerror}"])


def secrets_keys(environment: Environment, kept: Path) -> "SecretsKeys":
    """The keys, in this order: LUTHIER_SECRETS_KEYS, LUTHIER_SECRETS_KEYS_FILE, the kept file. A file with anything
    else in it ends the process."""
    found = SecretsKeys(environment.luthier_secrets_keys, environment.luthier_secrets_keys_file or kept)
    try:
        found.read()
    except ValueError as error:
        refuse([str(error)])
    return found


@dataclass(frozen=True)
class SecretsKeys:
    """Where the secrets keys are. A file is read at each use, so that a key that is added counts without a restart."""

    given: tuple[str, ...]
    path: Path

    def read(self) -> tuple[str, ...]:
        """The keys, newest first; none while there is no file. Raises ValueError, which repeats no key."""
        if self.given:
            return self.given
        try:
            lines = self.path.read_text("ascii", "replace").splitlines()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise ValueError(f"{self.path}: the secrets keys cannot be read: {error.strerror}") from None
        try:
            return values.secrets_keys(" ".join(line for line in lines if not line.startswith("#")))
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None

    def add(self) -> None:
        """Make a key and put it before the others in the file (0600). Raises ValueError where that cannot be done."""
        if self.given:
            raise ValueError(
                "LUTHIER_SECRETS_KEYS is set: put a new key before the others in it, and restart the platform"
            )
        try:
            replace(self.path, "".join(f"{key}\n" for key in (new_secrets_key(), *self.read())))
        except OSError as error:
            raise ValueError(f"{self.path}: cannot hold the secrets keys: {error.strerror}") from None

    def make(self) -> None:
        """Make the first key, unless another process has. Raises ValueError where that cannot be done."""
        try:
            create(self.path, new_secrets_key() + "\n")
        except OSError as error:
            raise ValueError(f"{self.path}: cannot hold the secrets keys: {error.strerror}") from None

    @property
    def place(self) -> str:
        """Where an operator finds them."""
        return "LUTHIER_SECRETS_KEYS" if self.given else str(self.path)


def new_secrets_key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(SECRETS_KEY_BYTES)).decode()


def _read(path: Path, name: str) -> str:
    key = path.read_text().strip()
    if len(key) < SECRET_KEY_MIN_CHARS:
        refuse([f"{name}: has {len(key)} characters; at least {SECRET_KEY_MIN_CHARS} random ones are needed"])
    return key


def _make(path: Path) -> str:
    create(path, secrets.token_urlsafe(64))
    return path.read_text().strip()


def create(path: Path, content: str) -> None:
    """Make a file that only its owner can read, unless it exists.

    Written under another name, then linked: two processes that start at once agree on one key.
    """
    draft = _draft(path, content)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def replace(path: Path, content: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    _draft(path, content).replace(path)


def _draft(path: Path, content: str) -> Path:
    """A file beside path that only its owner can read, durably written."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return draft
