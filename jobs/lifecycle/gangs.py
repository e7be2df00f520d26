"""From a placed job to what a cluster driver launches: environment, secrets, command."""

from __future__ import annotations

import shlex
from typing import Any

from django.conf import settings

from gpu_scheduler.clusters.base import Launch, LearnerSpec
from jobs import tokens
from jobs.lifecycle.observation import JobRows
from jobs.spec.units import parse_duration, parse_memory


def launch_of(rows: JobRows) -> Launch:
    """The gang of the job's live attempt. The same every time: a repeated launch hands out the same secrets."""
    job, attempt = rows.job, rows.attempt
    assert attempt is not None
    spec: dict[str, Any] = job.spec
    resources = spec.get("resources", {})
    return Launch(
        name=rows.observation.gang_name,
        job=job.pk,
        attempt=attempt.n,
        tenant=job.tenant.slug,
        learners=[
            LearnerSpec(
                rank=learner.rank,
                node=learner.node,
                env=environment(rows, learner.rank),
                secret=tokens.derive(job.pk, attempt.n, learner.rank)[0],
            )
            for learner in rows.learners
        ],
        slots=attempt.slots,
        slot_type=attempt.slot_type,
        cpus=float(resources.get("cpus", 1)),
        memory_mib=parse_memory(resources.get("memory", "4Gi")),
        command=spec["command"],
        ingest_url=settings.LUTHIER_INGEST_URL,
        runtime=spec.get("framework"),
        image=spec.get("image"),
        grace_s=job.grace_s,
    )


def environment(rows: JobRows, rank: int) -> dict[str, str]:
    """What one learner sees, FfDL's names first. The driver adds directories and addresses, which only it knows."""
    job, attempt = rows.job, rows.attempt
    assert attempt is not None
    command = job.spec["command"]
    ours: dict[str, object] = {
        "TRAINING_ID": job.pk,
        "TRAINING_COMMAND": command if isinstance(command, str) else shlex.join(command),
        "LEARNER_ID": rank + 1,  # FfDL counts from 1
        "NUM_LEARNERS": attempt.learners,
        "GPU_COUNT": job.gpus,
        "LEARNER_NAME_PREFIX": rows.observation.gang_name,
        "LUTHIER_ATTEMPT": attempt.n,
        "LUTHIER_RANK": rank,
        "LUTHIER_GRACE_S": job.grace_s,
        "LUTHIER_CHECKPOINT_EVERY_S": parse_duration(job.spec["checkpoint"]["every"]),
        "RANK": rank,
        "WORLD_SIZE": attempt.learners,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "GROUP_RANK": rank,
        "JAX_NUM_PROCESSES": attempt.learners,
        "JAX_PROCESS_ID": rank,
    }
    return {**job.spec.get("env", {}), **{name: str(value) for name, value in ours.items()}}
