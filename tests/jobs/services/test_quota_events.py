"""A change set is one event of each waiting job, in one statement per batch: the lock of all quotas is held."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.models import Job, JobEvent
from jobs.services import quotas
from jobs.services.projects import projects_change, projects_undo
from jobs.services.quotas import quotas_change
from jobs.states import EventCode
from tenants.models import Tenant, User
from tenants.roles import Role
from tenants.services import quotas as limits
from tenants.services.projects import MAX_CHANGES, WHOLE, Change, projects_of
from tests import factories

pytestmark = pytest.mark.django_db
TYPES = [f"type-{n}" for n in range(9)]
PROJECTS = [f"project-{n}" for n in range(MAX_CHANGES // (len(TYPES) + 1))]
JOBS = 40


@pytest.fixture
def lab() -> Tenant:
    return factories.tenant("vision-lab", quotas=dict.fromkeys(TYPES, 100))


@pytest.fixture
def alice(lab: Tenant) -> User:
    return factories.member(lab, "alice", role=Role.MANAGER)


def waiting(alice: User, how_many: int) -> list[Job]:
    return [
        factories.job(owner=alice, gpus=1, gpu_type=TYPES[n % 4] if n % 4 else "", project=PROJECTS[n % 3])
        for n in range(how_many)
    ]


def everything() -> list[Change]:
    return [
        Change(project, kind, {"weight": 2} if kind == WHOLE else {"guarantee": 1, "limit": 7})
        for project in PROJECTS
        for kind in (WHOLE, *TYPES)
    ]


def events_of(job: Job) -> list[JobEvent]:
    return list(JobEvent.objects.filter(job=job, code=EventCode.QUOTA_CHANGED).order_by("n"))


def statements(alice: User, lab: Tenant, changes: list[Change]) -> int:
    with CaptureQueriesContext(connection) as asked:
        made = projects_change(user=alice, tenant=lab, changes=changes, reason="A deadline")
    assert len(made.changes) == len(changes)
    return len(asked)


def test_the_statements_of_a_change_set_grow_with_batches_of_jobs_alone(
    lab: Tenant, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = statements(alice, lab, everything()[:1])
    Job.objects.all().delete()
    jobs = waiting(alice, JOBS)
    monkeypatch.setattr(quotas, "EVENTS_AT_ONCE", JOBS // 4)
    assert statements(alice, lab, everything()[1:]) <= few + 4 + 2, "four batches, and the first shares"
    assert [len(events_of(job)) for job in jobs] == [1] * JOBS


def test_the_event_of_a_change_set_has_all_that_concerns_the_job_and_its_words_are_bounded(
    lab: Tenant, alice: User
) -> None:
    any_type, one_type = waiting(alice, 2)
    on_cpus = factories.job(owner=alice, project=PROJECTS[0])
    projects_change(user=alice, tenant=lab, changes=everything(), reason="A deadline")
    (event,) = events_of(any_type)
    concerned = [(each["project"], each["gpu_type"]) for each in event.numbers["changes"]]
    assert concerned == [(PROJECTS[0], kind) for kind in ("", *TYPES)]
    assert event.numbers["changes"][1]["terms"] == {"guarantee": [0, 1], "limit": [None, 7]}
    assert event.message.startswith(
        "Project project-0: added and guarantee of type-0 changed from 0 to 1 and "
    )
    assert event.message.endswith(" and 2 more changes, by alice: A deadline")
    (event,) = events_of(one_type)
    assert [each["gpu_type"] for each in event.numbers["changes"]] == ["", TYPES[1]]
    (event,) = events_of(on_cpus)
    assert event.message == "Project project-0: added, by alice: A deadline"
    one_type.refresh_from_db()
    assert one_type.event_seq == events_of(one_type)[0].n


def test_an_undo_of_a_full_set_leaves_no_project_and_says_so_once(lab: Tenant, alice: User) -> None:
    (job,) = waiting(alice, 1)
    made = projects_change(user=alice, tenant=lab, changes=everything(), reason="A deadline")
    assert made.id
    projects_undo(user=alice, tenant=lab, change_set=made.id, reason="Back")
    assert projects_of(lab) == {}
    assert [event.numbers["changes"][0]["terms"] for event in events_of(job)] == [
        {"weight": [None, 2]},
        {"weight": [2, None]},
    ]


def test_limits_of_many_tenants_are_recorded_by_one_pair_of_statements(alice: User) -> None:
    admin = factories.user("admin", is_superuser=True)
    tenants = [factories.tenant(quotas=dict.fromkeys(TYPES, 3)) for _ in range(5)]
    jobs = [factories.job(of=tenant, gpus=1) for tenant in tenants]
    beside = factories.job(owner=alice, gpus=1)
    changes = [limits.Change(tenant.slug, kind, limit=2) for tenant in tenants for kind in TYPES]
    with CaptureQueriesContext(connection) as asked:
        quotas_change(user=admin, changes=changes, reason="Less")
    written = [
        query["sql"] for query in asked if "jobs_job" in query["sql"] and "SELECT" not in query["sql"][:6]
    ]
    assert [sql.split()[0] for sql in written] == ["UPDATE", "INSERT"]
    for job in jobs:
        (event,) = events_of(job)
        assert [(each["from"], each["to"]) for each in event.numbers["changes"]] == [(3, 2)] * len(TYPES)
        assert event.message.endswith("and 1 more change by admin: Less")
    assert events_of(beside) == []
