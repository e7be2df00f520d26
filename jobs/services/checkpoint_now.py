"""Request that a running program saves a checkpoint and continues."""

from __future__ import annotations

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from jobs import events
from jobs.errors import SaveNotSupported
from jobs.models import Attempt, Job
from jobs.retries import retry_on_serialization_failure
from jobs.selectors.checkpoints import save_request
from jobs.services.locking import illegal, lock_job, possible_now, reload
from jobs.states import Action, EventCode
from tenants import audit
from tenants.models import User


@retry_on_serialization_failure
def job_checkpoint(*, user: User, job_id: str) -> Job:
    """Request a checkpoint now; the program's next save answers it. A request that waits for one is not repeated.

    Raises JobNotFound, JobForbidden, IllegalTransition unless the program runs and is to continue, and SaveNotSupported
    if it has not called checkpoint_due() in this attempt.
    """
    with transaction.atomic():
        job = lock_job(user=user, job_id=job_id)
        details = possible_now(job)
        if Action.CHECKPOINT not in details["allowed_actions"]:
            raise illegal(job, "asked to save")
        request = save_request(job)
        if not request.supported:
            raise SaveNotSupported(**details)
        if request.waits_since is None:
            _request(job, user)
    return reload(job_id)


def _request(job: Job, user: User) -> None:
    attempt = Attempt.objects.filter(job=job, n=job.attempt)
    attempt.update(saves_requested=F("saves_requested") + 1, save_requested_at=Now())
    events.append(
        job_id=job.pk,
        tenant_id=job.tenant_id,
        code=EventCode.CHECKPOINT_REQUESTED,
        attempt=job.attempt,
        message=f"Checkpoint requested by {user.get_username()}",
        actor_id=user.pk,
        source="user",
    )
    audit.admin_act(user=user, tenant_id=job.tenant_id, action="job.checkpoint", target=job.pk)
