"""Where the client finds the cluster when no kubeconfig is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes import config
from kubernetes.config import incluster_config, kube_config

from gpu_scheduler.clusters.kubernetes import client
from gpu_scheduler.clusters.kubernetes.client import Api


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without a configuration, outside of a cluster."""
    monkeypatch.delenv(client.IN_POD, raising=False)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    monkeypatch.setattr(config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    return tmp_path


def test_a_pod_uses_its_account_and_prints_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is printed would be part of what a command prints, such as `demo --json`."""
    for name, content in (("token", "secret"), ("ca.crt", "a certificate")):
        (home / name).write_text(content)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(home / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(home / "ca.crt"))
    monkeypatch.setenv(client.IN_POD, "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    configuration = client._configuration(None, None)
    assert configuration.host == "https://10.96.0.1:443"
    assert capfd.readouterr() == ("", "")


def test_without_any_configuration_the_variable_is_named(home: Path) -> None:
    with pytest.raises(ValueError, match="KUBECONFIG is not set, and this process is not in a pod"):
        Api(None)
