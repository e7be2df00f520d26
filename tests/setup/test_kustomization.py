"""deploy/kubernetes and its page, read as data: tests/cluster installs them."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_scheduler.clusters.kubernetes import manifests
from tests import documents
from tools.kube import images

ROOT = documents.ROOT
FOLDER = ROOT / "deploy" / "kubernetes"
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
SETTINGS = dict(line.split("=", 1) for line in (FOLDER / "luthier.env").read_text().splitlines())
WORKER_CONNECTIONS = 9
"""As docs/operations.md says of a worker with four threads, and of a scheduler."""


def found(file: str, kind: str, name: str) -> dict[str, Any]:
    objects = yaml.safe_load_all((FOLDER / file).read_text())
    [match] = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    spec: dict[str, Any] = match["spec"]
    return spec


AUTOSCALER = found("workers.yaml", "HorizontalPodAutoscaler", "worker")
WEB = found("web.yaml", "Deployment", "web")


def test_applying_the_files_again_leaves_the_number_of_workers_to_the_autoscaler() -> None:
    assert AUTOSCALER["scaleTargetRef"]["name"] == "worker"
    assert "replicas" not in found("workers.yaml", "Deployment", "worker")
    budget = found("workers.yaml", "PodDisruptionBudget", "worker")
    assert budget["minAvailable"] < AUTOSCALER["minReplicas"], "else no node could be drained"


def test_the_pods_open_no_more_connections_than_the_page_says() -> None:
    each = int(SETTINGS["LUTHIER_WEB_CONNECTIONS"])
    scheduler = found("scheduler.yaml", "Deployment", "scheduler")["replicas"]
    usual = WEB["replicas"] * each + (AUTOSCALER["maxReplicas"] + scheduler) * WORKER_CONNECTIONS
    one_more_of_each = each + 2 * WORKER_CONNECTIONS
    upgrade = usual + one_more_of_each + 1
    [stated] = re.findall(
        r"`max_connections = (\d+)`: with `LUTHIER_WEB_CONNECTIONS=(\d+)` .* at most (\d+), and (\d+) while",
        PAGE,
    )
    assert [int(number) for number in stated[1:]] == [each, usual, upgrade]
    assert upgrade <= int(stated[0])
    for file, name in (("web.yaml", "web"), ("workers.yaml", "worker"), ("scheduler.yaml", "scheduler")):
        assert found(file, "Deployment", name)["strategy"]["rollingUpdate"]["maxSurge"] == 1


def test_a_web_pod_may_wait_an_hour_for_a_migration() -> None:
    [container] = WEB["template"]["spec"]["containers"]
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 3600


def test_the_platforms_image_is_the_learner_agents_too() -> None:
    """What the launcher's container copies is in it, complete, and so is what the shipper imports."""
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    [image] = kustomization["images"]
    assert SETTINGS["KUBE_AGENT_IMAGE"] == f"{image['newName']}:{image['newTag']}"
    [copied] = set(re.findall(r"cp -r (/\S+)/\. ", inspect.getsource(manifests)))
    [source] = re.findall(rf"^COPY (\S+) {copied}/learner_agent$", images.last_stage(), re.MULTILINE)
    assert (ROOT / source / "__main__.py").is_file()
    locked = set(re.findall(r"^([\w-]+)==", images.RUNTIME_LOCK.read_text(), re.MULTILINE))
    assert set(images.AGENT_PACKAGES) <= locked


HARD = {
    "DATABASE_URL": "postgresql://luthier:p@10.0.0.7:5432/luthier?sslmode=verify-full&sslrootcert=system",
    "SECRET_KEY": "k)4$HOME#z&f2!x(9w;q \\'\"`id`",
    "LUTHIER_OIDC_NAME": "Single sign-on of the institute",
    "LAST": "without a newline at its end = here",
}
"""Values that a shell would read otherwise than kubectl, which takes each line as it is."""


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_the_administrators_shell_reads_the_settings_as_kubectl_does(tmp_path: Path, shell: str) -> None:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    *_, block = documents.commands("installation", "docs/kubernetes.md")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    shutil.copytree(FOLDER, tmp_path / "deploy" / "kubernetes")
    (tmp_path / "secret.env").write_text(
        "# a comment\n\n" + "\n".join(f"{name}={value}" for name, value in HARD.items())
    )
    (tmp_path / "manage.py").write_text("import json, os\nprint(json.dumps(dict(os.environ)))\n")
    done = subprocess.run(
        [program, "-euc", block.text],
        cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "HOME": "/home/admin"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    got = json.loads(done.stdout)
    expected = SETTINGS | HARD | {"KUBE_PROVISION_KUBECONFIG": "/home/admin/.kube/config"}
    assert {name: got.get(name) for name in expected} == expected
    assert "KUBECONFIG" not in got
