"""The variables of this driver (docs/operations.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""A DNS label: names of namespaces and of gangs, and the installation's id."""
OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
RUNTIME = "{runtime}"


_TOLERATION = re.compile(
    r"([a-zA-Z0-9][-a-zA-Z0-9_./]*)(?:=([-a-zA-Z0-9_.]*))?:(NoSchedule|NoExecute|PreferNoSchedule)"
)


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
    tolerations: taints that learners' pods tolerate, as `kubectl taint` writes them, with commas. priority_class: of
    learners' pods; empty: the cluster's default. pull_secrets: names of Secrets with registries' passwords, with
    commas, in each tenant's namespace. kubeconfig: None: the service account of the pod that this process runs in, or
    the user's own configuration.
    """

    installation: str
    agent_image: str
    runtime_image: str = ""
    namespace_prefix: str = "luthier-"
    gpu_resource: str = "nvidia.com/gpu"
    tolerations: str = ""
    priority_class: str = ""
    pull_secrets: str = ""
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
        return f"{self.namespace_prefix}{tenant}"

    def tolerated(self) -> tuple[Toleration, ...]:
        """Raises ValueError."""
        return parse_tolerations(self.tolerations)

    def pull_secret_names(self) -> list[str]:
        return parse_names(self.pull_secrets)

    def image_of(self, runtime: str) -> str:
        """The image of a framework; empty: this installation has none."""
        return self.runtime_image.replace(RUNTIME, runtime)


def require_name(text: str) -> None:
    """Raises ValueError: the installation's name is the value of a label."""
    if not LABEL.fullmatch(text):
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


def parse_names(text: str) -> list[str]:
    """Names of Kubernetes objects, with commas between them. Raises ValueError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not OBJECT_NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} cannot be the name of a Kubernetes object")
    return names


def require_runtime_image(text: str) -> None:
    """Raises ValueError."""
    if RUNTIME not in text:
        raise ValueError(f"{text[:200]!r} lacks {RUNTIME}, in whose place the framework's name is put")


def _variable(field: str) -> str:
    return "KUBECONFIG" if field == "kubeconfig" else f"KUBE_{field.upper()}"
