"""Creates the findings of the rules on kernels. `kernels.causes` classifies a fault, and each class is a rule."""

from __future__ import annotations

from typing import Any

from precheck.findings import Finding, Severity


def finding(rule: str, severity: Severity, message: str, **place: Any) -> Finding:
    """The finding with a verdict. `place`: fields of the finding."""
    return Finding(rule, severity, message, **place)
