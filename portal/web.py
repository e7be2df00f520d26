"""The web server: uvicorn with the options that every installation needs, `python -m portal.web --port 8000`."""

from __future__ import annotations

import argparse
import os
import resource

import django
import uvicorn

SOCKET_FRAME_BYTES = 1024 * 1024
STOP_S = 3
"""Requests under way get this long at a stop; sockets are closed at once, as their clients connect elsewhere."""
OPEN_FILES = 65_536


def main() -> None:
    """Serve until a signal."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.base")
    options = argparse.ArgumentParser(prog="python -m portal.web", description=__doc__)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=8000)
    given = options.parse_args()
    _raise_open_files()
    django.setup(set_prefix=False)
    from portal.migrations_wait import wait_for_migrations  # needs Django's settings

    wait_for_migrations()
    uvicorn.run(
        "portal.asgi:application",
        host=given.host,
        port=given.port,
        http="portal.connections:Http",
        ws="portal.live.socket:Socket",
        ws_max_size=SOCKET_FRAME_BYTES,
        ws_per_message_deflate=False,  # a compressed frame could unfold to any size
        proxy_headers=False,  # it would trust every client of this machine; portal.asgi reads LUTHIER_TRUSTED_PROXIES
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_S,
    )


def _raise_open_files() -> None:
    """Allow as many connections as the system permits; many shells start programs with 1,024 open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    main()
