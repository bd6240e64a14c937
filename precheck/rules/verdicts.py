"""The limits of verdicts that `kernels` and `pairs` give. Each verdict is a rule, whose folder needs no code: these rules judge no run."""

from __future__ import annotations

from precheck.analysis.chance import CHANCE, LUCK, MORE_ROWS, SPARED
from precheck.analysis.noise_floor.cut_off import APART, NUMBERS
from precheck.analysis.noise_floor.kernel_floor import (
    ADDED_NOISE,
    AT_ONE_ELEMENT,
    CANCELLED_GRADIENT,
    CHOICES,
    ELEMENTS,
    NEARBY,
    ROUNDINGS_OF_TERMS,
    SPACINGS,
    UNSURE,
)
from precheck.analysis.noise_floor.noise import FAIL, REASSOCIATED, STRANGE, VANISHING, WARN

KERNELS = (
    AT_ONE_ELEMENT, NEARBY, FAIL, ELEMENTS, SPACINGS, ADDED_NOISE, CANCELLED_GRADIENT, ROUNDINGS_OF_TERMS, UNSURE, CHOICES, APART, NUMBERS, SPARED,
    MORE_ROWS,
)  # fmt: skip
PAIRS = (WARN, FAIL, REASSOCIATED, CHANCE, LUCK, STRANGE, VANISHING)
