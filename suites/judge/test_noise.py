"""The yardstick: the floor adds up in quadrature, and the small-sample table is the quantile of Fisher's F that it says it is."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from hand import normal, record

from precheck.analysis.noise_floor import noise
from precheck.formats import BF16, E4M3FN, FP16
from precheck.observe.noise import ONE_ROUNDING

CHANCE = 1e-6


def survival(f: float, n: int, m: int) -> float:
    """P(F > f) for n and m degrees of freedom: the density of B = nF / (nF + m), which is Beta(n/2, m/2), integrated.

    With b = 1 - t^2 the tail is the integral of 2 t^(m-1) (1 - t^2)^(n/2-1) / Beta over 0 < t < sqrt(m / (m + nf)), smooth for
    m >= 2 and, as t stays below 1, for every n. Simpson's rule on 20000 panels.
    """
    top = math.sqrt(m / (m + n * f))
    t = numpy.linspace(0, top, 20001)
    density = t ** (m - 1) * (1 - t**2) ** (n / 2 - 1)
    weights = numpy.ones_like(t)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    log_beta = math.lgamma(n / 2) + math.lgamma(m / 2) - math.lgamma((n + m) / 2)
    return float((weights * density).sum()) * (t[1] - t[0]) / 3 * 2 / math.exp(log_beta)


def test_the_integral_is_right_where_the_answer_is_known() -> None:
    assert survival(3.0, 2, 4) == pytest.approx((1 + 2 * 3.0 / 4) ** -2, rel=1e-9)  # for n = 2, (1 + nf/m)^(-m/2)
    assert survival(1.0, 5, 5) == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("samples", [2, 4, 8])
@pytest.mark.parametrize("numel", [1, 2, 3, 5, 10, 16])
def test_a_tensor_of_few_elements_exceeds_its_limit_by_luck_once_in_a_million(numel: int, samples: int) -> None:
    limit = noise.allowed(numel, samples)
    low, high = 0.998 * limit / 1.5, 1.002 * limit / 1.5
    assert survival(low**2, numel, numel * samples) > CHANCE > survival(high**2, numel, numel * samples)


@pytest.mark.parametrize("samples", [2, 4, 8])
def test_limits_fall_with_size_and_end_at_three(samples: int) -> None:
    limits = [noise.allowed(numel, samples) for numel in range(1, 60)]
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] == noise.allowed(10**6, samples) == noise.FAIL == 3.0
    end = next(place for place, limit in enumerate(limits, start=1) if limit == 3.0)
    assert survival((3.01 / 1.5) ** 2, end, end * samples) < CHANCE < survival((2.99 / 1.5) ** 2, end - 1, (end - 1) * samples)


@pytest.mark.parametrize(("samples", "like"), [(1, 2), (9, 8), (100, 8)])
def test_one_noise_run_counts_as_two_and_more_than_eight_as_eight(samples: int, like: int) -> None:
    assert [noise.allowed(n, samples) for n in (1, 5, 20)] == [noise.allowed(n, like) for n in (1, 5, 20)]


def test_luck_is_what_fishers_distribution_says_in_a_simulation_too() -> None:
    """Ratios of root mean squares of normal errors to those of K samples, at the odds that 400000 draws can show: 1e-3."""
    generator = numpy.random.default_rng(0)
    for numel, samples in ((1, 8), (4, 4)):
        error = (generator.standard_normal((400_000, numel)) ** 2).mean(1)
        floor = (generator.standard_normal((400_000, numel * samples)) ** 2).mean(1)
        limit = float(numpy.quantile(error / floor, 1 - 1e-3))
        assert survival(limit, numel, numel * samples) == pytest.approx(1e-3, rel=0.2)  # 400 draws beyond it: 5 %, four times over


def test_the_floor_adds_independent_errors_in_quadrature() -> None:
    reference = record("output", "a", normal(100))
    own = ONE_ROUNDING * BF16.unit_roundoff * reference.norm
    assert noise.floor(reference, 0.0, roundoff=BF16.unit_roundoff) == pytest.approx(own)
    assert noise.floor(reference, own, roundoff=BF16.unit_roundoff) == pytest.approx(math.sqrt(2) * own)
    assert noise.floor(reference, 0.0, roundoff=0.0, step=1e-3) == pytest.approx(1e-3 * math.sqrt(100 / 12))  # uniform over a step
    assert noise.floor(reference, 3.0, roundoff=0.0, weight_roundings=4.0) == 5.0


def test_a_rounded_tensor_lies_one_floor_away() -> None:
    """0.42 u within the 0.378 to 0.430 that were measured, for each format that torch can round to."""
    values = normal(20_000)
    reference = record("output", "a", values)
    for fmt in (BF16, FP16, E4M3FN):
        rounded = record("output", "a", values.to(fmt.dtype).float())
        floor = noise.floor(reference, 0.0, roundoff=fmt.unit_roundoff, step=fmt.min_subnormal)
        # the sketch estimates a distance to 6.3 %; three times that, and 10 % for the constant itself
        assert float(numpy.linalg.norm(rounded.sketch - reference.sketch)) / floor == pytest.approx(1.0, abs=0.29)


def test_the_spread_is_the_root_mean_square_distance_of_the_noise_runs() -> None:
    base = normal(5000)
    near, far = base + normal(5000, seed=1, scale=0.01), base + normal(5000, seed=2, scale=0.03)
    spread = noise.spread(record("output", "a", base), [record("output", "a", near), record("output", "a", far)])
    exact = math.sqrt((float((near - base).norm()) ** 2 + float((far - base).norm()) ** 2) / 2)
    assert spread == pytest.approx(exact, rel=0.2)  # three standard deviations of a sketch's distance, 3 x 6.3 %


def test_float32_is_judged_by_what_reassociation_may_do() -> None:
    assert noise.roundoff(2.0**-24) == 2.0**-20
    assert noise.roundoff(BF16.unit_roundoff) == BF16.unit_roundoff


def test_values_near_zero_are_multiples_of_what_the_format_has_there() -> None:
    assert noise.step_near_zero(FP16) == 2.0**-24
    tiny = torch.tensor([2.0**-24 * 0.4])
    assert float(tiny.half()) == 0.0
    assert noise.step_near_zero(BF16) == 4096 * 2.0**-126
