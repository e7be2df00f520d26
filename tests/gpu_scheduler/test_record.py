"""A snapshot that was written down gives the same plan, and has its own digest."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler import record
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import (
    GradientNoise,
    Node,
    Profile,
    Project,
    ProjectShare,
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
from gpu_scheduler.policies.base import policy_of
from gpu_scheduler.policies.fair_share import FairShare
from tests.gpu_scheduler.elastic_runs import elastic_worlds
from tests.gpu_scheduler.test_projects import divided_worlds
from tests.gpu_scheduler.worlds import NOON, gang, racked_worlds, running, snapshot, worlds


@given(st.one_of(worlds(), racked_worlds(), elastic_worlds(), divided_worlds()))
def test_a_snapshot_that_was_written_down_gives_the_same_plan(seen: Snapshot) -> None:
    text = record.written(seen)
    again = record.read(text, policy_of(seen))
    assert again == seen
    assert record.written(again) == text
    assert record.decisions(plan(again), again) == record.decisions(plan(seen), seen)


def full() -> Snapshot:
    """One with a value in every field of everything."""
    profile = Profile(
        Range(8, 64), StepTimes(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 7.0), GradientNoise(1.5, 0.5, 32), 4, 5, 6
    )
    job = replace(
        gang("j1", 2, 3, cpus=1.5, memory_mib=7, user="alice", runs_at_most_s=60.5),
        topology=Topology.read("required rack"),
        elastic=profile,
        learners=Range(2, 4),
        target=3,
        project="vision",
        generation=4,
    )
    node = Node(
        "a1", "a100", Resources(8, 9.5, 10), True, Resources(1, 2.0, 3), "rack", "block", True, NOON,
        Resources(0, 0.5, 6), 11, 1, "why", NOON, True,
    )  # fmt: skip
    runs = [
        replace(
            running("r1", "a1", "a1"), ends_by=NOON, last_checkpoint_at=NOON, checkpoint_cost_s=1.5,
            restart_cost_s=2.5, saves_when_asked=False, stopping=True, requeues=False, order=order, generation=3,
            stopping_since=NOON, computes_after=NOON,
        )
        for order in (Stop("r1", "preempted", "j1", 3), Resize("r1", 1, 3, "j1", ("a1",)))
    ]  # fmt: skip
    return snapshot(
        [node],
        [job],
        runs,
        policy_state={"j1": NOON},
        promised={"j1": None, "r1": NOON + timedelta(1)},
        yielded={"j1": (NOON - timedelta(1), NOON)},
        tenants=(TenantState("red"),),
        projects=(Project("red", "vision", 2, (ProjectShare("a100", 3, 4), ProjectShare("h200"))),),
    )


def test_every_field_comes_back() -> None:
    seen = full()
    again = record.read(record.written(seen), FairShare())
    assert again == seen
    assert type(again.waiting[0].strategy) is type(seen.waiting[0].strategy)
    assert type(again.running[0].order) is Stop


def test_what_says_nothing_is_left_out_so_that_the_version_before_can_read_it() -> None:
    seen = full()
    without = replace(seen.running[1], order=Resize("r1", 1, 3, "j1"), computes_after=None)
    made = replace(seen, nodes=(replace(seen.nodes[0], leaves_at=None, full=False),), running=(without,))
    text = record.written(made)
    assert b'{"Resize":["r1",1,3,"j1"]}' in text
    assert b'"why",null]}' in text
    assert record.read(text, FairShare()) == made


def test_any_change_is_another_text() -> None:
    """What is not written down could change a decision without a trace."""
    seen = full()
    texts = {record.written(seen)}
    parts: list[tuple[Any, str]] = [(seen.waiting[0], "waiting"), (seen.running[0], "running")]
    parts += [(seen.nodes[0], "nodes"), (seen.quotas[0], "quotas"), (seen.tenants[0], "tenants")]
    parts += [(seen.projects[0], "projects")]
    others: dict[str, Any] = {"now": NOON + timedelta(1), "policy_state": {}, "promised": {}, "yielded": {}}
    assert {name for _, name in parts} | others.keys() | {"policy"} == {each.name for each in fields(seen)}
    changes = 1
    for part, name in parts:
        for each in fields(part):
            if each.init:
                texts.add(record.written(replace(seen, **{name: (_changed(part, each.name),)})))
                changes += 1
    for name, value in others.items():
        texts.add(record.written(replace(seen, **{name: value})))
        changes += 1
    assert len(texts) == changes


def _changed(part: Any, name: str) -> Any:
    value = getattr(part, name)
    other: Any
    if isinstance(part, Running) and name == "gang":
        other = gang("other")
    elif isinstance(value, bool):
        other = not value
    elif isinstance(value, int | float):
        other = value + 1
    elif isinstance(value, datetime):
        other = value + timedelta(seconds=1)
    elif isinstance(value, Resources):
        other = Resources(2, 2.25, 2)
    elif isinstance(value, Range):
        other = Range(1, 9)
    elif isinstance(value, tuple):
        other = (*value, "more")
    else:
        other = "spread" if name == "strategy" else None if value is not None else 5
    return replace(part, **{name: other})


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"[1,2]", b'{"Gang":[]}', b'[{"Gun":[]},1,1,1,1,1,1,1,1]', b"\xff"]
)
def test_other_text_is_refused(text: bytes) -> None:
    with pytest.raises(record.NotReadable):
        record.read(text, FairShare())
