"""Attributes the error of a value to ops and lines: which share of it each rounding has.

Roundings are independent, so the squares of their errors add up. The walk goes back over the run from a value. Each op keeps its own share of the
square, and the rest goes to its inputs, in proportion to the square of what each contributes. This finds one op with a large rounding, and also a
loop with a small rounding in each iteration.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from precheck import formats, ops
from precheck.analysis.limit import Limit
from precheck.analysis.propagation import causes
from precheck.analysis.propagation.provenance import elements, rms
from precheck.observe.shadow.operations import Operation, Value
from precheck.observe.shadow.places.source import Function

TOGETHER = Limit(0.5, "share of the largest share")
"""A line counts as a cause of an error if its share is at least half the largest share. Among these lines the last is named: a difference has two
terms, and the code should be changed at the line where they meet."""
GROWN = Limit(4.0, "times")
"""The terms of a difference cancel if it makes an error at least this many times larger: two bits are lost."""
UNCHANGED = Limit(1e-6, "relative difference")
"""Two errors count as equal up to this relative difference. One more rounding would change the seventh digit."""
INTERPOLATING = frozenset({"grid_sampler_2d", "grid_sampler_3d"})
"""Ops whose result is a mean of elements of their first operand, at the places that the second one gives. A mean passes on the error of its elements
at most. What it has more than these comes of the places."""
SIZED = ops.SUMS | ops.STEADY
"""Ops whose result has the same absolute error as an input, as log-softmax has that of its scores."""
UNCHANGING = SIZED | ops.SCALING | ops.CASTS
"""Ops that keep the error of an input, relative or absolute, if no other input has one and the other operands are numbers."""
Errors = Callable[[Value], float]
"""The relative error of a value."""
Wanted = Callable[[Operation], bool]
"""Which ops count."""


def drift(value: Value) -> float:
    """The relative error of a value, or 0 if it is not finite."""
    return value.drift if math.isfinite(value.drift) else 0.0


def number(operation: Operation) -> int:
    """The place of an op in the run."""
    return operation.number


class Splits:
    """Splits the error of each result into the op's own and those of its inputs. Keeps the answers, since walks from a loop's states overlap."""

    def __init__(self, error: Errors = drift) -> None:
        self.error = error
        self.known: dict[Value, tuple[float, list[tuple[Value, float]]]] = {}

    def of(self, operation: Operation, made: Value) -> tuple[float, list[tuple[Value, float]]]:
        """The op's own share of the square of its result's error, and the share of each input."""
        found = self.known.get(made)
        if found is None:
            carried = {source: _carried(operation, source, self.error) ** 2 for source in causes.computed_from(operation, made) if self.error(source)}
            if operation.base in INTERPOLATING and len(carried) == 2:
                averaged, places = carried
                carried[places] = max(carried[places], self.error(made) ** 2 - carried[averaged])
            total = sum(carried.values())
            kept = _own_share(operation, made, carried, self.error) if total else 1.0
            if len(carried) > 1 and _added(operation, made, carried, self.error):  # errors that go one way add up, and not their squares
                carried = {source: math.sqrt(square) for source, square in carried.items()}
                total = sum(carried.values())
            found = self.known[made] = kept, [(source, (1 - kept) * square / total) for source, square in carried.items() if total]
        return found


class Attribution:
    """The ops that share the error of a value, among `operations` up to the one that made it. `splits` defines the error of a value."""

    def __init__(self, value: Value, operations: Sequence[Operation], splits: Splits | None = None) -> None:
        splits = splits or Splits()
        self.error = splits.error
        self.shares: dict[Operation, float] = defaultdict(float)  # each op's own share of the square; the sum is 1 less that of the run's inputs
        self.through: dict[Operation, float] = defaultdict(float)  # the share that passed through each op, its own included
        waiting: dict[Value, float] = defaultdict(float, {value: 1.0})
        last = bisect.bisect_right(operations, value.maker.number, key=number) if value.maker is not None else 0
        for place in range(last - 1, -1, -1):
            operation = operations[place]
            for made in operation.outputs:
                if made in waiting and made.maker is operation:
                    part = waiting.pop(made)
                    kept, handed = splits.of(operation, made)
                    self.shares[operation] += kept * part
                    self.through[operation] += part
                    for source, share in handed:
                        waiting[source] += part * share
        for source, part in waiting.items():
            if source.past is not None and source.past.rounding is not None:
                self.shares[source.past.rounding] += part

    def cause(self, wanted: Wanted = bool) -> Operation | None:
        """The op with the largest share on the line that made the error. Only ops that are `wanted` count."""
        counted = {operation: share for operation, share in self.shares.items() if share and operation.blamed and wanted(operation)}
        lines: dict[tuple[str, str], float] = defaultdict(float)
        latest: dict[tuple[str, str], int] = {}
        for operation, share in counted.items():
            lines[operation.line] += share
            latest[operation.line] = max(latest.get(operation.line, 0), operation.number)
        most = max(lines.values(), default=0.0)
        chosen = max((each for each, share in lines.items() if share >= TOGETHER * most), key=lambda each: latest[each], default=None)
        return max((operation for operation in counted if operation.line == chosen), key=counted.__getitem__, default=None)

    def of_line(self, cause: Operation) -> float:
        """The share of the ops that the user wrote on the line of `cause`. Each kind of op counts once: one change to the line repairs a cast and a
        product together. The iterations of a loop do not add up here, since they are not one rounding that is amplified."""
        most = defaultdict[str, float](float)
        for operation, share in self.shares.items():
            if operation.line == cause.line and written(operation):
                most[operation.name] = max(most[operation.name], share)
        return sum(most.values())

    def difference(self, cause: Operation, functions: Mapping[str, Function]) -> Operation | None:
        """The difference of nearly equal numbers that amplifies the rounding of `cause`, if it is low and in the same function. Otherwise None.

        Then the code should be changed at the difference, since a difference in float32 needs terms in float32, or at the cast that makes it low
        (`entrances`). If the difference subtracts the square of what `cause` made, it should be changed in any format and in any function
        (`is_variance_of_squares`). A difference in a function that is called with low numbers counts too. A difference of parts of one running sum
        does not count: their digits were lost when the sum was stored (`causes.shares_operand`).
        `functions`: the function of each line.
        """
        called = cause.call if any(source.low for source in causes.computed_from(cause)) else 0

        def belongs(each: Operation) -> bool:
            here = same_function(each, cause, functions) or bool(called and each.call == called)
            return is_variance_of_squares(each, cause) or (here and each.outputs[0].low)

        return next((each for each in self._after(cause) if self._cancels(each) and belongs(each)), None)

    def to_change(self, functions: Mapping[str, Function], first: Wanted = bool) -> tuple[Operation | None, Operation | None]:
        """The op of the user's with most of the error, and the op whose line should be changed: the same one, or the difference that amplifies it.

        `first`: which of the user's ops count before all others.
        """
        cause = self.cause(lambda each: written(each) and first(each)) or self.cause(written)
        return cause, None if cause is None else self.difference(cause, functions) or cause

    def subnormal(self, cause: Operation) -> bool:
        """Whether a later op selects subnormal elements from the result of `cause`, and these show its rounding."""
        picked = (each.outputs[0] for each in self._after(cause) if each.base in ops.MOVING)
        return any(causes.subnormal_error(made) >= causes.MADE_BY_OP * self.error(made) for made in picked)

    def shown(self, cause: Operation) -> Operation | None:
        """The op that amplifies the rounding of `cause` most: the one with the largest ratio of the error after it to the error before it."""
        return max(self._after(cause), key=lambda each: self.error(each.outputs[0]) / (self._before(each) or math.inf), default=None)

    def _after(self, cause: Operation) -> list[Operation]:
        """The ops after `cause` that most of the error has passed through."""
        return [each for each, part in self.through.items() if part >= TOGETHER and each.number > cause.number]

    def _before(self, operation: Operation) -> float:
        return max((self.error(source) for source in operation.inputs), default=0.0)

    def _cancels(self, operation: Operation) -> bool:
        grown = operation.base in ops.SUMS and self.error(operation.outputs[0]) >= GROWN * self._before(operation)
        return grown and not causes.shares_operand(operation)


def makes_most(cause: Operation | None, error: float) -> bool:
    """Whether an op's own rounding makes at least half of the square of an error."""
    return cause is not None and 2 * own_error(cause, cause.outputs[0]) ** 2 >= error**2


def later(one: Operation | None, other: Operation | None) -> Operation | None:
    """The later of two ops that may have made a rounding. If both are on one line, `one`."""
    if one is None or other is None or one.line == other.line:
        return one or other
    return max(one, other, key=number)


def same_function(one: Operation, other: Operation, functions: Mapping[str, Function]) -> bool:
    """Whether the lines of two ops are in one function of the user's. `functions`: the function of each line."""
    return functions.get(one.blamed) == functions.get(other.blamed)


def written(operation: Operation) -> bool:
    """Whether the user wrote the op. Torch's own modules and conversions round because the precision asks for it, and autograd derives its ops."""
    return not (operation.plain or operation.converts or operation.derived)


def own_error(operation: Operation, value: Value) -> float:
    """The relative error that an op makes itself: by storing its result low, by its kernel's own error on these inputs, or by elements that
    become zero.

    A sum does not underflow: it is a multiple of the last digit of its smaller term, which its format holds. If it is zero, its terms were rounded.
    """
    rounds = not _rounds_nothing(operation, value)
    before = max((source.zeroed for source in operation.inputs), default=0.0)
    rooted = operation.base in ops.ROOTS and value.zeros <= operation.inputs[0].zeros  # the root of a zero has a larger share of the norm
    lossy = value.low and rounds and operation.base not in ops.SUMS and not rooted
    flushed = value.zeroed - before if lossy else 0.0  # a part of a tensor may have more of its zeros
    return max(causes.storage_error(value) if rounds else 0.0, value.local or 0.0, flushed)


def _rounds_nothing(operation: Operation, value: Value) -> bool:
    """Whether each number of a result is one that the op was given in the same format: moved, selected, cut at a bound, or with another sign."""
    if causes.only_moved(operation, value):
        return True
    given = {source.dtype for source in operation.inputs if source.roundoff}
    if operation.base not in ops.UNROUNDED or operation.base == "copy" or given != {value.dtype}:
        return False
    kept = formats.of_dtype(value.dtype)
    return all(kept.round(bound) == bound for bound in operation.scalars)


def is_variance_of_squares(operation: Operation, cause: Operation) -> bool:
    """Whether a term of a difference is the square of what the line of `cause` made, or of a multiple of it, or `cause` adds up squares, or casts
    their sum: a variance as E[x²] - m².

    The derivative of E[x²] - m² by m is -2m, so an error of m is multiplied by 2m. The derivative of E[(x - m)²] is 0, so there m may be rounded.
    """
    squared = [base for term in operation.inputs for base in tensors_squared_in(term)]
    means = (*squared, *map(_before_scaling, squared))
    own = any(base is causes.before_copies(cause.outputs[0]) or (base.maker is not None and base.maker.line == cause.line) for base in means)
    adding = cause.inputs[0].maker if cause.base in ops.CASTS and cause.inputs else cause
    return own or (bool(squared) and adding is not None and adding.base in ops.SUMS and any(map(tensors_squared_in, adding.inputs)))


def tensors_squared_in(term: Value) -> list[Value]:
    """The tensors whose square a term is. Empty if it is no square."""
    maker = _before_scaling(term).maker
    bases = [] if maker is None else [causes.before_copies(value) for value in maker.inputs]
    power = maker is not None and maker.base == "pow" and maker.scalars == (2.0,)
    product = maker is not None and maker.base == "mul" and len(bases) == 2 and bases[0] is bases[1]
    return bases if power or product else []


def _before_scaling(term: Value) -> Value:
    """The tensor of which a term is a multiple, by numbers."""
    value = causes.before_copies(term)
    while value.maker is not None and value.maker.base in ops.SCALING and len(value.maker.inputs) == 1:
        value = causes.before_copies(value.maker.inputs[0])
    return value


def _own_share(operation: Operation, value: Value, carried: Collection[Value], error: Errors) -> float:
    """The op's own share of the square of its result's error. An op that does not change the error, such as doubling, rounds nothing."""
    if not (whole := error(value)) or (len(carried) == 1 and math.isclose(whole, max(map(error, carried)), rel_tol=UNCHANGED)):
        return 0.0
    own_share = min(1.0, (own_error(operation, value) / whole) ** 2)
    return max(own_share, _added(operation, value, carried, error)) if own_share else 0.0


def _added(operation: Operation, value: Value, carried: Collection[Value], error: Errors) -> float:
    """The share of the square of an error that was added in an op which keeps its inputs' errors: roundings in one direction add up to more than the
    root of the sum of their squares. A sum is off by what all its terms are off together at most, and what it has more than this is its own."""
    if len(carried) != 1:
        brought = sum(_carried(operation, source, error) * operation.inputs.count(source) for source in carried)
        whole = error(value) * rms(value) if operation.base in ops.ADDITIONS else 0.0
        return max(0.0, 1 - (brought / whole) ** 2) if whole else 0.0
    (source,) = carried
    if operation.base in ops.AVERAGING:
        return max(0.0, 1 - (_averaged(value, source, error) / error(value)) ** 2)
    if operation.base not in UNCHANGING or (operation.base in ops.SCALING and (len(operation.inputs) > 1 or elements(source) > elements(value))):
        return 0.0  # of a part of a tensor the error before is not known
    parts = operation.inputs.count(source)  # parts of one tensor, such as a running sum: each has an error
    before, after = _carried(operation, source, error) * math.sqrt(parts), error(value)
    if operation.base in SIZED:
        after *= rms(value)
    return max(0.0, 1 - (before / after) ** 2)


def _averaged(value: Value, source: Value, error: Errors) -> float:
    """The relative error of a mean, or sum, of n terms with independent errors. It is a mean if the result is no larger than the terms.

    A matrix counts as many terms as it has rows, since a loss takes one number from each.
    """
    size, result = rms(source), rms(value)
    rows = source.shape[0] if len(source.shape) > 1 else elements(source)
    terms = max(1.0, min(elements(source) / (elements(value) or 1), rows))
    times = math.sqrt(terms) if result > size else 1 / math.sqrt(terms)
    return error(source) * size * times / result if result else math.inf


def _carried(operation: Operation, source: Value, error: Errors) -> float:
    """The size of an input's error in the result. For elementwise sums it is per element, since input and result may have different numbers of
    elements."""
    if operation.base in SIZED | ops.BLENDS:
        return error(source) * _times(operation, source) * source.norm / math.sqrt(elements(source) or 1)
    return error(source) * (source.norm if operation.base in ops.ADDITIVE else 1.0)


def _times(operation: Operation, source: Value) -> float:
    """The factor of a term in a sum of two: alpha, or the weight of a lerp."""
    if len(operation.inputs) != 2 or len(operation.scalars) != 1 or operation.inputs[0] is operation.inputs[1]:
        return 1.0
    weight, second = abs(operation.scalars[0]), source is operation.inputs[1]
    if operation.base in ops.BLENDS:
        return weight if second else abs(1 - operation.scalars[0])
    return weight if second else 1.0
