"""Restore a backup: into a new data folder with the embedded database, or into an empty database of your own.

Nothing of the platform may run meanwhile. Learners that still run on a cluster and that the restored database does not
know are left alone for 15 minutes after the start (docs/operations.md).
"""

from __future__ import annotations

import math
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from jobs.blobs.store import Store, number_of
from portal.backup.contents import BLOBS, DUMP, BackupError, Manifest, copy_private, run_tool
from portal.settings.embedded import Layout
from portal.settings.secret import replace
from portal.settings.values import database_from_url
from portal.supervisor import postgres

START_S = 60.0
APART = 10**9
"""Numbers between those of an installation whose store is used and those of its copy."""
OF_ANOTHER = (
    "The store of files has the mark of an installation. If that is gone, restore with --take-over; otherwise stop and"
    " copy the store: nothing that this copy no longer needs is removed from it."
)

Say = Callable[[str], None]


def restore(
    source: Path,
    where: Layout,
    *,
    database_url: str | None,
    blobs: Path | None,
    place: Store,
    take_over: bool,
    say: Say,
) -> Manifest:
    """Restore source. blobs: the folder that gets the stored files; None: they are in a bucket. place: the store there.
    take_over: no other installation uses it any more.

    Raises BackupError before anything was changed if the target is not empty, or if the backup is not whole. Where it
    fails later, what it made is removed, so that it can be tried again.
    """
    found = Manifest.read(source)
    if blobs is None and not found.blobs_in:
        raise BackupError(
            f"The stored files are in {source / BLOBS}. Unset LUTHIER_BLOBS, or set it to a folder."
        )
    copied = blobs if not found.blobs_in else None
    if found.blobs_in and blobs is not None and not blobs.exists():
        raise BackupError(
            f"The stored files were in {found.blobs_in}. Set LUTHIER_BLOBS to where they are now."
        )
    if copied is not None and copied.exists() and any(copied.iterdir()):
        raise BackupError(f"{copied} is not empty. Move it away first.")
    if database_url:
        _require_empty(database_from_url(database_url))
    elif where.postgres_data.exists():
        raise BackupError(
            f"{where.postgres_data} exists. Restore into another folder, or move it away first."
        )
    with ExitStack() as made:
        if copied is not None:
            made.enter_context(_removed_on_failure(copied))
            say(f"Copying {found.blobs:,} files ...")
            copied.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in (source / BLOBS).rglob("*"):
                if path.is_file():
                    copy_private(path, copied / path.relative_to(source / BLOBS))
        if database_url:
            database = database_from_url(database_url)
        else:
            made.enter_context(_removed_on_failure(where.postgres_data))
            database = made.enter_context(_embedded(where))
        highest = max((number for _, number in place.older_than(math.inf)), default=0)
        apart = bool(place.mark()) and not take_over
        if apart:
            say(OF_ANOTHER)
        _load(source, database, say)
        mark = place.mark(new=uuid.uuid4().hex) if take_over else ""
        _separate(database, highest + (APART if apart else 0), mark)
        with _connected(database) as connection, connection.cursor() as cursor:
            ask_again(cursor, found.missing)
            connection.commit()
        _put_keys(source, where)
    return found


def _separate(database: Mapping[str, Any], number: int, mark: str) -> None:
    """Let new files get numbers above this one, so that none has the key of one that is there. The dump sets both back:
    the numbers, and whose files the installation may remove."""
    with _connected(database) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT setval('jobs_blob_id_seq', greatest(last_value, %s)) FROM jobs_blob_id_seq", [number]
        )
        cursor.execute(
            "INSERT INTO jobs_periodictask (name, result) VALUES ('tidy', jsonb_build_object('store', %s::text))"
            " ON CONFLICT (name) DO UPDATE SET result = jobs_periodictask.result - 'swept_to' || excluded.result",
            [mark],
        )
        connection.commit()


def ask_again(cursor: Any, missing: Sequence[str]) -> None:
    """Let files that the backup has not be asked for where a learner or a user has the same bytes, instead of being
    taken for stored. Checkpoints that need one are damaged: a resume takes another. missing: keys of the store."""
    numbers = [number for key in missing if (number := number_of(key)) is not None]
    if not numbers:
        return
    # Two statements: the jobs that were asked for them once have promised to send none of it.
    cursor.execute("UPDATE jobs_blob SET requested_from = '[]' WHERE verified AND id = ANY(%s)", [numbers])
    cursor.execute(
        "UPDATE jobs_blob SET verified = false, received = 0, upload_id = '', finishing_at = NULL,"
        " restarts = restarts + 1 WHERE requested_from = '[]' AND id = ANY(%s)",
        [numbers],
    )
    cursor.execute(
        "UPDATE jobs_checkpoint SET state = 'CORRUPT' WHERE state = 'COMMITTED' AND id IN"
        " (SELECT checkpoint_id FROM jobs_checkpointfile WHERE blob_id = ANY(%s))",
        [numbers],
    )


@contextmanager
def _removed_on_failure(folder: Path) -> Iterator[None]:
    """A folder that is empty or not there yet is so again if the block fails."""
    was_there = folder.exists()
    try:
        yield
    except BaseException:
        for path in folder.iterdir() if was_there else [folder]:
            shutil.rmtree(path, ignore_errors=True)
        raise


def _put_keys(source: Path, where: Layout) -> None:
    """The secret key replaces the one that the settings made for this very command. Secrets keys that only the folder
    has stay, behind the backup's."""
    if (kept := source / where.secret_key.name).exists():
        replace(where.secret_key, kept.read_text())
    if (kept := source / where.secrets_keys.name).exists():
        there = where.secrets_keys.read_text().splitlines() if where.secrets_keys.exists() else []
        keys = dict.fromkeys(kept.read_text().splitlines() + there)
        replace(where.secrets_keys, "".join(f"{key}\n" for key in keys))


def _load(source: Path, database: Mapping[str, Any], say: Say) -> None:
    say("Loading the database ...")
    arguments = ["--no-owner", "--no-privileges", "--single-transaction", f"--dbname={database['NAME']}"]
    run_tool("pg_restore", [*arguments, str(source / DUMP)], database)


def _require_empty(database: Mapping[str, Any]) -> None:
    with _connected(database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'")
        (tables,) = cursor.fetchone()
    if tables:
        raise BackupError(f"The database {database['NAME']} has {tables} tables. Name an empty one.")


@contextmanager
def _connected(database: Mapping[str, Any]) -> Iterator[Any]:
    names = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD", "dbname": "NAME"}
    given = {name: database[key] for name, key in names.items() if database.get(key)}
    try:
        connection = psycopg2.connect(**given, **database["OPTIONS"], connect_timeout=5)
    except psycopg2.OperationalError as error:
        raise BackupError(f"The database cannot be reached: {error}") from None
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _embedded(where: Layout) -> Iterator[dict[str, Any]]:
    """A new embedded server with an empty database, stopped at the end."""
    postgres.prepare(where)
    where.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (where.logs / "restore.log").open("ab") as log:
        server = subprocess.Popen(
            postgres.command(where), env=postgres.clean_environment(), stdout=log, stderr=log
        )
    try:
        _wait_until_ready(where, server)
        yield database_from_url(where.database_url)
    finally:
        server.terminate()
        server.wait()


def _wait_until_ready(where: Layout, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            postgres.ensure_database(where)
            return
        except psycopg2.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise BackupError(f"PostgreSQL did not start; see {where.logs / 'restore.log'}.") from None
            time.sleep(0.1)
