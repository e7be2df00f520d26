"""Jobs of one program: what was measured of an elastic one is known of the next."""

from __future__ import annotations

from django.db.models import QuerySet

from gpu_scheduler.model import slot_type_of
from jobs.models import Job


def same_program(job: Job) -> QuerySet[Job]:
    """Jobs of its tenant with its code, runtime, command, variables and devices, itself included if it is stored.

    Without code that is stored here, what an image holds is not known: then only itself.
    """
    if job.code_id is None:
        return Job.objects.filter(pk=job.pk)
    return Job.objects.filter(
        tenant=job.tenant_id,
        code=job.code_id,
        framework=job.framework,
        gpus=job.gpus,
        slots=job.slots,
        spec__command=job.spec.get("command"),
        spec__env=job.spec.get("env", {}),
    )


def measured_before(job: Job) -> str | None:
    """What was measured of the newest such job on the devices that this one requests; None: nothing, or any will do."""
    kind = slot_type_of(job.gpus, job.gpu_type)
    if kind is None:
        return None
    known = same_program(job).filter(measured__isnull=False, attempts__slot_type=kind)
    return known.order_by("-pk").values_list("measured", flat=True).first()
