"""What administrators choose for each pool, that is for each slot type: the resource of its GPUs, its runtime class."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_scheduler.model import CPU_TYPE

RESOURCE = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
SLOT_TYPE = re.compile(r"[a-z0-9]([a-z0-9._-]{0,38}[a-z0-9])?")
GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class ByType:
    """A value for each slot type, in the order in which they were written. default: of every type that has none of its
    own; empty: none."""

    default: str
    own: Mapping[str, str]

    def of(self, slot_type: str) -> str:
        return self.own.get(slot_type, self.default)


class GpuResources(ByType):
    """Resources that count GPUs. The default is that of the types which nodes' labels name."""

    __slots__ = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Each once, those of single types first: a node that has several belongs to the first."""
        return tuple(dict.fromkeys([*self.own.values(), self.default]))

    def type_of(self, resource: str) -> str:
        """The first type that is counted by this resource; empty: nodes' labels say it."""
        return next((kind for kind, name in self.own.items() if name == resource), "")


class RuntimeClasses(ByType):
    """Names of RuntimeClasses. The default is that of GPU pools: nodes without GPUs often lack their runtime."""

    __slots__ = ()

    def of(self, slot_type: str) -> str:
        return self.own.get(slot_type, "" if slot_type == CPU_TYPE else self.default)


def gpu_resources(text: str) -> GpuResources:
    """From `nvidia.com/gpu,a100-1g=nvidia.com/mig-1g.10gb`. Raises ValueError with the entry that cannot be read."""
    default, own = _read(text, RESOURCE, "a resource such as nvidia.com/gpu")
    if CPU_TYPE in own:
        raise ValueError(f"{CPU_TYPE} cannot have GPUs")
    return GpuResources(default or GPU, own)


def runtime_classes(text: str) -> RuntimeClasses:
    """From `nvidia,cpu=gvisor`. Raises ValueError with the entry that cannot be read."""
    return RuntimeClasses(*_read(text, OBJECT_NAME, "the name of a RuntimeClass"))


def _read(text: str, value: re.Pattern[str], what: str) -> tuple[str, dict[str, str]]:
    """Entries VALUE or TYPE=VALUE, with commas."""
    default, own = "", dict[str, str]()
    for entry in filter(None, map(str.strip, text.split(","))):
        kind, typed, name = entry.rpartition("=")
        if not value.fullmatch(name) or (typed and not SLOT_TYPE.fullmatch(kind)):
            raise ValueError(f"{entry[:80]!r} must be {what}, or SLOT_TYPE= in front of one")
        if kind in own or (not typed and default):
            raise ValueError(f"{entry[:80]!r} is a second value for {kind or 'all other slot types'}")
        if typed:
            own[kind] = name
        else:
            default = name
    return default, own
