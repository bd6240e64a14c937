"""Formats that are not what the code means: a float32 run that stores low, an eps of the wrong format, operands that torch refuses to mix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from precheck.analysis.facts import Fact
from precheck.analysis.labels import module_of
from precheck.analysis.limit import Limit
from precheck.analysis.lineage import placed
from precheck.analysis.raised import Mixed
from precheck.analysis.rounding import SUM_ROUNDINGS, BorrowedEpsilon
from precheck.findings import Finding
from precheck.rules.dtype_leak.about import ABOUT
from precheck.rules.rule import Compared, Rule


class DtypeLeak(Rule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (SUM_ROUNDINGS,)

    def words(self, fact: Fact) -> str:
        if isinstance(fact, BorrowedEpsilon):
            eps, off = fact.operation.own_epsilon, 100 * fact.value.drift
            return f"eps {eps:.3g} is the low format's own; with float32's the result differs by {off:.0f} %"
        if isinstance(fact, Mixed):
            made = f"made so at {placed(fact.operation)} of what was low"
            where = made if fact.widened else "what the block was given, or has made of that"
            return (f"torch refuses to put float32 and {fact.dtype} together at {placed(fact.refused)}; the float32 operand is {where}: "
                    "cast one of them")  # fmt: skip
        return super().words(fact)

    def beside(self, run: Compared) -> Iterator[Finding]:
        """Under a float32 or float64 precision: the first output that the model stores in a low format all the same."""
        if run.precision.is_low or run.precision.autocasts:
            return
        low = [record for record in run.seen.records.values() if record.kind == "output" and record.dtype in ("bfloat16", "float16")]
        if low:
            text = f"output of {low[0].name} is stored in {low[0].dtype} under {run.precision} ({len(low)} output(s) in all)"
            yield _leak(low[0].name, text, float(len(low)))


def _leak(name: str, text: str, measured: float) -> Finding:
    return Finding("dtype-leak", "warning", text, module=module_of(name, "output"), tensor=name, measured=measured, limit=0.0)
