"""The Kubernetes driver against the suite's API server; KWOK acts out what the learners' BEHAVIOR says."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from gpu_scheduler.clusters.base import LearnerPhase
from gpu_scheduler.clusters.kubernetes.client import Api, NoPermission, NotFound, Object
from gpu_scheduler.clusters.kubernetes.driver import KubernetesCluster
from gpu_scheduler.clusters.kubernetes.peers import Peer
from gpu_scheduler.clusters.kubernetes.provisioning import Provisioner
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings, ProvisionSettings
from gpu_scheduler.clusters.kubernetes.tenancy import TenantLimits
from gpu_scheduler.model import CPU_TYPE
from tests.cluster.proxy import Proxy
from tests.gpu_scheduler.clusters.harness import all_in, eventually, wait_until_busy
from tests.gpu_scheduler.clusters.node_daemon import wait_for
from tools.kube import fake
from tools.kube.cluster import Cluster


class PlayedApi(Api):
    """Passes a learner's behavior on to KWOK, which reads annotations."""

    def create(self, path: str, body: Object) -> Object:
        if body["kind"] == "Pod":
            [learner] = body["spec"]["containers"]
            [behavior] = [each["value"] for each in learner["env"] if each["name"] == "BEHAVIOR"]
            body["metadata"]["annotations"] |= _annotations(behavior)
        return super().create(path, body)


def _annotations(behavior: str) -> dict[str, str]:
    word, _, code = behavior.partition(":")
    if word == "exits":
        return {fake.EXIT_CODE: code, fake.RUNS_FOR: "0s"}
    return {fake.IGNORES_SIGTERM: "yes"} if word == "stubborn" else {}


def provisioner(cluster: Cluster, settings: KubernetesSettings, *, dry_run: bool = False) -> Provisioner:
    """As `manage.py tenant_provision` has it: the administrator's identity."""
    provision = ProvisionSettings(
        kubeconfig=str(cluster.kubeconfig),
        service_account=("luthier", "luthier"),
        ingest=(Peer(8000, cidr=f"{cluster.layout.address}/32"),),
        dns=(Peer(53, namespace="kube-system"),),
    )
    return Provisioner(Api(provision.kubeconfig), settings, provision, dry_run=dry_run)


class KubernetesHarness:
    """One namespace of one installation, behind a proxy that can stop answering. Its driver is the platform's service
    account, which may do no more than tenant_provision lets it."""

    def __init__(self, cluster: Cluster, folder: Path, prefix: str) -> None:
        content = json.loads(cluster.service_account().read_text())
        server = content["clusters"][0]["cluster"]
        port = urlsplit(server["server"]).port
        assert port is not None
        self.proxy = Proxy(port)
        server["server"] = f"https://127.0.0.1:{self.proxy.port}"
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(content))
        self.settings = KubernetesSettings(
            installation=f"{prefix}installation",
            agent_image="test.invalid/agent:1",
            runtime_image="test.invalid/{runtime}:1",
            namespace_prefix=prefix,
            kubeconfig=str(kubeconfig),
        )
        everything = provisioner(cluster, self.settings)
        list(everything.installation())
        list(everything.tenant(TenantLimits("red", {CPU_TYPE: 64, "h100": 64})))
        self.api = PlayedApi(str(kubeconfig))
        wait_for(self._may_launch)
        self.cluster = KubernetesCluster(self.settings, self.api)

    def _may_launch(self) -> bool:
        """The API server learns of its own new roles by a watch, so a moment after they are made."""
        try:
            self.api.get(f"/api/v1/namespaces/{self.settings.namespace('red')}/services/none")
        except NotFound:
            return True
        except NoPermission:
            return False
        raise AssertionError("there is no such service")

    def settle(self) -> None:
        time.sleep(0.05)

    def programs_run(self, name: str) -> None:
        eventually(self, name, all_in(LearnerPhase.RUNNING))

    @contextmanager
    def unanswered(self) -> Iterator[None]:
        self.proxy.refuse()
        yield
        self.proxy.accept()

    def cache_expires(self) -> None:
        wait_until_busy(self.cluster)

    def close(self) -> None:
        self.cluster.close()
        self.proxy.refuse()
