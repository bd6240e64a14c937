"""Computes what chance explains: quantiles of Fisher's F, without a statistics library, and how much smaller an error is by luck."""

from __future__ import annotations

import functools
import math

from precheck.analysis.limit import Limit

CHANCE = Limit(1e-6, "probability")
"""The probability of accusing what only chance makes: a tensor or one of its blocks, decisions that differ, numbers that happen to be small beside
those with which they were computed. A model of a thousand tensors that is compared every day is accused once in three years."""
DEVIATIONS = Limit(6.0, "standard errors")
"""The largest deviation of a mean, or of a fitted factor, that chance explains: one in 10^9 is larger."""
LUCK = Limit(1.5, "times")
"""The largest factor that chance explains. `noise.FAIL` has the same margin: it is 1.5 times the largest r of healthy tensors."""
SPARED = Limit(2.0**-8, "probability")
"""The chance that a fault which few numbers have spares all rows of a kernel's result. Below it, a size is at fault where another one is right. Only
the class depends on it."""
MORE_ROWS = Limit(16, "times a size of the example")
"""So many more rows tell a fault that few numbers have from chance. Four rows, of which each is wrong in one draw of four, are all right in one draw
of three, and 64 in one of 10^8."""
ENOUGH = 4
"""The fewest noise runs whose spread gives the number of independent errors."""


@functools.cache
def largest_ratio_by_chance(numel: int, samples: int, blocks: int) -> float:
    """The ratio to `samples` noise runs that the root mean square of `numel` errors exceeds with probability `CHANCE` in one of `blocks`.

    `numel` counts independent errors (`independent_errors`): a gradient that comes from a single token has one, however long it is.
    """
    return math.sqrt(_quantile(max(1, numel), max(1, numel) * max(1, samples), CHANCE / max(1, blocks)))


def smallest_share_by_chance(numel: int) -> float:
    """The share of its mean to which chance makes a sum of `numel` squares smaller: four standard deviations below it, 4/√n. Below zero if n < 16."""
    return 1 - 4 / math.sqrt(numel or 1)


def independent_errors(mean: float, square: float, samples: int, *, enough: int = ENOUGH) -> float:
    """The number of independent errors in a sum of squares, from its mean over noise runs and the mean of its square. Inf if they are not `enough`.

    The variance of a sum of n equal squares is 2/n times its squared mean. The variance of the mean, which is smaller by the number of runs, is
    subtracted.
    """
    if samples < max(2, enough) or mean <= 0:
        return math.inf
    variance = max(0.0, (square / mean**2 - 1) * samples / (samples - 1))
    return 2 * (1 - min(variance / samples, 0.5)) / variance if variance > 0 else math.inf


def _quantile(n: int, m: int, chance: float) -> float:
    """F^-1(1 - chance; n, m), to one part in a thousand, by bisection."""
    low, high = 1.0, 2.0
    while _beyond(high, n, m) > chance and high < 1e12:
        low, high = high, high * 2
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _beyond(middle, n, m) > chance else (low, middle)
    return high


def _beyond(f: float, n: int, m: int) -> float:
    """P(F > f) = I_x(m/2, n/2) with x = m / (m + n f)."""
    return _incomplete(m / 2, n / 2, m / (m + n * f))


def _incomplete(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x) - math.log(a)
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    result = d
    for k in range(1, 1000):
        for term in (k * (b - k) * x / ((a + 2 * k - 1) * (a + 2 * k)), -(a + k) * (a + b + k) * x / ((a + 2 * k) * (a + 2 * k + 1))):
            d = 1 + term * d
            c = 1 + term / c
            d, c = 1 / (d if abs(d) > tiny else tiny), c if abs(c) > tiny else tiny
            step = d * c
            result *= step
        if abs(step - 1) < 1e-12:
            break
    return math.exp(log_front) * result if log_front > -700 else 0.0
