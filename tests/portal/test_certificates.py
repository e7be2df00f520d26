"""A server whose certificate no one trusts: each client of the platform goes away, and sends it nothing."""

from __future__ import annotations

import asyncio
import json
import runpy
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
import redis
from channels_redis.pubsub import RedisPubSubChannelLayer
from django.conf import LazySettings
from django.core.cache.backends.redis import RedisCache
from kombu import Connection
from kombu.exceptions import OperationalError

from gpu_scheduler.clusters.base import ClusterError
from gpu_scheduler.clusters.kubernetes.client import Api
from jobs.blobs.errors import StoreUnavailable
from jobs.blobs.s3 import S3Store
from portal.settings import celery, values
from portal.settings.celery import broker_tls
from tests.certificates import untrusted_server

SSL_REQUEST_BYTES = 8


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[int, list[bytes]]]:
    with untrusted_server(tmp_path) as made:
        yield made


def test_a_store_of_files(server: tuple[int, list[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    port, received = server
    more = {"ENDPOINT_URL": f"https://localhost:{port}", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}
    for name, value in more.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with pytest.raises(StoreUnavailable, match=r"(?i)certificate|SSL"):
        S3Store("s3://bucket").check()
    assert received == []


def test_the_api_of_kubernetes(server: tuple[int, list[bytes]], tmp_path: Path) -> None:
    port, received = server
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"https://localhost:{port}"}}],
        "users": [{"name": "u", "user": {"token": "hunter2hunter2"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    client = Api(str(path))
    with pytest.raises(ClusterError, match=r"(?i)certificate"):
        client.get("/version")
    assert received == []


def test_valkey_as_cache_and_as_broker(server: tuple[int, list[bytes]]) -> None:
    port, received = server
    url = f"rediss://:hunter2hunter2@localhost:{port}/0"
    with pytest.raises(redis.ConnectionError, match=r"(?i)certificate verify failed"):
        RedisCache(url, {}).get("a")
    with pytest.raises(OperationalError, match=r"(?i)certificate verify failed"):
        Connection(url, ssl=broker_tls(url)).ensure_connection(max_retries=1, timeout=5)
    assert received == []


def test_what_the_url_says_of_its_certificate_counts() -> None:
    assert broker_tls("rediss://h:6379?ssl_ca_certs=/ca.pem") == {
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
        "ssl_ca_certs": "/ca.pem",
    }
    assert broker_tls("redis://h:6379") is None


def test_a_parameter_that_means_nothing_is_refused_by_a_sentence() -> None:
    with pytest.raises(ValueError, match="has a parameter ssl: rediss:// asks for TLS"):
        values.broker("rediss://h:6379?ssl=x")
    assert values.broker("rediss://h:6379?ssl_ca_certs=/ca.pem") == "rediss://h:6379?ssl_ca_certs=/ca.pem"


def test_celery_is_set_to_use_it(settings: LazySettings) -> None:
    settings.BROKER_URL = "rediss://h:6379"
    assert runpy.run_path(celery.__file__)["broker_use_ssl"] == {"ssl_cert_reqs": ssl.CERT_REQUIRED}


def test_valkey_as_channel_layer(server: tuple[int, list[bytes]]) -> None:
    port, received = server

    async def send() -> None:
        layer = RedisPubSubChannelLayer(hosts=[f"rediss://:hunter2hunter2@localhost:{port}/0"])
        await layer.group_send("a", {"type": "b"})

    with pytest.raises(redis.ConnectionError, match=r"(?i)certificate verify failed"):
        asyncio.run(send())
    assert received == []


def test_postgresql_with_sslmode_verify_full(tmp_path: Path) -> None:
    with untrusted_server(tmp_path, before_tls=_begin_tls) as (port, received):
        url = f"postgresql://luthier:hunter2hunter2@localhost:{port}/luthier?sslmode=verify-full"
        with pytest.raises(psycopg2.OperationalError, match=r"certificate|SSL"):
            psycopg2.connect(f"{url}&sslrootcert=system&connect_timeout=5")
    assert received == []


def _begin_tls(client: socket.socket) -> None:
    """As PostgreSQL does once it is asked to."""
    client.recv(SSL_REQUEST_BYTES)
    client.sendall(b"S")
