"""Who sees which job, and how a job is shown."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import connection
from guardian.shortcuts import assign_perm
from pytest_django import DjangoAssertNumQueries

from jobs.errors import JobForbidden, JobNotFound
from jobs.models import Job
from jobs.selectors.jobs import (
    ORDERS,
    detailed,
    job_get,
    job_list,
    job_to_manage,
    job_to_operate,
    may_manage,
    may_operate,
)
from jobs.selectors.serializers import JobSerializer
from jobs.states import Intent, State, display_phase
from tenants.models import Token
from tenants.roles import Role
from tests import factories
from tests.jobs.conftest import People

pytestmark = pytest.mark.django_db
CONTRACT = {
    *(
        "id",
        "name",
        "tenant",
        "owner",
        "state",
        "phase",
        "intent",
        "reason",
        "attempt",
        "restarts_used",
        "spec",
    ),
    *("framework", "learners", "gpus", "gpu_type", "priority", "tags", "progress", "metrics", "checkpoint"),
    *("gpu_seconds", "created_at", "queued_at", "started_at", "finished_at", "allowed_actions", "etag"),
}


def test_only_members_and_platform_admins_see_a_job(people: People) -> None:
    job = factories.job(owner=people.alice)
    for person in (people.alice, people.carol, people.dave, people.admin):
        assert job_get(user=person, job_id=job.pk) == job
    for stranger in (people.bob, AnonymousUser()):
        with pytest.raises(JobNotFound):
            job_get(user=stranger, job_id=job.pk)
        assert not job_list(user=stranger).exists()


def test_a_former_member_sees_none_of_the_tenants_jobs(people: People) -> None:
    job = factories.job(owner=people.alice)
    people.alice.memberships.all().delete()
    with pytest.raises(JobNotFound):
        job_get(user=people.alice, job_id=job.pk)
    assert not may_operate(people.alice, job)


def test_a_shared_job_is_seen_and_with_operate_also_halted(people: People) -> None:
    job, other = factories.job(owner=people.alice), factories.job(owner=people.alice)
    assign_perm("jobs.view_job", people.bob, job)
    assert list(job_list(user=people.bob)) == [job]
    assert not may_operate(people.bob, job)
    assign_perm("jobs.operate_job", people.bob, job)
    bob = type(people.bob).objects.get(pk=people.bob.pk)
    assert may_operate(bob, job)
    assert not may_operate(bob, other)
    assert not may_manage(bob, job)
    with pytest.raises(
        JobForbidden,
        match="shared with you to halt, resume, save and cancel it; anything else needs a role in",
    ):
        job_to_manage(user=bob, job_id=job.pk)


def test_a_refusal_says_what_the_caller_lacks(people: People) -> None:
    job = factories.job(owner=people.alice)
    people.alice.memberships.update(role=Role.VIEWER)
    with pytest.raises(JobForbidden, match="the role researcher or higher in"):
        job_to_operate(user=people.alice, job_id=job.pk)
    people.alice.memberships.update(role=Role.RESEARCHER)
    people.alice.token = Token(user=people.alice, role_ceiling=Role.VIEWER)
    with pytest.raises(JobForbidden, match="This token has the role viewer, which can only read"):
        job_to_operate(user=people.alice, job_id=job.pk)


def test_a_deleted_job_is_gone_for_every_user(people: People) -> None:
    job = factories.job(owner=people.alice, state=State.COMPLETED)
    Job.objects.filter(pk=job.pk).update(deleted_at=job.created_at)
    with pytest.raises(JobNotFound):
        job_get(user=people.admin, job_id=job.pk)


@pytest.mark.parametrize(
    "text", ["", "x", "0" * 13, "../../etc/pa", "%2e%2e%2fabcd", "UPPERCASE123", "o0il1o0il1o0"]
)
def test_an_id_of_the_wrong_shape_is_a_missing_job(people: People, text: str) -> None:
    with pytest.raises(JobNotFound):
        job_get(user=people.admin, job_id=text)


def test_filters_narrow_the_list(people: People) -> None:
    mnist = factories.job(owner=people.alice, name="mnist", tags=["vision"], state=State.PROCESSING)
    bert = factories.job(owner=people.bob, name="bert", gpu_type="a100", gpus=1, state=State.COMPLETED)
    everything = {"user": people.admin}
    assert list(job_list(**everything)) == sorted([mnist, bert], key=lambda job: job.pk, reverse=True)
    assert list(job_list(**everything, tenant="nlp-research")) == [bert]
    assert list(job_list(**everything, states=[State.PROCESSING])) == [mnist]
    assert list(job_list(**everything, owner="alice")) == [mnist]
    assert list(job_list(**everything, tag="vision")) == [mnist]
    assert list(job_list(**everything, gpu_type="a100")) == [bert]
    assert list(job_list(**everything, gpu_type="cpu")) == [mnist]
    assert list(job_list(**everything, q="MNI")) == [mnist]
    assert list(job_list(**everything, q=bert.pk)) == [bert]
    assert list(job_list(**everything, q="%")) == []
    for order in ORDERS:
        assert set(job_list(**everything, order=order)) == {mnist, bert}


def test_a_job_is_found_by_the_type_it_was_last_on_after_its_end_too(people: People) -> None:
    ended = factories.job(owner=people.alice, gpus=1, gpu_type="a100", state=State.COMPLETED)
    halted = factories.job(owner=people.alice, gpus=1, gpu_type="h100", state=State.HALTED)
    halted.gpu_type = "a100"
    factories.add_attempt(halted, 2, held=False)
    Job.objects.filter(pk=halted.pk).update(attempt=2)
    Job.objects.filter(pk__in=[ended.pk, halted.pk]).update(gpu_type="")
    waiting = factories.job(owner=people.alice, gpus=1)
    on_cpu = [factories.job(owner=people.alice, state=state) for state in (State.QUEUED, State.COMPLETED)]
    assert set(job_list(user=people.alice, gpu_type="a100")) == {ended, halted}
    assert set(job_list(user=people.alice, gpu_type="h100")) == set()
    assert set(job_list(user=people.alice, gpu_type="cpu")) == set(on_cpu)
    types = [
        JobSerializer.render(job_get(user=people.alice, job_id=job.pk))["slot_type"]
        for job in (ended, halted, waiting)
    ]
    assert types == ["a100", "a100", None]


def test_a_job_is_shown_with_every_field_of_the_contract_as_plain_json(people: People) -> None:
    job = factories.job(owner=people.alice, state=State.PROCESSING, gpus=1, gpu_type="a100", learners=2)
    factories.checkpoint(job, step=10)
    factories.checkpoint(job, step=30)
    factories.checkpoint(job, step=20)
    job.progress.__class__.objects.filter(job=job).update(
        step=30, total=120, metrics={"loss": {"last": 0.5, "step": 30}}
    )
    view = JobSerializer.render(job_get(user=people.carol, job_id=job.pk))
    assert set(view) >= CONTRACT
    assert json.loads(json.dumps(view)) == view
    assert view["checkpoint"]["n"] == 2
    assert view["checkpoint"]["at"].endswith("Z")
    assert view["progress"] == {"step": 30, "total": 120, "percent": 25.0}
    assert view["gpu_seconds"] >= 0
    assert view["allowed_actions"] == ["halt", "checkpoint", "cancel", "clone", "edit"]


def test_a_page_of_jobs_costs_the_same_however_long_it_is(
    people: People, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(5):
        factories.checkpoint(factories.job(owner=people.alice, state=State.PROCESSING))
    with django_assert_max_num_queries(4):  # tenants, shared jobs, the page, its detailss
        assert len([JobSerializer.render(job) for job in detailed(job_list(user=people.alice)[:50])]) == 5


@pytest.mark.parametrize(
    ("state", "intent", "stop_reason", "attempt", "word"),
    [
        (State.QUEUED, Intent.RUN, "", 0, "Queued"),
        (State.PROCESSING, Intent.RUN, "", 1, "Processing"),
        (State.PROCESSING, Intent.HALT, "", 1, "Halting"),
        (State.STOPPING, Intent.HALT, "halt_requested", 1, "Halting"),
        (State.STOPPING, Intent.RUN, "preempted", 1, "Preempting"),
        (State.STOPPING, Intent.CANCEL, "halt_requested", 1, "Canceling"),
        (State.STORING, Intent.HALT, "", 1, "Storing"),
        (State.STORING, Intent.CANCEL, "", 1, "Canceling"),
        (State.HALTED, Intent.HALT, "halt_requested", 1, "Halted"),
        (State.HALTED, Intent.RUN, "halt_requested", 1, "Resuming"),
        (State.DEPLOYING, Intent.RUN, "halt_requested", 2, "Resuming"),
        (State.PROCESSING, Intent.RUN, "halt_requested", 2, "Processing"),
        (State.COMPLETED, Intent.HALT, "", 1, "Completed"),
    ],
)
def test_the_phase_says_what_a_job_is_on_its_way_to(
    state: State, intent: Intent, stop_reason: str, attempt: int, word: str
) -> None:
    assert display_phase(state, intent, stop_reason, attempt) == word


def test_a_change_of_state_writes_little_for_the_search() -> None:
    """Each writes all terms of the job again; jobs of a sweep have nearly all terms in common."""
    of = factories.tenant("vision-lab")
    owner = factories.member(of)
    for n in range(200):
        factories.job(owner=owner, of=of, name=f"sweep-{n}", tags=["baseline"])
    with connection.cursor() as cursor:
        cursor.execute(
            "EXPLAIN (ANALYZE, WAL, FORMAT JSON)"
            " UPDATE jobs_job SET state = 'HALTED' WHERE tenant_id = %s RETURNING id",
            [of.pk],
        )
        ((plan,),) = cursor.fetchall()[0]
    assert (
        plan["Plan"]["WAL Bytes"] < 200 * 6000
    )  # bytes of the log of changes; 10,000 of each if every term went to its place at once
