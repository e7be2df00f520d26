"""Where an embedded installation keeps its files and sockets, and how its servers are reached. Creates nothing.

The data folder holds what must survive. Sockets live apart, in a short private folder, because a Unix
socket's path may have at most 107 bytes and a data folder may lie anywhere.
"""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

SOCKET_PATH_MAX_BYTES = 107
DATABASE_USER = "luthier"
DATABASE_NAME = "luthier"


@dataclass(frozen=True)
class Layout:
    """Every path of one embedded installation."""

    data: Path
    runtime: Path
    node_dir: Path | None = None
    """Where a node daemon with a data folder of its own meets those who ask it (LUTHIER_NODE_DIR)."""

    @property
    def postgres_data(self) -> Path:
        return self.data / "postgres"

    @property
    def postgres_socket_dir(self) -> Path:
        return self.runtime / "pg"

    @property
    def valkey_socket(self) -> Path:
        return self.runtime / "valkey.sock"

    @property
    def node_socket(self) -> Path:
        """The local cluster's node daemon listens here."""
        return (self.node_dir or self.runtime) / "node.sock"

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def secret_key(self) -> Path:
        return self.data / "secret_key"

    @property
    def secrets_keys(self) -> Path:
        """The keys that encrypt the secrets of tenants and users, newest first."""
        return self.data / "secrets_keys"

    @property
    def keys(self) -> Path:
        """What the embedded servers ask of those who connect; a job of the same user must not be able to read it."""
        return self.data / "keys"

    @property
    def postgres_password(self) -> Path:
        """A password file as libpq reads it."""
        return self.keys / "postgres"

    @property
    def valkey_password(self) -> Path:
        """The part of Valkey's configuration that has its password."""
        return self.keys / "valkey"

    @property
    def node_key(self) -> Path:
        """What the node daemon asks of every request."""
        return self.node_dir / "node.key" if self.node_dir else self.keys / "node"

    @property
    def run(self) -> Path:
        """What runs now: children.json (name to pid) and url, for people, `doctor` and tests."""
        return self.data / "run"

    @property
    def prepared(self) -> Path:
        """Exists once this start has brought the database up to date (portal/migrations_gate.py)."""
        return self.run / "prepared"

    @property
    def lock(self) -> Path:
        return self.data / "up.lock"

    @property
    def database_url(self) -> str:
        """Names the file of the password; so a command line or an environment may hold it."""
        where = urlencode({"host": self.postgres_socket_dir, "passfile": self.postgres_password})
        return f"postgresql://{DATABASE_USER}@/{DATABASE_NAME}?{where}"

    @property
    def redis_url(self) -> str:
        """Holds the password, once there is one."""
        try:
            _, password = self.valkey_password.read_text().split()
        except FileNotFoundError:  # nothing has been started yet, so nothing listens
            return f"unix://{self.valkey_socket}"
        return f"unix://:{password}@{self.valkey_socket}"


def layout(data: Path, node_dir: Path | None = None) -> Layout:
    """The same data folder always gives the same sockets, so that any command finds the servers of `up`."""
    resolved = data.expanduser().resolve()
    name = hashlib.sha256(os.fsencode(resolved)).hexdigest()[:10]
    return Layout(data=resolved, runtime=_runtime_root() / name, node_dir=node_dir)


def _runtime_root() -> Path:
    """A folder of this user's own: XDG's where it exists and is short, else one under /tmp named by the uid."""
    xdg = os.environ.get("XDG_RUNTIME_DIR", "")
    if xdg and len(xdg) < 50 and Path(xdg).is_dir() and Path(xdg).stat().st_uid == os.getuid():
        return Path(xdg) / "luthier"
    temporary = tempfile.gettempdir()
    return Path(temporary if len(temporary) < 50 else "/tmp") / f"luthier-{os.getuid()}"  # noqa: S108 (0700, owner checked)
