"""What the rules on kernels have in common: one judge gives all their verdicts, and the class of a fault is its rule."""

from __future__ import annotations

from typing import Any

from precheck.analysis.kernel_floor import BLOCK, CANCELLED, ELEMENTS, NEARBY, OWN, ROUNDINGS, SPACINGS, TERMS
from precheck.analysis.limit import Limit
from precheck.findings import Finding, Severity

LIMITS: tuple[Limit, ...] = (OWN, NEARBY, BLOCK, ELEMENTS, SPACINGS, ROUNDINGS, CANCELLED, TERMS)
"""What a result is held against: every class of fault but those of bits begins with a result that is too far from the exact one."""


def finding(rule: str, severity: Severity, message: str, **place: Any) -> Finding:
    """A verdict in words; `place` are fields of a finding."""
    return Finding(rule, severity, message, **place)
