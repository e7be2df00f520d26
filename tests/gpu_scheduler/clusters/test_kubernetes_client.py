"""Where the client finds the cluster when no kubeconfig is named, and what it makes of answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kubernetes import config
from kubernetes.config import incluster_config, kube_config

from gpu_scheduler.clusters.base import ClusterError, GangBlocked
from gpu_scheduler.clusters.kubernetes import client
from gpu_scheduler.clusters.kubernetes.client import Api, Conflict


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


class Answering(BaseHTTPRequestHandler):
    """Refuses every object with 409 and the reason that is its name."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = {"reason": body["name"], "message": f"409 with {body['name']}"}
        content = json.dumps(status).encode()
        self.send_response(409)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refused(tmp_path: Path) -> Iterator[Api]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        content = {
            "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "a", "user": {"token": "secret"}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(content))
        with closing(Api(str(tmp_path / "kubeconfig"))) as api:
            yield api
        server.shutdown()


@pytest.mark.parametrize(("reason", "error"), [("AlreadyExists", Conflict), ("Conflict", GangBlocked)])
def test_what_a_quota_could_not_count_was_not_created(
    refused: Api, reason: str, error: type[ClusterError]
) -> None:
    """A quota that is changed by others at the same moment refuses so, and the object is not there."""
    with pytest.raises(ClusterError, match=f"409 with {reason}") as raised:
        refused.create("/api/v1/namespaces/red/pods", {"name": reason})
    assert type(raised.value) is error
