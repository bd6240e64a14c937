"""Finds where a fault in a watched run came from: the op that rounded, the op that made a zero, the values that follow from it."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from precheck import formats, ops
from precheck.analysis.limit import Limit
from precheck.observe.shadow.memory.window import LONGEST
from precheck.observe.shadow.operations import Observation, Operation, Origin, Value
from precheck.observe.shadow.places.call_sites import CallSite
from precheck.observe.shadow.places.source import packaged, shortened
from precheck.words import op_words


def underflow_threshold(value: Value) -> float:
    """The largest magnitude that the format of `value` rounds to zero."""
    return formats.of_dtype(value.dtype).min_subnormal / 2 if value.low else 0.0


def underflowed(*made: Value) -> bool:
    """Whether zeros come from underflow, and not from rounding across a threshold at zero, such as a ReLU's."""
    return any(value.zeros and value.largest_zeroed <= smallest_normal(value) for value in made)


def smallest_normal(value: Value) -> float:
    return formats.of_dtype(value.dtype).min_normal if value.low else 0.0


def largest(value: Value) -> float:
    return formats.of_dtype(value.dtype).max if value.low else math.inf


FINEST = Limit(formats.FP16.unit_roundoff, "unit roundoff")
"""The unit roundoff of float16, the finest format for which the limits on relative errors were measured. A float32 run beside float64 may have as
many float32 roundings without harm. It is judged by what would be harm in float16."""


def effective_roundoff(value: Value) -> float:
    """The unit roundoff for limits on drifts: the value's own, or float16's if that is larger."""
    return max(value.roundoff, FINEST)


def elements(value: Value) -> int:
    return math.prod(value.shape)


def rms(value: Value) -> float:
    """The root mean square of a value's elements, in the reference."""
    return value.norm / math.sqrt(elements(value) or 1)


def absolute_error(value: Value | None) -> float:
    """Root mean square of the error. 0 if the reference is zero, since the error is stored relative to it."""
    return value.drift * value.norm / math.sqrt(elements(value) or 1) if value is not None and math.isfinite(value.drift) else 0.0


class Origins:
    """The op that brought in each value's error: the last one that at least doubled the drift. Of sums also the last one that at least doubled the
    absolute error of its terms, since these add up: a million plus a rounded half has a rounding of the million, beside which that of the half is
    nothing, but both have the same drift."""

    def __init__(self) -> None:
        self.known: dict[Value, Operation] = {}

    def trace(self, operation: Operation) -> None:
        """Follows the errors through one operation. To be called for all in order."""
        added = operation.base in ops.SUMS
        worst = max(operation.inputs, key=lambda value: absolute_error(value) if added and math.isfinite(value.drift) else value.drift, default=None)
        inherited = self.known.get(worst) if worst is not None else None
        for value in operation.outputs:
            if value.maker is operation:
                fresh = inherited is None or value.drift > 2 * operation.drift_in or (added and absolute_error(value) > 2 * absolute_error(worst))
                self.known[value] = operation if fresh else inherited  # type: ignore[assignment]

    def of(self, value: Value | None) -> Operation | None:
        return self.known.get(value) if value is not None else None


SHARED = Limit(0.5, "share of the zeros")
"""An input passed zeros on if it has at least this share of the result's zeros. A single zero does not explain a tensor of zeros."""


def zero_share(value: Value) -> float:
    """The share of elements that are zero in the run and not in the shadow."""
    return value.zeros / max(1, value.sample_size or elements(value))


def percent(share: float) -> str:
    """A share in percent, with two digits or more: 0.43, 8.2, 120."""
    return f"{100 * share:.2g}" if share < 0.995 else f"{100 * share:.0f}"


def placed(operation: Operation) -> str:
    """The op and its line in words, "aten.mul.Tensor at models/gpt.py:88", with the library's line if a library ran it."""
    made = next((value.dtype for value in operation.outputs if value not in operation.inputs), "")  # a cast that widens makes no new value
    name = op_words(operation.title, made) if "." in operation.name else operation.name
    if not operation.blamed:
        return f"{name} at an unknown line"
    inside = library_line(operation)
    return f"{name} at {shortened(operation.blamed)}{f' (in {inside})' if inside else ''}{called_from(operation.site)}"


def library_line(operation: Operation) -> str:
    """The line of the library that ran an op, or "" if the user's own code did."""
    return packaged(operation.source) if operation.blamed != operation.source else ""


def low_since(operation: Operation) -> str:
    """The user's line that makes an op compute in a low format, in words: ", in bfloat16 since models/gpt.py:88". Empty if there is
    none, or if it is the op's own line. An op on low and wide tensors is wide, so it would be wide without that line."""
    if operation.since is None or operation.since[1].line == operation.blamed:
        return ""
    dtype, origin = operation.since
    return f", in {dtype} since {origin_words(origin)}"


def origin_words(origin: Origin) -> str:
    """The line that made a tensor low, with the calls that led there and the setting of FSDP's policy, if any."""
    return f"{packaged(origin.line)}{called_from(origin.site)}{f' (by {origin.policy} of FSDP)' if origin.policy else ''}"


def called_from(site: CallSite | None) -> str:
    """The lines whose calls led to a line, in words, if other calls led there too: " (called at models/gpt.py:88)"."""
    lines = site.lines if site is not None else []
    return f" (called at {', from '.join(map(shortened, lines))})" if lines else ""


SAME = 1e-5
"""The most that the norms of one tensor differ if float32 computes it in two ways, relative."""


def given_back(operation: Operation) -> Value | None:
    """The value that exact arithmetic gives back if a sum undoes a difference: q for z + (q - z), y for (s + y) - s. Otherwise None.

    It is recognised by its norm, which a sign or factor on the way would change.
    """
    if len(operation.inputs) != 2:
        return None
    for value, other in (operation.inputs, operation.inputs[::-1]):
        maker = value.maker
        terms = maker.inputs if maker is not None and maker.base in ops.SUMS else ()
        kept = next((term for term in terms if term is not other), None) if len(terms) == 2 and other in terms else None
        if kept is not None and math.isclose(operation.outputs[0].norm, kept.norm, rel_tol=SAME):
            return kept
    return None


def zero_origin(value: Value) -> tuple[str, Operation]:
    """The rule and the op behind zeros that the reference does not have. Walks back through the ops that passed them on."""
    operation = value.maker
    while operation is not None:
        if value.past is not None and value.past.zeros is not None:
            return value.past.zeros
        scalars = [abs(scalar) for scalar in operation.scalars if scalar]
        if (operation.base in ops.GUARDS | ops.FILLING or fills_constant(operation)) and scalars and min(scalars) <= underflow_threshold(value):
            return "vanished-constant", operation
        given = () if operation.base in ops.DRAWN else operation.inputs
        sources = [source for source in given if source.maker is not None and zero_share(source) >= SHARED * _needed(operation, source, value) > 0]
        before = max(sources, key=zero_share, default=None)
        if before is None:
            bound = _bound(operation) if operation.base in ops.SUMS else None
            return (_kind_of_zero(operation, value), operation) if bound is None else ("vanished-constant", bound)
        value, operation = before, before.maker
    raise ValueError("the value was given to the watched block; its zeros are its own")


def _needed(operation: Operation, source: Value, value: Value) -> float:
    """The share of zeros in an input that explains those of the result. One factor of a product that is zero makes all of it zero."""
    return zero_share(value) * (elements(value) / max(1, elements(source)) if operation.base == "prod" else 1)


def fills_constant(operation: Operation) -> bool:
    """Whether an op fills a tensor with one Python number."""
    return operation.base in ops.CONSTANTS and not operation.inputs and len(operation.scalars) == 1


def is_power_without_pole(operation: Operation) -> bool:
    """Whether an op is a power without a pole at zero: the exponent is a number and not negative, or the base is a number, as in 10ˣ."""
    power = operation.base == "pow" and len(operation.inputs) == 1 and len(operation.scalars) == 1
    return power and (operation.scalars[0] >= 0 if operation.name.endswith("Tensor_Scalar") else operation.scalars[0] != 0)


def rounded_bound(operation: Operation) -> tuple[float, float] | None:
    """A clamp's bound that the format rounds to a whole number, from which it should keep values away, and that number: 0.9999 and 1.

    For a constant only 1 counts, since a decay or a share of 1 does nothing. Large numbers are always whole.
    """
    result = operation.outputs[0] if (operation.base in ops.GUARDS - ops.SUMS or fills_constant(operation)) and operation.outputs else None
    if result is None or not result.low:
        return None
    rounded = ((scalar, formats.of_dtype(result.dtype).round(scalar)) for scalar in operation.scalars)
    onto = ((scalar, whole) for scalar, whole in rounded if math.isfinite(whole) and scalar != whole == round(whole))
    return next(((scalar, whole) for scalar, whole in onto if not fills_constant(operation) or abs(whole) == 1), None)


def reached_bound(operation: Operation) -> tuple[float, float] | None:
    """The same if that number is not zero. Then the bound reaches it, since the format has no number between."""
    bound = rounded_bound(operation)
    return bound if bound is not None and bound[1] else None


def _bound(operation: Operation) -> Operation | None:
    """The clamp whose bound the format rounds to the number from which the result is subtracted: 1 - p.clamp(max=0.9999)."""
    maker = operation.inputs[0].maker if len(operation.inputs) == 1 else None
    while maker is not None and maker.base in ops.MOVING and maker.inputs:
        maker = maker.inputs[0].maker
    return maker if maker is not None and reached_bound(maker) is not None else None


def _kind_of_zero(operation: Operation, value: Value) -> str:
    """The rule for zeros that an op has made itself."""
    beyond_format = value.largest_zeroed > underflow_threshold(value)
    if operation.base in ops.SUMS and beyond_format:
        return "cancellation"
    if operation.base in ops.ZERO_AT_ONE and beyond_format:
        return "amplified-rounding"
    unscaled = operation.phase == "backward" and value.dtype == "float16" and operation.scale <= 1
    return "gradient-underflow" if unscaled else "underflow"


def determined(value: Value) -> bool:
    """Whether float32 determines a value. A sum that cancels to less than 2^-17 of its terms is rounding noise of float32 itself.

    The gradient of a key's bias is such a sum, and that of any bias before a norm. Elementwise products and quotients do not cancel, however small
    their results are: for these the factor with the error is checked.
    """
    while value.maker is not None and value.maker.base in ops.SCALING and value.maker.drifting is not None:
        value = value.maker.drifting
    operation = value.maker
    sizes = [source.norm for source in operation.inputs if source.norm > 0] if operation is not None else []
    if operation is None or not sizes or not value.norm:
        return True
    scale = math.prod(sizes[:2]) if operation.base in ops.PRODUCTS else max(sizes)
    return value.norm >= 2.0**-17 * scale


def is_alias(reader: Operation, value: Value) -> bool:
    """Whether an op only returns its input in another dtype or layout. Readers of that copy count as readers of the value."""
    return bool(reader.outputs) and all(made is value for made in reader.outputs)


def consumers(value: Value, readers: Mapping[Value, Sequence[Operation]]) -> list[Operation]:
    """The ops that read a value, without those that only return it in another dtype or layout."""
    return [reader for reader in readers.get(value, ()) if not is_alias(reader, value)]


def descendants(observation: Observation, roots: list[Value]) -> set[Value]:
    """The values of the judged ops that are made from any of `roots`, and the roots themselves."""
    reached = set(roots)
    if not reached:
        return reached
    for operation in observation.judged:
        if any(value in reached for value in operation.inputs):
            reached.update(operation.outputs)
    return reached


def iterations(value: Value) -> int:
    """How often the same op of the same module is on the way from the inputs to a value. The largest such count of all ops.

    The way follows the input with the largest error. A state of a loop passes the same op in each iteration. The layers of a deep network are
    different modules.
    """
    return max(ops_on_the_way(value).values(), default=0)


def ops_on_the_way(value: Value) -> Counter[tuple[str, ...]]:
    """How often each op of each module and line is on that way. Derivatives do not count: a gradient is no state, however long the loop is whose
    derivative it is."""
    seen: Counter[tuple[str, ...]] = Counter()
    source: Value | None = value
    for _ in range(LONGEST):
        if source is None or source.maker is None:
            break
        if source.past is not None:
            return seen + source.past.iterations
        operation = source.maker
        seen[operation.module, operation.source, operation.name] += not operation.derived
        source = operation.drifting
    return seen


def read_at(operation: Operation) -> Operation:
    """Returns an op. If autograd adds up the gradients of one value there, its line is the one that reads this value, from the last gradient's op."""
    if operation.summed is None or operation.in_place:
        return operation
    made = next((term.maker for term in reversed(operation.inputs) if term.maker is not None and term.maker.summed is None), operation)
    return dataclasses.replace(operation, source=made.source, caller=made.caller, module=made.module)


def share_left_by_cancellation(operation: Operation, value: Value) -> float:
    """The norm of a sum over that of its terms; of a mean as if it were a sum. Below 1 the terms cancel."""
    terms = operation.inputs[0] if operation.inputs else value
    count = elements(terms) / max(1, elements(value)) if operation.base == "mean" else 1.0
    return count * value.norm / terms.norm if terms.norm else 1.0
