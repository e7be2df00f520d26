"""The container image that a job's program runs in, if its tenant may run it."""

from __future__ import annotations

from jobs.errors import ImageNotAllowed
from jobs.models import Job, Runtime
from jobs.spec.context import image_problem
from tenants.images import read_image
from tenants.services.images import effective_patterns


def allowed_image(job: Job, runtime: Runtime | None) -> str:
    """The fully qualified reference of the spec's image or that of its runtime; empty: the job names neither.

    Raises ImageNotAllowed: patterns and runtimes may have changed since the job was submitted.
    """
    own, of_runtime = job.spec.get("image"), runtime.image if runtime is not None else ""
    if problem := image_problem(own, of_runtime, effective_patterns(job.tenant)):
        raise ImageNotAllowed(problem.message, errors=[problem.as_dict()])
    text = own or of_runtime
    return str(read_image(text)) if text else ""
