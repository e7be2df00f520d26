"""LOCAL_NODES: the nodes that this machine provides. ``node-a:cpu:4,node-b:cpu:4`` (name:type:slots), or ``auto``.

An entry may end in ``:cpus=32`` (of a node with GPUs; the slots of type cpu are CPUs) and ``:memory=64Gi``, which its
learners then divide among themselves. What is not given is not limited, and nothing is made up for it: how the nodes
named here share one machine is not known. A learner gets no more memory than the machine has. ``:rack=r1:block=b1``
names the domains of the network that the node stands for.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

from gpu_scheduler.clusters.base import DNS_LABEL, DNS_LABEL_RULE
from gpu_scheduler.clusters.local import gpus
from gpu_scheduler.model import CPU_TYPE, Node

_MAX_SLOTS = 4096
_MAKER = re.compile(r"\b(nvidia|geforce|tesla|quadro|graphics)\b", re.IGNORECASE)
_VARIANT = re.compile(r"-(sxm\d*|pcie|nvl|hbm\d\w*|\d+gb)\b.*")
_MEMORY = re.compile(r"([1-9][0-9]{0,8})(Mi|Gi)")
EXAMPLE = "node-a:cpu:4,node-b:cpu:4"


class BadNodes(Exception):
    """LOCAL_NODES cannot be read; one line per wrong entry, each with its remedy."""


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One node; devices are what a learner's CUDA_VISIBLE_DEVICES names, one per slot (empty for cpu)."""

    name: str
    slot_type: str
    slots: int
    devices: tuple[str, ...] = ()
    cpus: int | None = None
    memory_mib: int | None = None
    rack: str = ""
    block: str = ""

    def on_machine(self, machine_mib: int) -> Node:
        """This node on a machine with this memory."""
        node = Node.with_slots(
            self.name,
            self.slot_type,
            self.slots,
            cpus=self.cpus,
            memory_mib=self.memory_mib,
            learner_mib=machine_mib if self.memory_mib is None else None,
        )
        return replace(node, rack=self.rack, block=self.block)


def read_nodes(text: str) -> tuple[LocalNode, ...]:
    """Read LOCAL_NODES. Raises BadNodes."""
    if _is_auto(text):
        return detect()
    found, wrong = _entries(text)
    if wrong:
        raise BadNodes("\n".join(f"LOCAL_NODES: {problem}" for problem in wrong))
    return tuple(sorted(found, key=lambda node: node.name))


def wrong_entries(text: str) -> list[str]:
    """What is wrong with LOCAL_NODES, a sentence each, without a look at the machine; nothing if it can be read."""
    return [] if _is_auto(text) else _entries(text)[1]


def _is_auto(text: str) -> bool:
    return text.strip() in ("", "auto")


def _entries(text: str) -> tuple[list[LocalNode], list[str]]:
    """The nodes, and what is wrong with those that cannot be read."""
    wrong: list[str] = []
    found: dict[str, LocalNode] = {}
    devices = 0
    for entry in text.split(","):
        read = _entry(entry.strip())
        if isinstance(read, str):
            wrong.append(read)
        elif read.name in found:
            wrong.append(f"node {read.name!r} is named twice; give each node a name of its own")
        else:
            if read.slot_type != CPU_TYPE:
                numbers = range(devices, devices + read.slots)
                read = replace(read, devices=tuple(map(str, numbers)))
                devices += read.slots
            found[read.name] = read
    return list(found.values()), wrong


def _entry(entry: str) -> LocalNode | str:
    """One node, or what is wrong with it."""
    parts = entry.split(":")
    if len(parts) < 3:
        return f"{entry!r} is not name:type:slots; write {EXAMPLE} or auto"
    name, slot_type, slots = parts[:3]
    for what, word in (("name", name), ("type", slot_type)):
        if not DNS_LABEL.fullmatch(word):
            return f"{entry!r}: the {what} {word!r} {DNS_LABEL_RULE}"
    if not slots.isascii() or not slots.isdigit() or not 1 <= int(slots) <= _MAX_SLOTS:
        return f"{entry!r}: {slots!r} is not a number of slots from 1 to {_MAX_SLOTS}"
    return _with_options(LocalNode(name, slot_type, int(slots)), parts[3:], entry)


def _with_options(node: LocalNode, options: list[str], entry: str) -> LocalNode | str:
    """The node with its options, or what is wrong with them."""
    for option in options:
        name, _, value = option.partition("=")
        if name not in _OPTIONS:
            return f"{entry!r}: {option!r} is none of cpus=NUMBER, memory=AMOUNT, rack=NAME and block=NAME"
        changed = _OPTIONS[name](node, value)
        if isinstance(changed, str):
            return f"{entry!r}: {changed}"
        node = changed
    return node


def _with_cpus(node: LocalNode, value: str) -> LocalNode | str:
    if node.slot_type == CPU_TYPE:
        return "cpus is for nodes with GPUs; the slots of a node of type cpu are its CPUs"
    if not (value.isascii() and value.isdigit() and 1 <= int(value) <= _MAX_SLOTS):
        return f"{value!r} is not a number of CPUs from 1 to {_MAX_SLOTS}"
    return replace(node, cpus=int(value))


def _with_memory(node: LocalNode, value: str) -> LocalNode | str:
    found = _MEMORY.fullmatch(value)
    if not found:
        return f"{value!r} is not an amount of memory; write it as 512Mi or 64Gi"
    return replace(node, memory_mib=int(found[1]) * (1024 if found[2] == "Gi" else 1))


def _with_rack(node: LocalNode, value: str) -> LocalNode | str:
    return replace(node, rack=value) if DNS_LABEL.fullmatch(value) else f"the rack {value!r} {DNS_LABEL_RULE}"


def _with_block(node: LocalNode, value: str) -> LocalNode | str:
    return (
        replace(node, block=value) if DNS_LABEL.fullmatch(value) else f"the block {value!r} {DNS_LABEL_RULE}"
    )


_OPTIONS = {"cpus": _with_cpus, "memory": _with_memory, "rack": _with_rack, "block": _with_block}


def detect() -> tuple[LocalNode, ...]:
    """This machine's NVIDIA GPUs, a node per model, and its cores as a node of cpu slots.

    The cpu node is there beside GPUs too: a job with gpus: 0 must find a place on every installation. Each node offers
    all cores: which of them the others will need is not known.
    """
    by_type: dict[str, list[str]] = {}
    for gpu in gpus.nvidia():
        by_type.setdefault(slug_of(gpu.model), []).append(gpu.index)
    cores = len(os.sched_getaffinity(0))
    with_gpus = [
        LocalNode(f"local-{slot_type}"[:63].rstrip("-"), slot_type, len(devices), tuple(devices), cores)
        for slot_type, devices in by_type.items()
    ]
    cpu = LocalNode("local-cpu" if with_gpus else "local", CPU_TYPE, cores)
    return tuple(sorted([*with_gpus, cpu], key=lambda node: node.name))


def slug_of(model: str) -> str:
    """A GPU type from a product name: "NVIDIA A100-SXM4-80GB" is a100, "NVIDIA GeForce RTX 4090" rtx-4090."""
    words = re.sub(r"[^a-z0-9]+", "-", _MAKER.sub(" ", model).lower()).strip("-")
    return _VARIANT.sub("", words)[:40].strip("-") or "gpu"
