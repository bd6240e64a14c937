"""Two that are equal.

Every tensor of both runs under the precision has the same bits.
`pairs.verdicts` gives the verdict of each tensor, `pairs.told` words it.
"""

from __future__ import annotations

from typing import Any

from precheck.findings import Finding
from precheck.rules.bitwise.about import ABOUT
from precheck.rules.rule import Rule


class Bitwise(Rule):
    """`comparing` and `varying` ask for it, which have two runs and no reference golden."""

    about = ABOUT


def finding(message: str, **place: Any) -> Finding:
    """A verdict in words; `place` are fields of a finding."""
    return Finding("bitwise", "note", message, **place)
