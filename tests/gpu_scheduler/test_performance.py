"""Step times fitted to measured steps, and the batch and the speed that follow from them."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.elastic.performance import (
    OWN_BATCH,
    Sample,
    choose_batch,
    compute_s,
    exchange_s,
    fit,
    gain,
    goodput,
    step_s,
)
from gpu_scheduler.model import GradientNoise, Profile, Range, StepTimes

TIMES = StepTimes(0.02, 0.001, 0.03, 0.002, 0.08, 0.006, 1.6)
SIZES = [(1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (6, 2), (8, 2), (12, 3)]


def sample(times: StepTimes, learners: int, nodes: int, micro: float, more: int = 0) -> Sample:
    return Sample(
        learners, nodes, micro, more, step_s(times, learners, nodes, micro, more), compute_s(times, micro)
    )


def test_a_step_computes_then_exchanges_as_far_as_both_do_not_overlap() -> None:
    apart = replace(TIMES, overlap=1.0)
    assert step_s(apart, 1, 1, 100, 0) == pytest.approx(0.12)
    assert step_s(apart, 4, 1, 100, 0) == pytest.approx(0.12 + 0.034)
    assert step_s(apart, 4, 2, 100, 2) == pytest.approx(3 * 0.12 + 0.092)
    together = replace(TIMES, overlap=10.0)
    assert step_s(together, 4, 1, 100, 0) == pytest.approx(0.12, rel=0.01)


def test_a_fit_to_exact_samples_predicts_sizes_that_it_has_not_seen() -> None:
    seen = [
        sample(TIMES, *size, micro, more) for size in SIZES for micro, more in ((16, 0), (64, 0), (64, 2))
    ]
    fitted = fit(seen)
    assert fitted is not None
    for learners, nodes, micro, more in ((5, 2, 32, 0), (10, 3, 100, 1), (16, 4, 48, 0)):
        predicted = step_s(fitted, learners, nodes, micro, more)
        assert predicted == pytest.approx(step_s(TIMES, learners, nodes, micro, more), rel=0.05)


def test_what_was_never_seen_is_taken_as_free() -> None:
    one = fit([sample(TIMES, 1, 1, 32)])
    assert one is not None
    assert exchange_s(one, 8, 2) == 0
    assert one.compute_s == pytest.approx(one.per_sample_s * 32), (
        "half grows with the batch, as far as is known"
    )
    two = fit([sample(TIMES, 1, 1, 32), sample(TIMES, 2, 1, 32)])
    assert two is not None
    assert two.exchange_s > 0
    assert two.per_learner_s == 0
    assert exchange_s(two, 2, 2) == pytest.approx(1.1 * exchange_s(two, 2, 1))
    assert fit([]) is None


def test_one_step_without_its_parts_is_fitted_too() -> None:
    fitted = fit([Sample(1, 1, 8, 0, 0.5), Sample(2, 2, 8, 0, 0.9)])
    assert fitted is not None
    assert step_s(fitted, 1, 1, 8, 0) == pytest.approx(0.5, rel=0.01)
    assert step_s(fitted, 2, 2, 8, 0) == pytest.approx(0.9, rel=0.01)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(SIZES), st.sampled_from((1, 8, 64)), st.integers(0, 2), st.floats(1e-4, 1e3)
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_samples_give_finite_step_times(measured: list[tuple[tuple[int, int], int, int, float]]) -> None:
    fitted = fit(Sample(*size, micro, more, seconds) for size, micro, more, seconds in measured)
    assert fitted is not None
    for learners, nodes in SIZES:
        assert 0 < step_s(fitted, learners, nodes, 8, 0) < math.inf


def test_samples_are_worth_less_in_larger_batches_where_gradients_hardly_vary() -> None:
    assert gain(None, 512, 64) == 8
    noisy, smooth = GradientNoise(1e6, 1.0, 64), GradientNoise(1.0, 1e6, 64)
    assert gain(noisy, 512, 64) == pytest.approx(8, rel=0.01)
    assert gain(smooth, 512, 64) == pytest.approx(1, rel=0.01)
    measured_elsewhere = GradientNoise(2.0, 3.0, 128)
    assert gain(measured_elsewhere, 256, 64) == pytest.approx(gain(GradientNoise(4.0, 3.0, 64), 256, 64))


@given(st.integers(1, 64), st.integers(64, 4096), st.integers(1, 16), st.integers(0, 128), st.integers(1, 4))
def test_a_batch_stays_in_its_range_and_is_split_whole(
    least: int, most: int, learners: int, each: int, nodes: int
) -> None:
    profile = Profile(Range(least, most), TIMES, most_per_learner=each)
    choice = choose_batch(profile, learners, min(nodes, learners))
    computed = learners * choice.micro_batch * (choice.accumulations + 1)
    assert choice.batch == min(computed, most)
    assert computed < choice.batch + learners * (choice.accumulations + 1), "rounded up, no further"
    assert least <= choice.batch
    assert not each or choice.micro_batch <= each


def test_the_batch_that_trains_fastest_is_chosen() -> None:
    profile = Profile(Range(64, 1024), TIMES)
    assert choose_batch(profile, 8, 2).batch == 1024, "without noise the largest trains fastest"
    assert choose_batch(replace(profile, noise=GradientNoise(1.0, 1e6, 64)), 8, 2).batch == 64
    assert choose_batch(Profile(Range(64, 1024)), 8, 2).batch == 64, "never measured"
    assert choose_batch(Profile(), 8, 2) == OWN_BATCH
    with pytest.raises(ValueError, match="no sample for each of 8 learners"):
        choose_batch(Profile(Range(1, 4)), 8, 2)


def test_speed_at_each_size() -> None:
    profile = Profile(Range(64, 1024), TIMES, GradientNoise(1e4, 10.0, 64))
    speeds = [goodput(profile, n, -(-n // 4)) for n in (1, 2, 4)]
    assert speeds == sorted(speeds), "more learners train faster"
    assert goodput(Profile(), 4, 1) is None
    own = Profile(step_times=StepTimes(0.0, 1.0))
    assert goodput(own, 4, 1) == pytest.approx(4), "its own batch is divided"


def test_plans_do_not_import_scipy() -> None:
    code = (
        "import sys, gpu_scheduler.elastic.performance; sys.exit(bool({'scipy', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
