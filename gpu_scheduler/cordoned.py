"""Nodes that are up and take no more learners: cordoned, to be drained, or with a notice that they are taken away."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from gpu_scheduler.model import Node, Resize, Running


def names(nodes: Iterable[Node]) -> frozenset[str]:
    """Those of these nodes that their runs have to leave sooner or later. What runs on a node that is down is lost."""
    return frozenset(node.name for node in nodes if node.ready and node.cordoned)


def elsewhere(run: Running, learners: int, cordoned: Collection[str]) -> int:
    """If it starts again with so many learners: for how many of them it holds no slots yet where they may be."""
    staying = sum(name not in cordoned for name in run.nodes)
    return max(0, learners - staying)


def leaving(running: Iterable[Running], cordoned: frozenset[str]) -> Iterator[tuple[Running, int]]:
    """The runs that save to leave such nodes, and for how many learners each needs other slots."""
    for run in running if cordoned else ():
        if not isinstance(run.order, Resize) or cordoned.isdisjoint(run.nodes):
            continue
        if more := elsewhere(run, run.order.learners, cordoned):
            yield run, more
