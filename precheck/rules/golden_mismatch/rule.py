"""Finds runs that differ from their golden only because they made other decisions.

Such a run is beyond the limits of the golden. But it is within the floor beside a float32 run of the same process with the same decisions.
"""

from __future__ import annotations

from collections.abc import Sequence

from precheck.analysis.labels import label
from precheck.analysis.noise_floor.drift import ComparedTensor
from precheck.analysis.noise_floor.noise import FAIL, REASSOCIATED
from precheck.findings import Finding
from precheck.precisions import Precision
from precheck.rules.rule import Rule, at
from precheck.words import digits


class GoldenMismatch(Rule):
    """`checking` calls it if a run is compared with a golden and with a reference."""

    limits = (FAIL, REASSOCIATED)


def mismatched(rows: Sequence[ComparedTensor], precision: Precision, *, flips: int) -> list[Finding]:
    """A note on a run that is beyond its golden's limits, but within the floor of a reference with its decisions and its rounded buffers."""
    off = [row for row in rows if row.failed and row.record.kind != "update"]
    if not off:
        return []
    first = off[0]
    same = f"of which {flips} differ from float32's own" if flips else "such as which numbers pass a ReLU, and its rounded buffers"
    text = (f"{label(first.record.kind, first.record.name)}: differs from its golden by {digits(first.r, 3)} times what rounding explains "
            f"under {precision} ({digits(first.allowed, 3)} allowed; {len(off)} of {len(rows)} tensors differ by more); "
            f"float32 agrees if it takes this run's decisions, {same}")  # fmt: skip
    return [at(first.record, "golden-mismatch", "note", text, measured=first.r, limit=first.allowed)]
