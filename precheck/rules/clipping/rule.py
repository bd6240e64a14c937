"""Codes that end at the format's largest number, because their scale does not fit the tensor."""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.codes import CLIPPED, MOSTLY, SEEN, Miscoded
from precheck.analysis.facts import Fact
from precheck.analysis.limit import Limit
from precheck.analysis.lineage import percent
from precheck.observe.shadow.remarks_of_codes import Clipped
from precheck.rules.clipping.about import ABOUT
from precheck.rules.rule import Rule


class Clipping(Rule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (CLIPPED, SEEN, MOSTLY)

    def words(self, fact: Fact) -> str:
        if isinstance(fact, Miscoded) and isinstance(fact.remark, Clipped):
            seen = fact.remark
            lags = seen.clips < MOSTLY * seen.calls
            why = f"the scale lags behind in {seen.clips} of {seen.calls} casts" if lags else "the scale does not fit this tensor"
            return (f"{percent(seen.share)} % of the elements are clipped, the greatest from {seen.greatest:.3g} times the format's largest number: "
                    f"that loses {percent(seen.lost)} % of the tensor, rounding {percent(seen.rounding)} %; {why}")  # fmt: skip
        return super().words(fact)
