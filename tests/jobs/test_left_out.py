"""What pods_at_scale says of jobs whose gangs did not run: forgotten, or without room."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from bench.left_out import free_gpus, left_out, without_room
from gpu_scheduler.clusters.kubernetes import manifests
from jobs.models import Job
from jobs.states import State
from tests import factories
from tools.kube import fake

pytestmark = pytest.mark.django_db

NODES = {"a": 8, "b": 8}


def pod(job: Job, node: str, gpus: int) -> dict[str, Any]:
    container = {"resources": {"requests": {fake.GPU: str(gpus)}}}
    return {
        "metadata": {"labels": {manifests.JOB: job.pk}},
        "spec": {"nodeName": node, "containers": [container]},
    }


@pytest.mark.parametrize(
    ("on", "no_room", "free"), [(["a", "a"], 0, {"a": 0, "b": 8}), (["a", "b"], 1, {"a": 4, "b": 4})]
)
def test_a_gang_that_fits_nowhere_is_not_forgotten(
    capsys: pytest.CaptureFixture[str], on: list[str], no_room: int, free: dict[str, int]
) -> None:
    """Eight GPUs are free each time, but not always those of one node."""
    runs = factories.job(state=State.PROCESSING, learners=2, slots=4)
    waits = factories.job(state=State.QUEUED, learners=1, slots=8, name="waits for GPUs")
    pods = [pod(runs, node, 4) for node in on]
    with connection.cursor() as cursor:
        [found] = left_out(cursor, pods)
    assert (found.said["job"], found.missing) == (waits.pk, 1)
    assert free_gpus(NODES, pods) == free
    assert without_room([found], free) == no_room
    said = capsys.readouterr().out
    assert "name: waits for GPUs" in said
    assert "state: QUEUED" in said


def test_a_place_is_that_of_one_gang() -> None:
    for learners, gpus in ((2, 4), (1, 8), (1, 2)):
        factories.job(state=State.QUEUED, learners=learners, slots=gpus)
    with connection.cursor() as cursor:
        found = left_out(cursor, [])
    assert without_room(found, {"a": 8, "b": 2}) == 1, (
        "the second one: the first has its place, the third another"
    )


def test_a_gang_of_which_some_pods_run_is_no_matter_of_room(capsys: pytest.CaptureFixture[str]) -> None:
    job = factories.job(state=State.PROCESSING, learners=2, slots=4)
    with connection.cursor() as cursor:
        [found] = left_out(cursor, [pod(job, "a", 4)])
    assert (found.missing, without_room([found], {"a": 0, "b": 0})) == (1, 0)
    assert "1 of 2" in capsys.readouterr().out
