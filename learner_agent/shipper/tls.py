"""What all TLS connections of a shipper share.

To read a machine's certificate authorities takes longer than hashing a part of a file.
"""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path


def context() -> ssl.SSLContext:
    """Checks servers against the machine's authorities, or those of SSL_CERT_FILE and SSL_CERT_DIR. Another one once
    these change."""
    paths = ssl.get_default_verify_paths()
    return _made(paths, *map(_version, (paths.cafile, paths.capath)))


@lru_cache(maxsize=1)
def _made(_paths: ssl.DefaultVerifyPaths, *_versions: tuple[int, ...]) -> ssl.SSLContext:
    made = ssl.create_default_context()
    made.set_alpn_protocols(["http/1.1"])
    return made


def _version(place: str | None) -> tuple[int, ...]:
    """Of a file or folder; () if there is none. A link counts as what it leads to."""
    try:
        found = Path(place).stat() if place else None
    except OSError:
        found = None
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size) if found else ()
