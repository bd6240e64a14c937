"""Limits for what is zero in exact arithmetic, such as the gradient of a bias before a norm. A run gives its own rounding there."""

from __future__ import annotations

from precheck.analysis.limit import Limit

STRANGE = Limit(
    64, "times the noise of the reference",
    "The noise of another implementation where a tensor is zero in exact arithmetic. A chain of 4 096 terms has 64 times that of a tree.",
)  # fmt: skip
VANISHING = Limit(
    2.0**-20, "share of what the run gives",
    """A tensor that float64 leaves at most this share of is zero in exact arithmetic. It is its own rounding, and float64's is 2^-29 of float32's:
    nine powers of two are left for amplification.""",
)  # fmt: skip
