"""An attempt knows which images its learners ran, and a tag that was moved between attempts is an event."""

from __future__ import annotations

import pytest

from jobs.models import Attempt, Job, JobEvent
from jobs.services import job_resume
from jobs.states import Intent, State
from tests.jobs.lifecycle.test_allowed_images import FULL, allow, submit
from tests.jobs.lifecycle.world import LOOK_S, World, gang, job_of, state

pytestmark = pytest.mark.django_db
OLD, NEW = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


@pytest.fixture
def job(world: World) -> Job:
    allow("docker.io/team/*")
    return submit(world)


def images(job: Job) -> list[tuple[str, list[str]]]:
    return list(Attempt.objects.filter(job=job).order_by("n").values_list("image", "image_digests"))


def noted(job: Job) -> list[tuple[str, str]]:
    found = JobEvent.objects.filter(job=job, reason__startswith="image").order_by("n")
    return list(found.values_list("reason", "message"))


def started(world: World) -> None:
    """Launch what waits, and look at it once more: only then does the cluster show its images."""
    world.settle()
    world.elapse(LOOK_S)
    world.settle()


def resumed(world: World, job: Job) -> None:
    """Halt it before its program runs, and resume it."""
    world.request(job, Intent.HALT)
    world.elapse(2)
    world.settle()
    world.elapse(120)
    world.settle()
    assert state(job) == State.HALTED
    job_resume(user=world.alice, job_id=job.pk)
    started(world)


def test_a_resume_with_a_moved_tag_says_so_once(world: World, job: Job) -> None:
    world.cluster.digests = {FULL: OLD}
    started(world)
    assert (images(job), noted(job)) == ([(FULL, [OLD])], [])
    resumed(world, job)
    assert (images(job)[1], noted(job)) == ((FULL, [OLD]), []), "the same image"
    world.cluster.digests = {FULL: NEW}
    resumed(world, job)
    world.elapse(5)
    world.settle()
    assert images(job)[2] == (FULL, [NEW])
    assert noted(job) == [("image_changed", f"Image {FULL} is {NEW}; in attempt 2 it was {OLD}.")]


def test_what_the_cluster_does_not_say_is_unknown_and_compared_with_the_last_that_is_known(
    world: World, job: Job
) -> None:
    world.cluster.digests = {FULL: OLD}
    started(world)
    world.cluster.digests = {}
    resumed(world, job)
    assert (images(job)[1], noted(job)) == (("", []), [])
    world.cluster.digests = {FULL: NEW}
    resumed(world, job)
    assert noted(job) == [("image_changed", f"Image {FULL} is {NEW}; in attempt 1 it was {OLD}.")]


def test_learners_that_do_not_run_the_same_image_are_an_event(world: World) -> None:
    allow("docker.io/team/*")
    job = submit(world)
    Job.objects.filter(pk=job.pk).update(learners=2)
    world.cluster.digests = {FULL: OLD}
    started(world)
    world.cluster.show_digest(gang(job), 1, NEW)
    for _ in range(3):
        world.elapse(2)
        world.settle()
    assert images(job) == [(FULL, [OLD, NEW])]
    assert noted(job) == [
        ("images_differ", f"The nodes name different digests of image {FULL}: {OLD}, {NEW}.")
    ]


def test_a_job_without_an_image_has_none(world: World) -> None:
    job = world.submit()
    world.settle()
    assert (images(job), noted(job)) == ([("", [])], [])
    assert job_of(job).attempt == 1
