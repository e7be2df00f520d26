"""Policies by name and per pool, and what they carry from plan to plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar

import pytest
from hypothesis import given, settings

from gpu_scheduler.checks import Finding
from gpu_scheduler.cycle import plan
from gpu_scheduler.draft import Draft
from gpu_scheduler.model import Gang, Priority, Snapshot
from gpu_scheduler.policies import POLICIES, BadPolicy
from gpu_scheduler.policies.base import Policy, PolicyState, Round, Window
from gpu_scheduler.policies.fair_share import DELAYED, OF_USER, FairShare
from gpu_scheduler.policies.per_pool import PerPool
from gpu_scheduler.policies.selection import policy_from
from tenants.services.tenants import PRIORITIES
from tests.gpu_scheduler.worlds import NOON, gang, nodes, running, snapshot, worlds


@dataclass(frozen=True, slots=True)
class LastFirst(Policy):
    """The newest job is offered slots first; nothing is carried over and nothing reserved."""

    name: ClassVar[str] = "last_first"

    def begin(self, draft: Draft) -> LastFirstRound:
        return LastFirstRound(draft)

    def next_event_at(self, snapshot: Snapshot) -> datetime | None:
        return None

    def window(self, state: PolicyState) -> Window:
        return Window(order=("-queued_at", "job"))


class LastFirstRound(Round):
    def __init__(self, draft: Draft) -> None:
        self._waiting = draft.waiting

    def queue(self) -> Iterator[Gang]:
        return iter(sorted(self._waiting, key=lambda gang: gang.queued_at, reverse=True))

    def wait(self, gang: Gang, finding: Finding) -> None:
        pass

    def state(self) -> PolicyState:
        return {}


@pytest.fixture
def last_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, LastFirst.name, f"{__name__}.LastFirst")


def test_a_policy_is_chosen_by_name() -> None:
    assert policy_from("fair_share") == FairShare()


@pytest.mark.parametrize(
    "wrong", ["", "round_robin", "fair_share,h200", "fair_share,h200:nothing", "fair_share,:fair_share"]
)
def test_an_unknown_policy_is_refused_with_its_name(wrong: str) -> None:
    with pytest.raises(BadPolicy):
        policy_from(wrong)


@pytest.mark.usefixtures("last_first")
def test_each_pool_follows_its_own_policy() -> None:
    waiting = [gang("j1"), gang("j2"), gang("j3", slot_type="h200"), gang("j4", slot_type="h200")]
    both = snapshot(nodes(a1=1, h1=1), waiting, policy=policy_from("fair_share, h200:last_first"))
    assert {start.job for start in plan(both).starts} == {"j1", "j4"}


@pytest.mark.usefixtures("last_first")
def test_each_pool_carries_its_own_state() -> None:
    policy = policy_from("last_first,a100:fair_share")
    made = plan(snapshot(nodes(a1=1, h1=1), [gang("j1", 1, 1), gang("j2", 1, 1)], policy=policy))
    assert made.policy_state == {"a100": {"j2": NOON}, "": {}}
    stored = json.loads(json.dumps(policy.dump(made.policy_state)))
    assert policy.load(stored) == made.policy_state
    assert policy.window(made.policy_state).first == {"j2"}
    later = replace(
        snapshot(nodes(a1=1), [gang("j2")], [running("r1", "a1")], policy=policy),
        policy_state=made.policy_state,
    )
    assert policy.next_event_at(later) == NOON + timedelta(seconds=300)


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_one_policy_for_all_pools_decides_as_the_policy_alone(world: Snapshot) -> None:
    """But for the order between pools, which shares of quota can depend on: tenants are compared one at a time."""
    for tenant in ("red", "green", "blue"):
        own = tuple(job for job in world.waiting if job.tenant == tenant and job.slot_type == "a100")
        alone = replace(world, waiting=own)
        parts = replace(
            alone,
            policy=policy_from("fair_share,a100:fair_share"),
            policy_state={"a100": world.policy_state},
        )
        assert plan(parts).starts == plan(alone).starts
        assert plan(parts).waits == plan(alone).waits


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_a_stored_state_is_what_the_next_plan_gets(world: Snapshot) -> None:
    state, policy = plan(world).policy_state, FairShare()
    assert policy.load(json.loads(json.dumps(policy.dump(state)))) == state


def test_tenants_know_the_priorities_of_the_scheduler() -> None:
    """The two packages cannot import each other."""
    assert tuple(level.name.lower() for level in Priority) == PRIORITIES


@pytest.mark.parametrize("before", ["j1", f"{OF_USER}j1", f"{DELAYED}j1"])
@pytest.mark.parametrize("pools", [{}, {"a100": FairShare()}])
def test_a_job_whose_start_is_refused_keeps_its_time_and_its_place(
    before: str, pools: dict[str, Policy]
) -> None:
    policy = PerPool(FairShare(), pools) if pools else FairShare()
    own = {before: NOON - timedelta(hours=5), "j9": NOON}
    state = {"a100": own} if pools else own
    made = snapshot(nodes(a1=8), [gang("j1", 1, 8)], policy=policy, policy_state=state)
    decided = plan(made)
    assert [start.job for start in decided.starts] == ["j1"]
    kept = policy.state_refused(made.policy_state, decided.policy_state, {"j1"})
    found = kept["a100"] if pools else kept
    assert found[before] == own[before]
    assert "j9" not in found, "it waits no more"
    assert policy.state_refused(made.policy_state, decided.policy_state, ()) == decided.policy_state
