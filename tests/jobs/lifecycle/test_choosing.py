"""The versions of a job's packages are chosen while it waits: whatever comes of it, the job is never worse off."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models.functions import Now

from gpu_scheduler.clusters.base import ClusterBusy, ClusterError, EnvironmentSpec, LaunchRefused
from gpu_scheduler.clusters.memory import MemoryCluster
from jobs import clusters, failpoints
from jobs.lifecycle import cycle, leases, reconcile
from jobs.lifecycle.choosing import CHOOSING_S, RETRY_MAX_S, RETRY_S
from jobs.models import Job, Runtime
from jobs.selectors.snapshot import database_now
from jobs.services import job_clone, job_halt, job_resume, job_submit
from jobs.states import Intent, State
from tenants.models import Quota
from tests import factories
from tests.jobs.lifecycle.world import World, gang, job_of, last_move, one_pass, reconcile_due, state, used

pytestmark = pytest.mark.django_db

REFUSED = (
    "The job's packages cannot be installed. Because uper was not found, the requirements cannot be met."
)
CHOSEN = ("lower==1.0", "upper==1.5")


@pytest.fixture
def full(world: World) -> World:
    """Its tenant may run nothing."""
    Quota.objects.filter(tenant=world.tenant).update(limit=0)
    return world


def waiting(world: World, *requirements: str, **fields: object) -> Job:
    return world.submit(packages={"requirements": list(requirements or ("upper",))}, **fields)


def let_run(world: World) -> None:
    Quota.objects.update(limit=8)
    cycle.request_pass()
    world.tick()


def due_in_s(job: Job) -> float:
    row = job_of(job)
    assert row.next_reconcile_at is not None
    return (row.next_reconcile_at - database_now()).total_seconds()


def launched_with(world: World, job: Job) -> list[str]:
    return list(world.cluster._gangs[gang(job)].spec.lock)


def test_a_misspelled_package_fails_the_job_while_the_quota_is_0(full: World) -> None:
    job = waiting(full, "uper", max_restarts=3)
    full.cluster.answers = [LaunchRefused(REFUSED)]
    full.tick()
    row = job_of(job)
    assert (row.state, row.reason_code, row.reason_message) == ("FAILED", "deploy_failed", REFUSED)
    assert (row.attempt, row.restarts_used, row.settled) == (0, 0, True)
    move = last_move(job)
    assert (move.from_state, move.reason, move.message) == ("QUEUED", "deploy_failed", REFUSED)
    assert used(full.tenant) == 0


def test_versions_are_chosen_while_it_waits_and_later_ones_change_nothing(full: World) -> None:
    job = waiting(full)
    full.cluster.answers = [CHOSEN, ("upper==9.0",)]
    full.settle()
    assert job_of(job).packages == {"requirements": ["upper"], "lock": list(CHOSEN)}
    event = job.events.get(reason="packages_chosen")
    assert event.message == "Packages chosen: upper==1.5, lower==1.0. Its attempts use these versions."
    assert (state(job), event.attempt) == (State.QUEUED, 0)
    let_run(full)
    assert launched_with(full, job) == list(CHOSEN)
    assert len(full.cluster.asked) == 1


def test_versions_stay_over_a_resume_and_go_to_a_clone(full: World) -> None:
    Runtime.objects.get_or_create(slug="sklearn", defaults={"title": "scikit-learn"})
    job = job_submit(user=full.alice, tenant=full.tenant, source=factories.spec(requirements=["upper"]))
    full.elapse(2)
    full.cluster.answers = [CHOSEN, ("upper==9.0",)]
    full.settle()
    job_halt(user=full.alice, job_id=job.pk)
    full.settle()
    assert state(job) == State.HALTED
    job_resume(user=full.alice, job_id=job.pk)
    clone = job_clone(user=full.alice, job_id=job.pk)
    full.settle()
    assert state(job) == State.QUEUED
    assert job_of(job).packages["lock"] == job_of(clone).packages["lock"] == list(CHOSEN)
    assert len(full.cluster.asked) == 1


@pytest.mark.parametrize(
    "error",
    [
        ClusterBusy(
            "The package index could not be reached from this machine while preparing the job's packages."
        ),
        ClusterError(
            "InvalidRequest: op: 'choose' is none of ping, nodes, launch, observe, stop, remove, watch"
        ),
    ],
    ids=["the index is away", "a node daemon of an earlier version"],
)
def test_a_cluster_that_cannot_choose_now_is_asked_later_and_the_job_starts_without(
    full: World, error: Exception
) -> None:
    job = waiting(full)
    before = job_of(job)
    full.cluster.answers = [error]
    full.tick()
    assert 0 < due_in_s(job) <= RETRY_S
    full.elapse(100)
    full.tick()
    assert 20 < due_in_s(job) <= 26, "a quarter of what it has waited"
    full.elapse(10_000)
    full.tick()
    assert RETRY_MAX_S - 5 < due_in_s(job) <= RETRY_MAX_S
    after = job_of(job)
    assert (after.state, after.packages, after.fail_streak) == (before.state, before.packages, 0)
    assert not job.events.filter(code="CONDITION").exists()
    let_run(full)
    assert (state(job), launched_with(full, job)) == (State.DEPLOYING, [])


def test_a_pass_that_says_why_a_job_waits_does_not_put_off_the_choice(full: World) -> None:
    job = waiting(full)
    Job.objects.filter(pk=job.pk).update(next_reconcile_at=Now() + timedelta(seconds=1))
    before = due_in_s(job)
    assert one_pass() == []
    assert job_of(job).reason_code == "EXCEEDS_MAX_QUOTA", "this pass was the first to see it"
    assert due_in_s(job) <= before


def test_while_they_are_being_chosen_the_job_is_soon_asked_about_again(full: World) -> None:
    job = waiting(full)
    full.tick()
    assert 0 < due_in_s(job) <= CHOOSING_S
    full.cluster.answers = [CHOSEN]
    full.elapse(CHOOSING_S)
    full.tick()
    assert job_of(job).packages["lock"] == list(CHOSEN)


def test_requirements_of_which_none_applies_are_asked_about_once(full: World) -> None:
    job = waiting(full, "upper; python_version < '3'")
    full.cluster.answers = [()]
    full.settle()
    assert job_of(job).packages["lock"] == []
    assert len(full.cluster.asked) == 1
    assert not job.events.filter(reason="packages_chosen").exists()


def test_a_job_that_starts_meanwhile_keeps_what_its_start_decided(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Admission voids the lease: what was chosen under it is dropped, and the node chooses."""
    job = waiting(world)

    def choose(environment: EnvironmentSpec) -> tuple[str, ...]:
        assert cycle.run()
        return CHOSEN

    monkeypatch.setattr(world.cluster, "choose", choose)
    reconcile_due()
    assert (state(job), job_of(job).packages) == (State.DEPLOYING, {"requirements": ["upper"]})


def test_a_refusal_that_comes_too_late_fails_no_started_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = waiting(world)

    def choose(environment: EnvironmentSpec) -> tuple[str, ...]:
        assert cycle.run()
        raise LaunchRefused(REFUSED)

    monkeypatch.setattr(world.cluster, "choose", choose)
    reconcile_due()
    assert state(job) == State.DEPLOYING


def test_of_two_workers_one_asks_and_a_halt_is_not_overlooked(full: World) -> None:
    job = waiting(full)
    first = leases.claim(job.pk, "w1")
    assert first is not None
    assert leases.claim(job.pk, "w2") is None
    full.request(job, Intent.HALT)
    reconcile.hold(first)
    full.settle()
    assert (state(job), full.cluster.asked) == (State.HALTED, [])


@pytest.mark.parametrize("point", ["choose.before_cluster", "choose.after_cluster"])
def test_a_worker_that_fails_while_it_asks_leaves_the_job_to_the_next(full: World, point: str) -> None:
    job = waiting(full)
    full.cluster.answers = [CHOSEN]

    def fail(name: str) -> None:
        if name == point:
            raise RuntimeError("killed")

    failpoints.arm(fail)
    full.tick("w1")
    failpoints.arm(None)
    assert "lock" not in job_of(job).packages
    full.elapse(3)
    full.tick("w2")
    assert job_of(job).packages["lock"] == list(CHOSEN)
    assert job.events.filter(reason="packages_chosen").count() == 1


def test_many_due_jobs_are_asked_about_each_and_those_without_packages_never(full: World) -> None:
    plain = [full.submit() for _ in range(3)]
    jobs = [waiting(full) for _ in range(3)]
    full.cluster.answers = [CHOSEN]
    full.settle()
    assert all(job_of(job).packages["lock"] == list(CHOSEN) for job in jobs)
    assert all(job_of(job).packages == {} for job in plain)
    assert len(full.cluster.asked) == len(jobs)


def test_a_cluster_without_the_verb_is_never_asked(full: World) -> None:
    clusters.use(MemoryCluster())
    job = waiting(full)
    full.tick()
    assert (state(job), job_of(job).packages) == (State.QUEUED, {"requirements": ["upper"]})
    assert due_in_s(job) > 500, "as any waiting job"


def test_what_a_gang_would_be_prepared_with_is_what_versions_are_chosen_for(full: World) -> None:
    Runtime.objects.create(slug="own", title="Own", python="3.12", requirements=["torch"])
    job = waiting(full, spec=factories.spec(framework="own"))
    full.tick()
    assert full.cluster.asked == [EnvironmentSpec("own", "3.12", ["torch"], ["upper"])]
    plain = waiting(full, spec={"python": "3.12", "command": "true"})
    full.tick()
    assert full.cluster.asked[-1] == EnvironmentSpec(None, "3.12", None, ["upper"])
    assert {state(job), state(plain)} == {State.QUEUED}


def test_a_submitted_job_with_packages_is_due_soon_and_others_as_ever(full: World) -> None:
    Runtime.objects.get_or_create(slug="sklearn", defaults={"title": "scikit-learn"})

    def submitted(**more: object) -> Job:
        return job_submit(user=full.alice, tenant=full.tenant, source=factories.spec(**more))

    assert due_in_s(submitted(requirements=["upper"])) < 2
    assert due_in_s(submitted()) > 20
