"""A job runs only images that its tenant may run, at submit, clone and resume, and again when it is launched."""

from __future__ import annotations

import pytest

from jobs.errors import ImageNotAllowed, SpecInvalid
from jobs.models import Job, Runtime
from jobs.services import job_clone, job_halt, job_resume, job_submit
from jobs.states import State
from tenants.models import Tenant
from tests import factories
from tests.jobs.lifecycle.world import World, gang, job_of, state

pytestmark = pytest.mark.django_db

IMAGE = "team/train:1"
FULL = "docker.io/team/train:1"


def allow(*patterns: str) -> None:
    Tenant.objects.update(image_patterns=list(patterns))


def submit(world: World, image: str | None = IMAGE) -> Job:
    """A job that names this image. None: the framework sklearn."""
    spec = factories.spec()
    if image:
        spec = {key: value for key, value in spec.items() if key != "framework"} | {"image": image}
    return job_submit(user=world.alice, tenant=Tenant.objects.get(pk=world.tenant.pk), source=spec)


def refused(error: pytest.ExceptionInfo[SpecInvalid]) -> tuple[str, str]:
    (wrong,) = error.value.details["errors"]
    assert FULL in wrong["message"]
    assert "A platform admin can allow it" in wrong["message"]
    return wrong["path"], wrong["code"]


def test_no_image_is_allowed_until_an_admin_allows_it(world: World, settings: object) -> None:
    with pytest.raises(SpecInvalid) as error:
        submit(world)
    assert refused(error) == ("image", "image_not_allowed")
    settings.KUBE_ALLOWED_IMAGES = ("docker.io/team/*",)  # type: ignore[attr-defined]
    assert submit(world).state == State.QUEUED
    allow()
    with pytest.raises(SpecInvalid):
        submit(world)


def test_the_cluster_gets_the_fully_qualified_reference_that_was_compared(world: World) -> None:
    allow("docker.io/team/*")
    job = submit(world)
    world.settle()
    assert world.cluster.launched(gang(job)).image == FULL


def test_an_image_that_is_not_allowed_any_more_is_neither_cloned_nor_resumed(world: World) -> None:
    allow("docker.io/team/*")
    job = submit(world)
    job_halt(user=world.alice, job_id=job.pk)
    world.settle()
    allow("registry.example/**")
    with pytest.raises(SpecInvalid) as error:
        job_clone(user=world.alice, job_id=job.pk)
    assert refused(error) == ("image", "image_not_allowed")
    with pytest.raises(ImageNotAllowed) as error:
        job_resume(user=world.alice, job_id=job.pk)
    assert refused(error) == ("image", "image_not_allowed")
    assert state(job) == State.HALTED
    allow(FULL)
    job_resume(user=world.alice, job_id=job.pk)
    world.settle()
    assert world.cluster.launched(gang(job_of(job))).image == FULL


def test_a_job_that_waited_while_its_image_was_forbidden_is_not_launched(world: World) -> None:
    allow("*")
    job = submit(world)
    allow()
    world.settle()
    failed = job_of(job)
    assert (failed.state, failed.reason_code) == (State.FAILED, "image_error")
    assert f"Image {FULL} is not allowed for this tenant." in failed.reason_message
    assert not world.cluster.listing()


def test_the_image_of_a_framework_is_asked_for_at_each_step_too(world: World) -> None:
    runtime = Runtime.objects.create(slug="sklearn", title="scikit-learn", image=IMAGE)
    with pytest.raises(SpecInvalid) as error:
        submit(world, None)
    assert refused(error) == ("framework", "image_not_allowed")
    allow("docker.io/team/**")
    halted, waiting = submit(world, None), submit(world, None)
    job_halt(user=world.alice, job_id=halted.pk)
    world.settle()
    assert world.cluster.launched(gang(waiting)).image == FULL
    Runtime.objects.filter(pk=runtime.pk).update(image="evil.example/train:1")
    with pytest.raises(ImageNotAllowed):
        job_resume(user=world.alice, job_id=halted.pk)
