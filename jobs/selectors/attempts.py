"""A job's attempts, with the steps that each of them repeated.

Nothing here checks permission: callers have fetched the job (job_get).
"""

from __future__ import annotations

from django.db.models import BigIntegerField, Case, Exists, F, OuterRef, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce

from jobs.models import Attempt, Learner


def began_after() -> Case:
    """Of an attempt: the step after which it went on, 0 from scratch. None until its program reports, where it resumed
    from a checkpoint of unknown step."""
    reported = Subquery(_first_steps().values(step=F("first_step") - 1)[:1])
    return Case(
        When(resume_from=None, then=Value(0)),
        default=Coalesce("resume_from__step", reported),
        output_field=BigIntegerField(),
    )


def counted_after() -> Case:
    """As began_after, but None where steps of its job fell back: then they do not count all that the job did."""
    return Case(When(steps_fell(), then=Value(None)), default=began_after(), output_field=BigIntegerField())


def steps_fell() -> Exists:
    """Of an attempt: whether steps of its job fell back, in any attempt."""
    return Exists(Learner.objects.filter(job=OuterRef("job"), fell_ms__isnull=False))


def _first_steps() -> QuerySet[Learner]:
    rows = Learner.objects.filter(job=OuterRef("job"), attempt=OuterRef("n"), first_step__isnull=False)
    return rows.order_by("first_step")


def attempts_of(job_id: str) -> QuerySet[Attempt]:
    """Attempts, each with `began_after`, `first_step`, its own first, `step_before`, the last of the run before it, and
    `first_of_job`, the first of the job's first attempt. `fell_before`: when those of the run before last
    fell back.

    None is unknown; an attempt whose program never ran is no run.
    """
    before = Learner.objects.filter(
        job=OuterRef("job"), attempt__lt=OuterRef("n"), processing_at__isnull=False
    ).order_by("-attempt", F("last_step").desc(nulls_last=True))
    first = Learner.objects.filter(job=OuterRef("job"), first_step__isnull=False)
    return (
        Attempt.objects.filter(job=job_id)
        .select_related("resume_from")
        .annotate(
            began_after=began_after(),
            first_step=Subquery(_first_steps().values("first_step")[:1]),
            step_before=Subquery(before.values("last_step")[:1]),
            fell_before=Subquery(before.values("fell_ms")[:1]),
            attempt_before=Subquery(before.values("attempt")[:1]),
            first_of_job=Subquery(first.order_by("attempt", "first_step").values("first_step")[:1]),
        )
    )


def begins_again(attempt: Attempt) -> bool:
    """Whether the steps of an attempt of attempts_of begin where those of the job did, though others came before."""
    began, before, first = _steps(attempt)
    return began is not None and before is not None and first is not None and began <= first


def continues(attempt: Attempt) -> bool:
    """Whether the steps of an attempt of attempts_of are known to continue: they begin after the first of the job, and
    others came before. Unknown until its program reports: a start from scratch may yet begin again."""
    began, before, first = _steps(attempt)
    return began is not None and before is not None and first is not None and began > first


def counts_again(attempt: Attempt) -> bool:
    """Whether they do so after a checkpoint of unknown step: the program may have continued from what it had saved and
    only count again, or have begun again."""
    saved = attempt.resume_from
    return saved is not None and saved.step is None and begins_again(attempt)


def _steps(attempt: Attempt) -> tuple[int | None, int | None, int | None]:
    began, before, first = (getattr(attempt, name) for name in ("first_step", "step_before", "first_of_job"))
    return began, before, first


def repeated_steps(attempt: Attempt) -> int | None:
    """Steps that an attempt of attempts_of trained again, because they came after its checkpoint; None if unknown."""
    began, before, first = _steps(attempt)
    if began is None or before is None or counts_again(attempt) or _fell_after_its_checkpoint(attempt):
        return None
    if attempt.resume_from_id is None and began == first:  # from scratch; of ten steps, one may be reported
        began = min(began, 1)
    return max(0, before - began + 1)


def _fell_after_its_checkpoint(attempt: Attempt) -> bool:
    """Whether the steps of the run before fell back after the checkpoint was saved, or may have: what came after it
    then has no numbers of its own."""
    fell_ms, saved = getattr(attempt, "fell_before", None), attempt.resume_from
    if fell_ms is None:
        return False
    if saved is None or saved.saved_ns is None or saved.attempt != getattr(attempt, "attempt_before", None):
        return True
    return saved.saved_ns // 1_000_000 < fell_ms
