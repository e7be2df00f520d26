"""The platform as pods: deploy/kubernetes on a test cluster, installed with the commands of docs/kubernetes.md.

PostgreSQL, Valkey and the object store run on this machine, and pods reach them at the nodes' gateway.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from portal.settings.secret import new_secrets_key
from tests import documents
from tests.cluster.proxy import Proxy
from tests.platform import Client
from tests.servers import Servers
from tools.kube import images
from tools.kube.client import Object
from tools.kube.cluster import Cluster
from tools.kube.s3 import S3Server

NAMESPACE = "luthier"
KUSTOMIZATION = Path("deploy") / "kubernetes"
CLAIM = "data-sets"
METRICS_TOKEN = secrets.token_hex(32)


class Installation:
    """One cluster's platform. folder: a place from which the page's commands work, with the files that it asks for."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        assert cluster.network is not None
        self.cluster, self.folder = cluster, folder
        self._gateway = cluster.network.gateway
        self.users: dict[str, dict[str, str]] = {}

    def run(self, script: str, *, within_s: float = 300) -> str:
        """As an administrator types it. Returns what it prints."""
        env = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "TMPDIR")}
        env |= {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "KUBECONFIG": str(self.cluster.kubeconfig),
        }
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=within_s,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}\n{self.said()}"
        return done.stdout

    def kubectl(self, *arguments: str) -> str:
        return self.run(" ".join(["kubectl", "--namespace", NAMESPACE, *arguments]))

    def manage(self, *arguments: str) -> str:
        return self.kubectl("exec", "deployment/web", "--", "python", "manage.py", *arguments)

    def pods(self, name: str) -> list[Object]:
        """Those of the Deployment of this name that run and are not about to end."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        found = self.cluster.admin.get(path, labelSelector=f"app.kubernetes.io/name={name}")["items"]
        return [pod for pod in found if _is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]

    def client(self, name: str) -> Client:
        """REST as this user of the demo, through whatever web pod is ready."""
        return _BehindIngress(self, self.users[name])

    def url(self) -> str:
        return f"http://{self.pods('web')[0]['status']['podIP']}:8000"

    def said(self) -> str:
        """What the pods say of themselves, for a test that fails."""
        kubectl = [str(self.folder / "bin" / "kubectl"), "--kubeconfig", str(self.cluster.kubeconfig)]
        kubectl += ["--namespace", NAMESPACE]
        asked: list[list[str]] = [["get", "pods", "-o", "wide"], ["get", "events"]]
        asked += [
            ["logs", "--tail=20", "--prefix", f"--selector=app.kubernetes.io/name={name}"]
            for name in ("prepare", "web", "worker", "scheduler")
        ]
        return "\n".join(
            subprocess.run([*kubectl, *each], capture_output=True, text=True, timeout=30).stdout
            for each in asked
        )

    def install(self, servers: Servers, s3: S3Server, proxies: list[Proxy]) -> None:
        """The page's steps, in its order."""
        self._write_files(servers, s3, proxies)
        steps = [block.text for block in documents.commands("installation", "docs/kubernetes.md")]
        for script in steps:
            self.run(script)
        self.users = json.loads(self.manage("demo", "--json"))["users"]
        self.run(steps[-1])  # again for the demo's tenants

    def _write_files(self, servers: Servers, s3: S3Server, proxies: list[Proxy]) -> None:
        """What the page says an administrator writes; all else is that of the source tree."""
        shutil.copytree(documents.ROOT / KUSTOMIZATION, self.folder / KUSTOMIZATION)
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / "kubectl").symlink_to(self.cluster.binaries["kubectl"])
        (self.folder / ".venv").symlink_to(sys.prefix)
        (self.folder / "manage.py").symlink_to(documents.ROOT / "manage.py")
        settings = self.folder / KUSTOMIZATION / "luthier.env"
        values = _read(settings) | {
            "LUTHIER_BLOBS": s3.place,
            "KUBE_AGENT_IMAGE": images.PLATFORM,
            "KUBE_RUNTIME_IMAGE": images.RUNTIME,
            "KUBE_INGEST_PEERS": f"{NAMESPACE}/app.kubernetes.io/name=web:8000,{self._gateway}/32:{s3.port}",
            "KUBE_DATA_CLAIM": CLAIM,
            "KUBE_DNS_PEERS": f"{self._gateway}/32:53",
        }
        _write(settings, values)
        kustomization = self.folder / KUSTOMIZATION / "kustomization.yaml"
        name, _, tag = images.PLATFORM.rpartition(":")
        text = kustomization.read_text()
        ours = text.replace('newName: luthier, newTag: "1"', f'newName: {name}, newTag: "{tag}"')
        assert ours != text
        kustomization.write_text(ours)
        layout = servers.layout
        database = layout.postgres_socket_dir / ".s.PGSQL.5432"
        for socket in (database, layout.valkey_socket):
            proxies.append(Proxy(socket, self._gateway))
        password = layout.postgres_password.read_text().strip().rpartition(":")[2]
        _write(
            self.folder / "secret.env",
            {
                "DATABASE_URL": f"postgresql://luthier:{password}@{self._gateway}:{proxies[0].port}/luthier",
                "REDIS_URL": f"redis://:{urlsplit(layout.redis_url).password}@{self._gateway}:{proxies[1].port}/0",
                "SECRET_KEY": secrets.token_hex(32),
                "LUTHIER_SECRETS_KEYS": new_secrets_key(),
                "LUTHIER_METRICS_TOKEN": METRICS_TOKEN,
                **s3.environment,
            },
        )


@contextmanager
def installed(cluster: Cluster, folder: Path) -> Iterator[Installation]:
    """The platform on this cluster, until the end of the block."""
    assert cluster.network is not None
    servers, proxies = Servers(folder / "servers"), list[Proxy]()
    s3 = S3Server(folder / "s3", cluster.binaries, cluster.network.gateway)
    (folder / "s3").mkdir()
    (folder / "admin").mkdir()
    try:
        servers.start()
        s3.start()
        cluster.load_platform()
        installation = Installation(cluster, folder / "admin")
        installation.install(servers, s3, proxies)
        yield installation
    finally:
        for proxy in proxies:
            proxy.refuse()
        s3.stop()
        servers.stop()


class _BehindIngress(Client):
    """As an Ingress forwards what browsers send by TLS. Requests go to a web pod that is ready now."""

    def __init__(self, installation: Installation, user: dict[str, str]) -> None:
        super().__init__("", user["token"], user["tenant"])
        self._installation = installation

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        self.url = self._installation.url()
        return super().call(method, path, body, headers={"X-Forwarded-Proto": "https"}, **options)


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _read(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text().splitlines() if line)


def _write(file: Path, values: dict[str, str]) -> None:
    file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
