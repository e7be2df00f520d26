"""Addresses of other hosts without TLS are warned of, with what to do; this machine's own and named ones are not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.core.checks import run_checks

from portal.health.diagnosis import variables
from portal.settings import values
from portal.settings.env import Environment
from portal.settings.plain_connections import plain_connections

ROOT = Path(__file__).resolve().parents[2]
PLAIN = {
    "database_url": "postgresql://u:geheim@db.example:5432/luthier",
    "redis_url": "redis://:geheim@broker.example:6379/0",
    "luthier_public_url": "http://luthier.example",
    "luthier_ingest_url": "ws://luthier.example",
    "email_url": "smtp://mail.example:25",
    "luthier_audit_url": "http://logs.example/luthier",
    "sentry_dsn": "http://key@sentry.example/1",
}


def found(store: str = "", variables: Mapping[str, str] | None = None, **given: object) -> list[str]:
    stores = {"AWS_ENDPOINT_URL": store, "AWS_ENDPOINT_URL_S3": store}
    return plain_connections(Environment(**given), stores | dict(variables or {}))  # type: ignore[arg-type]


def test_each_address_without_tls_is_named_with_its_remedy_and_no_password() -> None:
    said = found("http://s3.example:9000", **PLAIN)
    names = [text.partition(":")[0] for text in said]
    assert names == [
        "DATABASE_URL", "REDIS_URL", "LUTHIER_PUBLIC_URL", "LUTHIER_INGEST_URL", "LUTHIER_AUDIT_URL", "SENTRY_DSN",
        "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "EMAIL_URL",
    ]  # fmt: skip
    assert all(re.search(r": (use|add) .+LUTHIER_PRIVATE_HOSTS", text) for text in said), said
    assert "geheim" not in "".join(said)


def test_an_address_of_the_store_that_is_none_is_not_judged_here() -> None:
    assert found("http://[::1") == []


@pytest.mark.parametrize(
    ("query", "warned"),
    [
        ("", "without TLS"),
        ("?sslmode=prefer", "without TLS"),
        ("?sslmode=require", "without a check of its name"),
        ("?sslmode=verify-ca", "without a check of its name"),
        ("?sslmode=verify-full&sslrootcert=system", ""),
        ("?host=/run/postgresql", ""),
        ("?sslrootcert=system", ""),
        ("?host=127.0.0.1,db2.example", "db2.example"),
        ("?host=@luthier", ""),
        ("?hostaddr=127.0.0.1", ""),
        ("?hostaddr=::ffff:127.0.0.1", ""),
        ("?host=ip6-localhost", ""),
        ("?host=/run/postgresql&hostaddr=10.0.0.5", "10.0.0.5"),
        ("?host=localhost,localhost&hostaddr=127.0.0.1,10.0.0.5", "10.0.0.5"),
    ],
)
def test_a_database_is_to_prove_its_name(query: str, warned: str) -> None:
    said = found(database_url=f"postgresql://u:p@db.example/luthier{query}")
    assert (warned in said[0]) if warned else said == []


@pytest.mark.parametrize(
    ("url", "variables", "warned"),
    [
        ("postgresql:///luthier", {}, ""),
        ("postgresql:///luthier", {"PGHOST": "db.example"}, "db.example may be reached without TLS"),
        ("postgresql:///luthier", {"PGHOST": "db.example", "PGSSLMODE": "verify-full"}, ""),
        ("postgresql:///luthier", {"PGHOST": "db.example", "PGSSLROOTCERT": "system"}, ""),
        ("postgresql://localhost/luthier", {"PGHOST": "db.example"}, ""),
        ("postgresql://localhost/luthier", {"PGHOSTADDR": "10.0.0.5"}, "10.0.0.5"),
        (
            "postgresql://db.example/luthier?sslmode=require",
            {"PGSSLMODE": "verify-full"},
            "check of its name",
        ),
        ("postgresql:///luthier?service=plain", {}, "db.example may be reached without TLS"),
        ("postgresql:///luthier", {"PGSERVICE": "plain"}, "db.example may be reached without TLS"),
        ("postgresql:///luthier?service=plain", {"PGSSLMODE": "verify-full"}, ""),
        ("postgresql:///luthier?service=checked", {"PGSSLMODE": "disable"}, ""),
        ("postgresql://localhost/luthier?service=plain", {}, ""),
        ("postgresql:///luthier?service=unknown", {}, "service unknown"),
        (None, {"PGHOST": "db.example"}, ""),
        (None, {"PGHOSTADDR": "10.0.0.5"}, "10.0.0.5"),
    ],
)
@pytest.mark.parametrize("place", ["PGSERVICEFILE", "HOME", "PGSYSCONFDIR"])
def test_what_libpq_reads_beside_the_address_counts(
    tmp_path: Path, place: str, url: str | None, variables: Mapping[str, str], warned: str
) -> None:
    name = ".pg_service.conf" if place == "HOME" else "pg_service.conf"
    file = tmp_path / name
    file.write_text("# ours\n[plain]\nhost=db.example\n[checked]\nhost=db.example\nsslmode=verify-full\n")
    where = {place: str(file if place == "PGSERVICEFILE" else tmp_path)}
    said = found(database_url=url, variables=where | dict(variables))
    assert (warned in said[0]) if warned else said == []


def test_a_service_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Such as one that a directory server describes: what it says is not known here."""
    file = tmp_path / "services"
    file.write_text("[far]\nldap://directory.example/cn=db\n")
    said = found(database_url="postgresql:///luthier?service=far", variables={"PGSERVICEFILE": str(file)})
    assert "service far is in no file that is read here" in said[0]


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("rediss://broker.example:6379", ""),
        ("rediss://broker.example:6379?ssl_cert_reqs=none", "certificate"),
        ("rediss://broker.example:6379?ssl_check_hostname=False", "name"),
        ("unix:///run/valkey.sock", ""),
        ("redis://[::1]:6379", ""),
        ("redis://[::ffff:127.0.0.1]:6379", ""),
        ("redis://[::ffff:10.0.0.5]:6379", "without TLS"),
        ("redis://ip6-localhost:6379", ""),
        ("redis://127.0.0.2:6379", ""),
        ("redis://localhost.example:6379", "without TLS"),
    ],
)
def test_a_broker_is_to_prove_its_name(url: str, warned: str) -> None:
    said = found(redis_url=url)
    assert (warned in said[0]) if warned else said == []


def test_hosts_that_an_operator_vouches_for_are_not_warned_of() -> None:
    hosts = values.private_hosts("db, *.svc, 10.1.0.0/16, fd00::/8")
    private = {"luthier_private_hosts": hosts}
    assert found(database_url="postgresql://u:p@db/luthier", **private) == []
    assert found(luthier_ingest_url="ws://web.luthier.svc:80", **private) == []
    assert found(redis_url="redis://10.1.2.3", **private) == []
    assert found(redis_url="redis://[fd00::7]", **private) == []
    for other in ("db.example", "svc", "10.2.0.1", "adb", "[fe80::1]"):
        assert len(found(redis_url=f"redis://{other}", **private)) == 1, other
    for wrong in ("10.1.0.1/16", "db example", "a/b", "*"):
        with pytest.raises(ValueError, match="is no"):
            values.private_hosts(wrong)


def test_the_defaults_and_the_compose_file_are_quiet() -> None:
    assert found() == []
    compose = (ROOT / "docker-compose.yml").read_text()
    given = {
        name.lower(): re.sub(r"\$\{\w+:[-?]([^}]*)\}", r"\1", re.search(rf"    {name}: (.+)", compose)[1])  # type: ignore[index]
        for name in ("DATABASE_URL", "REDIS_URL", "LUTHIER_INGEST_URL")
    }
    own = re.search(
        r"LUTHIER_PRIVATE_HOSTS: (\S+)\$\{LUTHIER_PRIVATE_HOSTS:\+,\$\{LUTHIER_PRIVATE_HOSTS\}\} ", compose
    )
    assert own, "what an operator names is added to it"
    given["database_url"] = given["database_url"].replace("set POSTGRES_PASSWORD", "p")
    assert found(**given, luthier_private_hosts=values.private_hosts(own[1])) == []
    assert len(found(**given)) == 3


def test_the_check_of_a_deployment_doctor_and_the_console_say_it(settings: LazySettings) -> None:
    settings.ENV = Environment(redis_url="redis://broker.example")
    checked = [each.msg for each in run_checks(tags=["security"], include_deployment_checks=True)]
    assert any("REDIS_URL: broker.example is reached without TLS: use rediss://." in text for text in checked)
    assert any("broker.example" in text for text in variables().warnings)
