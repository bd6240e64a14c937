"""Compares a run with its reference at each boundary of a module or function: Inf and NaN, flushed gradients, loss scales."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from precheck import formats
from precheck.analysis.limit import Limit
from precheck.analysis.noise_floor.drift import ComparedTensor
from precheck.observe.records import Record, Trace
from precheck.precisions import Precision

REFERENCE_OFF = Limit(0.25, "share of the error")
"""The largest distance of float32 from float64, as a share of the run's error. If float32 itself is further off, it is no valid reference for that
tensor."""
TOO_LARGE_TO_HEAL = Limit(2.0, "times its limit")
"""A larger error is reported even if later layers heal it. Thousands of rows that lose the same small term have one common error, while independent
noise averages out: 1.3 times the limit in the attention of YOLOS over 4197 tokens."""
NEAR = Limit(16.0, "times")
"""NaN counts as an overflow if the largest number of the reference is less than this factor below the largest number of the format. Squares on the
way, as in a norm, need more range than the result."""
FLUSHED = Limit(0.5, "share of the norm")
"""If a parameter's gradient loses a larger share of its norm to zeros, that is an error. Half of the gradient is gone then."""
NOTED = Limit(0.1, "share of the norm")
"""If a parameter's gradient loses a larger share of its norm to zeros, that is a note."""
FIVE_BITS = 32
"""The factor 2^5 above float16's smallest number. Below that a gradient's numbers have fewer than 5 bits; above it they are rounded like others."""
_NARROW = formats.FP32.max / 2**64
"""Formats whose largest number is below this are narrower than float32 and bfloat16: a NaN there most likely comes from an overflow."""


@dataclasses.dataclass(frozen=True, slots=True)
class BrokenBoundary:
    """A boundary with more NaN or Inf than its reference."""

    rule: str  # the name of the rule that reports it
    record: Record
    reference: Record
    excess: int

    @property
    def what(self) -> str:
        """Whether it is Inf or NaN, and in how many elements, in words."""
        kind = "Inf" if _infinite(self.record, self.reference) else "NaN"
        return f"{self.excess} of {self.record.numel} elements are {kind} in {self.record.dtype}"


def first_broken(low: Trace, reference: Trace, rows: Sequence[ComparedTensor], precision: Precision) -> BrokenBoundary | None:
    """The first broken boundary in the order of the run. Results of functions do not count: the -Inf of a mask does no harm by itself."""
    first = next((row for row in rows if row.excess_nonfinite and row.record.kind != "returned"), None)
    if first is not None:
        return _classified(first.record, first.reference, first.excess_nonfinite, precision)
    return _later(low, reference, precision)


def _later(low: Trace, reference: Trace, precision: Precision) -> BrokenBoundary | None:
    """The first non-finite boundary of a later step, which was recorded only because it is not finite. The reference has no boundaries of that step,
    but a finite loss shows that the step was fine there."""
    for record in low.records.values():
        if record.step > 1 and record.nonfinite and record.kind in ("output", "gradient"):
            loss = reference.records.get(f"loss:loss@{record.step}")
            first_step = reference.records.get(record.key.replace(f"@{record.step}", "@1"))
            if loss is not None and not loss.nonfinite and first_step is not None and not first_step.nonfinite:
                return _classified(record, first_step, record.nonfinite, precision)
    return None


def _classified(record: Record, reference: Record, excess: int, precision: Precision) -> BrokenBoundary:
    """The broken boundary with its rule. NaN without Inf is an overflow too if the reference needs nearly the whole range of the format."""
    top = formats.of_dtype(record.dtype).max if record.low else precision.compute.max
    beyond = _infinite(record, reference) or reference.amax > top / NEAR or precision.compute.max < _NARROW
    return BrokenBoundary("overflow" if beyond else "nan", record, reference, excess)


def _infinite(record: Record, reference: Record) -> bool:
    return record.posinf + record.neginf > reference.posinf + reference.neginf


def starved(low: Trace, rows: Sequence[ComparedTensor], precision: Precision) -> list[ComparedTensor]:
    """Parameter gradients that lost more than half of their norm to zeros, which GradScaler cannot bring back by doubling its scale.

    The lost norm is more than the rounding error of the whole gradient.
    """
    if any(row.record.is_result and row.record.norm == 0 < row.reference.norm for row in rows):
        return []  # the output is all zero, which no loss scale can change
    gradients = [row for row in rows if row.record.kind == "parameter-gradient"]
    whole = math.sqrt(sum(row.reference.norm**2 for row in gradients))
    return [
        row
        for row in gradients
        if lost_share(row) > FLUSHED
        and flushed_by_float16(row, precision, low.scale)
        and needed_scale(row) > _reachable(low, precision)
        and lost_share(row) * row.reference.norm > precision.roundoff * whole
    ]


def lost_share(row: ComparedTensor) -> float:
    """The share of a parameter gradient's norm that is lost."""
    return 1 - row.record.norm / row.reference.norm if row.record.kind == "parameter-gradient" and row.reference.norm else 0.0


def flushed_by_float16(row: ComparedTensor, precision: Precision, scale: float) -> bool:
    """Whether a gradient has zeros that the reference does not have, has a root mean square within 5 bits of float16's smallest number, and is
    larger than its rounding noise."""
    if precision.compute is not formats.FP16 or row.record.zeros <= row.reference.zeros:
        return False
    step = formats.FP16.min_subnormal / scale
    root = math.sqrt(row.reference.numel)
    rounding = row.floor / row.reference.norm
    return row.reference.norm / root < FIVE_BITS * step and rounding < max(0.5, step * root / row.reference.norm)


def needed_scale(row: ComparedTensor) -> float:
    """The loss scale, a power of two, that lifts the gradient's root mean square 5 bits above float16's smallest number."""
    return 2.0 ** math.ceil(math.log2(FIVE_BITS * formats.FP16.min_subnormal * math.sqrt(row.reference.numel) / row.reference.norm))


def _reachable(low: Trace, precision: Precision) -> float:
    """The loss scale to which GradScaler grows: the largest power of two at which the run's gradients stay finite. 1 without a scaler."""
    largest = max((r.amax for r in low.records.values() if r.kind in ("gradient", "parameter-gradient")), default=0.0)
    return 2.0 ** math.floor(math.log2(formats.FP16.max / largest)) if precision.scaler and largest else 1.0
