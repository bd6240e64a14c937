"""Two of the same function, of which one rounds more than it may.

What lies between a side's run and its own exact run is that side's rounding. It is held against noise runs of the reference, and against the
reference's own rounding.
`pairs.verdicts` gives the verdict of each tensor, `pairs.told` words it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from precheck.analysis.chance import CHANCE, LUCK
from precheck.analysis.limit import Limit
from precheck.analysis.noise import FAIL, REASSOCIATED, WARN
from precheck.findings import Finding, Severity
from precheck.rules.less_accurate.about import ABOUT
from precheck.rules.rule import Rule


class LessAccurate(Rule):
    """`comparing` and `varying` ask for it, which have two runs and no reference golden."""

    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (WARN, FAIL, REASSOCIATED, CHANCE, LUCK)


def finding(severity: Severity, message: str, **place: Any) -> Finding:
    """A verdict in words; `place` are fields of a finding."""
    return Finding("less-accurate", severity, message, **place)
