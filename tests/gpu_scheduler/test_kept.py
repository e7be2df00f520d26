"""What runs leave for by order is kept for it while they save: nodes, and what it will borrow of its cohort."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpu_scheduler import world
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Gang, Level, Priority, QuotaUse, Resize, Snapshot, Stop, Topology, WaitReason
from gpu_scheduler.places import LEAVES_WITHIN
from gpu_scheduler.policies.base import policy_of
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.simulation import Costs, Scenario, SimulatedJob, simulate
from tests.gpu_scheduler.worlds import NOON, gang, nodes, running, snapshot

HOUR = 3600.0
SAVES_S = 60.0


def job(
    name: str,
    tenant: str,
    slots: int,
    *,
    at: float,
    work: float,
    rank: Priority = Priority.NORMAL,
    limit: float | None = None,
) -> SimulatedJob:
    """Submitted at, with so much work to do and its time limit, in seconds; it saves for a minute."""
    made = gang(name, 1, slots, tenant=tenant, priority=rank, runs_at_most_s=limit)
    return SimulatedJob(
        replace(made, queued_at=NOON + timedelta(seconds=at)), work, Costs(checkpoint_s=SAVES_S)
    )


def waited(jobs: tuple[SimulatedJob, ...], quotas: tuple[QuotaUse, ...], name: str, **on: int) -> float:
    """How many seconds passed between its submission and its first start."""
    out = simulate(Scenario(nodes(**on), jobs, quotas, FairShare(), round_s=0))
    submitted = next(each.gang.queued_at for each in jobs if each.gang.job == name)
    return (out.first_started[name] - submitted).total_seconds()


APART = tuple(QuotaUse(tenant, "a100", 8, 0) for tenant in ("red", "green", "blue"))
LENT = (
    QuotaUse("green", "a100", 8, 0, "lab"),
    QuotaUse("red", "a100", 0, 0, "lab"),
    QuotaUse("blue", "a100", 2, 0),
)


@pytest.mark.parametrize(
    ("quotas", "rank"), [(APART, Priority.URGENT), (LENT, Priority.NORMAL)], ids=["urgent", "lender"]
)
def test_a_job_with_a_shorter_limit_does_not_pass_one_for_which_runs_leave(
    quotas: tuple[QuotaUse, ...], rank: Priority
) -> None:
    jobs = (
        job("j0", "red", 6, at=0, work=11 * HOUR, limit=12 * HOUR, rank=Priority.LOW),
        job("j1", "green", 8, at=100, work=60, rank=rank),
        job("j2", "blue", 2, at=110, work=7 * HOUR, limit=8 * HOUR, rank=Priority.LOW),
    )
    assert waited(jobs, quotas, "j1", a1=8) <= SAVES_S + 10


def test_a_run_that_was_stopped_for_another_job_is_not_waited_for_until_its_limit() -> None:
    """The gang waits for the node of r1, that leaves, and that of r2. What ends before r2 does passes it, no other."""
    head = gang("j1", 2, 8, tenant="green", queued_at=NOON - timedelta(hours=2))
    leaves = running("r1", "a1", slots=6, ends_by=NOON + timedelta(hours=12), order=Stop("r1", "evicted"))
    for ends_h, passes in ((1, False), (4, True)):
        ends = running("r2", "a2", slots=8, ends_by=NOON + timedelta(hours=ends_h))
        short = gang("j2", 1, 2, tenant="blue", runs_at_most_s=2 * HOUR)
        made = snapshot(
            nodes(a1=8, a2=8), [head, short], [leaves, ends], policy_state={"j1": NOON - timedelta(hours=1)}
        )
        assert [start.job for start in plan(made).starts] == ["j2"] * passes


@pytest.mark.parametrize("slots", [2, 3])
def test_nor_does_it_where_slots_are_kept_for_another_one_until_a_known_end(slots: int) -> None:
    """The gang waits for r0, so what ends before that passes it on its own node, but not on that of r1, which leaves
    for j1."""
    quotas = (
        *(QuotaUse(tenant, "a100", 32, 0) for tenant in ("blue", "pink")),
        QuotaUse("green", "a100", 8, 0, "lab"),
        QuotaUse("red", "a100", 0, 6, "lab"),
    )
    busy = [
        running("r0", "a1", slots=13, tenant="blue", ends_by=NOON + timedelta(hours=6)),
        running("r1", "a2", slots=6, tenant="red", order=Stop("r1", "reclaimed", "j1")),
    ]
    waiting = [
        gang("j0", 1, 16, tenant="blue", queued_at=NOON - timedelta(hours=2)),
        gang("j1", 1, 8, tenant="green"),
        gang("j2", 1, slots, tenant="pink", runs_at_most_s=5 * HOUR),
        gang("j3", 1, 2, tenant="pink", runs_at_most_s=5 * HOUR),
    ]
    since = {"j0": NOON - timedelta(hours=1)}
    made = snapshot(nodes(a1=16, a2=8), waiting, busy, quotas=quotas, policy_state=since)
    found = plan(made)
    assert [(start.job, start.placement.nodes) for start in found.starts] == [("j2", ("a1",))]
    assert {wait.job: wait.code for wait in found.waits}["j3"] == WaitReason.FAIR_SHARE


def test_slots_are_not_said_to_be_kept_until_now_while_runs_save() -> None:
    head = gang("j1", 1, 8, tenant="green", queued_at=NOON - timedelta(hours=2))
    leaves = running("r1", "a1", slots=6, stopping=True, stopping_since=NOON)
    late = gang("j2", 1, 2, tenant="blue")
    made = snapshot(nodes(a1=8), [head, late], [leaves], policy_state={"j1": NOON - timedelta(hours=1)})
    wait = plan(made).waits[1]
    assert (wait.job, wait.code, wait.numbers["until"]) == ("j2", WaitReason.FAIR_SHARE, None)
    assert wait.message.endswith(" The reservation holds until that job starts.")


@pytest.mark.parametrize(
    "stays",
    [
        {"stopping": True, "stopping_since": NOON - timedelta(minutes=11)},
        {"order": Resize("r1", 1)},
    ],
    ids=["stuck", "resized"],
)
def test_the_node_of_a_run_that_may_not_leave_is_not_free_the_soonest(stays: dict[str, object]) -> None:
    head = gang("j1", 1, 8, tenant="green", queued_at=NOON - timedelta(hours=2))
    busy = [
        running("r1", "a1", slots=6, **stays),
        running("r2", "a2", slots=6, ends_by=NOON + timedelta(hours=1)),
    ]
    late = gang("j2", 1, 2, tenant="blue")
    made = snapshot(nodes(a1=8, a2=8), [head, late], busy, policy_state={"j1": NOON - timedelta(hours=1)})
    assert [start.placement.nodes for start in plan(made).starts] == [("a1",)], "a2 is kept for the gang"


BORROWERS = (
    QuotaUse("lender", "a100", 4, 0, "lab"),
    QuotaUse("red", "a100", 0, 0, "lab"),
    QuotaUse("blue", "a100", 0, 0, "lab"),
)


def test_what_an_urgent_job_will_borrow_is_kept_for_it_while_its_victim_saves() -> None:
    jobs = (
        job("j0", "red", 2, at=0, work=100_000),
        job("j1", "red", 4, at=100, work=100, rank=Priority.URGENT),
        job("j2", "blue", 2, at=120, work=10 * HOUR, rank=Priority.LOW),
    )
    assert waited(jobs, BORROWERS, "j1", a1=4, a2=4) <= SAVES_S + 10


def being_stopped(*waiting: Gang, **changes: Any) -> Snapshot:
    """r1 of red leaves for the urgent j1, which will borrow all 4 that are lent; there is a free node beside."""
    leaves = running("r1", "a1", slots=2, order=Stop("r1", "preempted", "j1"), stopping=True)
    first = gang("j1", 1, 4, priority=Priority.URGENT)
    quotas = tuple(replace(quota, used=2 * (quota.tenant == "red")) for quota in BORROWERS)
    return snapshot(nodes(a1=4, a2=4), [first, *waiting], [leaves], quotas=quotas, **changes)


def test_who_waits_for_what_is_kept_says_so_and_a_lender_has_it() -> None:
    [_, wait] = plan(being_stopped(gang("j2", 1, 2, tenant="blue"))).waits
    assert (wait.job, wait.code, wait.numbers["cohort_room"]) == ("j2", WaitReason.COHORT_GPUS, 0)
    assert wait.message.endswith("; 2 more are kept for jobs for which others are being stopped.")
    assert [start.job for start in plan(being_stopped(gang("j2", 1, 2, tenant="lender"))).starts] == ["j2"]


def test_a_borrower_whose_timeout_is_over_does_not_pass_one_for_which_runs_leave() -> None:
    head = gang("j2", 1, 2, tenant="blue", queued_at=NOON - timedelta(hours=2))
    made = being_stopped(head, policy_state={"j2": NOON - timedelta(hours=2)})
    assert plan(made).starts == ()


@pytest.mark.parametrize("limit", [8, 6], ids=["its limit covers it then", "it borrows then, too"])
@pytest.mark.parametrize("tenant", ["blue", "red"])
def test_who_comes_before_borrowers_takes_nothing_of_its_own_tenants_job_for_which_a_run_leaves(
    limit: int, tenant: str
) -> None:
    """While r1 saves, j1 is beyond its tenant's limit, and j2 of the same tenant is within it. Nor does red borrow."""
    quotas = (
        QuotaUse("blue", "a100", limit, 3, "lab"),
        QuotaUse("red", "a100", 0, 0, "lab"),
        QuotaUse("green", "a100", 8 - limit, 0, "lab"),
    )
    leaves = running("r1", "a1", slots=3, tenant="blue", order=Stop("r1", "preempted", "j1"), stopping=True)
    first = gang("j1", 1, 8, tenant="blue", priority=Priority.URGENT)
    low = gang("j2", 1, 2, tenant=tenant, priority=Priority.LOW)
    made = snapshot(nodes(a1=8, a2=8), [first, low], [leaves], quotas=quotas)
    assert plan(made).starts == ()
    left = world.apply(made, plan(made), ["r1"])
    assert [start.job for start in plan(left).starts] == ["j1"]
    stuck = replace(leaves, stopping_since=NOON - timedelta(hours=3))
    found = plan(replace(made, running=(stuck,)))
    assert [start.job for start in found.starts] == ["j2"] * (tenant == "blue"), "no end of it is in sight"


def test_of_jobs_that_wait_for_opportunistic_runs_a_covered_one_still_comes_before_a_borrower() -> None:
    racks = {"a0": "r0", "a1": "r1", "a2": "r0", "a3": "r1", "a4": "r0"}
    on = [replace(node, rack=racks[node.name], block="b") for node in nodes(**dict.fromkeys(racks, 2))]
    idle = running("r1", "a2", "a3", slots=2, tenant="green")
    idle = replace(idle, gang=replace(idle.gang, opportunistic=True))
    quotas = (
        QuotaUse("red", "a100", 3, 0, "lab"),
        QuotaUse("green", "a100", 10, 0, "lab", lending_limit=4),
        QuotaUse("blue", "a100", 3, 0, "lab", borrowing_limit=2),
    )
    covered = gang("j1", 3, 2, tenant="green", topology=Topology(Level.RACK, required=True))
    borrows = gang("j2", 2, 2, tenant="blue", priority=Priority.HIGH)
    before = snapshot(on, [covered, borrows], [idle], quotas=quotas)
    first = plan(before)
    assert {wait.code for wait in first.waits} == {WaitReason.IDLE_LEAVING}
    after = world.apply(world.apply(before, first), ended=["r1"])
    second = plan(replace(after, now=NOON + timedelta(seconds=5)))
    assert [start.job for start in second.starts][:1] == ["j1"]


def test_the_next_plan_comes_when_a_run_that_was_stopped_counts_as_one_that_may_never_leave() -> None:
    since = NOON - timedelta(minutes=3)
    leaves = running("r1", "a1", slots=8, stopping=True, stopping_since=since)
    made = snapshot(nodes(a1=8), [gang("j1", 1, 8)], [leaves])
    assert policy_of(made).next_event_at(made) == since + LEAVES_WITHIN
