"""Which of the addresses in the settings are on other hosts and reached without TLS, or without a check of who answers.

A connection that does not leave the machine needs none: loopback and Unix sockets. LUTHIER_PRIVATE_HOSTS names what an
operator vouches for, such as the services of one compose network.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigError
from itertools import zip_longest
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qs, urlsplit

from portal.settings import values

if TYPE_CHECKING:
    from portal.settings.env import Environment

ACKNOWLEDGE = "If only the platform's own machines are on the way, name the host in LUTHIER_PRIVATE_HOSTS."
OF_LIBPQ = {
    "host": "PGHOST", "hostaddr": "PGHOSTADDR", "sslmode": "PGSSLMODE", "sslrootcert": "PGSSLROOTCERT",
}  # fmt: skip
SOCKETS = ("/", "@")
"""How a host begins that is a Unix socket: its folder, or its name in the abstract name space."""
LOCAL = ("localhost", "ip6-localhost", "ip6-loopback")
"""Names of this machine in its own list of hosts, the latter on Debian."""


def plain_connections(environment: Environment, variables: Mapping[str, str]) -> list[str]:
    """One sentence for each, with what to do. variables: for the store's and libpq's, which are read elsewhere."""
    found = [
        *_database("DATABASE_URL", environment.database_url, environment, variables),
        *_by_scheme("REDIS_URL", environment.redis_url, "redis", "use rediss://", environment),
        *_redis_unchecked(environment),
        *_by_scheme(
            "LUTHIER_PUBLIC_URL", environment.luthier_public_url, "http", "use https://", environment
        ),
        *_by_scheme("LUTHIER_INGEST_URL", environment.luthier_ingest_url, "ws", "use wss://", environment),
        *_by_scheme("LUTHIER_AUDIT_URL", environment.luthier_audit_url, "http", "use https://", environment),
        *_by_scheme("SENTRY_DSN", environment.sentry_dsn, "http", "use https://", environment),
    ]
    if owner := environment.luthier_owner_database_url:
        found += _database("LUTHIER_OWNER_DATABASE_URL", owner, environment, variables)
    for name in values.STORE_ADDRESSES:
        found += _by_scheme(name, variables.get(name), "http", "use https://", environment)
    email = environment.email_url
    if email and not urlsplit(email).username:  # with one, TLS is started before it is sent
        found += _by_scheme("EMAIL_URL", email, "smtp", "use smtps://", environment)
    return [f"{text} {ACKNOWLEDGE}" for text in found]


def _database(
    name: str, url: str | None, environment: Environment, variables: Mapping[str, str]
) -> Iterator[str]:
    try:
        given = _of_libpq(url, variables)
    except LookupError as error:
        yield f"{name}: service {error.args[0]} is in no file that is read here: use its host and sslmode."
        return
    mode = given["sslmode"] or ("verify-full" if given["sslrootcert"] == "system" else "prefer")
    if mode == "verify-full":
        return
    what = "without a check of its name" if mode in ("require", "verify-ca") else "without TLS"
    addresses = given["hostaddr"].split(",")
    for host, address in zip_longest(given["host"].split(","), addresses, fillvalue=""):
        to = address or host  # the address is connected to, and the name only compared
        if to and (address or not to.startswith(SOCKETS)) and not _is_private(to, environment):
            yield (
                f"{name}: {to} may be reached {what} (sslmode={mode}): add ?sslmode=verify-full, with "
                "&sslrootcert= for an authority of your own."
            )


def _of_libpq(url: str | None, variables: Mapping[str, str]) -> dict[str, str]:
    """What libpq connects with: of the URL, else of its service, else of the environment. "" is its default, and as a
    host a Unix socket. Raises LookupError with the name of a service that is not found."""
    known: dict[str, object] = {"host": "/"}  # no URL: the embedded server's socket
    if url:
        parts = values.database_from_url(url)
        known = {**dict(cast("Mapping[str, object]", parts["OPTIONS"])), "host": parts["HOST"]}
    name = str(known.get("service") or variables.get("PGSERVICE", ""))
    service = _service(name, variables) if name else {}
    return {
        option: str(known.get(option) or service.get(option) or variables.get(variable, ""))
        for option, variable in OF_LIBPQ.items()
    }


def _service(name: str, variables: Mapping[str, str]) -> Mapping[str, str]:
    home, system = variables.get("HOME", ""), variables.get("PGSYSCONFDIR")
    files = [variables.get("PGSERVICEFILE") or f"{home}/.pg_service.conf"]
    for file in [*files, f"{system}/pg_service.conf"] if system else files:
        parser = ConfigParser(interpolation=None, delimiters="=", comment_prefixes="#", default_section="")
        try:
            parser.read(file)
        except (ConfigError, OSError, ValueError):
            break
        if parser.has_section(name):
            if any(key.startswith("ldap") for key in parser[name]):
                break  # a directory server describes it
            return parser[name]
    raise LookupError(name)


def _by_scheme(
    name: str, url: str | None, scheme: str, remedy: str, environment: Environment
) -> Iterator[str]:
    try:
        parts = urlsplit(url or "")
    except ValueError:
        return  # the store's, where none is used
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
    if named in LOCAL or any(_matches(named, each) for each in environment.luthier_private_hosts):
        return True
    try:
        address = ipaddress.ip_address(named)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
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
