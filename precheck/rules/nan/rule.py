"""NaN that nothing else explains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from precheck.analysis.facts import Fact
from precheck.analysis.labels import label
from precheck.analysis.limit import Limit
from precheck.analysis.nonfinite import FILLS, WRONG, Broken
from precheck.findings import Finding
from precheck.rules.nan.about import ABOUT
from precheck.rules.rule import Compared, Rule, broken_boundary


class NotANumber(Rule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (WRONG, FILLS)

    def words(self, fact: Fact) -> str:
        if isinstance(fact, Broken) and fact.how == "not a number":
            return f"NaN from inputs that the reference has too, where the result is {fact.root.beyond:.4g}"
        return super().words(fact)

    def beside(self, run: Compared) -> Iterator[Finding]:
        """The first boundary that is not finite for no want of range; a loss or gradient that is not finite in the reference either."""
        yield from broken_boundary(self, run)
        for record in run.reference.records.values():
            if record.kind in ("loss", "parameter-gradient") and record.nonfinite:
                what = f"the {label(record.kind, record.name)} is {'NaN' if record.nan else 'Inf'} in float32 too, in step {record.step}"
                yield Finding("nan", "warning", f"{what}: the check is inconclusive", step=record.step, tensor=record.name)
                return
