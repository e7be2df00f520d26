"""What of the settings no program of a job may reach, and that the node daemon is given it."""

from __future__ import annotations

from pathlib import Path

import pytest

from portal.settings.env import Environment
from portal.settings.private_paths import private_paths
from portal.supervisor.plan import Options, start_plan


def test_folders_and_files_with_secrets_that_the_settings_name_are_private() -> None:
    environment = Environment(
        database_url="postgresql://db/luthier?sslkey=/opt/keys/client.key&sslrootcert=/etc/ca.pem",
        redis_url="rediss://broker?ssl_keyfile=/opt/keys/broker.key",
        secret_key_file=Path("/opt/keys/secret"),
        luthier_secrets_keys_file=Path("/opt/keys/secrets"),
        luthier_oidc_client_secret_file=Path("/opt/keys/oidc"),
        kubeconfig=Path("/opt/kube/config"),
        luthier_node_dir=Path("/opt/node"),
        luthier_blobs="/opt/blobs",
        luthier_breached_passwords=Path("/opt/leaked"),
    )
    variables = {"AWS_SHARED_CREDENTIALS_FILE": "/opt/aws", "PGPASSFILE": "/opt/aws", "AWS_REGION": "here"}
    assert {str(path).removeprefix("/opt/") for path in private_paths(environment, variables)} == {
        "keys/client.key", "keys/broker.key", "keys/secret", "keys/secrets", "keys/oidc", "kube/config", "node",
        "blobs", "aws",
    }  # fmt: skip


def test_a_bucket_is_no_folder_and_nothing_named_is_nothing_private() -> None:
    assert private_paths(Environment(luthier_blobs="s3://bucket/prefix"), {}) == []


def test_the_node_daemon_is_given_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSFILE", "passwords")
    (nodes,) = start_plan(Options(), Environment(luthier_blobs="/opt/blobs"), port=8000).nodes
    given = [nodes.command[at + 1] for at, word in enumerate(nodes.command) if word == "--private"]
    assert given == ["/opt/blobs", str(Path.cwd() / "passwords")]
