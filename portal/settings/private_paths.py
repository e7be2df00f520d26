"""Which files and folders outside the data folder the settings name that no program of a job may reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from portal.settings.env import Environment

OF_LIBRARIES = (
    "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "PGPASSFILE", "PGSERVICEFILE",
    "PGSSLKEY",
)  # fmt: skip
"""Variables of the store's library and of libpq that name files with credentials."""
IN_ADDRESSES = ("passfile", "sslkey", "ssl_keyfile")
"""Options of a database's or a broker's address that do."""


def private_paths(environment: Environment, variables: Mapping[str, str]) -> list[Path]:
    """Each once, absolute. variables: for those of libraries."""
    return list(dict.fromkeys(path.absolute() for path in _named(environment, variables)))


def _named(environment: Environment, variables: Mapping[str, str]) -> Iterator[Path]:
    for path in (
        environment.luthier_node_dir,
        environment.secret_key_file,
        environment.luthier_secrets_keys_file,
        environment.luthier_oidc_client_secret_file,
        environment.kubeconfig,
        environment.kube_provision_kubeconfig,
    ):
        if path is not None:
            yield path
    if environment.luthier_blobs and not environment.luthier_blobs.startswith("s3://"):
        yield Path(environment.luthier_blobs)
    for name in OF_LIBRARIES:
        if variables.get(name):
            yield Path(variables[name])
    addresses = (
        environment.database_url,
        environment.luthier_owner_database_url,
        environment.redis_url,
    )
    for address in filter(None, addresses):
        options = parse_qs(urlsplit(address).query)
        yield from (Path(value) for name in IN_ADDRESSES for value in options.get(name, ()))
