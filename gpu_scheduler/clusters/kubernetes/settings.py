"""The variables of this driver (docs/operations.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""A DNS label: names of namespaces and of gangs, and the installation's id."""
RUNTIME = "{runtime}"


REQUIRED = ("KUBE_INSTALLATION", "KUBE_AGENT_IMAGE")


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """installation: marks every object of this installation; two on one cluster must differ. agent_image: has the
    learner agent in /agent. runtime_image: image of a framework, with {runtime} for its name; empty: no frameworks.
    kubeconfig: None: the service account of the pod that this process runs in, or the user's own configuration.
    """

    installation: str
    agent_image: str
    runtime_image: str = ""
    namespace_prefix: str = "luthier-"
    gpu_resource: str = "nvidia.com/gpu"
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


def require_runtime_image(text: str) -> None:
    """Raises ValueError."""
    if RUNTIME not in text:
        raise ValueError(f"{text[:200]!r} lacks {RUNTIME}, in whose place the framework's name is put")


def _variable(field: str) -> str:
    return "KUBECONFIG" if field == "kubeconfig" else f"KUBE_{field.upper()}"
