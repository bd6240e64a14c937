"""Two whose difference is rounding.

Both lie within the floor of the exact result, and the exact runs agree.
`pairs.verdicts` gives the verdict of each tensor, `pairs.told` words it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from precheck.analysis.chance import CHANCE, LUCK
from precheck.analysis.limit import Limit
from precheck.analysis.noise import FAIL, REASSOCIATED, WARN
from precheck.findings import Finding
from precheck.rules.rounding.about import ABOUT
from precheck.rules.rule import Rule


class Rounding(Rule):
    """`comparing` and `varying` ask for it, which have two runs and no reference golden."""

    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (WARN, FAIL, REASSOCIATED, CHANCE, LUCK)


def finding(message: str, **place: Any) -> Finding:
    """A verdict in words; `place` are fields of a finding."""
    return Finding("rounding", "note", message, **place)
