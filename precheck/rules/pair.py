"""What the rules on pairs have in common: two runs are compared, no reference golden, and each verdict is a rule."""

from __future__ import annotations

from typing import Any, ClassVar

from precheck.analysis.chance import CHANCE, LUCK
from precheck.analysis.limit import Limit
from precheck.analysis.noise import FAIL, REASSOCIATED, WARN
from precheck.findings import Finding, Severity
from precheck.rules.rule import Rule


class PairRule(Rule):
    """A verdict on a pair. `comparing` and `varying` ask for it; `pairs.told` words it."""

    limits: ClassVar[tuple[Limit, ...]] = (WARN, FAIL, REASSOCIATED, CHANCE, LUCK)

    @classmethod
    def finding(cls, severity: Severity, message: str, **place: Any) -> Finding:
        """A verdict in words; `place` are fields of a finding."""
        return Finding(cls.about.name, severity, message, **place)
