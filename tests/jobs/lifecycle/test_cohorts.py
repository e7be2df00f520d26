"""Tenants of a cohort through the lifecycle: borrowing, reclaim with a save, and what the database refuses."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from django.db import IntegrityError, connection, transaction

from gpu_scheduler.clusters.memory import MemoryCluster
from gpu_scheduler.model import Placement, Start
from jobs import invariants
from jobs.lifecycle import plan_effects
from jobs.models import Job
from jobs.selectors import usage
from jobs.states import Phase, State, StopReason
from tenants.models import Quota, Tenant, User
from tests import factories
from tests.jobs.lifecycle.test_quota import big_cluster as big_cluster
from tests.jobs.lifecycle.world import World, job_of, state, used


@pytest.fixture
def bob(world: World) -> User:
    """Of another tenant: both are in cohort lab, each with half of the cluster."""
    Quota.objects.filter(tenant=world.tenant).update(limit=4)
    other = factories.tenant(quotas={"cpu": 4}, cohort="lab")
    Tenant.objects.filter(pk=world.tenant.pk).update(cohort="lab")
    return factories.member(other, "bob")


def of_bob(bob: User, **fields: object) -> Job:
    return factories.job(owner=bob, of=bob.memberships.get().tenant, **fields)


def run(world: World, job: Job) -> None:
    world.settle()
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    assert state(job) == State.PROCESSING


def await_state(world: World, job: Job, *states: State) -> None:
    for _ in range(30):
        if state(job) in states:
            return
        world.elapse(2)
        world.settle()
    raise AssertionError(f"{job.name} is {state(job)}: {job_of(job).reason_message}")


@pytest.mark.django_db
def test_what_is_borrowed_comes_back_with_the_borrowers_work_saved_and_is_borrowed_again_later(
    world: World, bob: User
) -> None:
    own, borrower = of_bob(bob, slots=4, name="own"), of_bob(bob, slots=4, name="borrower")
    run(world, own)
    run(world, borrower)
    shown = {use.gpu_type: use for use in usage.quotas_of(bob.memberships.get().tenant)}["cpu"]
    assert (shown.used, shown.borrowed, shown.lent) == (8, 4, 0)
    assert usage.quotas_of(Tenant.objects.get(pk=world.tenant.pk))[0].lent == 4
    assert [(loan.lender, loan.slots) for loan in usage.all_loans()] == [(world.tenant.slug, 4)]

    world.elapse(30)  # past their leases
    lenders = world.submit(slots=4, name="lenders")
    world.settle()
    assert state(own) == State.PROCESSING
    assert state(borrower) == State.STOPPING
    assert job_of(borrower).stop_reason == StopReason.RECLAIMED
    assert job_of(lenders).reason_code == "COHORT_GPUS"
    assert job_of(lenders).reason_message.endswith(
        "A running job on borrowed devices is being stopped for it."
    )
    world.step(borrower, 70)
    world.save(borrower, 70)
    world.exit(borrower, halted=True)
    world.done(borrower)
    await_state(world, lenders, State.DEPLOYING, State.DOWNLOADING, State.PROCESSING)
    run(world, lenders)
    row = job_of(borrower)
    assert (row.state, row.restarts_used) == (State.QUEUED, 0)
    assert used(world.tenant) == 4
    assert state(own) == State.PROCESSING
    event = row.events.filter(to_state=State.QUEUED).latest("n")
    assert event.reason == StopReason.RECLAIMED
    assert "another tenant reclaimed devices that it had lent" in event.message
    world.elapse(60)
    world.settle()
    assert state(borrower) == State.QUEUED, "it does not take back what the lender uses"
    assert job_of(borrower).reason_code == "COHORT_GPUS"

    world.exit(lenders)
    world.done(lenders)
    await_state(world, lenders, State.COMPLETED)
    await_state(world, borrower, State.DEPLOYING, State.DOWNLOADING, State.PROCESSING)
    assert job_of(borrower).attempts.latest("n").resume_from is not None
    assert invariants.violations() == []


@pytest.mark.django_db
def test_a_covered_run_in_the_way_of_a_lenders_job_saves_and_starts_again_elsewhere(
    world: World, bob: User
) -> None:
    """Two of red and one of bob lie on node-a, one of red and two of bob on node-b, and alice asks for a whole node:
    red borrows two slots, which lets neither node go free."""
    Quota.objects.filter(tenant__memberships__user=bob).update(limit=3)
    red = factories.member(factories.tenant(quotas={"cpu": 1}, cohort="lab"), "rosa")
    of_red = partial(factories.job, owner=red, of=red.memberships.get().tenant)
    of_blue = partial(of_bob, bob)
    begun = []
    for make, name in [(of_red, "r1"), (of_red, "r2"), (of_blue, "b1"), (of_blue, "filler"),
                       (of_red, "r3"), (of_blue, "b2"), (of_blue, "b3")]:  # fmt: skip
        begun.append(make(name=name))
        run(world, begun[-1])
    assert [job.attempts.get().nodes for job in begun] == [["node-a"]] * 4 + [["node-b"]] * 3
    filler = begun.pop(3)
    world.exit(filler)
    world.done(filler)
    await_state(world, filler, State.COMPLETED)

    world.elapse(310)  # covered runs move after five minutes
    whole_node = world.submit(slots=4, name="whole-node")
    world.settle()
    reasons = {job.name: job_of(job).stop_reason for job in begun}
    leaving = [job for job in begun if reasons[job.name]]
    moved = [job for job in begun if reasons[job.name] == StopReason.MOVED]
    assert {job.tenant_id for job in moved} == {bob.memberships.get().tenant_id}
    assert [reasons[job.name] for job in leaving if job not in moved] == [StopReason.RECLAIMED] * 2
    for job in leaving:
        world.save(job, 70)
        world.exit(job, halted=True)
        world.done(job)
    for job in (whole_node, *moved):
        await_state(world, job, State.DEPLOYING, State.DOWNLOADING, State.PROCESSING)
    for job in moved:
        row = job_of(job)
        assert (row.attempt, row.restarts_used) == (2, 0)
        event = row.events.filter(to_state=State.QUEUED).latest("n")
        assert event.reason == StopReason.MOVED
        assert "a larger job needed its place" in event.message
    assert invariants.violations() == []


def start_of(job: Job) -> Start:
    return Start(job.pk, Placement("cpu", ("node-a",) * job.learners))


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("terms", "refusal"),
    [
        ({"borrowing_limit": 1}, "used up"),
        ({"borrowing_limit": 0}, "used up"),
        ({}, None),
    ],
)
def test_an_admission_borrows_no_more_than_the_limit(
    world: World, bob: User, terms: dict[str, int], refusal: str | None
) -> None:
    Quota.objects.filter(tenant__memberships__user=bob).update(**terms)
    job = of_bob(bob, slots=6)
    if refusal is None:
        with transaction.atomic():
            plan_effects.admit_all([start_of(job)], "memory")
        return
    with pytest.raises(plan_effects.NotAdmitted, match=refusal), transaction.atomic():
        plan_effects.admit_all([start_of(job)], "memory")
    assert state(job) == State.QUEUED


@pytest.mark.django_db
def test_starts_of_two_tenants_that_share_a_commit_borrow_no_more_than_their_cohort_lends(
    world: World, bob: User
) -> None:
    """Each alone may borrow what the other lends; together they would use more than both have."""
    Quota.objects.update(borrowing_limit=None, lending_limit=None)
    total = sum(Quota.objects.values_list("limit", flat=True))
    mine = [world.submit() for _ in range(total // 2)]
    theirs = [of_bob(bob) for _ in range(total - len(mine) + 1)]
    starts = [start_of(job) for job in (*mine, *theirs)]

    with pytest.raises(plan_effects.NotAdmitted, match="more than its tenants share"), transaction.atomic():
        plan_effects.admit_all(starts, "memory")
    with transaction.atomic():
        plan_effects.admit_all(starts[:-1], "memory")
    assert sum(Quota.objects.values_list("used", flat=True)) == total


@pytest.mark.django_db
def test_the_database_refuses_more_than_a_cohort_shares_even_from_who_forgets_to_ask(
    world: World, bob: User
) -> None:
    own, other = Quota.objects.get(tenant=world.tenant), Quota.objects.get(tenant__memberships__user=bob)
    Quota.objects.filter(pk=own.pk).update(lending_limit=2, used=2)
    Quota.objects.filter(pk=other.pk).update(used=6)
    for pk, use in ((other.pk, 7), (own.pk, 3)):
        with pytest.raises(IntegrityError, match="cohort lab would use 1 slots more"), transaction.atomic():
            Quota.objects.filter(pk=pk).update(used=use)
    Tenant.objects.update(cohort="")
    with pytest.raises(IntegrityError, match="exceed the limit of 4"), transaction.atomic():
        Quota.objects.filter(pk=other.pk).update(used=7)
    Quota.objects.filter(pk=other.pk).update(used=5)  # less is always possible


@pytest.mark.django_db(transaction=True)
def test_admissions_of_a_cohort_at_the_same_time_take_no_slot_twice(big_cluster: MemoryCluster) -> None:
    """Three tenants lend 6 slots in all and each could borrow them; 12 jobs are admitted at once, without the cycle."""
    tenants = [factories.tenant(quotas={"cpu": 2}, cohort="lab") for _ in range(3)]
    owners = [factories.member(tenant) for tenant in tenants]
    jobs = [factories.job(owner=owners[n % 3], of=tenants[n % 3]) for n in range(12)]
    barrier = threading.Barrier(len(jobs))
    admitted: list[str] = []
    faults: list[BaseException] = []

    def admit(job: Job) -> None:
        try:
            barrier.wait()
            with transaction.atomic():
                plan_effects.admit_all([start_of(job)], "memory")
            admitted.append(job.pk)
        except plan_effects.NotAdmitted:
            pass
        except BaseException as fault:
            faults.append(fault)
        finally:
            connection.close()

    threads = [threading.Thread(target=admit, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert len(admitted) == sum(Quota.objects.values_list("used", flat=True)) == 6
    assert invariants.violations() == []
