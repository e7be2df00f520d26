"""A job gets its secrets when it is launched, for its owner; without one of them it is not launched at all."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.clusters.base import GangSpec
from jobs.errors import SecretNotFound
from jobs.lifecycle import reconcile
from jobs.models import Job, JobEvent
from jobs.services import job_halt, job_resume
from jobs.states import State
from portal.settings.secret import SecretsKeys, new_secrets_key
from tenants.roles import Role
from tenants.services.secrets import secret_delete, secret_set
from tests import factories
from tests.jobs.lifecycle.world import World, gang, job_of, state

pytestmark = pytest.mark.django_db

VALUE = "launch-secret-value"


@pytest.fixture
def launched(world: World, monkeypatch: pytest.MonkeyPatch) -> list[GangSpec]:
    """Every gang that the cluster gets to launch."""
    specs: list[GangSpec] = []
    launch = world.cluster.launch

    def noted(spec: GangSpec) -> None:
        specs.append(spec)
        launch(spec)

    monkeypatch.setattr(world.cluster, "launch", noted)
    return specs


def grant(world: World, **granted: str) -> Job:
    job = world.submit()
    Job.objects.filter(pk=job.pk).update(spec=job.spec | {"secrets": granted})
    return job


def test_the_owners_own_secret_reaches_the_launch_and_nothing_else(
    world: World, launched: list[GangSpec], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    manager = factories.member(world.tenant, role=Role.MANAGER)
    secret_set(user=manager, tenant=world.tenant, name="wandb", value="of-the-tenant")
    secret_set(user=manager, tenant=world.tenant, name="hf", value="of-the-tenant-too")
    secret_set(user=world.alice, name="wandb", value=VALUE)
    secret_set(user=manager, name="wandb", value="of-the-manager")
    job = grant(world, WANDB_API_KEY="wandb", HF_TOKEN="hf")
    world.settle()
    (spec,) = launched
    assert spec.secrets == {"WANDB_API_KEY": VALUE, "HF_TOKEN": "of-the-tenant-too"}
    assert VALUE not in repr(spec)
    assert VALUE not in str(Job.objects.filter(pk=job.pk).values())
    assert VALUE not in str(list(JobEvent.objects.filter(job=job).values()))
    assert VALUE not in caplog.text


def test_a_job_whose_secret_was_deleted_fails_and_says_which(world: World, launched: list[GangSpec]) -> None:
    secret_set(user=world.alice, name="wandb", value=VALUE)
    job = grant(world, WANDB_API_KEY="wandb")
    secret_delete(user=world.alice, name="wandb")
    world.settle()
    failed = job_of(job)
    assert (failed.state, failed.reason_code) == (State.FAILED, "secret_missing")
    assert "Secret wandb (secrets.WANDB_API_KEY) does not exist any more" in failed.reason_message
    assert not launched
    assert not world.cluster.listing()


def key_lost(world: World, settings: Any, folder: Path) -> tuple[Path, str]:
    """A secret, wandb, whose key was replaced by another: where keys are, and what puts it back there."""
    keys = folder / "secrets_keys"
    settings.LUTHIER_SECRETS_KEYS = SecretsKeys((), keys)
    secret_set(user=world.alice, name="wandb", value=VALUE)
    lost = keys.read_text()
    keys.write_text(new_secrets_key())
    return keys, lost


def test_a_job_whose_key_is_missing_waits_and_starts_once_it_is_back(
    world: World, launched: list[GangSpec], settings: Any, tmp_path: Path
) -> None:
    keys, lost = key_lost(world, settings, tmp_path)
    job = grant(world, WANDB_API_KEY="wandb")
    world.settle()
    waiting = job_of(job)
    assert (waiting.state, waiting.reason_code) == (State.DEPLOYING, "secrets_unavailable")
    assert "is missing: an operator must put it back" in waiting.reason_message
    assert not launched
    keys.write_text(lost)
    world.elapse(30)
    world.settle()
    assert state(job) == State.DEPLOYING
    assert set(world.cluster.listing()) == {gang(job)}


def test_a_job_whose_key_stays_missing_releases_its_slots_and_starts_from_the_queue(
    world: World, launched: list[GangSpec], settings: Any, tmp_path: Path
) -> None:
    keys, lost = key_lost(world, settings, tmp_path)
    job = grant(world, WANDB_API_KEY="wandb")
    world.settle()
    held = 0
    for _ in range(120):
        world.elapse(15)
        world.settle()
        held += state(job) == State.DEPLOYING
    assert 4 <= held < 60, "it holds its slots for a minute at a time, with growing pauses"
    moved = JobEvent.objects.filter(job=job, from_state=State.STOPPING, to_state=State.QUEUED)
    assert moved.count() >= 2
    assert set(moved.values_list("reason", flat=True)) == {"secrets_unavailable"}
    assert "doesn't count against max_restarts" in moved.latest("n").message
    assert job_of(job).restarts_used == 0
    assert not launched
    keys.write_text(lost)
    world.elapse(600)
    world.settle()
    assert state(job) == State.DEPLOYING
    assert set(world.cluster.listing()) == {gang(job)}


def test_a_job_that_another_user_resumes_gets_its_owners_secrets(
    world: World, launched: list[GangSpec]
) -> None:
    manager = factories.member(world.tenant, role=Role.MANAGER)
    secret_set(user=world.alice, name="wandb", value=VALUE)
    secret_set(user=manager, name="wandb", value="of-the-manager")
    job = grant(world, WANDB_API_KEY="wandb")
    job_halt(user=manager, job_id=job.pk)
    world.settle()
    assert (state(job), launched) == (State.HALTED, [])
    job_resume(user=manager, job_id=job.pk)
    world.settle()
    assert [spec.secrets for spec in launched] == [{"WANDB_API_KEY": VALUE}]


def test_a_job_without_secrets_asks_for_none(
    world: World, launched: list[GangSpec], django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(0):
        assert reconcile._secrets(Job(spec={})) == {}


def test_a_resume_that_would_fail_for_a_deleted_secret_is_refused_and_the_job_stays_halted(
    world: World, launched: list[GangSpec]
) -> None:
    secret_set(user=world.alice, name="wandb", value=VALUE)
    job = grant(world, WANDB_API_KEY="wandb")
    job_halt(user=world.alice, job_id=job.pk)
    world.settle()
    secret_delete(user=world.alice, name="wandb")
    with pytest.raises(SecretNotFound) as refused:
        job_resume(user=world.alice, job_id=job.pk)
    (wrong,) = refused.value.details["errors"]
    assert (wrong["path"], wrong["got"]) == ("secrets.WANDB_API_KEY", "wandb")
    world.settle()
    assert state(job) == State.HALTED
    secret_set(user=world.alice, name="wandb", value=VALUE)
    job_resume(user=world.alice, job_id=job.pk)
    world.settle()
    assert [spec.secrets for spec in launched] == [{"WANDB_API_KEY": VALUE}]
