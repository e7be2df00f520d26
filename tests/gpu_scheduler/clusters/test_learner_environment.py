"""The environment of a learner is built in one place, from the launch; a driver adds addresses and folders."""

from __future__ import annotations

import json
from dataclasses import replace

from gpu_scheduler.clusters.base import GangSpec
from gpu_scheduler.clusters.environment import Rendezvous, of_program, of_shipper
from tests.gpu_scheduler.clusters.harness import launch

FOLDERS = {"DATA_DIR": "/data"}


def rendezvous(learners: int) -> Rendezvous:
    hosts = [f"gang-{rank}" for rank in range(learners)]
    return Rendezvous([f"{host}:7000" for host in hosts], "gang-0:7001", "/state/hostfile")


def env_of(gang: GangSpec, rank: int = 0) -> dict[str, str]:
    return of_program(gang, rank, rendezvous=rendezvous(len(gang.learners)), folders=FOLDERS)


def with_env(**env: str) -> GangSpec:
    gang = launch("job-x-2", "runs")
    return replace(gang, learners=[replace(gang.learners[0], env=env)])


def test_a_learner_gets_the_names_of_ffdl_and_its_rank() -> None:
    gang = replace(launch("job-x-2", "runs", "runs", slots=3), slot_type="h200", checkpoint_every_s=600)
    env = env_of(gang, 1)
    assert env["DATA_DIR"] == "/data"
    assert (env["TRAINING_ID"], env["LEARNER_NAME_PREFIX"]) == ("x", "job-x-2")
    assert (env["LEARNER_ID"], env["NUM_LEARNERS"], env["GPU_COUNT"]) == ("2", "2", "3")
    assert (env["LUTHIER_ATTEMPT"], env["LUTHIER_RANK"], env["LUTHIER_GRACE_S"]) == ("2", "1", "5")
    assert env["LUTHIER_CHECKPOINT_EVERY_S"] == "600"


def test_cpu_slots_are_no_gpus() -> None:
    assert env_of(launch("job-x-2", "runs", slots=3))["GPU_COUNT"] == "0"


def test_each_framework_finds_the_other_learners() -> None:
    env = env_of(launch("job-x-2", "runs", "runs"), 1)
    assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["RANK"], env["WORLD_SIZE"]) == (
        "gang-0", "7001", "1", "2",
    )  # fmt: skip
    assert env["JAX_COORDINATOR_ADDRESS"] == "gang-0:7001"
    assert json.loads(env["TF_CONFIG"])["cluster"] == {"worker": ["gang-0:7000", "gang-1:7000"]}
    assert env["MPI_HOSTFILE"] == "/state/hostfile"


def rendezvous_variables(env: dict[str, str]) -> set[str]:
    """What makes a program take itself for one of several processes."""
    prefixes = ("MASTER_", "JAX_", "LOCAL_", "OMPI_", "MPI_")
    names = {"RANK", "WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "NNODES", "TF_CONFIG"}
    return {name for name in env if name in names or name.startswith(prefixes)}


def test_a_single_learner_is_not_distributed() -> None:
    env = env_of(launch("job-x-2", "runs"))
    assert rendezvous_variables(env) == set()
    assert (env["LUTHIER_RANK"], env["NUM_LEARNERS"]) == ("0", "1"), (
        "training.rank() and world_size() read them"
    )


def test_a_single_learner_is_distributed_if_its_spec_says_so() -> None:
    env = env_of(replace(launch("job-x-2", "runs"), distributed=True))
    assert rendezvous_variables(env) == rendezvous_variables(env_of(launch("job-x-2", "runs", "runs")))
    assert (env["RANK"], env["WORLD_SIZE"], env["JAX_NUM_PROCESSES"]) == ("0", "1", "1")
    assert json.loads(env["TF_CONFIG"])["cluster"] == {"worker": ["gang-0:7000"]}


def test_several_learners_work_independently_if_their_spec_says_so() -> None:
    env = env_of(replace(launch("job-x-2", "runs", "runs"), distributed=False), 1)
    assert rendezvous_variables(env) == set()
    assert (env["LUTHIER_RANK"], env["NUM_LEARNERS"]) == ("1", "2")


def test_a_jobs_own_variables_replace_the_thread_count_and_nothing_else() -> None:
    env = env_of(with_env(OMP_NUM_THREADS="7", TRAINING_ID="forged", DATA_DIR="/forged", MINE="1"))
    assert (env["OMP_NUM_THREADS"], env["MINE"]) == ("7", "1")
    assert (env["TRAINING_ID"], env["DATA_DIR"]) == ("x", "/data")


def test_only_the_shipper_gets_the_secret() -> None:
    gang = launch("job-x-2", "runs")
    assert of_shipper(gang, 0, folders=FOLDERS)["LUTHIER_SECRET"] == "secret-0"
    assert "secret-0" not in env_of(gang).values()


def test_the_programs_own_secrets_are_named_to_the_launcher_and_unknown_to_the_shipper() -> None:
    gang = replace(
        launch("job-x-2", "runs"), secrets={"WANDB_API_KEY": "own-value", "HF_TOKEN": "other-value"}
    )
    assert env_of(gang)["LUTHIER_SECRET_NAMES"] == "HF_TOKEN WANDB_API_KEY"
    assert "LUTHIER_SECRET_NAMES" not in env_of(launch("job-x-2", "runs"))
    for env in (env_of(gang), of_shipper(gang, 0, folders=FOLDERS)):
        assert not {"own-value", "other-value"} & set(env.values())
    assert "own-value" not in repr(gang)
