"""Nodes that are up and take no more learners: cordoned, to be drained, or with a notice that they are taken away."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from gpu_scheduler.model import Node, Resize, Running, Snapshot


def names(nodes: Iterable[Node]) -> frozenset[str]:
    """Those of these nodes that their runs have to leave sooner or later. What runs on a node that is down is lost."""
    return frozenset(node.name for node in nodes if node.ready and node.cordoned)


def elsewhere(run: Running, learners: int, cordoned: Collection[str]) -> int:
    """If it starts again with so many learners: for how many of them it holds no slots yet where they may be."""
    staying = sum(name not in cordoned for name in run.nodes)
    return max(0, learners - staying)


def leaving(snapshot: Snapshot) -> Iterator[tuple[Running, int]]:
    """The runs that save to leave such nodes, and for how many learners each needs other slots."""
    resized = [(run, run.order) for run in snapshot.running if isinstance(run.order, Resize)]
    off = names(snapshot.nodes) if resized else frozenset[str]()  # few plans have any
    for run, order in resized if off else ():
        if not off.isdisjoint(run.nodes) and (more := elsewhere(run, order.learners, off)):
            yield run, more
