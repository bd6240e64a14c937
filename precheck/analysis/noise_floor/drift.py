"""Compares each boundary tensor of a run with its reference: drift, noise floor, and their ratio r."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping, Sequence

from precheck import formats
from precheck.analysis.chance import ENOUGH
from precheck.analysis.limit import Limit
from precheck.analysis.noise_floor import noise
from precheck.formats import ONE_ROUNDING
from precheck.observe.recording.sketch import distance
from precheck.observe.records import Record, Trace
from precheck.precisions import Precision

UNDETERMINED = Limit(0.5, "share of the norm")
"""If correct rounding may change a larger share of a tensor, nothing can be said about it at this precision."""


@dataclasses.dataclass(frozen=True)
class ComparedTensor:
    """One tensor of the run and its reference. `drift` and `floor` are Euclidean norms, and r is their ratio."""

    record: Record
    reference: Record
    drift: float
    floor: float
    allowed: float  # the limit of r
    floor_unknown: bool = False  # whether some noise run has Inf or NaN there, so that it is unknown what rounding explains
    independent: float = math.inf  # how many independent errors the noise runs show; two runs show it roughly

    @functools.cached_property
    def r(self) -> float:
        if self.excess_nonfinite:
            return math.inf
        return self.drift / self.floor if self.floor > 0 else (0.0 if self.drift == 0 else math.inf)

    @functools.cached_property
    def excess_nonfinite(self) -> int:
        """How many more elements are NaN or Inf than in the reference. Masks have -Inf in both."""
        return max(0, self.record.nonfinite - self.reference.nonfinite)

    @property
    def relative(self) -> float:
        return self.drift / self.reference.norm if self.reference.norm else (0.0 if self.drift == 0 else math.inf)

    @property
    def errors(self) -> int:
        """The number of independent errors: that of the elements, or fewer."""
        return max(1, round(min(self.record.numel, self.independent)))

    @property
    def undetermined(self) -> bool:
        """Whether rounding alone may change most of the tensor, such as a gradient that is zero in theory (a bias before a norm, a key's bias)."""
        return self.floor > UNDETERMINED * self.reference.norm

    @property
    def failed(self) -> bool:
        return self.r > self.allowed and not ((self.undetermined or self.floor_unknown) and not self.excess_nonfinite)

    @property
    def doubtful(self) -> bool:
        """Whether it has not failed, but is beyond the limit that holds after the largest number of noise runs. Only a tensor of few errors is."""
        settled = noise.allowed(self.errors, noise.MOST)
        return not self.failed and not self.undetermined and not self.floor_unknown and self.r > settled


def floor_share(row: ComparedTensor) -> float:
    """The floor as a share of the reference's norm."""
    return row.floor / row.reference.norm if row.reference.norm else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Sorted:
    """Rows that failed or are doubtful, by their meaning, in the order of the run. `doubtful` has the largest r first."""

    guilty: list[ComparedTensor]  # errors: nothing explains them
    excused: list[ComparedTensor]  # closer runs explain them
    unstable: list[ComparedTensor]  # float32 is no valid reference for them
    doubtful: list[ComparedTensor]

    @classmethod
    def of(cls, rows: Sequence[ComparedTensor], precision: Precision, explained: Collection[str], unstable: Collection[str]) -> Sorted:
        """Sorts `rows`. `explained` and `unstable` are keys of records."""
        finite = [row for row in rows if not row.excess_nonfinite and row.record.kind != "update"]
        failed = [row for row in finite if row.failed]
        if not precision.is_low:  # a float32 run that differs from float64 is ill-conditioned, not imprecise
            # Later steps are left out: where a gradient is zero but for rounding, the sign of Adam's step is arbitrary, and so is what follows.
            return cls([], [], [row for row in failed if row.record.step == 1], [])
        contradicted = {row.record.key for row in failed if row.record.key in unstable and row.record.key not in explained}
        doubtful = sorted((row for row in finite if row.doubtful and row.record.key not in explained), key=lambda row: -row.r)
        return cls(
            [row for row in failed if row.record.key not in explained and row.record.key not in contradicted],
            [row for row in failed if row.record.key in explained],
            [row for row in failed if row.record.key in contradicted],
            doubtful,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Spreads:
    """What noise runs tell of each record, by its key: how far they spread around the reference, and in how many runs."""

    of: Mapping[str, float]
    samples: int
    unknown: Collection[str] = ()  # see `floor_unknown`
    independent: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def seen(cls, reference: Trace, noises: Sequence[Trace]) -> Spreads:
        """All that these noise runs tell."""
        return cls(spreads(reference, noises), len(noises), floor_unknown(reference, noises), independent(reference, noises))


def compare(low: Trace, reference: Trace, spread: Spreads, precision: Precision) -> list[ComparedTensor]:
    """Compares every record of `low` with the reference's of the same shape, in the order of `low`."""
    rows = []
    for key, record in low.records.items():
        counterpart = reference.records.get(key)
        if record.kind != "input" and counterpart is not None and counterpart.shape == record.shape and record.numel:
            free = spread.independent.get(key, math.inf)
            row = compared(record, counterpart, spread.of.get(key, 0.0), precision, samples=spread.samples, scale=low.scale, independent=free)
            rows.append(dataclasses.replace(row, floor_unknown=True) if key in spread.unknown else row)
    return rows + _results(low, reference, spread, precision)


def _results(low: Trace, reference: Trace, spread: Spreads, precision: Precision) -> list[ComparedTensor]:
    """Compares results at the same place of the model's output that the two runs took from different modules."""
    rows = []
    for path, key in low.results.items():
        other = reference.results.get(path, key)
        if other != key and low.records[key].shape == reference.records[other].shape:
            rows.append(compared(low.records[key], reference.records[other], spread.of.get(other, 0.0), precision, samples=spread.samples))
    return rows


def compared(
    record: Record, reference: Record, spread: float, precision: Precision, *, samples: int, scale: float = 1.0, independent: float = math.inf
) -> ComparedTensor:
    """A tensor beside its reference, with what rounding explains and the limit of r."""
    fmt = formats.of_dtype(record.dtype) if record.dtype in _KNOWN else precision.compute
    scaled = record.kind in ("gradient", "parameter-gradient")
    stored = record.kind != "returned" or record.low  # a wide result of the user's code has no subnormal limit
    floor = noise.floor(
        reference,
        spread,
        roundoff=noise.roundoff(precision.roundoff) * (math.sqrt(record.roundings) if record.kind == "returned" else 1.0),
        step=noise.step_near_zero(precision.compute) / (scale if scaled else 1.0) if precision.is_low and stored else 0.0,
        weight_roundings=_stored_weights(record, fmt),
    )
    errors = _together(reference, spread, floor, independent)
    row = ComparedTensor(record, reference, distance(record.sketch, reference.sketch), floor, 0.0, independent=errors)
    return dataclasses.replace(row, allowed=noise.allowed(row.errors if samples >= ENOUGH else record.numel, samples))


def _together(reference: Record, spread: float, floor: float, independent: float) -> float:
    """The number of independent errors in a floor: those of its spread over noise runs, and one of each element in the rest, as large as the element.

    Variances add up. That of the square of n errors is 2/n times the square of their sum.
    """
    rest, free = max(0.0, floor**2 - spread**2), min(independent, reference.numel)
    varying = spread**4 / free + rest**2 / noise.of_one_size(reference)
    return float(min(reference.numel, floor**4 / varying)) if varying > 0 else math.inf


_KNOWN = ("bfloat16", "float16", "float32", "float64")


def _stored_weights(record: Record, fmt: formats.Format) -> float:
    """The norm of the rounding errors of stored weights: one when they are converted and one in each step. They are independent."""
    if record.kind != "update":
        return 0.0
    return ONE_ROUNDING * fmt.unit_roundoff * record.weight_norm * math.sqrt(record.step + 1)


def floor_unknown(reference: Trace, noises: Sequence[Trace]) -> set[str]:
    """Keys of records that are finite in the reference and not in some noise run.

    Noise may leave the domain of a function, such as the positive numbers of a logarithm, where rounding stays within. So nothing is known there.
    """
    every = ((key, record, other.records.get(key)) for other in noises for key, record in reference.records.items())
    return {key for key, record, other in every if other is not None and other.nonfinite > record.nonfinite}


def roundings_shown(low: Trace, reference: Trace, precision: Precision) -> dict[str, float]:
    """How many roundings the error of each module's output in the low run amounts to, at least one, by key.

    An output that n roundings inside its module lead to is off by √n of them at most: a recurrent network forgets, and a mean averages. What the run
    shows there is all that later errors can follow from. Two draws of few elements may be small by chance.
    """
    found = {}
    for key, record in low.records.items():
        other = _counterpart(key, reference)
        if record.kind == "output" and other is not None and other.shape == record.shape and other.norm:
            one = ONE_ROUNDING * noise.roundoff(precision.compute.unit_roundoff) * other.norm * noise.least_estimate(record.numel)
            found[key] = max(1.0, (distance(record.sketch, other.sketch) / one) ** 2)
    return found


def independent(reference: Trace, noises: Sequence[Trace]) -> dict[str, float]:
    """How many independent errors the noise runs show in each record (`noise.independent`), by its key, for what has a spread."""
    present = spreads(reference, noises)
    others = {key: [found for other in noises if (found := _counterpart(key, other)) is not None] for key in present}
    return {key: noise.independent(reference.records[key], found) for key, found in others.items()}


def _counterpart(key: str, other: Trace) -> Record | None:
    """What a noise run recorded of the same tensor. Where the low run casts a module's output to float32 and returns it, a float32 run passes it on
    as it is, and has no record of its own for it, nor for its gradient."""
    kind, _, place = key.partition(":")
    made = f"output:{place}" if kind == "gradient" else key
    while made not in other.records and made in other.same:
        made = other.same[made]
    return other.records.get(f"gradient:{made.removeprefix('output:')}" if kind == "gradient" else made)


def spreads(reference: Trace, noises: Sequence[Trace]) -> dict[str, float]:
    """The spread of the noise runs around the reference, by record key. Records that some noise run lacks are left out.

    Records with Inf or NaN from noise are left out too: a sketch ignores elements that are not finite, so its spread must not explain anything.
    """
    found = {}
    for key, record in reference.records.items():
        others = [counterpart for other in noises if (counterpart := _counterpart(key, other)) is not None]
        samples = [other for other in others if other.shape == record.shape and other.nonfinite == record.nonfinite]
        if samples and len(samples) == len(noises):
            found[key] = noise.spread(record, samples)
    return found
