"""What a learner's two processes find in their environments: FfDL's names, ours, and each framework's rendezvous.

Nothing of the daemon's own environment reaches a training program but a few names of the machine; the secret
reaches the shipper only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.clusters.base import Launch
from gpu_scheduler.clusters.local.processes import MARK
from gpu_scheduler.model import CPU_TYPE

PASSED_ON = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Folders:
    """The directories of one learner, all beneath root."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def code(self) -> Path:
        return self.root / "code"

    @property
    def launcher_log(self) -> Path:
        return self.root / "launcher.log"

    @property
    def shipper_log(self) -> Path:
        return self.root / "shipper.log"

    def named(self) -> dict[str, str]:
        """The directories by the names that FfDL gave them."""
        return {
            "JOB_STATE_DIR": str(self.state),
            "CHECKPOINT_DIR": str(self.state / "checkpoints"),
            "MODEL_DIR": str(self.code),
            "DATA_DIR": str(self.root / "data"),
            "RESULT_DIR": str(self.root / "results"),
            "LOG_DIR": str(self.root / "logs"),
        }

    def make(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (*self.named().values(), str(self.root / "home"), str(self.root / "tmp")):
            Path(folder).mkdir(parents=True, exist_ok=True)


def of_launcher(
    launch: Launch,
    rank: int,
    *,
    folders: Folders,
    runtime: Path,
    devices: Sequence[str],
    ports: Sequence[int],
    mark: str,
) -> dict[str, str]:
    """The launcher's environment, which is the training program's but for what the launcher itself adds.

    ports: one per rank, then one for the gang's master.
    """
    given = launch.learners[rank].env
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env |= {
        "HOME": str(folders.root / "home"),
        "TMPDIR": str(folders.root / "tmp"),
        # Two learners on one machine must not both take all its cores.
        "OMP_NUM_THREADS": str(max(1, int(launch.cpus))),
    }
    env |= given
    env |= folders.named()
    env |= {
        "PATH": os.pathsep.join([str(runtime / "bin"), *filter(None, [given.get("PATH")]), SYSTEM_PATH]),
        "VIRTUAL_ENV": str(runtime),
        "TRAINING_ID": launch.job,
        "TRAINING_COMMAND": launch.command
        if isinstance(launch.command, str)
        else json.dumps(list(launch.command)),
        "LEARNER_ID": str(rank + 1),
        "NUM_LEARNERS": str(len(launch.learners)),
        "GPU_COUNT": "0" if launch.slot_type == CPU_TYPE else str(launch.slots),
        "LEARNER_NAME_PREFIX": launch.name,
        "LUTHIER_ATTEMPT": str(launch.attempt),
        "LUTHIER_RANK": str(rank),
        "LUTHIER_GRACE_S": str(launch.grace_s),
        "CUDA_VISIBLE_DEVICES": ",".join(devices),
        MARK: mark,
    }
    return env | rendezvous(rank, ports, hostfile=folders.state / "hostfile")


def rendezvous(rank: int, ports: Sequence[int], *, hostfile: Path) -> dict[str, str]:
    """How the learners of a gang find each other: torch, TensorFlow, JAX and MPI each have their own words.

    LOCAL_RANK is 0: a learner sees its own devices only, counted from 0. A gang of one gets no cluster
    description, or TensorFlow and JAX would wait for company.
    """
    world, master = len(ports) - 1, ports[-1]
    env = {
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(master),
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(rank),
        "NNODES": str(world),
    }
    if world > 1:
        workers = [f"{LOOPBACK}:{port}" for port in ports[:-1]]
        env |= {
            "TF_CONFIG": json.dumps(
                {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
            ),
            "JAX_COORDINATOR_ADDRESS": f"{LOOPBACK}:{master}",
            "JAX_NUM_PROCESSES": str(world),
            "JAX_PROCESS_ID": str(rank),
            "MPI_HOSTFILE": str(hostfile),
            "OMPI_MCA_orte_default_hostfile": str(hostfile),
        }
    return env


def of_shipper(
    launch: Launch, rank: int, *, folders: Folders, data_root: Path, import_from: Path, mark: str
) -> dict[str, str]:
    """The shipper's environment: the daemon's own, since it is the platform's process, and the secret."""
    return {
        **_platform(os.environ),
        **folders.named(),
        "PYTHONPATH": str(import_from),
        "LUTHIER_INGEST_URL": launch.ingest_url,
        "LUTHIER_SECRET": launch.learners[rank].secret,
        "LUTHIER_DATA_ROOT": str(data_root),
        "TRAINING_ID": launch.job,
        "LUTHIER_ATTEMPT": str(launch.attempt),
        "LUTHIER_RANK": str(rank),
        MARK: mark,
    }


def _platform(env: Mapping[str, str]) -> dict[str, str]:
    """What of the daemon's environment concerns no other part of the platform: no database, no keys."""
    secret = ("SECRET_KEY", "DATABASE_URL", "REDIS_URL", "EMAIL_URL", "SENTRY_DSN", "PYTHONPATH")
    return {name: value for name, value in env.items() if not name.startswith(secret)}
