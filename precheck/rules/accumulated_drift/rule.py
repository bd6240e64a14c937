"""Finds errors beyond what rounding explains, at a boundary or in a state of a loop.

A run is compared with its reference at each boundary: results of modules and functions, gradients, weights, the loss. A tensor is reported if its r
is beyond its limit and no closer run explains it, or if its shape differs. A watched run is checked for three things: a function with a larger error
than its own lines explain, a state of a loop whose roundings add up iteration by iteration, and gradients that autograd adds up in a low format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set

from precheck.analysis import chance
from precheck.analysis.facts import Fact, Part, Readers
from precheck.analysis.labels import label, module_of
from precheck.analysis.noise_floor.boundaries import TOO_LARGE_TO_HEAL
from precheck.analysis.noise_floor.drift import ComparedTensor, Sorted, floor_share
from precheck.analysis.noise_floor.noise import FAIL, REASSOCIATED, WARN
from precheck.analysis.propagation.output_impact import CANCELLED, FEWEST_SUMS, GARBAGE, ROUNDINGS
from precheck.analysis.propagation.provenance import elements, percent, read_at
from precheck.analysis.rounding.differences import RECURRENT
from precheck.analysis.rounding.function_limits import ADDED, MADE_BY_FUNCTION
from precheck.analysis.rounding.misroundings import Misrounded
from precheck.analysis.rounding.recurrence import INDEPENDENT, Carried
from precheck.findings import Finding, Severity
from precheck.formats import ONE_ROUNDING
from precheck.observe.shadow.op_notes import Summed
from precheck.observe.shadow.operations import Operation
from precheck.precisions import Precision
from precheck.rules.advice import added_wide, widened
from precheck.rules.rule import Candidate, Compared, Rule, at
from precheck.words import digits, of_norm, percents

CERTAIN = 1000
"""Samples that `ONE_ROUNDING` counts as the mean of. It is derived, so chance has no part in it."""
SAID = 1e-4
"""Smaller errors are described as "less than 0.01%"."""


class AccumulatedDrift(Rule):
    limits = (
        WARN, FAIL, REASSOCIATED, TOO_LARGE_TO_HEAL, GARBAGE, RECURRENT, ADDED, MADE_BY_FUNCTION, INDEPENDENT, chance.CHANCE, ROUNDINGS,
        CANCELLED, FEWEST_SUMS,
    )  # fmt: skip

    def noted(self, operation: Operation, part: Part) -> Iterator[Candidate]:
        """Gradients of one value that autograd adds up in a low format."""
        if operation.summed is not None and (worst := _gradients(operation, operation.summed, part.readers)) is not None:
            yield worst

    def words(self, fact: Fact) -> str:
        if isinstance(fact, Misrounded) and fact.how == "gradual":
            text = f"{100 * fact.value.dead:.0f}% of the elements have no correct digit; no single op made the error"
            return text + ("; correct rounding may do as much in so deep a network; r, which precheck.measure gives, can tell" if fact.healed else "")
        if isinstance(fact, Carried):
            less = percent(fact.kept_wide) if fact.kept_wide >= SAID else "less than 0.01"
            text = f"a loop carries this state on {fact.iterations} times and stores it in {fact.dtype} each time: it is "
            wider = "float64" if fact.dtype == "float32" else "float32"
            return text + f"{percent(fact.off)}% off in the end; stored in {wider} it would be {less}% off"
        return super().words(fact)

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        if isinstance(candidate.fact, Carried):
            return f"keep this state in {wide} between the iterations: {widened(candidate.operation, wide)}"
        if isinstance(candidate, GradientSums):
            return added_wide(wide)
        return super().advice(candidate, readers, wide)

    def revised(self, found: list[Candidate], undetermined: Set[Fact]) -> list[Candidate]:
        """Drops the states of loops whose additions `absorption` reports, and errors that came in from such an accumulator."""
        lines = {each.operation.blamed for each in found if each.rule == "absorption" and each.severity == "error"}
        gradients = {each.operation.blamed for each in found if isinstance(each, GradientSums)} & lines
        carried = (each for each in found if not (isinstance(each.fact, (Carried, Misrounded)) and each.fact.lines & lines))
        return [each for each in carried if not (isinstance(each, GradientSums) and each.operation.blamed in gradients)]

    def beside(self, run: Compared) -> Iterator[Finding]:
        yield from self._misshapen(run)
        rows = Sorted.of(run.rows, run.precision, run.explained, run.unstable)
        if rows.guilty:
            severity: Severity = "error" if harmful(rows.guilty) else "warning"
            yield _drift(_first(rows.guilty), run.precision, severity, others=len(rows.guilty) - 1 + run.unasked)
        elif rows.doubtful:
            yield _drift(rows.doubtful[0], run.precision, "warning", others=len(rows.doubtful) - 1)
        elif rows.excused:
            yield _drift(rows.excused[0], run.precision, "note", others=len(rows.excused) - 1)

    @staticmethod
    def _misshapen(run: Compared) -> Iterator[Finding]:
        """A result whose shape is not the reference's."""
        for path, key in run.low.results.items():
            other = run.reference.results.get(path)
            if other is not None and run.low.records[key].shape != run.reference.records[other].shape:
                here, there = run.low.records[key], run.reference.records[other]
                text = f"the model's output{path} has shape {here.shape} under {run.precision}, and {there.shape} in float32"
                yield Finding("accumulated-drift", "error", text, module=module_of(here.name, here.kind), tensor=here.name)
                return


class GradientSums(Candidate):
    """Gradients of one value that autograd adds up in a low format."""


def _gradients(operation: Operation, sums: Summed, readers: Readers) -> Candidate | None:
    """A candidate if a complete sum of gradients has a larger error than independent roundings make, most of it from low additions."""
    (value,), u = operation.outputs, operation.outputs[0].roundoff
    if any(reader.summed is not None and reader.base == operation.base for reader in readers.get(value, ())):
        return None  # not complete yet
    by_chance = ONE_ROUNDING * chance.largest_ratio_by_chance(elements(value), CERTAIN, 1)
    independent = max(INDEPENDENT, by_chance) * math.sqrt(sums.terms) * max(1.0, sums.between)
    limit = max(ROUNDINGS, independent) * u
    if not limit < sums.off < math.inf or sums.off**2 < MADE_BY_FUNCTION * value.drift**2:
        return None
    text = (f"this tensor is used {sums.terms} times, so it has {sums.terms} gradients. Autograd adds them up in {value.dtype}, and that alone "
            f"puts the sum {percent(sums.off)}% off ({sums.off / u:.1f} unit roundoffs)")  # fmt: skip
    return GradientSums("accumulated-drift", read_at(operation), text, sums.off / u, limit / u)


def harmful(guilty: Sequence[ComparedTensor]) -> bool:
    """Whether an error reaches what the user gets (a result, the loss, a parameter's gradient), or is far beyond its limit."""
    reached = any(row.record.is_result or row.record.kind in ("loss", "parameter-gradient") for row in guilty)
    return reached or any(map(_plain, guilty))


def _first(guilty: Sequence[ComparedTensor]) -> ComparedTensor:
    """The row to name: the first one. A function's result that alone would be a warning is skipped if another one is far beyond its limit."""
    if guilty[0].record.kind != "returned" or _plain(guilty[0]):
        return guilty[0]
    return next((row for row in guilty if row.record.kind == "returned" and _plain(row)), guilty[0])


def _plain(row: ComparedTensor) -> bool:
    return row.r > TOO_LARGE_TO_HEAL * row.allowed


def _drift(row: ComparedTensor, precision: Precision, severity: Severity, *, others: int) -> Finding:
    """The finding on a tensor beyond its limit, or near it."""
    more = f"; {others} more tensor{'' if others == 1 else 's'} too" if others > 0 else ""
    limit = f"{digits(row.allowed, 3)} allowed" if row.failed else f"near the {digits(row.allowed, 3)} allowed"
    text = (f"{label(row.record.kind, row.record.name)}: off by {of_norm(row.relative)} under {precision}, where rounding explains "
            f"{percents(floor_share(row))} (r = {digits(row.r, 3)}, {limit}){more}")  # fmt: skip
    return at(row.record, "accumulated-drift", severity, text, measured=row.r, limit=row.allowed)
