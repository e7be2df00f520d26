"""A cluster that this tool has not started (kind, k3d, a real one), for the tests that need no more than its API."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

from tools.kube import components
from tools.kube.client import Api, ApiError

TOKEN_S = 24 * 3600
CONTENT = ("certificate-authority", "client-certificate", "client-key")


class UnusableKubeconfig(Exception):
    """The kubeconfig of an existing cluster cannot be used; the message says why."""


class ExistingCluster:
    """kubeconfig: its current context is used, as an administrator. folder: private, for keys and kubeconfigs."""

    def __init__(self, kubeconfig: Path, folder: Path, kubectl: str) -> None:
        """Raises UnusableKubeconfig."""
        self._folder = folder
        self._content = _read(kubeconfig, kubectl)
        self.kubeconfig = self._write("admin", self._content["users"][0]["user"])

    @property
    def admin(self) -> Api:
        return Api(self.kubeconfig)

    def service_account(self) -> Path:
        """See Cluster.service_account."""
        return self._write("platform", {"token": platform_token(self.admin)})

    def _write(self, name: str, user: dict[str, str]) -> Path:
        """Keys in files of their own, as the tool's own kubeconfigs have them."""
        cluster = self._in_files("cluster", self._content["clusters"][0]["cluster"])
        content = self._content | {
            "clusters": [{**self._content["clusters"][0], "cluster": cluster}],
            "users": [{**self._content["users"][0], "user": self._in_files(name, user)}],
        }
        path = self._folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(content))
        return path

    def _in_files(self, name: str, section: dict[str, str]) -> dict[str, str]:
        kept = {key: value for key, value in section.items() if not key.endswith("-data")}
        for key in CONTENT:
            if encoded := section.get(f"{key}-data"):
                path = self._folder / f"{name}-{key}"
                path.write_bytes(base64.b64decode(encoded))
                kept[key] = str(path)
        return kept


def _read(kubeconfig: Path, kubectl: str) -> dict[str, Any]:
    """The current context only, with the content of every file that it names."""
    command = [kubectl, "--kubeconfig", str(kubeconfig), "config", "view"]
    options = ["--raw", "--flatten", "--minify", "--output=json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise UnusableKubeconfig(f"{kubeconfig}: {done.stderr.strip()}")
    content: dict[str, Any] = json.loads(done.stdout)
    user = content["users"][0]["user"] if content.get("users") else {}
    if not user.keys() & {"token", "client-certificate-data"}:
        raise UnusableKubeconfig(
            f"{kubeconfig}: the user of its current context has neither a client certificate nor a token"
        )
    return content


def platform_token(admin: Api) -> str:
    """A token of components.PLATFORM, whose namespace and account are made if they are missing."""
    *_, namespace, name = components.PLATFORM.split(":")
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    for path, wanted in (("/api/v1/namespaces", namespace), (accounts, name)):
        try:
            admin.create(path, {"metadata": {"name": wanted}})
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
    asked = {"spec": {"expirationSeconds": TOKEN_S}}
    return str(admin.create(f"{accounts}/{name}/token", asked)["status"]["token"])
