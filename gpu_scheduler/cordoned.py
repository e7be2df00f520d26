"""Nodes that are up and take no more learners: cordoned, to be drained, soon to be taken away, or full."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from gpu_scheduler.model import Node, Resize, Running, Snapshot


def names(nodes: Iterable[Node]) -> frozenset[str]:
    """Those of these nodes that their runs have to leave sooner or later. What runs on a node that is down is lost."""
    return frozenset(node.name for node in nodes if node.ready and node.cordoned)


def usable(nodes: Iterable[Node]) -> frozenset[str]:
    """Those on which a run that starts again can be."""
    return frozenset(node.name for node in nodes if node.takes_learners)


def with_room(nodes: tuple[Node, ...], left: Iterable[Running]) -> tuple[Node, ...]:
    """The nodes when these runs have left: full ones are no longer, once a learner has."""
    names = {name for run in left for name in run.nodes}
    if not names or not any(node.full for node in nodes):
        return nodes
    return tuple([replace(node, full=False) if node.full and node.name in names else node for node in nodes])


def elsewhere(run: Running, learners: int, usable: Collection[str]) -> int:
    """If it starts again with so many learners: for how many of them it holds no slots yet where they may be."""
    return max(0, learners - sum(name in usable for name in run.nodes))


def leaving(snapshot: Snapshot) -> Iterator[tuple[Running, int]]:
    """The runs that save to start again and have learners on nodes that take no more, or are down or gone by now; and
    for how many of the learners that they have, less what they give up, each needs other slots. Not those that shrink
    for a waiting gang: their places are looked for together with the gang's."""
    resized = [
        (run, run.order)
        for run in snapshot.running
        if isinstance(run.order, Resize) and run.order.for_job is None
    ]
    stay = usable(snapshot.nodes) if resized else frozenset[str]()  # few plans have any
    for run, order in sorted(resized, key=lambda each: first(each[0])):
        if more := elsewhere(run, min(order.learners, len(run.nodes)), stay):
            yield run, more


def first(run: Running) -> tuple[int, object, str]:
    """The order in which runs leave, and come back: the highest class first."""
    return -run.priority, run.gang.queued_at, run.job
