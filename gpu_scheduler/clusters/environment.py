"""The environment of a learner's two processes, built from its gang's spec: the same on every cluster.

A driver adds what only it knows: addresses, folders, devices and the machine's own variables. Names that a framework or
FfDL defined are kept as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_scheduler.clusters.base import GangSpec
from gpu_scheduler.model import CPU_TYPE


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the learners of a gang find each other.

    workers: "host:port" per rank. master: "host:port" of rank 0, on a port of its own. hostfile: path, for MPI.
    """

    workers: Sequence[str]
    master: str
    hostfile: str


def of_program(
    spec: GangSpec, rank: int, *, rendezvous: Rendezvous, folders: Mapping[str, str]
) -> dict[str, str]:
    """The training program's environment, without the values of its secrets, of which the launcher learns the names:
    it masks them in the log. folders: FfDL's names (JOB_STATE_DIR …) -> paths.

    The job's own variables override none of these but OMP_NUM_THREADS.
    """
    learner = spec.learners[rank]
    env = {
        # Two learners on one machine must not both use all of its cores.
        "OMP_NUM_THREADS": str(max(1, int(spec.cpus))),
        **learner.env,
        **folders,
        "TRAINING_ID": spec.job,
        "TRAINING_COMMAND": spec.command if isinstance(spec.command, str) else json.dumps(list(spec.command)),
        "LEARNER_ID": str(rank + 1),  # FfDL counts from 1
        "NUM_LEARNERS": str(len(spec.learners)),
        "GPU_COUNT": "0" if spec.slot_type == CPU_TYPE else str(spec.slots),
        "LEARNER_NAME_PREFIX": spec.name,
        "LUTHIER_ATTEMPT": str(spec.attempt),
        "LUTHIER_RANK": str(rank),
        "LUTHIER_GRACE_S": str(spec.grace_s),
    }
    if spec.setup:
        env["LUTHIER_SETUP"] = json.dumps(list(spec.setup), ensure_ascii=False)
    if spec.secrets:
        env["LUTHIER_SECRET_NAMES"] = " ".join(sorted(spec.secrets))
    if spec.checkpoint_every_s is not None:
        env["LUTHIER_CHECKPOINT_EVERY_S"] = str(spec.checkpoint_every_s)
    return env | _distributed(rank, rendezvous) if spec.is_distributed else env


def of_shipper(spec: GangSpec, rank: int, *, folders: Mapping[str, str]) -> dict[str, str]:
    """The shipper's environment: which learner it serves, where it delivers, and its secret."""
    return {
        **folders,
        "LUTHIER_INGEST_URL": spec.ingest_url,
        "LUTHIER_SECRET": spec.learners[rank].secret,
        "TRAINING_ID": spec.job,
        "LUTHIER_ATTEMPT": str(spec.attempt),
        "LUTHIER_RANK": str(rank),
    }


def _distributed(rank: int, rendezvous: Rendezvous) -> dict[str, str]:
    """The variables of torchrun, TensorFlow, JAX and MPI.

    LOCAL_RANK is 0: a learner sees only its own devices, counted from 0.
    """
    world = len(rendezvous.workers)
    host, _, port = rendezvous.master.rpartition(":")
    cluster = {"cluster": {"worker": list(rendezvous.workers)}, "task": {"type": "worker", "index": rank}}
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "NODE_RANK": str(rank),
        "NNODES": str(world),
        "JAX_NUM_PROCESSES": str(world),
        "JAX_PROCESS_ID": str(rank),
        "JAX_COORDINATOR_ADDRESS": rendezvous.master,
        "TF_CONFIG": json.dumps(cluster),
        "MPI_HOSTFILE": rendezvous.hostfile,
        "OMPI_MCA_orte_default_hostfile": rendezvous.hostfile,
    }
