"""Two whose difference this precision cannot tell from rounding.

The exact runs differ, by more than float32's floor and by less than that of the precision.
`pairs.verdicts` gives the verdict of each tensor, `pairs.told` words it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from precheck.analysis.chance import CHANCE, LUCK
from precheck.analysis.limit import Limit
from precheck.analysis.noise import FAIL, REASSOCIATED, WARN
from precheck.findings import Finding
from precheck.rules.rule import Rule
from precheck.rules.undecidable.about import ABOUT


class Undecidable(Rule):
    """`comparing` and `varying` ask for it, which have two runs and no reference golden."""

    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (WARN, FAIL, REASSOCIATED, CHANCE, LUCK)


def finding(message: str, **place: Any) -> Finding:
    """A verdict in words; `place` are fields of a finding."""
    return Finding("undecidable", "note", message, **place)
