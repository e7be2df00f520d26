"""The benchmarks' dominant resource fairness: whose turn it is, and how far a tenant can be behind another."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.drf import Drf, Shares
from gpu_scheduler import world
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Gang, Node, Plan, Snapshot
from gpu_scheduler.policies.fifo import Fifo
from tests.gpu_scheduler.worlds import CPUS, MEMORIES, TENANTS, gang, nodes, running, snapshot, worlds

SOME = settings(max_examples=150, deadline=None)


def order(seen: Snapshot) -> list[str]:
    return [start.job for start in plan(replace(seen, policy=Drf())).starts]


def test_next_is_the_tenant_with_the_smallest_dominant_share() -> None:
    """The example of the paper: 9 CPUs and 18 GB; a learner takes 1 and 4 of them, or 3 and 1: three to two."""
    waiting = [gang(f"a{n}", 1, 1, cpus=1, memory_mib=4096, tenant="red") for n in range(9)]
    waiting += [gang(f"b{n}", 1, 1, cpus=3, memory_mib=1024, tenant="green") for n in range(9)]
    one = Node.with_slots("a1", "a100", 100, cpus=9, memory_mib=18 * 1024)
    found = order(snapshot([one], waiting, limits={"red": 100, "green": 100}))
    assert sorted(job[0] for job in found) == ["a", "a", "a", "b", "b"]


def test_what_runs_counts_and_classes_count_inside_a_tenant_only() -> None:
    waiting = [gang("r1", priority=3), gang("r2", priority=0), gang("r3"), gang("g4", tenant="green")]
    assert order(snapshot(nodes(a1=3), waiting)) == ["g4", "r1", "r3"]


def test_what_is_not_reported_does_not_count() -> None:
    shares = Shares(nodes(a1=4), ())
    shares.take(gang("j1", 1, 1, cpus=9, memory_mib=9999), "a100", 2)
    assert shares.dominant("red") == 0.5


def startable(seen: Snapshot) -> list[Gang]:
    """The waiting gangs that fit and are allowed, each as if it alone waited, by another policy."""
    return [
        job
        for job in seen.waiting
        if plan(replace(seen, waiting=(job,), policy=Fifo(), policy_state={})).starts
    ]


@st.composite
def contests(draw: st.DrawFn) -> Snapshot:
    """Three tenants with more than one gang each, and more than fits: by slots, CPUs or memory."""
    on = [
        Node.with_slots(
            f"a{n}",
            "a100",
            draw(st.integers(2, 8)),
            cpus=draw(st.none() | st.sampled_from([4, 16])),
            memory_mib=draw(st.none() | st.sampled_from([4096, 16_384])),
        )
        for n in range(draw(st.integers(1, 3)))
    ]
    waiting = [
        gang(
            f"{tenant}{n}",
            draw(st.integers(1, 2)),
            draw(st.integers(1, 3)),
            cpus=draw(st.none() | st.sampled_from(CPUS)),
            memory_mib=draw(st.none() | st.sampled_from(MEMORIES)),
            tenant=tenant,
            priority=draw(st.integers(0, 3)),
        )
        for tenant in TENANTS
        for n in range(draw(st.integers(1, 4)))
    ]
    busy = [running("r1", on[0].name, tenant=draw(st.sampled_from(TENANTS)))] if draw(st.booleans()) else []
    limits = {tenant: draw(st.sampled_from([3, 100])) for tenant in TENANTS}
    return snapshot(on, waiting, busy, limits=limits)


@SOME
@given(worlds() | contests())
def test_no_tenant_that_could_start_a_gang_is_behind_by_more_than_one(made: Snapshot) -> None:
    """Before each start no other tenant with a gang that fits and is allowed has less: so after it, none is behind by
    more than that gang, and in the end nothing that fits waits."""
    now = replace(made, policy=Drf(), policy_state={}, promised={})
    decided = plan(now)
    tenants = {job.job: job.tenant for job in now.waiting}
    for start in decided.starts:
        shares = Shares(now.nodes, now.running)
        mine = shares.dominant(tenants[start.job])
        assert all(shares.dominant(job.tenant) >= mine for job in startable(now))
        now = world.apply(now, Plan(starts=(start,)))
    assert startable(now) == []
