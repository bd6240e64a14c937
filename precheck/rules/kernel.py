"""Defines the base class of the rules on kernels: a kernel is compared with its reference, and each class of fault is a rule."""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.kernel_floor import BLOCK, CANCELLED, CHOICES, ELEMENTS, NEARBY, OWN, ROUNDINGS, SPACINGS, TERMS, UNSURE
from precheck.analysis.limit import Limit
from precheck.rules.rule import Rule


class KernelRule(Rule):
    """A class of faults. `comparing_kernels` uses it for single calls, so it judges no run."""

    limits: ClassVar[tuple[Limit, ...]] = (OWN, NEARBY, BLOCK, ELEMENTS, SPACINGS, ROUNDINGS, CANCELLED, TERMS, UNSURE, CHOICES)
