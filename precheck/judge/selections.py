"""Data that is moved by products, under a precision that rounds the operands of products and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from precheck import formats
from precheck.findings import Finding
from precheck.judge.drift import Comparison
from precheck.judge.extent import label
from precheck.observe.records import Trace
from precheck.observe.selections import Selection
from precheck.observe.sketch import distance
from precheck.precisions import Precision

LEFT = 1 / 8
"""Share of a result's drift that may be left where its selections are exact. One product that computes, anywhere on the way to the
result, leaves a rounding of its own, as large as the drift was."""
SEEN = 16.0
"""Drift in float32's own roundoffs that is more than float32 costs; tf32 rounds to 8192 of them."""


def moved(rows: Sequence[Comparison], exact: Trace, selections: Sequence[Selection], precision: Precision) -> list[Finding]:
    """A result of which nothing but selections made what it is off by: `exact` is the run with these carried out exactly.

    Of a network this is never said, since what it selects goes through products that compute, and these round it anyway.
    """
    for row in rows:
        was, norm, now = row.drift, row.reference.norm, exact.records.get(row.record.key)
        if not row.record.is_result or now is None or not norm or was <= SEEN * formats.FP32.unit_roundoff * norm:
            continue
        left = distance(now.sketch, row.reference.sketch)
        if left <= LEFT * was and selections:
            first = selections[0]
            return [
                Finding(
                    "local-drift", "error",
                    f"{label('output', row.record.name)}: off by {was / norm:.2g} of its norm under {precision}, all of it by products that move "
                    f"or select values (an identity, a permutation, one-hot rows): float32 does them exactly, {precision} rounds what they move; "
                    f"{first.op} at {first.source} is the first of {len(selections)}; index instead, or keep tf32 off there",
                    phase="forward", op=first.op, module=first.module, source=first.source, step=row.record.step, tensor=row.record.name,
                    measured=was / norm, limit=SEEN * formats.FP32.unit_roundoff,
                )
            ]  # fmt: skip
    return []
