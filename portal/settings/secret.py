"""The installation's secret key: given, read from a file, or made once and kept in the data folder."""

import os
import secrets
from pathlib import Path

from portal.settings.env import Environment, refuse
from portal.settings.values import SECRET_KEY_MIN_CHARS


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


def _read(path: Path, name: str) -> str:
    key = path.read_text().strip()
    if len(key) < SECRET_KEY_MIN_CHARS:
        refuse([f"{name}: has {len(key)} characters; at least {SECRET_KEY_MIN_CHARS} random ones are needed"])
    return key


def _make(path: Path) -> str:
    """Write the whole key under another name, then link it: two processes that start at once agree on one key."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(64))
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return path.read_text().strip()
