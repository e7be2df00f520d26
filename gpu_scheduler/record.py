"""A snapshot as text, and back: what a plan was made from, so that it can be made again.

The same snapshot has the same text, byte by byte, so a digest of the text names it. The text leaves the policy out,
whose code is not in there; its state is in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from operator import attrgetter
from typing import Any

from gpu_scheduler import losses
from gpu_scheduler.model import (
    Gang,
    GradientNoise,
    Level,
    Node,
    PlacementStrategy,
    Plan,
    Profile,
    Project,
    ProjectShare,
    QuotaUse,
    Range,
    Resize,
    Resources,
    Running,
    Snapshot,
    StepTimes,
    Stop,
    TenantState,
    Topology,
)
from gpu_scheduler.policies.base import Policy, policy_of

TIME = "at"
KINDS = (
    GradientNoise, Node, Profile, Project, ProjectShare, QuotaUse, Range, Resize, Resources, Running, StepTimes, Stop,
    TenantState, Topology,
)  # fmt: skip
_NAMES = {kind: [field.name for field in fields(kind) if field.init] for kind in (Gang, *KINDS)}
_VALUES: Mapping[type, Callable[[Any], tuple[Any, ...]]] = {
    kind: attrgetter(*names) for kind, names in _NAMES.items()
}
GANG = "gang"
_FLAT = (
    "learners.min", "learners.max", "resources.gpus", "resources.cpus", "resources.memory_mib", "queued_at",
)  # fmt: skip
_REST = [name for name in _NAMES[Gang] if name not in ("learners", "resources", "queued_at")]
_OF_GANG = attrgetter(*_FLAT, *_REST)
"""There are thousands of gangs: one flat list for each is written in half the time of nested ones."""
_BY_NAME: Mapping[str, type] = {kind.__name__: kind for kind in KINDS}
_LAST: Mapping[type, str] = {Node: "full", Resize: "leaves", Running: "computes_after"}
"""The last field of a kind, left out where it says nothing: the version before can read that."""
_WORDS: Mapping[type, tuple[int, type]] = {
    Topology: (_NAMES[Topology].index("level"), Level),
}
"""Fields whose values are words of an enumeration, which JSON makes plain text of; as is a gang's strategy."""


class NotReadable(ValueError):
    """The text is no snapshot, or one of a version whose snapshots had other parts."""


def written(snapshot: Snapshot, waiting: Iterable[str] | None = None) -> bytes:
    """The snapshot without its policy, as JSON in ASCII. waiting: the texts of its waiting gangs, where they are known:
    to write thousands takes longer than all else of it."""
    state = json.dumps(policy_of(snapshot).dump(snapshot.policy_state), sort_keys=True, default=_written)
    gangs = map(gang_text, snapshot.waiting) if waiting is None else waiting
    before = [snapshot.now, snapshot.nodes]
    behind = [
        snapshot.running, snapshot.quotas, snapshot.tenants, state, sorted(snapshot.promised.items()),
        snapshot.projects,
    ]  # fmt: skip
    if snapshot.yielded:  # left out where there is nothing: the version before can read that
        behind.append(sorted(snapshot.yielded.items()))
    return f"{_text(before)[:-1]},[{','.join(gangs)}],{_text(behind)[1:]}".encode()


def gang_text(gang: Gang) -> str:
    """The text of a waiting gang."""
    return _text(gang)


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=_written, check_circular=False)


def read(text: bytes, policy: Policy) -> Snapshot:
    """The snapshot of this text, to be planned by this policy. Raises NotReadable."""
    try:
        parts = json.loads(text, object_hook=_read)
        now, nodes, waiting, running, quotas, tenants, state, promised, projects = parts[:9]
        (yielded,) = parts[9:] or ([],)
        return Snapshot(
            now,
            tuple(nodes),
            tuple(waiting),
            tuple(running),
            tuple(quotas),
            policy,
            tuple(tenants),
            policy.load(json.loads(state)),
            dict(promised),
            tuple(projects),
            {job: tuple(times) for job, times in yielded},
        )
    except (LookupError, TypeError, ValueError) as error:
        raise NotReadable(f"not a snapshot of this version: {error}") from error


def _written(value: Any) -> dict[str, Any]:
    """One value with the name of its kind: JSON objects are nothing else in here."""
    kind = type(value)
    if kind is Gang:
        fewest, most, gpus, cpus, memory, queued_at, *rest = _OF_GANG(value)
        return {GANG: (fewest, most, gpus, cpus, memory, queued_at.isoformat(), *rest)}
    if kind is datetime:
        return {TIME: value.isoformat()}
    values = _VALUES.get(kind)
    if values is not None:
        found = values(value)
        if (last := _LAST.get(kind)) is not None and not getattr(value, last):
            found = found[:-1]
        return {kind.__name__: found}
    raise TypeError(f"no part of a snapshot: {value!r}")


def _read(found: dict[str, Any]) -> Any:
    ((name, values),) = found.items()
    if name == TIME:
        return datetime.fromisoformat(values)
    if name == GANG:
        fewest, most, gpus, cpus, memory, queued_at, *rest = values
        is_older = len(rest) in (len(_REST) - 2, len(_REST) - 1)  # of before its generation, or opportunistic
        named = dict(zip(_REST, rest, strict=not is_older))
        named["strategy"] = PlacementStrategy(named["strategy"])
        of = Range(fewest, most), Resources(gpus, cpus, memory), datetime.fromisoformat(queued_at)
        return Gang(learners=of[0], resources=of[1], queued_at=of[2], **named)
    kind = _BY_NAME[name]
    if (word := _WORDS.get(kind)) is not None:
        values[word[0]] = word[1](values[word[0]])
    return kind(*(tuple(value) if isinstance(value, list) else value for value in values))


def decisions(plan: Plan, snapshot: Snapshot) -> dict[str, Any]:
    """What a plan of this snapshot decided, as plain JSON: starts, stops and resizes in their order, for which jobs it
    reserves, and by job why it starts now (``why``) and what was at stake for its orders (``losses``)."""
    return {
        "starts": [
            [start.job, start.placement.slot_type, list(start.placement.nodes)] for start in plan.starts
        ],
        "stops": [[stop.job, stop.reason, stop.for_job, stop.generation] for stop in plan.stops],
        "resizes": [
            [each.job, each.learners, each.for_job, each.generation, *filter(None, [list(each.leaves)])]
            for each in plan.resizes
        ],
        "reserved": list(plan.reserved),
        "why": {
            start.job: {
                "reason": start.reason.value,
                "borrowed": start.borrowed,
                "generation": start.generation,
            }
            for start in plan.starts
        },
        "losses": {job: asdict(loss) for job, loss in losses.expected(plan, snapshot).items()},
    }
