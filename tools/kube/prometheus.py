"""A Prometheus for tests: it scrapes one web process every second, and evaluates the rules that are shipped."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tools.kube import processes
from tools.kube.binaries import ROOT, Binaries
from tools.kube.cluster import ClusterError

MONITORING = ROOT / "deploy" / "monitoring"
READY_S = 60.0


class Prometheus:
    """Use as a context manager. folder: private, for its data, its configuration and its log."""

    def __init__(self, folder: Path, binaries: Binaries, *, target: str, token: str) -> None:
        self._folder, self._program = folder, binaries["prometheus"]
        self._configuration = _configuration(target, token, folder)
        with processes.PortReservation(1) as reserved:
            self._port = reserved.ports[0]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        settings, log = self._folder / "prometheus.yml", self._folder / "prometheus.log"
        settings.write_text(yaml.safe_dump(self._configuration))
        command = [
            self._program,
            f"--config.file={settings}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        self._process = processes.spawn(command, log, self._folder, tied=True)
        deadline = time.monotonic() + READY_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ClusterError(f"Prometheus did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        """It listens before it answers queries."""
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[Any]:
        """The series that an instant query returns now. Raises ValueError with Prometheus' own error."""
        return list(self._get("query", query=expression)["result"])

    def rules(self) -> list[dict[str, Any]]:
        """Every rule, with its health and its state."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, what: str, **parameters: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._port}/api/v1/{what}?{urlencode(parameters)}"
        try:
            with urlopen(url, timeout=30) as answer:
                return dict(json.load(answer)["data"])
        except HTTPError as error:
            raise ValueError(f"{parameters}: {json.load(error)['error']}") from None


def _configuration(target: str, token: str, folder: Path) -> dict[str, Any]:
    """The one that is shipped, with a test's intervals and target."""
    shipped: dict[str, Any] = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    (scrape,) = shipped["scrape_configs"]
    (folder / "metrics-token").write_text(token)
    scrape |= {"scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
    scrape["authorization"] = {"credentials_file": str(folder / "metrics-token")}
    rules = [str(MONITORING / name) for name in shipped["rule_files"]]
    return shipped | {"rule_files": rules, "global": {"evaluation_interval": "1s"}}
