"""The limits of verdicts that `kernels` and `pairs` give. Each verdict is a rule, whose folder needs no code: these rules judge no run."""

from __future__ import annotations

from precheck.analysis.chance import CHANCE, LUCK, ROWS, SPARED
from precheck.analysis.noise_floor.cut_off import APART, NUMBERS
from precheck.analysis.noise_floor.kernel_floor import BLOCK, CANCELLED, CHOICES, ELEMENTS, NEARBY, OWN, ROUNDINGS, SPACINGS, TERMS, UNSURE
from precheck.analysis.noise_floor.noise import FAIL, REASSOCIATED, STRANGE, VANISHING, WARN

KERNELS = (OWN, NEARBY, BLOCK, ELEMENTS, SPACINGS, ROUNDINGS, CANCELLED, TERMS, UNSURE, CHOICES, APART, NUMBERS, SPARED, ROWS)
PAIRS = (WARN, FAIL, REASSOCIATED, CHANCE, LUCK, STRANGE, VANISHING)
