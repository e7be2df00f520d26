"""Limits for one user and for one job at the last moment, when many start at once, and through the lifecycle."""

from __future__ import annotations

import threading

import pytest
from django.db import IntegrityError, connection, transaction

from gpu_scheduler.clusters.memory import MemoryCluster
from jobs import invariants
from jobs.lifecycle import plan_effects
from jobs.models import Attempt, Job
from jobs.states import State
from tenants.models import Quota, Tenant
from tests import factories
from tests.jobs.lifecycle.test_quota import big_cluster as big_cluster
from tests.jobs.lifecycle.test_quota import start_of
from tests.jobs.lifecycle.world import World, job_of, state, used


def admits(job: Job) -> bool:
    try:
        with transaction.atomic():
            plan_effects.admit_all([start_of(job)], "memory")
    except plan_effects.NotAdmitted:
        return False
    return True


@pytest.mark.django_db
def test_a_start_above_a_users_limit_is_refused_and_another_users_is_not(world: World) -> None:
    carol = factories.member(world.tenant, "carol")
    Quota.objects.update(user_limit=3)
    first, second = world.submit(slots=2), world.submit(slots=2)
    assert (admits(first), admits(second), used(world.tenant)) == (True, False, 2)
    assert state(second) == State.QUEUED
    assert admits(factories.job(owner=carol, of=world.tenant, slots=2))
    assert invariants.violations() == []


@pytest.mark.django_db
def test_the_limit_of_a_users_jobs_holds_at_the_last_moment(world: World) -> None:
    Tenant.objects.update(user_jobs_limit=1)
    assert (admits(world.submit()), admits(world.submit()), used(world.tenant)) == (True, False, 1)


@pytest.mark.django_db
def test_a_job_that_is_too_large_or_may_run_too_long_is_refused(world: World) -> None:
    large = world.submit(learners=2, slots=2)
    Quota.objects.update(gang_limit=3)
    assert not admits(large)
    Quota.objects.update(gang_limit=4)
    Tenant.objects.update(max_time_s=3600)
    assert not admits(large)
    Job.objects.filter(pk=large.pk).update(time_limit_s=7200)
    assert not admits(large)
    Job.objects.filter(pk=large.pk).update(running_s=3600)  # what is left counts
    assert admits(large)


@pytest.mark.django_db
def test_the_database_refuses_it_whatever_the_program_checked(world: World) -> None:
    held = world.running(slots=2)
    Quota.objects.update(user_limit=2)
    with (
        pytest.raises(IntegrityError, match="4 cpu slots for one user would exceed the limit of 2"),
        transaction.atomic(),
    ):
        factories.job(owner=world.alice, of=world.tenant, state=State.PROCESSING, slots=2)
    Attempt.objects.filter(job=held).update(message="a row that is there may change")


@pytest.mark.django_db
def test_a_user_waits_with_a_reason_and_starts_when_the_limit_is_raised(world: World) -> None:
    Quota.objects.update(user_limit=2)
    first, second = world.submit(slots=2), world.submit(slots=2)
    world.settle()
    assert (state(first), job_of(second).reason_code) == (State.DEPLOYING, "USER_GPUS")
    Quota.objects.update(user_limit=4)
    world.elapse(30)
    world.settle()
    assert state(second) == State.DEPLOYING


@pytest.mark.fault
def test_of_two_starts_at_once_of_a_user_with_room_for_one_only_one_is_admitted(
    big_cluster: MemoryCluster,
) -> None:
    tenant = factories.tenant(quotas={"cpu": 8})
    Quota.objects.update(user_limit=2)
    alice = factories.member(tenant)
    jobs = [factories.job(owner=alice, of=tenant, slots=2) for _ in range(8)]
    both, admitted = threading.Barrier(len(jobs)), []

    def start(job: Job) -> None:
        try:
            both.wait()
            admitted.append(admits(job))
        finally:
            connection.close()

    threads = [threading.Thread(target=start, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(admitted) == [False] * 7 + [True]
    assert used(tenant) == 2
