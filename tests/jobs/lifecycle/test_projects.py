"""Limits of projects at the last moment, and in the snapshot that plans are made of."""

from __future__ import annotations

import pytest

from gpu_scheduler import model
from jobs import invariants
from jobs.models import Job
from jobs.selectors.snapshot import projects
from tenants.models import Project, ProjectShare
from tests.jobs.lifecycle.test_limits import admits
from tests.jobs.lifecycle.world import World, used


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
