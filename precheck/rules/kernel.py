"""What the rules on kernels have in common: one judge gives all their verdicts, and the class of a fault is its rule."""

from __future__ import annotations

from typing import Any

from precheck.findings import Finding, Severity


def finding(rule: str, severity: Severity, message: str, **place: Any) -> Finding:
    """A verdict in words; `place` are fields of a finding."""
    return Finding(rule, severity, message, **place)
