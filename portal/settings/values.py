"""What the text of a variable may be.

Each reader returns its value, or raises ValueError with a sentence that says what is wrong and repeats no secret.
"""

import base64
import ipaddress
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from gpu_scheduler.clusters import registry
from gpu_scheduler.clusters.kubernetes import peers, pools
from gpu_scheduler.clusters.kubernetes.settings import (
    account,
    parse_labels,
    parse_names,
    parse_tolerations,
    require_name,
    require_runtime_image,
)
from gpu_scheduler.clusters.local.nodes import wrong_entries
from gpu_scheduler.policies import names_in
from tenants.images import read_patterns
from tenants.retention import UNITS, Rules, read_rules, read_size

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SECRET_KEY_MIN_CHARS = 50
SECRETS_KEY_BYTES = 32
HOST = re.compile(r"\*|\.?\w([\w.-]*\w)?|\[[0-9a-fA-F:.]+\]", re.ASCII)
SLUG = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w.=-]+)*/?", re.ASCII)
STORE_ADDRESSES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
SANDBOX_MODES = ("auto", "required", "off")
YES = ("1", "true", "yes", "on")
NO = ("0", "false", "no", "off")
ESCAPED = "in a password write / ? # [ ] @ as %2F %3F %23 %5B %5D %40"


def yes_or_no(text: str) -> bool:
    if text.lower() not in YES + NO:
        raise ValueError(f"must be one of {', '.join(YES)} or {', '.join(NO)}")
    return text.lower() in YES


def number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise ValueError(f"must be a number from {low:g} to {high:g}")
        return value

    return read


def whole_number(low: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < low:
            raise ValueError(f"must be a whole number of at least {low}")
        return int(text)

    return read


def amount(text: str) -> int:
    """Bytes of 500Mi, 10Gi, 1Ti."""
    if (found := read_size(text)) is None:
        raise ValueError(f"must be a whole number of bytes, or one with {', '.join(UNITS)}, such as 10Gi")
    return found


def url(*schemes: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        parts = _split(text)
        if parts.scheme not in schemes:
            raise ValueError(f"must start with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        if parts.scheme != "unix" and not parts.hostname:
            raise ValueError("names no host")
        return text.rstrip("/")

    return read


def broker(text: str) -> str:
    found = url("redis", "rediss", "unix")(text)
    if "ssl" in parse_qs(_split(found).query, keep_blank_values=True):
        raise ValueError("has a parameter ssl: rediss:// asks for TLS, and ssl_ca_certs names an authority")
    return found


def file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise ValueError(f"names no readable file: {path}")
    return path


def breached_passwords(path: Path | None) -> None:
    """Raise ValueError unless the file's lines begin with 40 hexadecimal digits, of which the first two are looked at.

    Only where an installation starts as a whole: the file may be on a share that is away when one process restarts.
    """
    if path is None:
        return
    file(str(path))
    try:
        with path.open("rb") as lines:
            first, second = lines.readline(200), lines.readline(200)
    except OSError as error:
        raise ValueError(f"cannot be read: {path}: {error.strerror}") from None
    sha1 = re.compile(rb"[0-9A-Fa-f]{40}(:[0-9]+)?\s*")
    if not sha1.fullmatch(first) or (second and not sha1.fullmatch(second)):
        raise ValueError(
            f"must have a SHA-1 in each line, 40 hexadecimal digits, perhaps with :COUNT: {path}"
        )
    if second and second[:40].upper() < first[:40].upper():
        raise ValueError(f"must be in ascending order: sort it with `LC_ALL=C sort -o {path} {path}`")


def folder(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise ValueError("must be the absolute path of a folder")
    return path


def data_folder(text: str) -> Path:
    """A folder, or a path where one can be made."""
    path = Path(text)
    try:
        above = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    except OSError as error:
        why = error.strerror or str(error)
    else:
        why = "" if above.is_dir() else f"{above} is not a folder"
    if why:
        raise ValueError(f"{path} cannot be used: {why}. Name a folder that you may write.")
    return path


def blob_store(text: str) -> str:
    """A folder by its absolute path, or a bucket of an S3-compatible store."""
    if text.startswith("s3://"):
        if not BUCKET.fullmatch(text):
            raise ValueError("must be s3://bucket or s3://bucket/prefix")
        return text.rstrip("/")
    if not Path(text).is_absolute():
        raise ValueError("must be an absolute path of a folder, or s3://bucket/prefix")
    return text


def secret(text: str) -> str:
    if len(text) < SECRET_KEY_MIN_CHARS:
        raise ValueError(
            f"has {len(text)} characters; at least {SECRET_KEY_MIN_CHARS} random ones are needed"
        )
    return text


def secrets_keys(text: str) -> tuple[str, ...]:
    """Keys apart from each other by commas or white space, newest first: 32 random bytes each, in URL-safe base64."""
    keys = tuple(text.replace(",", " ").split())
    if not keys:
        raise ValueError("holds no key; `manage.py secrets new-key` prints one")
    for n, key in enumerate(keys, 1):
        try:
            size = len(base64.b64decode(key, altchars=b"-_", validate=True))
        except ValueError:
            size = 0
        if size != SECRETS_KEY_BYTES:
            raise ValueError(
                f"key {n} of {len(keys)} is not {SECRETS_KEY_BYTES} bytes in URL-safe base64;"
                " `manage.py secrets new-key` prints one"
            )
    return keys


def retention_rules(text: str) -> Rules:
    """The defaults for how long data is kept."""
    return read_rules(text)


def hosts(text: str) -> tuple[str, ...]:
    """Hosts apart from each other by commas."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if not HOST.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is no host: give names or addresses without scheme and port")
    return names


def private_hosts(text: str) -> tuple[str, ...]:
    """Host names, *.names, addresses and networks, with commas."""
    found = tuple(each.strip().lower() for each in text.split(",") if each.strip())
    for each in found:
        if "/" in each:
            networks(each)
        elif not re.fullmatch(r"(\*\.)?[a-z0-9_.:-]+", each, re.ASCII):
            raise ValueError(f"'{each}' is no host, *.host, address or network")
    return found


def contact(text: str) -> str:
    """Where people report something: mailto:… or https://…."""
    if not re.fullmatch(r"(mailto:[^\s@]+@[^\s@]+|https://\S+)", text, re.ASCII):
        raise ValueError("must be mailto: with an address, or a page that begins with https://")
    return text


def collector(text: str) -> str:
    """Where log lines are sent, to the character. Not a place for a password: addresses are shown and logged."""
    url("https", "http")(text)
    parts = _split(text)
    if parts.username is not None or parts.fragment:
        raise ValueError("may hold no user, password or #: give those as LUTHIER_AUDIT_AUTHORIZATION")
    labels = (parts.hostname or "").removesuffix(".").split(".")
    if not re.fullmatch("[!-~]+", text) or not all(0 < len(label) < 64 for label in labels):
        raise ValueError("is no address: write other characters than ASCII as %XX, of a host as xn--")
    return text


def header(text: str) -> str:
    """The value of a header, which is in no message about it."""
    if not re.fullmatch(r"[!-~]([ -~]*[!-~])?", text):
        raise ValueError("has other characters than a header may have, or a space at its end")
    return text


def mail_address(text: str) -> str:
    """Of the sender; no display name, so that it needs no quoting."""
    if len(text) > 254 or not re.fullmatch(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.\-]+", text):
        raise ValueError("write a plain address such as luthier@example.org")
    return text


def oidc_issuer(text: str) -> str:
    """The address of an OpenID provider, to the character as its discovery document and its tokens have it."""
    parts = _split(text)
    loopback = parts.hostname in ("127.0.0.1", "localhost", "::1")
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and loopback)):
        raise ValueError(
            "must start with https:// and name a host; http:// is for this machine's loopback only"
        )
    if parts.query or parts.fragment or parts.username or "/.well-known/" in text:
        raise ValueError("must be the issuer alone: no user, no query, no /.well-known/openid-configuration")
    return text


def oidc_scopes(text: str) -> tuple[str, ...]:
    """Scopes apart from each other by spaces."""
    scopes = tuple(text.split())
    if "openid" not in scopes or not all(re.fullmatch(r"[\x21\x23-\x5b\x5d-\x7e]+", each) for each in scopes):
        raise ValueError("must be scopes apart by spaces, with openid among them")
    return scopes


def words(text: str) -> tuple[str, ...]:
    """Texts apart by spaces."""
    return tuple(text.split())


def label(text: str) -> str:
    """A short text for a page."""
    if len(text) > 60 or not text.isprintable():
        raise ValueError("must have at most 60 printable characters")
    return text


def networks(text: str) -> tuple[Network, ...]:
    """Addresses or networks apart from each other by commas: 10.0.0.5, 10.1.0.0/16, fd00::/8."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.append(ipaddress.ip_network(part))
        except ValueError:
            raise ValueError(f"{part[:80]!r} is no address and no network such as 10.1.0.0/16") from None
    return tuple(found)


def cluster(text: str) -> str:
    """The name of a cluster driver."""
    try:
        registry.driver(text)
    except registry.ClusterMisconfigured as error:
        raise ValueError(str(error)) from None
    return text


def needs_node_daemon(name: str) -> bool:
    """Say whether `manage.py up` must start a node daemon for this cluster."""
    return registry.driver(name).capabilities.node_daemon


def required_settings(cluster: str) -> tuple[str, ...]:
    """The variables without which this cluster cannot be used."""
    return registry.driver(cluster).capabilities.required_settings


def kube_name(text: str) -> str:
    """The name of this installation on a Kubernetes cluster."""
    require_name(text)
    return text


def kube_runtime_image(text: str) -> str:
    """The images of the frameworks: one reference with {runtime} in it."""
    require_runtime_image(text)
    return text


def image_patterns(text: str) -> tuple[str, ...]:
    """Which container images jobs may run."""
    return read_patterns(text)


def kube_gpu_resources(text: str) -> str:
    """Resources of GPUs by slot type."""
    pools.gpu_resources(text)
    return text


def kube_runtime_classes(text: str) -> str:
    """Runtime classes by slot type."""
    pools.runtime_classes(text)
    return text


def kube_labels(text: str) -> str:
    """Labels of nodes."""
    parse_labels(text)
    return text


def kube_tolerations(text: str) -> str:
    """Taints that learners' pods tolerate."""
    parse_tolerations(text)
    return text


def kube_object_name(text: str) -> str:
    """The name of one Kubernetes object, or nothing."""
    if len(parse_names(text)) > 1:
        raise ValueError("must be one name")
    return text


def kube_object_names(text: str) -> str:
    """Names of Kubernetes objects."""
    parse_names(text)
    return text


def kube_account(text: str) -> str:
    """A service account on the Kubernetes cluster: NAMESPACE/NAME."""
    account(text)
    return text


def kube_peers(text: str) -> str:
    """Where learners may connect to."""
    peers.parse(text)
    return text


def nodes(text: str) -> str:
    """The local cluster's nodes, as `manage.py up --nodes` takes them."""
    if wrong := wrong_entries(text):
        raise ValueError("; ".join(wrong))
    return text


def sandbox(text: str) -> str:
    """Whether programs on the local cluster are confined."""
    if text not in SANDBOX_MODES:
        raise ValueError(f"must be one of {', '.join(SANDBOX_MODES)}")
    return text


def paths(text: str) -> str:
    """Absolute paths, apart by colons."""
    for part in filter(None, text.split(os.pathsep)):
        if not Path(part).is_absolute() or Path(part) == Path("/"):
            raise ValueError(f"{part[:200]!r} is not the absolute path of a folder or file below /")
    return text


def scheduler_policy(text: str) -> str:
    """A scheduling policy by name, and other ones for single pools: fair_share,h200:fair_share."""
    names_in(text)
    return text


def name_prefix(text: str) -> str:
    if not SLUG.fullmatch(text.rstrip("-")) or len(text) > 30:
        raise ValueError("must be lowercase letters, digits and '-', at most 30 characters")
    return text


def database(text: str) -> str:
    database_from_url(text)
    return text


def database_from_url(url: str) -> dict[str, object]:
    """Django's description of the PostgreSQL database behind a URL; `?host=/folder` names a Unix socket's folder."""
    parts = _split(url)
    if parts.scheme not in ("postgres", "postgresql"):
        raise ValueError("must start with postgresql://; no other database is supported")
    query = {key: values[-1] for key, values in _options(parts.query).items()}
    name = unquote(parts.path.lstrip("/"))
    if not name:
        raise ValueError("names no database, for example postgresql://user:password@host:5432/luthier")
    return {
        "ENGINE": "portal.database",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.pop("host", "") or (parts.hostname or ""),
        "PORT": str(query.pop("port", "") or parts.port or ""),
        "OPTIONS": query,
    }


def store_problems(blobs: str | None, variables: Mapping[str, str]) -> list[str]:
    """What is wrong with the addresses of the store, which its client reads from the environment by itself."""
    if not (blobs or "").startswith("s3://"):
        return []
    problems = []
    for name, text in ((name, variables.get(name)) for name in STORE_ADDRESSES):
        try:
            if text:
                url("https", "http")(text)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    return problems


def owner_problems(running: str | None, owner: str | None) -> list[str]:
    """What is wrong with LUTHIER_OWNER_DATABASE_URL beside DATABASE_URL."""
    if owner is None:
        return []
    if running is None:
        return [
            "LUTHIER_OWNER_DATABASE_URL: set DATABASE_URL, too: the role that uses the tables of this one"
        ]
    if database_from_url(running)["USER"] in ("", database_from_url(owner)["USER"]):
        return ["DATABASE_URL: must name another role than LUTHIER_OWNER_DATABASE_URL, which owns the tables"]
    return []


def _split(text: str) -> SplitResult:
    """The parts of a URL. Python's own error would quote the URL, and with it a password that is not escaped."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise ValueError(f"host or port cannot be read; {ESCAPED}") from None
    return parts


def _options(query: str) -> dict[str, list[str]]:
    try:
        return parse_qs(query, strict_parsing=bool(query))
    except ValueError:
        raise ValueError(f"the part after '?' must be name=value&…; {ESCAPED}") from None
