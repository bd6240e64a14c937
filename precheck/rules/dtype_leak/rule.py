"""Finds formats that the code does not intend: low values in a float32 run, an eps of the wrong format, operands that torch refuses to mix."""

from __future__ import annotations

from collections.abc import Iterator

from precheck.analysis.facts import Fact, Part, Readers
from precheck.analysis.labels import label, module_of
from precheck.analysis.propagation.output_impact import ROUNDINGS
from precheck.analysis.propagation.provenance import placed
from precheck.analysis.rounding import promotion
from precheck.analysis.rounding.errors import BorrowedEpsilon
from precheck.analysis.rounding.promotion import LARGE, Island, Lowered, WidenedProduct
from precheck.analysis.unrepresentable.exceptions import MixedFormats
from precheck.findings import Finding
from precheck.rules.rule import Candidate, Compared, Rule
from precheck.words import counted


class DtypeLeak(Rule):
    limits = (ROUNDINGS, LARGE)

    def among(self, part: Part) -> Iterator[Candidate]:
        """The facts of the analysis, and formats that spread by type promotion."""
        yield from super().among(part)
        yield from map(self.candidate, promotion.leaks(part.observation, part.readers))

    def words(self, fact: Fact) -> str:
        if isinstance(fact, BorrowedEpsilon):
            eps, off = fact.operation.own_epsilon, 100 * fact.value.drift
            return f"eps {eps:.3g} belongs to the low format; with float32's eps the result differs by {off:.0f}%"
        if isinstance(fact, MixedFormats):
            line = "here" if fact.widened is fact.operation else f"at {placed(fact.widened)}" if fact.widened else ""
            made = f"made float32 {line}, from low-precision numbers" if line else ""
            where = made or "an input of the block, or computed from one"
            there = "in the call that raised" if fact.refused is None else f"at {placed(fact.refused)}"
            there = "here" if fact.refused is fact.operation else there
            if fact.other != "float32":
                made = f"; the {fact.dtype} operand is cast here" if fact.refused is None else ""
                return f"torch refuses to combine {fact.other} and {fact.dtype} {there}{made}"
            return f"torch refuses to combine float32 and {fact.dtype} {there}; the float32 operand is {where}"
        if isinstance(fact, Lowered):
            sizes = f"one rounding is {fact.measured:.2g}, where float32's is {fact.limit:.2g}"
            if fact.read is fact.operation:
                return f"reads a tensor that is stored in {fact.dtype}, in a float32 run: {sizes}"
            return f"stores {fact.dtype} in a float32 run, and {placed(fact.read)} reads it: {sizes}"
        if isinstance(fact, WidenedProduct):
            return (f"this {fact.low.dtype} tensor of shape {list(fact.low.shape)} becomes float32, since it meets a float32 tensor of shape "
                    f"{list(fact.wide.shape)}. So its product with a weight, {placed(fact.product)}, runs in float32, on a widened copy of the "
                    "weight")  # fmt: skip
        if isinstance(fact, Island):
            many = f"{fact.stretch} op{'s run' if fact.stretch > 1 else ' runs'}"
            return (f"this {fact.low.dtype} tensor of shape {list(fact.low.shape)} becomes float32, since it meets a float32 tensor of shape "
                    f"{list(fact.wide.shape)}. {many} in float32 under autocast, until {placed(fact.cast)} casts back: "
                    f"{100 * fact.measured:.0f}% of what the forward pass makes takes twice the memory")  # fmt: skip
        return super().words(fact)

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        if isinstance(candidate.fact, BorrowedEpsilon):
            return f"take the eps of {wide}: torch.finfo(torch.{wide}).eps"
        if isinstance(candidate.fact, Island):
            return "give both tensors one dtype"
        if isinstance(candidate.fact, MixedFormats):
            other = candidate.fact.other
            return f"cast one of the two: the {other} operand to {candidate.fact.dtype}, or the other to {other}"
        return super().advice(candidate, readers, wide)

    def beside(self, run: Compared) -> Iterator[Finding]:
        """An error on the first output that the model stores low under a float32 or float64 precision."""
        if run.precision.is_low or run.precision.autocasts:
            return
        low = [record for record in run.low.records.values() if record.kind == "output" and record.low]
        if low:
            text = f"{label('output', low[0].name)} is stored in {low[0].dtype} under {run.precision} ({counted(len(low), 'output')} in all)"
            name = low[0].name
            yield Finding("dtype-leak", "warning", text, module=module_of(name, "output"), tensor=name, measured=float(len(low)), limit=0.0)
