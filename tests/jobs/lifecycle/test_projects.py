"""Limits of projects at the last moment, and in the snapshot that plans are made of."""

from __future__ import annotations

import pytest

from gpu_scheduler import model
from jobs import invariants
from jobs.lifecycle import cycle
from jobs.models import Job, JobEvent
from jobs.selectors.snapshot import projects
from jobs.services.projects import projects_change
from jobs.states import State
from tenants.models import Membership, Project, ProjectShare
from tenants.services.projects import WHOLE, Change
from tests.jobs.lifecycle.test_limits import admits
from tests.jobs.lifecycle.world import World, job_of, state, used


@pytest.mark.django_db
def test_a_start_above_a_projects_limit_is_refused_and_another_projects_is_not(world: World) -> None:
    vision = Project.objects.create(tenant=world.tenant, slug="vision")
    ProjectShare.objects.create(project=vision, gpu_type="cpu", guarantee=1, limit=3)
    jobs = [world.submit(slots=2) for _ in range(3)]
    Job.objects.filter(pk__in=[job.pk for job in jobs[:2]]).update(project="vision")
    for job in jobs:
        job.refresh_from_db()
    assert [admits(job) for job in jobs] == [True, False, True]
    assert used(world.tenant) == 4
    assert invariants.violations() == []


@pytest.mark.django_db
def test_the_snapshot_has_all_projects_with_their_shares(world: World) -> None:
    assert projects() == ()
    vision = Project.objects.create(tenant=world.tenant, slug="vision", weight=2)
    Project.objects.create(tenant=world.tenant, slug="speech")
    for kind in ("cpu", "a100"):
        ProjectShare.objects.create(project=vision, gpu_type=kind, guarantee=1, limit=3)
    slug = world.tenant.slug
    assert projects() == (
        model.Project(slug, "vision", 2, (model.ProjectShare("cpu", 1, 3), model.ProjectShare("a100", 1, 3))),
        model.Project(slug, "speech"),
    )


@pytest.mark.django_db
def test_the_reason_of_what_waits_for_its_project_follows_the_next_plan(world: World) -> None:
    Membership.objects.filter(user=world.alice).update(role="manager")

    def allow(slots: int | None) -> None:
        changes = [Change("vision", WHOLE, {"weight": 1}), Change("vision", "cpu", {"limit": slots})]
        projects_change(user=world.alice, tenant=world.tenant, changes=changes, reason="A deadline")

    allow(3)
    jobs = [world.submit(slots=2, project="vision") for _ in range(2)]
    world.settle()
    assert [state(job) for job in jobs] == [State.DEPLOYING, State.QUEUED]
    assert job_of(jobs[1]).reason_code == "PROJECT_GPUS"
    allow(1)
    cycle.run()
    assert job_of(jobs[1]).reason_code == "EXCEEDS_PROJECT_LIMIT"
    assert "the project can have 1 at once" in job_of(jobs[1]).reason_message
    (changed,) = JobEvent.objects.filter(job=jobs[1], code="QUOTA_CHANGED")
    assert changed.message.startswith("Project vision: limit of cpu changed from 3 to 1, by ")
    allow(4)
    cycle.run()
    assert state(jobs[1]) != State.QUEUED
