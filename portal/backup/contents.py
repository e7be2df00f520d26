"""What a backup's folder has, for the one who makes it and the one who restores it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from portal.supervisor import postgres
from portal.supervisor.errors import CannotStart

DUMP = "database.dump"
BLOBS = "blobs"
MANIFEST = "backup.json"
FORMAT = 1
SHOWN = 3


class BackupError(Exception):
    """The backup cannot be made or restored; the message says why and what to do."""


@dataclass(frozen=True)
class Manifest:
    """made_at: RFC 3339, of the moment that the dump shows. blobs: how many files were there; blob_bytes: their size.
    blobs_in: where the files were, if not in the backup. missing: keys of those that were not there, or not whole.
    keys_in: the variables that held keys or named their files, which are not in the backup."""

    made_at: str
    jobs: int
    blobs: int
    blob_bytes: int
    blobs_in: str = ""
    missing: Sequence[str] = ()
    keys_in: Sequence[str] = ()
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Last of all: a folder without it is no whole backup."""
        (folder / MANIFEST).touch(mode=0o600)
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @property
    def missing_shown(self) -> str:
        """How many are missing, and the first of them."""
        shown = ", ".join(self.missing[:SHOWN]) + (" …" if len(self.missing) > SHOWN else "")
        return (
            f"{len(self.missing):,} of the files that the dump refers to are missing or incomplete: {shown}."
        )

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Raises BackupError for a folder that is not a whole backup of this format."""
        try:
            content: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
            found = cls(**content)
        except FileNotFoundError:
            raise BackupError(f"{folder} is no whole backup: it has no {MANIFEST}.") from None
        except (OSError, ValueError, TypeError) as error:
            raise BackupError(f"{folder / MANIFEST} cannot be read: {error}") from None
        if found.format != FORMAT:
            raise BackupError(f"{folder} has format {found.format}; this version reads {FORMAT}.")
        return found


def run_tool(name: str, arguments: Iterable[str], database: Mapping[str, Any]) -> None:
    """Run pg_dump or pg_restore against Django's description of a database. Raises BackupError with what it said."""
    options = " ".join(
        f"-c {setting}=0"
        for setting in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    )
    env = postgres.clean_environment() | {"PGOPTIONS": options}
    named = {
        "PGHOST": "HOST",
        "PGPORT": "PORT",
        "PGUSER": "USER",
        "PGPASSWORD": "PASSWORD",
        "PGDATABASE": "NAME",
    }
    env |= {variable: str(database[key]) for variable, key in named.items() if database.get(key)}
    if passfile := database["OPTIONS"].get("passfile"):
        env["PGPASSFILE"] = passfile
    done = subprocess.run([tool(name), *arguments], env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise BackupError(f"{name} failed: {done.stderr.strip()[-1000:]}")


def tool(name: str) -> str:
    """The wheel's program, else the machine's."""
    try:
        bundled = postgres.binaries() / name
    except CannotStart:
        bundled = None
    if bundled is not None and bundled.exists():
        return str(bundled)
    if found := shutil.which(name):
        return found
    raise BackupError(f"{name} was not found. Install PostgreSQL's client programs.")


def copy_private(source: Path, target: Path) -> None:
    """Copy a file for its owner's eyes only. Raises FileNotFoundError for source, FileExistsError for target."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        shutil.copyfile(source, target)
    except FileNotFoundError:
        target.unlink(missing_ok=True)
        raise
