"""The environment, read once, typed and judged: every problem at once, each with the variable's name.

A wrong value ends the process with exit code 78 (EX_CONFIG of sysexits.h) before anything has started.
"""

import re
import sys
from pathlib import Path
from typing import Annotated, Literal, NoReturn
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

EX_CONFIG = 78
BASE_DIR = Path(__file__).resolve().parents[2]
SECRET_KEY_MIN_CHARS = 50
LOCAL_NODES = re.compile(r"auto|[a-z0-9-]+:[a-z0-9-]+:[1-9][0-9]*(,[a-z0-9-]+:[a-z0-9-]+:[1-9][0-9]*)*")
HOST = re.compile(r"\*|\.?\w([\w.-]*\w)?|\[[0-9a-fA-F:.]+\]", re.ASCII)
SLUG = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


class Environment(BaseSettings):
    """Every variable that this installation listens to, with its unit and default."""

    model_config = SettingsConfigDict(extra="ignore", env_ignore_empty=True)

    debug: bool = False
    database_url: str | None = None  # postgresql://…; none = the embedded server
    redis_url: str | None = None  # redis://, rediss://, unix://; none = the embedded server
    secret_key: str | None = None
    secret_key_file: Path | None = None
    allowed_hosts: Annotated[
        list[str], NoDecode
    ] = []  # comma-separated; empty = loopback and the public URL's host
    email_url: str | None = None  # smtp://user:password@host:port, smtps://…; none = printed on the console
    sentry_dsn: str | None = None

    luthier_data: Path = BASE_DIR / ".luthier"
    luthier_public_url: str = "http://127.0.0.1:8000"
    luthier_ingest_url: str | None = (
        None  # ws(s)://… as learners reach the server; none = from the public URL
    )
    luthier_cluster: Literal["local", "kubernetes", "memory"] = "local"
    luthier_lease_s: float = Field(10, ge=1, le=600)  # seconds until a frozen worker's job may be taken over
    luthier_tick_s: float = Field(1, ge=0.02, le=60)  # seconds between two looks at due jobs
    luthier_retention_days: float = Field(90, ge=0, le=36_500)  # days a deleted job is kept before its purge
    luthier_log_job_max_bytes: int = Field(2 * 1024**3, ge=1024)  # bytes of log kept per job
    luthier_overcommit_max: float = Field(1.25, ge=1, le=100)  # sum of limits over a type's capacity
    local_nodes: str = "auto"
    kubeconfig: Path | None = None
    kube_namespace_prefix: str = "luthier-"

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return (
            [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        )

    @field_validator("allowed_hosts")
    @classmethod
    def _are_hosts(cls, value: list[str]) -> list[str]:
        for name in value:
            if not HOST.fullmatch(name):
                raise ValueError(f"{name[:80]!r} is no host: give names or addresses without scheme and port")
        return value

    @field_validator("database_url")
    @classmethod
    def _is_postgresql(cls, value: str | None) -> str | None:
        if value is not None:
            database_from_url(value)
        return value

    @field_validator("redis_url", "email_url", "sentry_dsn", "luthier_public_url", "luthier_ingest_url")
    @classmethod
    def _has_known_scheme(cls, value: str | None, info: ValidationInfo) -> str | None:
        allowed = SCHEMES[info.field_name or ""]
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in allowed:
            raise ValueError(f"must start with {' or '.join(f'{scheme}://' for scheme in allowed)}")
        if parts.scheme != "unix" and not parts.hostname:
            raise ValueError("names no host")
        _ = parts.port  # raises ValueError for a port that is none
        return value.rstrip("/")

    @field_validator("secret_key")
    @classmethod
    def _is_long(cls, value: str | None) -> str | None:
        if value is not None and len(value) < SECRET_KEY_MIN_CHARS:
            raise ValueError(
                f"has {len(value)} characters; at least {SECRET_KEY_MIN_CHARS} random ones are needed"
            )
        return value

    @field_validator("secret_key_file", "kubeconfig")
    @classmethod
    def _is_file(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError(f"names no readable file: {value}")
        return value

    @field_validator("local_nodes")
    @classmethod
    def _describes_nodes(cls, value: str) -> str:
        if not LOCAL_NODES.fullmatch(value):
            raise ValueError(
                "must be 'auto' or name:type:slots, separated by commas, for example node-a:cpu:4,node-b:cpu:4"
            )
        names = [node.split(":")[0] for node in value.split(",")]
        if len(set(names)) < len(names):
            raise ValueError("names a node twice")
        return value

    @field_validator("kube_namespace_prefix")
    @classmethod
    def _is_slug_prefix(cls, value: str) -> str:
        if not SLUG.fullmatch(value.rstrip("-")) or len(value) > 30:
            raise ValueError("must be lower-case letters, digits and '-', at most 30 characters")
        return value


SCHEMES = {
    "redis_url": ("redis", "rediss", "unix"),
    "email_url": ("smtp", "smtps"),
    "sentry_dsn": ("https", "http"),
    "luthier_public_url": ("http", "https"),
    "luthier_ingest_url": ("ws", "wss"),
}


def read_environment() -> Environment:
    """The environment as typed values; ends the process with one line per problem when any is wrong."""
    try:
        return Environment()
    except ValidationError as error:
        refuse([f"{_variable(problem['loc'])}: {_sentence(problem)}" for problem in error.errors()])


def refuse(problems: list[str]) -> NoReturn:
    """Say what is wrong with the configuration and end with EX_CONFIG."""
    lines = ["Luthier cannot start, its configuration is wrong:", *(f"  {problem}" for problem in problems)]
    sys.stderr.write("\n".join(lines) + "\n")
    raise SystemExit(EX_CONFIG)


def database_from_url(url: str) -> dict[str, object]:
    """Django's description of the PostgreSQL database behind a URL; `?host=/folder` names a Unix socket's folder."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql"):
        raise ValueError("must start with postgresql://; no other database is supported")
    query = {
        key: values[-1] for key, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()
    }
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


def _variable(location: tuple[int | str, ...]) -> str:
    return str(location[0]).upper() if location else "environment"


def _sentence(problem: object) -> str:
    """pydantic's message without its 'Value error, ' prefix."""
    message: str = problem["msg"]  # type: ignore[index]
    return message.removeprefix("Value error, ")
