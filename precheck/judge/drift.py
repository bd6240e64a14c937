"""Drift of each boundary tensor against its floor."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

from precheck import formats
from precheck.judge import noise
from precheck.observe.noise import ONE_ROUNDING
from precheck.observe.records import Record, Trace
from precheck.observe.sketch import distance
from precheck.precisions import Precision

UNDETERMINED = 0.5
"""Share of a tensor's norm that correct rounding may explain before nothing can be said about it at this precision."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One tensor of the run beside its reference. `drift` and `floor` are Euclidean norms; r is their ratio."""

    record: Record
    reference: Record
    drift: float
    floor: float
    allowed: float  # r above which it has failed

    @functools.cached_property
    def r(self) -> float:
        if self.excess_nonfinite:
            return math.inf
        return self.drift / self.floor if self.floor > 0 else (0.0 if self.drift == 0 else math.inf)

    @functools.cached_property
    def excess_nonfinite(self) -> int:
        """Elements that are NaN or Inf here and not in the reference, by count: masks hold -inf in both."""
        return max(0, self.record.nonfinite - self.reference.nonfinite)

    @property
    def relative(self) -> float:
        return self.drift / self.reference.norm if self.reference.norm else (0.0 if self.drift == 0 else math.inf)

    @property
    def undetermined(self) -> bool:
        """Rounding alone drowns the tensor: a gradient that is exactly zero in theory (a bias before a norm, a key's bias)."""
        return self.floor > UNDETERMINED * self.reference.norm

    @property
    def failed(self) -> bool:
        return self.r > self.allowed and not (self.undetermined and not self.excess_nonfinite)

    @property
    def doubtful(self) -> bool:
        """Whether more noise runs would tell: by the most that are made it would be near or beyond its limit."""
        settled = min(self.allowed, noise.allowed(self.record.numel, noise.MOST))
        return not self.failed and not self.undetermined and self.r > max(noise.WARN, settled * noise.WARN / noise.FAIL)


def compare(low: Trace, reference: Trace, spreads: Mapping[str, float], precision: Precision, *, samples: int) -> list[Comparison]:
    """Every record of `low` whose counterpart has the same shape, in the order in which `low` made them."""
    rows = []
    for key, record in low.records.items():
        counterpart = reference.records.get(key)
        if record.kind != "input" and counterpart is not None and counterpart.shape == record.shape and record.numel:
            rows.append(compared(record, counterpart, spreads.get(key, 0.0), precision, samples=samples, scale=low.scale))
    return rows + _results(low, reference, spreads, precision, samples=samples)


def _results(low: Trace, reference: Trace, spreads: Mapping[str, float], precision: Precision, *, samples: int) -> list[Comparison]:
    """What the model returned at one place, where the runs took it from different modules."""
    rows = []
    for path, key in low.results.items():
        other = reference.results.get(path, key)
        if other != key and low.records[key].shape == reference.records[other].shape:
            rows.append(compared(low.records[key], reference.records[other], spreads.get(other, 0.0), precision, samples=samples))
    return rows


def compared(record: Record, reference: Record, spread: float, precision: Precision, *, samples: int, scale: float = 1.0) -> Comparison:
    fmt = formats.of_dtype(record.dtype) if record.dtype in _KNOWN else precision.compute
    scaled = record.kind in ("gradient", "parameter-gradient")
    stored = record.kind != "returned" or record.dtype in ("bfloat16", "float16")  # what the user's code returns wide has no end near zero
    floor = noise.floor(
        reference,
        spread,
        roundoff=noise.roundoff(precision.roundoff) * (math.sqrt(record.roundings) if record.kind == "returned" else 1.0),
        step=noise.step_near_zero(precision.compute) / (scale if scaled else 1.0) if precision.is_low and stored else 0.0,
        weight_roundings=_stored_weights(record, fmt),
    )
    return Comparison(record, reference, distance(record.sketch, reference.sketch), floor, noise.allowed(record.numel, samples))


_KNOWN = ("bfloat16", "float16", "float32", "float64")


def _stored_weights(record: Record, fmt: formats.Format) -> float:
    """Weights are rounded when they enter the format they are kept in, and once a step; independent, so in quadrature."""
    if record.kind != "update":
        return 0.0
    return ONE_ROUNDING * fmt.unit_roundoff * record.weight_norm * math.sqrt(record.step + 1)


def spreads(reference: Trace, noises: Sequence[Trace]) -> dict[str, float]:
    """Spread of the noise runs around the reference, by record key; a record that some noise run lacks is left out.

    So is one that noise made infinite: a sketch knows nothing of what is not finite, and must not explain anything by it.
    """
    found = {}
    for key, record in reference.records.items():
        others = [other.records[key] for other in noises if key in other.records]
        samples = [other for other in others if other.shape == record.shape and other.nonfinite == record.nonfinite]
        if samples and len(samples) == len(noises):
            found[key] = noise.spread(record, samples)
    return found
