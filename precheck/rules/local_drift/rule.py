"""Finds ops whose own error is more than one rounding of the result, and products that only select data but round it under a low precision."""

from __future__ import annotations

from collections.abc import Sequence

from precheck import formats, ops
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.labels import label
from precheck.analysis.limit import Limit
from precheck.analysis.noise_floor.drift import ComparedTensor
from precheck.analysis.propagation.output_impact import ROUNDINGS
from precheck.analysis.propagation.provenance import percent
from precheck.analysis.rounding.function_errors import OwnError
from precheck.analysis.rounding.function_limits import FUNCTION_ERRORS, WEIGHTINGS
from precheck.analysis.rounding.misroundings import Misrounded
from precheck.findings import Finding
from precheck.observe.decisions.selections import Selection
from precheck.observe.recording.sketch import distance
from precheck.observe.records import Trace
from precheck.precisions import Precision
from precheck.rules.advice import widened
from precheck.rules.rule import HEALED, Candidate, Rule

LEFT = Limit(1 / 8, "share of the error")
"""If the error of a result falls to this share when its selections are computed exactly, the selections made it. A product that really computes,
anywhere before the result, leaves a rounding as large as the error was."""
BEYOND_FLOAT32 = Limit(16.0, "roundoffs of float32")
"""The smallest error that float32 does not explain. A rounding to tf32 is 8192 of them."""


WHOLE = Limit(0.5, "relative error")
"""If an op's error on its own inputs is at least this, its kernel may be wrong on this device. Summing in low precision makes no such error."""


class LocalDrift(Rule):
    limits = (ROUNDINGS, WEIGHTINGS, WHOLE, *FUNCTION_ERRORS, LEFT, BEYOND_FLOAT32)

    def words(self, fact: Fact) -> str:
        if isinstance(fact, Misrounded) and fact.how == "accumulated":
            off = fact.value.local or 0.0
            verb = "computes" if fact.operation.base in ops.SEPARATE else "accumulates"
            why = f"it {verb} in {fact.value.dtype}" + ("" if off < WHOLE else ", or its kernel is wrong on this device")
            return f"on the same inputs as the reference, the op itself is {percent(off)}% off: {why}{HEALED if fact.healed else ''}"
        return super().words(fact)

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        return widened(candidate.operation, wide)

    def own_error(self, fact: OwnError) -> str:
        return "this op causes it"


def by_selections(rows: Sequence[ComparedTensor], exact: Trace, selections: Sequence[Selection], precision: Precision) -> list[Finding]:
    """Findings on results whose error comes from selections alone. `exact`: the run with exact selections.

    There are none for networks, since what they select passes other products, which round it anyway.
    """
    for row in rows:
        was, norm, now = row.drift, row.reference.norm, exact.records.get(row.record.key)
        if not row.record.is_result or now is None or not norm or was <= BEYOND_FLOAT32 * formats.FP32.unit_roundoff * norm:
            continue
        left = distance(now.sketch, row.reference.sketch)
        if left <= LEFT * was and selections:
            first = selections[0]
            return [
                Finding(
                    "local-drift", "error",
                    f"{label('output', row.record.name)}: off by {was / norm:.2g} of its norm under {precision}, all of it by products that move "
                    f"or select values (an identity, a permutation, one-hot rows): float32 does them exactly, {precision} rounds what they move; "
                    f"{first.op} at {first.source} is the first of {len(selections)}",
                    phase="forward", op=first.op, module=first.module, source=first.source, step=row.record.step, tensor=row.record.name,
                    measured=was / norm, limit=BEYOND_FLOAT32 * formats.FP32.unit_roundoff, advice="index instead, or keep tf32 off there",
                )
            ]  # fmt: skip
    return []
