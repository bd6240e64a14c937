"""Finds float16 gradients that became zero because there is no loss scale, or a too small one.

The rule counts elements that are zero and not zero in the reference. Their size in the reference shows which loss scale would keep them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from precheck import formats
from precheck.analysis.facts import Fact, Part
from precheck.analysis.noise_floor.boundaries import FLUSHED, NOTED, flushed_by_float16, lost_share, needed_scale, starved
from precheck.analysis.unrepresentable.zeros import LOST_TENSOR, Starved
from precheck.findings import Finding, Severity
from precheck.observe.shadow.operations import Observation
from precheck.rules.rule import Candidate, Compared, Rule, at


class GradientUnderflow(Rule):
    limits = (LOST_TENSOR, FLUSHED, NOTED)

    def __init__(self) -> None:
        self.room = ""

    def among(self, part: Part) -> Iterator[Candidate]:
        self.room = _room(part.observation)
        yield from super().among(part)

    def words(self, fact: Fact) -> str:
        if isinstance(fact, Starved):
            under = f"under a loss scale of {fact.scale:g}" if fact.scale > 1 else "without a loss scale"
            of = fact.parameter or "a parameter"
            if fact.dead:
                return (f"{100 * fact.measured:.0f}% of a gradient is zero here {under}, so that {100 * fact.dead:.0f}% of the gradient of "
                        f"{of} have no correct digit{self.room}")  # fmt: skip
            return f"{100 * fact.measured:.0f}% of the gradient of {of} is flushed to zero {under}, first here{self.room}"
        return super().words(fact)

    def beside(self, run: Compared) -> Iterator[Finding]:
        """The first parameter gradient that lost its norm to zeros which the reference does not have.

        An error if GradScaler cannot bring it back, otherwise a note if more than a tenth of the norm is lost. Rows on which float32 is no valid
        reference are left out.
        """
        if run.precision.compute is not formats.FP16:
            return
        grave = [row.record.key for row in starved(run.low, run.rows, run.precision)]
        flushed = [
            row for row in run.rows
            if lost_share(row) > NOTED and row.record.key not in run.unstable and flushed_by_float16(row, run.precision, run.low.scale)
        ]  # fmt: skip
        for row in sorted(flushed, key=lambda row: row.record.key not in grave)[:1]:
            zeros, scale = row.record.zeros - row.reference.zeros, run.low.scale
            text = (f"gradient of {row.record.name}: {zeros} of {row.record.numel} elements became zero under {run.precision} at loss scale "
                    f"{scale:g}, {lost_share(row):.0%} of its norm is lost; a loss scale of {max(needed_scale(row), 2 * scale):g} or more would "
                    "keep it")  # fmt: skip
            severity: Severity = "error" if row.record.key in grave else "note"
            yield at(row.record, "gradient-underflow", severity, text, measured=lost_share(row), limit=FLUSHED)


def _room(observation: Observation) -> str:
    """The largest loss scale that is safe, in words."""
    room = min((step.backward.room for step in observation.steps), default=math.inf)
    return f"; the largest safe scale is 2^{math.floor(math.log2(room))}" if 0 < room < math.inf else ""
