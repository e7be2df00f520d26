"""How long a step takes at each size of a gang, and how much a step is worth.

The model of a step is that of Pollux (Qiao et al., OSDI 2021): learners compute, then exchange gradients, and both may
overlap. What was never observed is taken as free, so that larger sizes are tried; a size is believed up to twice the
largest one that was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from gpu_scheduler.model import GradientNoise, Profile, StepTimes

BATCHES = 24
"""Batches, a constant factor apart, that are compared to find the best one of a range."""
MOST_OVERLAP = 10.0
SLOWER_ACROSS = 1.1
"""An exchange between nodes is taken as slower by this than one on a node until it has been measured."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured size. micro_batch: samples that a learner computes at once; accumulations: how many further
    micro-batches it computes before gradients are exchanged. step_s: seconds of the whole step, compute_s of one
    micro-batch alone, None: not measured."""

    learners: int
    nodes: int
    micro_batch: float
    accumulations: int
    step_s: float
    compute_s: float | None = None


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """Samples in a step over all learners, and how a learner computes its part: micro_batch at once, and accumulations
    further ones before gradients are exchanged. batch == learners * micro_batch * (accumulations + 1), but for rounding
    up."""

    batch: int
    micro_batch: int
    accumulations: int


OWN_BATCH = BatchChoice(0, 0, 0)
"""Of a program that keeps the batch it has; how large that is is not known."""


def compute_s(times: StepTimes, micro_batch: float) -> float:
    """Seconds in which a learner computes one micro-batch."""
    return times.compute_s + times.per_sample_s * micro_batch


def exchange_s(times: StepTimes, learners: int, nodes: int) -> float:
    """Seconds in which learners exchange their gradients."""
    if learners == 1:
        return 0.0
    if nodes == 1:
        return times.exchange_s + times.per_learner_s * (learners - 2)
    return times.exchange_across_s + times.per_learner_across_s * (learners - 2)


def step_s(times: StepTimes, learners: int, nodes: int, micro_batch: float, accumulations: int) -> float:
    """Seconds of a step: the further micro-batches, then one that the exchange overlaps with."""
    computing, exchanging = compute_s(times, micro_batch), exchange_s(times, learners, nodes)
    longer, shorter = max(computing, exchanging), min(computing, exchanging)
    both = longer * (1 + (shorter / longer) ** times.overlap) ** (1 / times.overlap) if longer else 0.0
    return accumulations * computing + both


def gain(noise: GradientNoise | None, batch: float, smallest: float) -> float:
    """What a step with this batch is worth, in steps with the smallest; without noise, all samples count the same."""
    scale = batch / smallest
    if noise is None:
        return scale
    # Measured at noise.batch: the variance of a mean over samples shrinks with their number.
    variance = noise.variance * noise.batch / smallest
    if variance + noise.squared_norm <= 0:
        return 1.0
    return (variance + noise.squared_norm) / (variance / scale + noise.squared_norm)


@lru_cache(100_000)
def choose_batch(profile: Profile, learners: int, nodes: int) -> BatchChoice:
    """The batch with which so many learners train fastest, of those that the profile allows: the ONE choice, of plans
    and of launches.

    Never measured: the smallest batch of the range, which is known to train well. Raises ValueError if the range holds
    no batch with a sample for each learner.
    """
    if profile.batch is None:
        return OWN_BATCH
    least, most = max(profile.batch.min, learners), profile.batch.max
    if least > most:
        raise ValueError(f"a batch of at most {most} has no sample for each of {learners} learners")
    times = profile.step_times
    if times is None:
        return _at_most(_split(least, learners, profile.most_per_learner), most)
    factor = (most / least) ** (1 / (BATCHES - 1))
    sizes = sorted({min(most, round(least * factor**n)) for n in range(BATCHES)})
    choices = [_split(size, learners, profile.most_per_learner) for size in sizes]
    allowed = [each for each in choices if each.batch <= most] or [_at_most(choices[0], most)]
    return max(allowed, key=lambda each: (_worth_per_s(profile, times, each, learners, nodes), -each.batch))


def _at_most(choice: BatchChoice, most: int) -> BatchChoice:
    """Rounding up must not exceed the largest batch: then some learners get fewer samples."""
    return replace(choice, batch=min(choice.batch, most))


def goodput(profile: Profile, learners: int, nodes: int) -> float | None:
    """Useful steps of the smallest batch in a second, at the best batch; of a program with its own batch, that batch
    divided among the learners. None: never measured."""
    times = profile.step_times
    if times is None:
        return None
    if profile.batch is None:
        return 1 / step_s(times, learners, nodes, 1 / learners, 0)
    return _worth_per_s(profile, times, choose_batch(profile, learners, nodes), learners, nodes)


def _worth_per_s(profile: Profile, times: StepTimes, choice: BatchChoice, learners: int, nodes: int) -> float:
    assert profile.batch is not None
    seconds = step_s(times, learners, nodes, choice.micro_batch, choice.accumulations)
    return gain(profile.noise, choice.batch, profile.batch.min) / seconds if seconds > 0 else math.inf


def _split(batch: int, learners: int, most_per_learner: int) -> BatchChoice:
    """Divide a batch among learners: in as few micro-batches as each can hold."""
    each = -(-batch // learners)
    times = -(-each // most_per_learner) if most_per_learner else 1
    micro = -(-each // times)
    return BatchChoice(learners * micro * times, micro, times - 1)


def fit(samples: Iterable[Sample]) -> StepTimes | None:
    """The step times that differ least from the samples, as a ratio; None without a sample.

    What no sample shows stays free: an exchange before several learners ran, its growth before three did. One
    micro-batch alone does not say which part of its time grows with it: half is taken to.
    """
    seen = list(samples)
    if not seen:
        return None
    # SciPy takes a tenth of a second to import: processes that fit nothing do without.
    from scipy.optimize import least_squares

    free = _observed(seen)
    start = _guess(seen)

    def fitted(values: Sequence[float]) -> StepTimes:
        changes = {name: math.exp(value) for name, value in zip(free, values, strict=True)}
        return _completed(replace(start, **changes), seen)

    def off(values: Sequence[float]) -> list[float]:
        times = fitted(values)
        found = [
            math.log(step_s(times, s.learners, s.nodes, s.micro_batch, s.accumulations) / s.step_s)
            for s in seen
        ]
        return found + [
            math.log(compute_s(times, s.micro_batch) / s.compute_s) for s in seen if s.compute_s is not None
        ]

    first = [math.log(max(getattr(start, name), 1e-9)) for name in free]
    low = [0.0 if name == "overlap" else -30.0 for name in free]
    high = [math.log(MOST_OVERLAP) if name == "overlap" else 20.0 for name in free]
    inside = [min(max(value, lo), hi) for value, lo, hi in zip(first, low, high, strict=True)]
    return fitted(list(least_squares(off, inside, bounds=(low, high), max_nfev=400).x))


def _observed(seen: Sequence[Sample]) -> list[str]:
    """Which parameters the samples say something of."""
    free = ["compute_s"]
    if len({sample.micro_batch for sample in seen}) > 1:
        free.append("per_sample_s")
    on_one = [s.learners for s in seen if s.nodes == 1 and s.learners > 1]
    across = [s.learners for s in seen if s.nodes > 1]
    for sizes, constant, growth in (
        (on_one, "exchange_s", "per_learner_s"),
        (across, "exchange_across_s", "per_learner_across_s"),
    ):
        if sizes:
            free.append(constant)
        if sizes and max(sizes) > 2 and len(set(sizes)) > 1:
            free.append(growth)
    if len(on_one) + len(across) > 3:
        free.append("overlap")
    return free


def _guess(seen: Sequence[Sample]) -> StepTimes:
    """Where to begin: the quickest micro-batch computes half its time whatever its size, the rest is exchange."""
    computing = min(s.compute_s or s.step_s / (s.accumulations + 1) for s in seen)
    largest = max(s.micro_batch for s in seen)
    rest = [max(s.step_s - (s.accumulations + 1) * computing, computing / 10) for s in seen]
    exchange = sum(rest) / len(rest)
    across = exchange if any(s.nodes > 1 for s in seen) else 0.0
    on_one = exchange if any(s.nodes == 1 and s.learners > 1 for s in seen) else 0.0
    return StepTimes(computing / 2, computing / 2 / largest, on_one, on_one / 10, across, across / 10)


def _completed(times: StepTimes, seen: Sequence[Sample]) -> StepTimes:
    """With what the samples do not show, from what they do."""
    sizes = {s.micro_batch for s in seen}
    if len(sizes) == 1:
        times = replace(times, per_sample_s=times.compute_s / sizes.pop())
    if not any(s.nodes == 1 and s.learners > 2 for s in seen):
        times = replace(times, per_learner_s=0.0)
    if not any(s.nodes == 1 and s.learners > 1 for s in seen):
        times = replace(times, exchange_s=0.0)
    if not any(s.nodes > 1 for s in seen):
        times = replace(
            times,
            exchange_across_s=SLOWER_ACROSS * times.exchange_s,
            per_learner_across_s=SLOWER_ACROSS * times.per_learner_s,
        )
    elif not any(s.nodes > 1 and s.learners > 2 for s in seen):
        times = replace(times, per_learner_across_s=0.0)
    return times
