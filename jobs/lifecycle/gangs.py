"""From a placed job to what a cluster driver launches."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from gpu_scheduler.clusters.base import Launch, LearnerSpec
from jobs import tokens
from jobs.lifecycle.observation import JobRows
from jobs.spec.quantities import parse_duration, parse_memory


def launch_of(rows: JobRows) -> Launch:
    """The gang of the job's live attempt: the same for every call, secrets included."""
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
                env=spec.get("env", {}),
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
        checkpoint_every_s=parse_duration(spec["checkpoint"]["every"]),
    )
