"""Which of the addresses in the settings are on other hosts and reached without TLS, or without a check of who answers.

A connection that does not leave the machine needs none: loopback and Unix sockets. LUTHIER_PRIVATE_HOSTS names what an
operator vouches for, such as the services of one compose network.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from portal.settings.env import Environment

ACKNOWLEDGE = "If only the platform's own machines are on the way, name the host in LUTHIER_PRIVATE_HOSTS."


def plain_connections(environment: Environment, variables: Mapping[str, str]) -> list[str]:
    """One sentence for each, with what to do. variables: for the store's, which are read elsewhere."""
    found = [
        *_database(environment),
        *_by_scheme("REDIS_URL", environment.redis_url, "redis", "use rediss://", environment),
        *_redis_unchecked(environment),
        *_by_scheme(
            "LUTHIER_PUBLIC_URL", environment.luthier_public_url, "http", "use https://", environment
        ),
        *_by_scheme("LUTHIER_INGEST_URL", environment.luthier_ingest_url, "ws", "use wss://", environment),
        *_by_scheme("SENTRY_DSN", environment.sentry_dsn, "http", "use https://", environment),
    ]
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        found += _by_scheme(name, variables.get(name), "http", "use https://", environment)
    email = environment.email_url
    if email and not urlsplit(email).username:  # with one, TLS is started before it is sent
        found += _by_scheme("EMAIL_URL", email, "smtp", "use smtps://", environment)
    return [f"{text} {ACKNOWLEDGE}" for text in found]


def _database(environment: Environment) -> Iterator[str]:
    url = environment.database_url
    if not url:
        return
    parts = urlsplit(url)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    mode = query.get("sslmode", "prefer")
    for host in (query.get("host") or parts.hostname or "").split(","):
        if host and not host.startswith("/") and not _is_private(host, environment) and mode != "verify-full":
            what = "without a check of its name" if mode in ("require", "verify-ca") else "without TLS"
            yield (
                f"DATABASE_URL: {host} may be reached {what} (sslmode={mode}): add ?sslmode=verify-full, with "
                "&sslrootcert= for an authority of your own."
            )


def _by_scheme(
    name: str, url: str | None, scheme: str, remedy: str, environment: Environment
) -> Iterator[str]:
    try:
        parts = urlsplit(url or "")
    except ValueError:
        return  # of the store's, which says itself what is wrong
    if parts.scheme == scheme and not _is_private(parts.hostname or "", environment):
        yield f"{name}: {parts.hostname} is reached without TLS: {remedy}."


def _redis_unchecked(environment: Environment) -> Iterator[str]:
    parts = urlsplit(environment.redis_url or "")
    if parts.scheme != "rediss" or _is_private(parts.hostname or "", environment):
        return
    query = {name: values[-1].lower() for name, values in parse_qs(parts.query).items()}
    if query.get("ssl_cert_reqs", "required") not in ("required", "cert_required"):
        yield f"REDIS_URL: the certificate of {parts.hostname} is not checked: remove ssl_cert_reqs."
    elif query.get("ssl_check_hostname", "true") in ("false", "0", "no"):
        yield f"REDIS_URL: {parts.hostname} is not checked for its name: remove ssl_check_hostname."


def _is_private(host: str, environment: Environment) -> bool:
    """On this machine, or vouched for. A name is not looked up: what it means may change."""
    named = host.lower().rstrip(".")
    if named == "localhost" or any(_matches(named, each) for each in environment.luthier_private_hosts):
        return True
    try:
        address = ipaddress.ip_address(named)
    except ValueError:
        return False
    networks = [_network(each) for each in environment.luthier_private_hosts]
    return address.is_loopback or any(each is not None and address in each for each in networks)


def _matches(host: str, pattern: str) -> bool:
    """*.example.org has every name below it, and not itself."""
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None
