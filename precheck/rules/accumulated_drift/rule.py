"""An error beyond what rounding explains, at a boundary or of a state that a loop carries on; a result of another shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import ClassVar

from precheck.analysis.boundaries import PLAIN
from precheck.analysis.calls import ADDED, OWN
from precheck.analysis.drift import Comparison, Sorted, share
from precheck.analysis.facts import Fact
from precheck.analysis.labels import label, module_of
from precheck.analysis.limit import Limit
from precheck.analysis.lineage import percent
from precheck.analysis.noise import FAIL, REASSOCIATED, WARN
from precheck.analysis.recurrence import Carried
from precheck.analysis.rounding import GONE, RECURRENT, Misrounded
from precheck.findings import Finding, Severity
from precheck.precisions import Precision
from precheck.rules.accumulated_drift.about import ABOUT
from precheck.rules.rule import Candidate, Compared, Rule, at

SAID = 1e-4
"""Below this an error is said to be less than 0.01 %."""


class AccumulatedDrift(Rule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (WARN, FAIL, REASSOCIATED, PLAIN, GONE, RECURRENT, ADDED, OWN)

    def words(self, fact: Fact) -> str:
        if isinstance(fact, Misrounded) and fact.how == "gradual":
            text = f"{100 * fact.value.dead:.0f} % of the elements have no correct digit; no single op made the error"
            return text + ("; correct rounding may do as much in so deep a network: precheck.measure can tell" if fact.healed else "")
        if isinstance(fact, Carried):
            wide = percent(fact.kept_wide) if fact.kept_wide >= SAID else "less than 0.01"
            text = f"a loop carries this state on {fact.turns} times and stores it in {fact.dtype} each time: it is "
            return text + f"{percent(fact.off)} % off in the end, {fact.measured:.1f} unit roundoffs; stored in float32 it would be {wide} % off"
        return super().words(fact)

    def revised(self, found: list[Candidate], undetermined: Set[Fact]) -> list[Candidate]:
        """Less the states of loops whose additions are told by `absorption`."""
        lines = {each.operation.blamed for each in found if each.rule == "absorption" and each.severity == "error"}
        return [each for each in found if not (isinstance(each.fact, Carried) and each.fact.lines & lines)]

    def beside(self, run: Compared) -> Iterator[Finding]:
        yield from self._misshapen(run)
        rows = Sorted.of(run.rows, run.precision, run.explained, run.unstable)
        if rows.guilty:
            yield _drift(rows.guilty[0], run.precision, "error" if harmful(rows.guilty) else "warning", others=len(rows.guilty) - 1)
        elif rows.doubtful:
            yield _drift(rows.doubtful[0], run.precision, "warning", others=len(rows.doubtful) - 1)
        elif rows.excused:
            yield _drift(rows.excused[0], run.precision, "note", others=len(rows.excused) - 1)

    @staticmethod
    def _misshapen(run: Compared) -> Iterator[Finding]:
        """A result whose shape is not the reference's."""
        for path, key in run.seen.results.items():
            other = run.reference.results.get(path)
            if other is not None and run.seen.records[key].shape != run.reference.records[other].shape:
                here, there = run.seen.records[key], run.reference.records[other]
                text = f"the model's output{path} has shape {here.shape} under {run.precision}, and {there.shape} in float32"
                yield Finding("accumulated-drift", "error", text, module=module_of(here.name, here.kind), tensor=here.name)
                return


def harmful(guilty: Sequence[Comparison]) -> bool:
    """Whether an error reaches what the user gets (a result, the loss, a parameter's gradient), or is plain on its own."""
    reached = any(row.record.is_result or row.record.kind in ("loss", "parameter-gradient") for row in guilty)
    return reached or any(row.r > PLAIN * row.allowed for row in guilty)


def _drift(row: Comparison, precision: Precision, severity: Severity, *, others: int) -> Finding:
    more = f"; {others} more tensor{'' if others == 1 else 's'} too" if others > 0 else ""
    limit = f"{row.allowed:.3g} allowed" if row.failed else f"near the {row.allowed:.3g} allowed"
    text = (f"{label(row.record.kind, row.record.name)}: off by {row.relative:.2%} of its norm under {precision}, where rounding explains "
            f"{share(row):.2%} (r = {row.r:.3g}, {limit}){more}")  # fmt: skip
    return at(row.record, "accumulated-drift", severity, text, measured=row.r, limit=row.allowed)
