"""Make a backup of a running installation.

The dump shows one moment; the files that it refers to are copied after it. They are still there, because what is
released meanwhile is kept for LUTHIER_BLOB_RETENTION_H (`jobs.blobs.removal`). Every file is checked against the same
moment; what is missing is listed, and the rest is a backup.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from jobs.blobs.folder import FolderStore
from jobs.blobs.store import Store, key_of, store
from portal.backup.contents import BLOBS, DUMP, BackupError, Manifest, copy_private, run_tool
from portal.database.prepared import OWN_SESSION, is_direct

SAY_EVERY = 1024**3

Say = Callable[[str], None]


class Stored(NamedTuple):
    key: str
    size: int


def make(target: Path, say: Say) -> Manifest:
    """Write a backup into target, which must be empty or new. Raises BackupError."""
    if target.exists() and any(target.iterdir()):
        raise BackupError(f"{target} is not empty. Name a new folder.")
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    began = timezone.now()
    say("Dumping the database ...")
    files, jobs = _dump(target)
    place = store()
    if isinstance(place, FolderStore):
        there, blobs_in = _copy(place, files, target / BLOBS, say), ""
    else:
        there, blobs_in = _find(place, files, say), settings.LUTHIER_BLOBS or ""
    if timezone.now() - began > timedelta(hours=settings.LUTHIER_BLOB_RETENTION_H):
        say("Warning: this took longer than LUTHIER_BLOB_RETENTION_H; make that longer than a backup takes.")
    keys_in = _copy_keys(target)
    found = Manifest(
        began.isoformat(timespec="milliseconds"), jobs, len(there), sum(file.size for file in there), blobs_in,
        missing=[file.key for file in files if file not in there], keys_in=keys_in,
    )  # fmt: skip
    found.write(target)
    return found


def _dump(target: Path) -> tuple[list[Stored], int]:
    """Dump one moment of the database; returns the files that it refers to, and how many jobs it has."""
    if is_pooled():
        raise BackupError(
            "DATABASE_URL leads through a connection pool such as pgbouncer, and pg_dump would change sessions that"
            " others use. Set DATABASE_URL to the address of PostgreSQL itself for this command."
        )
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        cursor.execute("SELECT pg_export_snapshot()")
        (snapshot,) = cursor.fetchone()
        cursor.execute("SELECT tenant_id, id, size FROM jobs_blob WHERE verified ORDER BY id")
        files = [Stored(key_of(tenant, blob), size) for tenant, blob, size in cursor.fetchall()]
        cursor.execute("SELECT count(*) FROM jobs_job")
        (jobs,) = cursor.fetchone()
        # `prepare` grants to the role that runs the platform; the roles of this server may not exist on another one.
        arguments = ["--format=custom", "--no-owner", "--no-privileges"]
        arguments += [f"--snapshot={snapshot}", f"--file={target / DUMP}"]
        run_tool("pg_dump", arguments, connection.settings_dict)
    (target / DUMP).chmod(0o600)
    return files, jobs


def is_pooled() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(OWN_SESSION)
        return not is_direct(cursor.cursor)


def _copy(place: FolderStore, files: list[Stored], target: Path, say: Say) -> set[Stored]:
    """Copy the files; returns those that were there and whole."""
    target.mkdir(mode=0o700)
    total, done, next_said, there = sum(file.size for file in files), 0, SAY_EVERY, set()
    say(f"Copying {len(files):,} files, {total / 1024**3:.1f} GiB ...")
    for file in files:
        copy = target / file.key
        try:
            copy_private(place.path(file.key), copy)
        except FileNotFoundError:
            continue
        if copy.stat().st_size != file.size:
            copy.unlink()
            continue
        there.add(file)
        done += file.size
        if done >= next_said:
            say(f"  {done / 1024**3:.0f} of {total / 1024**3:.0f} GiB")
            next_said = done + SAY_EVERY
    return there


def _copy_keys(target: Path) -> list[str]:
    """Copy the keys that the data folder holds; returns the variables that give the others."""
    env, elsewhere = settings.ENV, []
    for kept, variables in (
        (
            settings.EMBEDDED.secret_key,
            {"SECRET_KEY": env.secret_key, "SECRET_KEY_FILE": env.secret_key_file},
        ),
        (
            settings.EMBEDDED.secrets_keys,
            {
                "LUTHIER_SECRETS_KEYS": env.luthier_secrets_keys,
                "LUTHIER_SECRETS_KEYS_FILE": env.luthier_secrets_keys_file,
            },
        ),
    ):
        if given := next((name for name, value in variables.items() if value), ""):
            elsewhere.append(given)
        elif kept.exists():  # there are no secrets keys before the first secret
            copy_private(kept, target / kept.name)
    return elsewhere


def _find(place: Store, files: list[Stored], say: Say) -> set[Stored]:
    say(
        f"{len(files):,} files are in {settings.LUTHIER_BLOBS} and are not copied: back the bucket up after this."
    )
    return {file for file in files if place.exists(file.key)}
