"""Halt, resume and cancel: write the intent with its generation and one event, and notify the lifecycle.

A request that repeats the present intent gets the same response and changes nothing. docs/job_states.md, "Races", says
who wins when requests and endings meet.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from jobs import clusters, events, wake
from jobs.errors import CheckpointNotFound, SecretNotFound, TenantSuspended
from jobs.failpoints import fp
from jobs.models import Checkpoint, Job, Runtime
from jobs.retries import retry_on_serialization_failure
from jobs.selectors.checkpoints import checkpoint_for
from jobs.selectors.images import allowed_image
from jobs.selectors.jobs import will_fail
from jobs.services.locking import illegal, lock_job, reload, time_limit_error
from jobs.spec.problems import Problem, path_text
from jobs.states import FINAL, PROGRAM_FINISHED, EventCode, Intent, State
from jobs.steps import steps_from_scratch
from tenants import audit
from tenants.errors import problem
from tenants.models import Tenant, User
from tenants.services import secrets

NOT_BEGUN = (State.STOPPING, State.HALTED, State.QUEUED)
"""States in which the attempt that a resume asks for does not exist yet."""

ACTIONS = {Intent.HALT: "job.halt", Intent.RUN: "job.resume", Intent.CANCEL: "job.cancel"}
"""What each request is called in the audit log."""


@retry_on_serialization_failure
def job_halt(*, user: User, job_id: str) -> Job:
    """Request that the job's program is asked to save, and its slots are released.

    Raises JobNotFound, JobForbidden, or IllegalTransition once the program has finished, and if the job is canceled,
    will fail or has ended.
    """
    with transaction.atomic():
        job = lock_job(user=user, job_id=job_id)
        if job.is_final or job.intent == Intent.CANCEL or job.state in PROGRAM_FINISHED:
            raise illegal(job, "halted")
        if job.intent != Intent.HALT:
            if will_fail(job):
                raise illegal(job, "halted")
            _request(job, Intent.HALT, user, "Halt")
    return reload(job_id)


@retry_on_serialization_failure
def job_resume(*, user: User, job_id: str, checkpoint: int | None = None) -> Job:
    """Request that a halted job resumes from checkpoint n. Default: the newest valid one, or the one that was chosen
    before, until something was saved after it.

    While the job is still halting, the halt completes first and the resume follows. A job that runs or waits already
    is left alone, except for another checkpoint: one that waits resumes from that one, one that runs is refused.
    Raises IllegalTransition (TimeLimitUsedUp where nothing is left to run), CheckpointNotFound, SecretNotFound,
    ImageNotAllowed or TenantSuspended.
    """
    with transaction.atomic():
        job = lock_job(user=user, job_id=job_id, checkpoint=checkpoint)
        if (
            job.is_final
            or job.intent == Intent.CANCEL
            or (job.intent == Intent.HALT and job.state in PROGRAM_FINISHED)
            or will_fail(job)
        ):
            raise illegal(job, "resumed")
        chosen = checkpoint_of(job, checkpoint)
        if job.intent == Intent.RUN and chosen is not None and not _resumes_from(job, chosen):
            if job.state not in NOT_BEGUN:
                raise illegal(job, "resumed from another checkpoint")
            _begin_at(job, chosen)
            _request(job, Intent.RUN, user, f"Resume{_from(job, chosen)}")
        if job.intent == Intent.HALT:
            if job.tenant.state == Tenant.State.SUSPENDED:
                raise TenantSuspended
            if used_up := time_limit_error(job):
                raise used_up
            _require_secrets(job)
            _require_image(job)
            _begin_at(job, chosen)
            after = ", as soon as the halt is complete" if job.state != State.HALTED else ""
            _request(job, Intent.RUN, user, f"Resume{_from(job, chosen)}{after}")
    return reload(job_id)


@retry_on_serialization_failure
def job_cancel(*, user: User, job_id: str) -> Job:
    """Request that the job ends for good; committed checkpoints remain. Raises IllegalTransition for an ended job."""
    with transaction.atomic():
        job = lock_job(user=user, job_id=job_id)
        if job.state in FINAL - {State.CANCELED}:
            raise illegal(job, "canceled")
        if job.intent != Intent.CANCEL:
            _request(job, Intent.CANCEL, user, "Cancel")
    return reload(job_id)


def checkpoint_of(job: Job, n: int | None, *, keep: bool = False) -> Checkpoint | None:
    """Checkpoint n of the job, None for "the newest". Raises CheckpointNotFound naming the ones that exist.

    keep: it is not dropped before the transaction's end, however many newer ones come meanwhile.
    """
    if n is None:
        return None
    valid = job.checkpoints.filter(state=Checkpoint.State.COMMITTED)
    chosen = valid.filter(n=n)
    found = (chosen.select_for_update(no_key=True) if keep else chosen).first()
    if found is None:
        numbers = sorted(valid.values_list("n", flat=True))
        text = f"The job has no valid checkpoint {n}. Valid: {', '.join(map(str, numbers)) or 'none'}."
        wrong = problem("checkpoint", CheckpointNotFound.code, text, n, numbers)
        raise CheckpointNotFound(text, checkpoints=numbers, errors=[wrong])
    return found


def _require_secrets(job: Job) -> None:
    """Raise SecretNotFound where the next attempt would fail for a secret that was deleted: a halted job loses nothing
    by waiting for it."""
    granted: dict[str, str] = job.spec.get("secrets", {})
    if not granted:
        return
    try:
        secrets.require(owner=job.owner, tenant=job.tenant, names=set(granted.values()))
    except secrets.SecretMissing as missing:
        problems = [
            Problem(
                path_text(("secrets", variable)),
                SecretNotFound.code,
                f"There is no secret {name} any more",
                name,
            )
            for variable, name in granted.items()
            if name in missing.names
        ]
        raise SecretNotFound(errors=[each.as_dict() for each in problems]) from None


def _require_image(job: Job) -> None:
    """Raise ImageNotAllowed where the next attempt would fail for an image that the tenant may not run any more."""
    if clusters.capabilities().images:
        allowed_image(job, Runtime.objects.filter(pk=job.spec.get("framework")).first())


def _begin_at(job: Job, chosen: Checkpoint | None) -> None:
    """Record where the next attempt starts. Without a choice, an earlier one remains until an attempt from it saved."""
    row = Job.objects.filter(pk=job.pk)
    if chosen is not None:
        row.update(resume_from=chosen, resume_after=F("attempt"))
    elif checkpoint_for(job) != job.resume_from:
        row.update(resume_from=None)


def _resumes_from(job: Job, chosen: Checkpoint) -> bool:
    """Whether the job waits to resume from this checkpoint, or its attempt has resumed from it."""
    if job.state in NOT_BEGUN:
        begun = job.attempts.filter(resume_from=chosen, n__gt=job.resume_after)
        return job.resume_from_id == chosen.pk and not begun.exists()
    return job.attempts.filter(n=job.attempt, resume_from=chosen).exists()


def _request(job: Job, intent: Intent, user: User, word: str) -> None:
    Job.objects.filter(pk=job.pk).update(
        intent=intent,
        intent_gen=F("intent_gen") + 1,
        intent_by=user,
        intent_at=Now(),
        settled=False,
        next_reconcile_at=Now(),
    )
    fp("intent.after_row")
    events.append(
        job_id=job.pk,
        tenant_id=job.tenant_id,
        code=EventCode.REQUESTED,
        attempt=job.attempt,
        reason=f"{intent.lower()}_requested",
        message=f"{word} requested by {user.get_username()}",
        numbers={"intent": intent.value, "generation": job.intent_gen + 1},
        actor_id=user.pk,
        source="user",
    )
    audit.admin_act(user=user, tenant_id=job.tenant_id, action=ACTIONS[intent], target=job.pk)
    wake.hint("jobs.tasks.reconcile_job", job.pk)
    fp("intent.before_commit")


def _from(job: Job, checkpoint: Checkpoint | None) -> str:
    """The checkpoint from which it resumes; a start from scratch is named where it repeats steps.

    While the job still halts, that is not known yet: a checkpoint may be on its way.
    """
    if checkpoint is not None:
        return f" from checkpoint {checkpoint.n}"
    if job.state != State.HALTED:
        return ""
    done = steps_from_scratch(job.pk)
    if done and not job.checkpoints.filter(state=Checkpoint.State.COMMITTED).exists():
        steps = "1 step is" if done == 1 else f"{done:,} steps are"
        return f" from scratch ({steps} repeated: no checkpoint was saved)"
    return ""
