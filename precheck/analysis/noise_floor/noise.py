"""Defines the noise floor of a tensor (how far rounding alone moves it), and the limit of r, the ratio of drift to floor.

floor^2 = mean over noise runs of ||noise - reference||^2 + (c u ||reference||)^2 + n eta^2 / 12. The second term is the tensor's own last
rounding, the third the spacing eta of values near zero (uniform error of one step).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from precheck.analysis.chance import LUCK, independent_errors, largest_ratio_by_chance
from precheck.analysis.limit import Limit
from precheck.formats import FP16, ONE_ROUNDING, Format
from precheck.observe.recording.sketch import distance
from precheck.observe.records import Record

WARN = Limit(2.0, "noise floors")
"""The largest r of a healthy tensor. 7 252 healthy boundary tensors of 12 model families reached at most r = 2.00 (median 0.92, p99.9 1.90)."""
FAIL = Limit(3.0, "noise floors")
"""A larger r is an error. It is 1.5 times the largest r of healthy tensors. The mildest harmful bug of the same study reached 4.6."""

REASSOCIATED = Limit(2.0**-20, "unit roundoff")
"""The unit roundoff by which a float32 run is judged, so that a sum may be added in any order. A reduction of n terms in float32 has an error of
about √n/4 roundings, in whatever order a kernel or another machine adds them. 16 x 2^-24 covers n = 4096, and is what torch.testing allows (1.3e-6).
Between any two of eleven settings of a CPU, 99 in 100 tensors of eight models are at most 1.7 floors of it apart, and the furthest 1.8 of the 3 that
are allowed. Products of 65 536 terms reach 1.5, and of 262 144 terms 3 (docs/portability.md)."""
STRANGE = Limit(64, "times the noise of the reference")
"""The noise of another implementation where a tensor is zero in exact arithmetic. A chain of 4 096 terms has 64 times that of a tree."""
VANISHING = Limit(2.0**-20, "share of what the run gives")
"""A tensor that float64 leaves at most this share of is zero in exact arithmetic. It is its own rounding, and float64's is 2^-29 of float32's: nine
powers of two are left for amplification."""

_TWO_DRAWS = (0.032, 0.151, 0.252, 0.327, 0.385, 0.430, 0.466, 0.496, 0.522, 0.544, 0.563, 0.580, 0.596, 0.609, 0.622, 0.633, 0.643, 0.652,
              0.661, 0.669, 0.677, 0.684, 0.690, 0.697, 0.702, 0.708, 0.713, 0.718, 0.723, 0.727)  # fmt: skip
"""sqrt(X^-1(1e-3; 2n) / 2n) for n = 1, 2, ...: the mean square of two draws of n errors follows a chi-squared distribution, and once in a thousand
times its root is no more than this share of what it is on average. Computed with scipy.stats.chi2.ppf."""

MOST = 8
"""The largest number of noise runs. After two, a single number may be off by 1500 floors by chance; after so many, by 20."""
FEW = 40
"""The fewest elements whose mean square is by chance at most four times that of the noise, after two runs and after more."""


def roundoff(precision_roundoff: float) -> float:
    """The unit roundoff by which a run is judged. For float32 it includes the effect of summation order (reassociation)."""
    return max(precision_roundoff, REASSOCIATED)


def allowed(numel: int, samples: int) -> float:
    """The limit of r for a tensor of `numel` elements after `samples` noise runs. A tensor of few elements may exceed 3 by luck: r² is the mean
    square of n errors over that of n errors in each noise run, and follows Fisher's F."""
    return max(FAIL, LUCK * largest_ratio_by_chance(numel, min(max(samples, 2), MOST), 1)) if numel < FEW else FAIL


def least_estimate(numel: int) -> float:
    """The smallest share of the true root mean square that two samples of rounding show, for a tensor of `numel` elements."""
    return _TWO_DRAWS[max(0, min(numel, len(_TWO_DRAWS)) - 1)]


def spread(reference: Record, noises: Sequence[Record]) -> float:
    """Root mean square distance of the noise runs from the reference."""
    return math.sqrt(sum(distance(noise.sketch, reference.sketch) ** 2 for noise in noises) / len(noises))


def independent(reference: Record, noises: Sequence[Record]) -> float:
    """How many independent errors rounding makes in a tensor, by how much the distances of noise runs differ. Inf with one run.

    The squared distance of n independent errors varies by √(2/n) of itself. A tensor that follows from few roundings, such as the state of a
    loop that a weight's rounding moves the same way in each iteration, has few independent errors, however many elements it has.
    """
    squares = [distance(noise.sketch, reference.sketch) ** 2 for noise in noises]
    return independent_errors(sum(squares) / len(squares), sum(each**2 for each in squares) / len(squares), len(squares), enough=2)


def of_one_size(reference: Record) -> float:
    """How many elements of one size vary as much together as those of a tensor, if the error of each is as large as the element: (Σa²)² / Σa⁴.

    It is 1 if one element is nearly all of the norm, however many small ones there are. The sketch holds each element of a small tensor, and sums of
    elements of a large one. From such sums the result is at most 42.
    """
    squares = reference.sketch**2
    return float(squares.sum() ** 2 / max((squares**2).sum(), 1e-300)) if squares.any() else float(reference.numel)


def floor(reference: Record, spread: float, *, roundoff: float, step: float = 0.0, weight_roundings: float = 0.0) -> float:
    """The drift that correct rounding explains, as a Euclidean norm.

    `weight_roundings`: the norm of the error that an update has because the weights are stored after each step.
    """
    own = ONE_ROUNDING * roundoff * reference.norm
    near_zero = reference.numel * step**2 / 12
    return math.sqrt(spread**2 + own**2 + near_zero + weight_roundings**2)


def step_near_zero(fmt: Format) -> float:
    """The spacing of values near zero: float16's subnormals. In formats with float32's range, some hardware flushes numbers below the smallest
    normal one to zero (oneDNN's bfloat16 kernels on x86). It also flushes each term of a sum, here of 4096 as above."""
    return fmt.min_subnormal if fmt is FP16 else 4096 * fmt.min_normal
