"""Measure how fast elastic jobs make their steps at each size, for the scheduler's choice of size and batch.

A periodic task, because a fit imports SciPy: neither a cycle nor a web process does. What is kept is one number per
attempt and one profile per job, however many steps it makes. Attempts of all jobs of a program count.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from statistics import median_low
from typing import Any

from django.db.models import Exists, F, OuterRef, Q

from gpu_scheduler.elastic.performance import Sample, fit
from gpu_scheduler.model import GradientNoise, Profile
from jobs.models import Attempt, Job, Learner, Progress
from jobs.selectors.programs import same_program
from jobs.selectors.requests import elastic_range, measured
from jobs.selectors.throughput import step_times
from jobs.states import OWN_FAILURES, State

logger = logging.getLogger(__name__)

TASK = "measure"
EVERY_S = 10.0
TURNS = 6
"""An attempt that was measured is looked at again in one of so many runs of the task."""
SAME_FRACTION = 0.03
"""A step time that moved by less has not changed."""
ATTEMPTS = 50
"""The newest measured attempts of a program that a profile is fitted to."""
VARIANCE, SQUARED_NORM = "gradient_variance", "gradient_squared_norm"
"""Metrics by which a program reports the noise of its gradients."""
LARGEST = 1e30
"""Larger values are no variance: a program may report anything, and sums of these must stay finite."""


def measure(before: dict[str, Any]) -> dict[str, Any]:
    """Measure the elastic jobs that run, and fit the profiles of those that changed. One that fails costs no other.

    Those that were measured are looked at in turns.
    """
    turn = (int(before.get("turn", 0)) + 1) % TURNS
    live = Attempt.objects.filter(held=True, job__state=State.PROCESSING, processing_at__isnull=False)
    due = live.annotate(turn=F("pk") % TURNS).filter(Q(step_s=None) | Q(turn=turn))
    elastic = [pk for pk, resources in due.values_list("pk", "job__resources") if _is_elastic(resources)]
    changed = 0
    attempts = Attempt.objects.filter(pk__in=elastic).select_related("job").order_by("pk")
    for attempt in attempts.defer("job__spec", "job__spec_text"):
        try:
            if _has_new_time(attempt):
                changed += _store(attempt)
        except (ArithmeticError, TypeError, ValueError):
            logger.exception("measuring failed", extra={"job": attempt.job_id})
    return {"changed": changed, "turn": turn}


def _is_elastic(resources: str | None) -> bool:
    try:
        return elastic_range(resources) is not None
    except (TypeError, ValueError):
        return False  # the plan says what is wrong with it


def _has_new_time(attempt: Attempt) -> bool:
    """Whether the attempt's step time is another one than was known. Learners take their steps together, so the median
    of them is the gang's. Lines in the order in which they were printed are no steps."""
    metrics = _newest(attempt.job)
    name = next((name for name in sorted(metrics) if metrics[name].get("axis") == "step"), "")
    found = step_times(attempt.job_id, attempt.n, name) if name else {}
    if not found:
        return False
    seconds = median_low(found.values())
    if attempt.step_s is not None and math.isclose(seconds, attempt.step_s, rel_tol=SAME_FRACTION):
        return False
    return bool(Attempt.objects.filter(pk=attempt.pk, held=True).update(step_s=seconds))


def _store(attempt: Attempt) -> int:
    """Fit the job's profile to attempts of its program on such devices; returns whether that changed it."""
    job = attempt.job
    rows = Attempt.objects.filter(job__in=same_program(job), slot_type=attempt.slot_type, step_s__gt=0)
    found = measured(_profile(list(rows.order_by("-pk")[:ATTEMPTS]), _noise(job), _most(job)))
    return Job.objects.filter(pk=job.pk).exclude(measured=found).update(measured=found)


def _most(job: Job) -> int | None:
    """One less than the fewest learners with which it failed before its first step, where it had worked with fewer."""
    steps = Learner.objects.filter(job=job, attempt=OuterRef("n"), last_step__isnull=False)
    failed = Attempt.objects.filter(
        ~Exists(steps), job=job, outcome__in=OWN_FAILURES, step_s=None, learners__gt=1
    )
    fewest = failed.order_by("learners").values_list("learners", flat=True).first()
    return None if fewest is None else fewest - 1


def _profile(attempts: Iterable[Attempt], noise: GradientNoise | None, most: int | None) -> Profile:
    seen = list(attempts)
    return Profile(
        step_times=fit(map(_sample, seen)),
        noise=noise,
        most_per_learner=max((each.micro_batch or 0 for each in seen), default=0),
        largest=max((each.learners for each in seen), default=0),
        most=most,
    )


def _sample(attempt: Attempt) -> Sample:
    """A program with its own batch is taken to divide it among its learners: as `elastic.performance.goodput` does."""
    assert attempt.step_s is not None
    nodes = len(set(attempt.nodes))
    if attempt.batch is None or not attempt.micro_batch:
        return Sample(attempt.learners, nodes, 1 / attempt.learners, 0, attempt.step_s)
    rounds = max(1, attempt.batch // (attempt.learners * attempt.micro_batch))
    return Sample(attempt.learners, nodes, attempt.micro_batch, rounds - 1, attempt.step_s)


def _noise(job: Job) -> GradientNoise | None:
    """As the program last reported it; None: it does not, or at no batch of the platform's."""
    newest = _newest(job)
    variance, norm = _last(newest, VARIANCE), _last(newest, SQUARED_NORM)
    batch = Attempt.objects.filter(job=job, n=job.attempt).values_list("batch", flat=True).first()
    if variance is None or norm is None or not batch:
        return None
    return GradientNoise(variance, norm, batch)


def _newest(job: Job) -> Mapping[str, Any]:
    return Progress.objects.filter(job=job).values_list("metrics", flat=True).first() or {}


def _last(metrics: Mapping[str, Any], name: str) -> float | None:
    """The newest value of a metric, if it can be a variance."""
    value = metrics.get(name, {}).get("last")
    return float(value) if isinstance(value, int | float) and 0 <= value <= LARGEST else None
