"""The folders of an embedded installation, made private before anything is put into them."""

import os
import secrets
import stat
from pathlib import Path

from portal.settings.embedded import SOCKET_PATH_MAX_BYTES, Layout
from portal.settings.secret import create
from portal.supervisor import postgres, socket_folders, valkey
from portal.supervisor.errors import BadFolder

SOURCES = (".git", "manage.py")
"""A folder that holds one of these is a source tree, most likely given by a `.` or an unset variable."""


def make_folders(layout: Layout) -> None:
    """Create the data and runtime folders. Raises BadFolder when one is not ours or its path is too long."""
    for folder in (layout.data, layout.keys, layout.logs, layout.run):
        _make(folder, "Choose another folder with --data.")
    # The user `nobody` must be able to reach PostgreSQL's socket where no user namespace is allowed.
    walkable = os.geteuid() == 0 and not postgres.namespaces_allowed()
    for folder in (layout.runtime.parent, layout.runtime):
        _make(folder, "Set TMPDIR to a folder of your own.", mode=0o711 if walkable else 0o700)
    os.utime(layout.runtime)  # so that no other platform's start takes it for a dead one's
    socket_folders.remove_dead(layout.runtime.parent, keep=layout.runtime)
    longest = layout.postgres_socket_dir / ".s.PGSQL.5432"
    if len(os.fsencode(longest)) > SOCKET_PATH_MAX_BYTES:
        raise BadFolder(f"{longest} is too long for a Unix socket. Set TMPDIR to a shorter folder.")


def make_keys(layout: Layout) -> None:
    """Make what the servers ask of those who connect, but for PostgreSQL's, which is made with its files."""
    valkey.prepare(layout)
    make_node_key(layout)


def make_node_key(layout: Layout) -> None:
    """Make what the node daemon asks of those who connect."""
    if layout.node_dir:
        _make(layout.node_dir, "Choose another folder with LUTHIER_NODE_DIR.")
    create(layout.node_key, secrets.token_urlsafe(32))


def refuse_sources(layout: Layout) -> None:
    """Raises BadFolder for a checkout, before its mode is changed and a secret key is put where git would commit it."""
    # os.path: Path.exists() would raise for a folder that cannot be entered, and the lock reports that one better.
    if found := [name for name in SOURCES if os.path.exists(layout.data / name)]:  # noqa: PTH110
        raise BadFolder(
            f"--data: {layout.data} holds {found[0]}, so it is a source tree. Name a folder for the data alone, "
            "by --data or LUTHIER_DATA."
        )


def _make(folder: Path, remedy: str, mode: int = 0o700) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise BadFolder(f"{folder} belongs to another user. {remedy}")
        folder.chmod(mode)
    except OSError as error:
        raise BadFolder(f"{folder} cannot be used: {error.strerror}. {remedy}") from error
