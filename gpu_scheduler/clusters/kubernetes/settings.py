"""The variables of this driver (docs/operations.md)."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from urllib.parse import urlsplit

from gpu_scheduler.clusters.base import DNS_LABEL
from gpu_scheduler.clusters.kubernetes import peers, pools
from gpu_scheduler.clusters.kubernetes.peers import Peer

RUNTIME = "{runtime}"


_TOLERATION = re.compile(
    r"([a-zA-Z0-9][-a-zA-Z0-9_./]*)(?:=([-a-zA-Z0-9_.]*))?:(NoSchedule|NoExecute|PreferNoSchedule)"
)

_NODE_LABEL = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[a-zA-Z0-9]([-a-zA-Z0-9._]{0,61}[a-zA-Z0-9])?"
)
_KUEUE, _GOOGLE, _AMAZON = (
    "cloud.provider.com/topology",
    "cloud.google.com/gce-topology",
    "topology.k8s.aws/network-node-layer",
)
RACK_LABELS = f"{_KUEUE}-rack,{_GOOGLE}-subblock,{_AMAZON}-3"
BLOCK_LABELS = f"{_KUEUE}-block,{_GOOGLE}-block,{_AMAZON}-2"
"""What Kueue's documentation, Google and Amazon call them; Amazon's layer 3 is the switch next to the node."""


@dataclass(frozen=True, slots=True)
class Toleration:
    """A taint that learners' pods tolerate. value None: any."""

    key: str
    value: str | None
    effect: str


REQUIRED = ("KUBE_INSTALLATION", "KUBE_AGENT_IMAGE")


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """installation: marks every object of this installation; two on one cluster must differ. agent_image: has the
    learner agent in /agent. runtime_image: image of a framework, with {runtime} for its name; empty: no frameworks.
    gpu_resource, runtime_class: by slot type, see pools. rack_label, block_label: labels of nodes, with commas, of
    which the first that a node has names its rack, and its block.
    tolerations: taints that learners' pods tolerate, as `kubectl taint` writes them, with commas. priority_class: of
    learners' pods that are not opportunistic; empty: the cluster's default. pull_secrets: names of Secrets with
    registries' passwords, with commas, in each tenant's namespace. data_claim: a claim in each tenant's namespace whose
    volume has the data sets, in a folder per tenant; empty: no data sets. kubeconfig: None: the service account of the
    pod that this process runs in, or the user's own configuration.
    """

    installation: str
    agent_image: str
    runtime_image: str = ""
    namespace_prefix: str = "luthier-"
    gpu_resource: str = pools.GPU
    runtime_class: str = ""
    rack_label: str = RACK_LABELS
    block_label: str = BLOCK_LABELS
    tolerations: str = ""
    priority_class: str = ""
    pull_secrets: str = ""
    data_claim: str = ""
    kubeconfig: str | None = None

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> KubernetesSettings:
        """Raises ValueError with the variable's name."""
        for name in REQUIRED:
            if not settings.get(name):
                raise ValueError(f"{name} is not set")
        given = {field.name: settings.get(_variable(field.name)) for field in fields(cls)}
        return cls(**{name: value for name, value in given.items() if value})

    def namespace(self, tenant: str) -> str:
        """The namespace of a tenant's gangs."""
        return label(f"{self.namespace_prefix}{tenant}")

    @property
    def opportunistic_class(self) -> str:
        """The PriorityClass of pods that run beyond their tenant's limits. ResourceQuotas select by it."""
        return f"luthier-{self.installation}-opportunistic"

    def tolerated(self) -> tuple[Toleration, ...]:
        """Raises ValueError."""
        return parse_tolerations(self.tolerations)

    def gpu_resources(self) -> pools.GpuResources:
        """Raises ValueError."""
        return pools.gpu_resources(self.gpu_resource)

    def runtime_classes(self) -> pools.RuntimeClasses:
        """Raises ValueError."""
        return pools.runtime_classes(self.runtime_class)

    def pull_secret_names(self) -> list[str]:
        return parse_names(self.pull_secrets)

    def image_of(self, runtime: str) -> str:
        """The image of a framework; empty: this installation has none."""
        return self.runtime_image.replace(RUNTIME, runtime)


@dataclass(frozen=True, slots=True)
class ProvisionSettings:
    """What `manage.py tenant_provision` needs besides KubernetesSettings.

    kubeconfig, context: of an administrator, another identity than the platform's. service_account: namespace and name
    of the platform's. ingest, dns: all that learners may connect to, besides their own gang.
    """

    kubeconfig: str
    service_account: tuple[str, str]
    ingest: tuple[Peer, ...]
    dns: tuple[Peer, ...]
    context: str | None = None

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> ProvisionSettings:
        """Raises ValueError with every problem, one per line."""
        problems = []
        if not settings.get("KUBE_PROVISION_KUBECONFIG"):
            problems.append(
                "KUBE_PROVISION_KUBECONFIG is not set: name the kubeconfig of an administrator of the cluster,"
                " whose permissions the platform itself must not have"
            )
        ingest = settings.get("KUBE_INGEST_PEERS") or _peer_of(settings.get("LUTHIER_INGEST_URL", ""))
        if missing := without_store(settings):
            problems.append(missing)
        elif not ingest:
            problems.append(
                "KUBE_INGEST_PEERS is not set: LUTHIER_INGEST_URL names a host, and a NetworkPolicy needs addresses"
                f" or pods: {peers.SYNTAX}"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return cls(
            kubeconfig=settings["KUBE_PROVISION_KUBECONFIG"],
            service_account=account(settings["KUBE_SERVICE_ACCOUNT"]),
            ingest=peers.parse(ingest),
            dns=peers.parse(settings["KUBE_DNS_PEERS"]),
            context=settings.get("KUBE_PROVISION_CONTEXT") or None,
        )


def without_store(settings: Mapping[str, str]) -> str:
    """Say that learners would not reach the S3 store, which KUBE_INGEST_PEERS has to name; empty if it is set."""
    if settings.get("KUBE_INGEST_PEERS") or not settings.get("LUTHIER_BLOBS", "").startswith("s3://"):
        return ""
    return (
        "KUBE_INGEST_PEERS is not set: with LUTHIER_BLOBS=s3://… learners also connect to the store, so name the peers"
        f" of the web servers and of the store: {peers.SYNTAX}"
    )


def _peer_of(url: str) -> str:
    """The peer at this address; empty: it names a host, whose address may change."""
    parts = urlsplit(url)
    try:
        address = ipaddress.ip_address(parts.hostname or "")
    except ValueError:
        return ""
    port = parts.port or (443 if parts.scheme == "wss" else 80)
    return f"{address}/{address.max_prefixlen}:{port}"


def account(text: str) -> tuple[str, str]:
    """Namespace and name of a service account, from NAMESPACE/NAME. Raises ValueError."""
    namespace, _, name = text.partition("/")
    if not (DNS_LABEL.fullmatch(namespace) and DNS_LABEL.fullmatch(name)):
        raise ValueError(f"{text[:200]!r} must be NAMESPACE/NAME of a service account")
    return namespace, name


def label(text: str) -> str:
    """This text where it is a DNS label, else one made of it, with a hash so that no two texts share one."""
    if DNS_LABEL.fullmatch(text):
        return text
    readable = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:52].rstrip("-")
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:10]}".lstrip("-")


def require_name(text: str) -> None:
    """Raises ValueError: the installation's name is the value of a label."""
    if not DNS_LABEL.fullmatch(text):
        raise ValueError(
            f"{text[:80]!r} is not a name that no other installation on the same Kubernetes cluster has: lowercase"
            " letters, digits and inner dashes, at most 63"
        )


def parse_tolerations(text: str) -> tuple[Toleration, ...]:
    """Raises ValueError: with the entry that cannot be read."""
    found = []
    for entry in filter(None, map(str.strip, text.split(","))):
        parts = _TOLERATION.fullmatch(entry)
        if parts is None:
            raise ValueError(
                f"{entry[:80]!r} is not key=value:Effect or key:Effect, with an effect NoSchedule, NoExecute or"
                " PreferNoSchedule"
            )
        found.append(Toleration(parts[1], parts[2], parts[3]))
    return tuple(found)


def parse_labels(text: str) -> list[str]:
    """Names of labels, with commas between them. Raises ValueError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not _NODE_LABEL.fullmatch(name):
            raise ValueError(f"{name[:80]!r} cannot be the name of a label, such as example.com/rack")
    return names


def parse_names(text: str) -> list[str]:
    """Names of Kubernetes objects, with commas between them. Raises ValueError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not pools.OBJECT_NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} cannot be the name of a Kubernetes object")
    return names


def require_runtime_image(text: str) -> None:
    """Raises ValueError."""
    if RUNTIME not in text:
        raise ValueError(f"{text[:200]!r} lacks {RUNTIME}, in whose place the framework's name is put")


def _variable(field: str) -> str:
    return "KUBECONFIG" if field == "kubeconfig" else f"KUBE_{field.upper()}"
