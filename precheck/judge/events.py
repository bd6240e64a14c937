"""Inf, NaN and zeros that the reference does not have: opened where they first appear, an error only if they do harm.

An event is healed where what consumes it is finite and right (a mask before a softmax, a clamp); it harms where NaN follows,
or a finite result that is wrong, or where Python or the backward pass reads it, or where nothing consumes it: a copy in another
dtype is the same numbers, and consumes nothing. What masks are made of may be left unread. The blame goes
to the op where the cause entered: the zero that was divided by, the constant that vanished, the cast that overflowed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Set

from precheck import formats
from precheck.findings import Severity
from precheck.judge import causes
from precheck.judge.lineage import (
    CONSTANTS,
    GUARDS,
    MOVING,
    PRODUCTS,
    SUMS,
    descendants,
    determined,
    half_tiniest,
    hands_on,
    landed,
    largest,
    placed,
    smallest_normal,
    zero_origin,
)
from precheck.observe.shadow.operations import FRESH, Observation, Operation, Value

POLES = frozenset({"log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "div", "reciprocal", "acos", "asin", "acosh", "atanh", "logit",
                   "linalg_vector_norm", "addcdiv", "xlogy", "erfinv", "tan", "lgamma", "digamma", "special_entr"})  # fmt: skip
WRONG = 0.25
"""A consumer's relative error from which it has not healed what it read: not one digit of the result is right."""
LOST = 0.5
"""Share of a tensor's norm that became zero, or of a consumer's, from which the tensor is lost."""

FILLS = 3
"""Different numbers that a mask's -Inf stand for, at most: its constant, and sums of two or three such masks. Data that overflow are
as many numbers as they are elements."""


@dataclasses.dataclass(slots=True, eq=False)
class Suspect:
    """A fault and the op it is blamed on. `severity` is what it becomes if it is confirmed."""

    rule: str
    operation: Operation
    message: str
    measured: float
    limit: float
    severity: Severity = "error"
    tensor: str = ""  # the parameter that it is about, where it is about one


Readers = dict[Value, list[Operation]]


class Spread:
    """Inf and NaN from where they opened onwards, and what follows of those that do harm."""

    def __init__(self) -> None:
        self.carriers: dict[Value, Value] = {}  # each non-finite value, by the one where its event opened
        self.spoiled: set[Value] = set()
        self.told: set[Value] = set()  # roots that have done harm

    def roots(self, observation: Observation, readers: Readers) -> list[Value]:
        """Where those that do harm first appeared, each told once."""
        _carry(self.carriers, observation.judged)
        carriers = dict(self.carriers)
        _carry(carriers, observation.ahead)
        opened: dict[Value, list[Value]] = {root: [] for root in self.carriers.values()}
        for value, root in carriers.items():
            if root in opened:
                opened[root].append(value)
        asked = ((root, carried) for root, carried in opened.items() if root.maker is not None and root not in self.told)
        harmful = (root for root, carried in asked if _harmful(root, carried, readers, observation))
        found = [root for root in harmful if not _scaled_only(root, observation)]
        self.told.update(found)
        self.spoiled = descendants(observation, [*self.spoiled, *(value for root in found for value in (root, *opened[root]))])
        return found

    @property
    def open(self) -> set[Value]:
        """Roots that may do harm yet."""
        return set(self.carriers.values()) - self.told

    def keep(self, values: Set[Value]) -> None:
        """Only these can be read any more."""
        self.carriers = {value: root for value, root in self.carriers.items() if value in values}
        self.spoiled &= values
        self.told &= set(self.carriers.values())


def _carry(carriers: dict[Value, Value], operations: Iterable[Operation]) -> None:
    for operation in operations:
        for value in operation.outputs:
            if value.nonfinite and value not in carriers:
                carriers[value] = next((carriers[given] for given in operation.inputs if given in carriers), value)


def nonfinite(found: list[Value]) -> list[Suspect]:
    """overflow, nan, and whatever else made Inf or NaN out of finite values, at those of `roots`."""
    return [_named(root) for root in found]


def _scaled_only(root: Value, observation: Observation) -> bool:
    """Too large by the loss scale alone: the scaler skips the step and backs off, as it is meant to. Below 1 too, if the run goes on there."""
    operation = root.maker
    assert operation is not None
    if operation.phase != "backward" or largest(root) == math.inf:
        return False
    held = [step.scale for step in observation.steps if not step.skipped and step.last > operation.number]
    reached = min(1.0, *held) if held else 1.0
    return operation.scale > reached and root.beyond / operation.scale * reached <= largest(root)


def _harmful(root: Value, carried: list[Value], readers: Readers, observation: Observation) -> bool:
    maker = root.maker
    assert maker is not None
    open_ends = []
    for value in carried:
        readings = [reader for reader in readers.get(value, ()) if reader is not value.maker and reader.base not in FRESH]
        consumers = [reader for reader in readings if not hands_on(reader, value)]
        if any(_harms(reader, maker) for reader in consumers):
            return True
        if not consumers or (consumers == readings and not any(reader.outputs for reader in consumers)):
            open_ends.append(value)
    return any(not _laid_down(root, maker, end) for end in open_ends if not observation.undecided(end))


def _laid_down(root: Value, maker: Operation, end: Value) -> bool:
    """Whether an Inf that nothing consumes is what a constant became, or its sum with something: a mask, or what it has masked.

    Gradients are no constants, NaN masks nothing; nor is it a mask, if it is there still when the block ends, that more numbers became,
    or one above zero: what masks is added to scores or put in their place, and lies below all of them.
    """
    if maker.base not in CONSTANTS or end.maker is None or end.nans or (maker.derived and maker.phase == "backward"):
        return False
    if root.beyonds and end.alive and (root.beyonds > FILLS or not root.negative):
        return False
    return end.maker.base in CONSTANTS or (end.maker.base in SUMS and root.negative and root.beyonds <= FILLS)


def _harms(reader: Operation, maker: Operation) -> bool:
    if reader.reads:
        return True
    for value in reader.outputs:
        if value.nans or (value.nonfinite and reader.phase == "backward" and maker.phase == "forward"):
            return True
        if not value.nonfinite and reader.base != "copy" and value.drift > WRONG and reader.phase in ("forward", "optimizer", "data"):
            return True
        if value.zeros and value.largest_zeroed > half_tiniest(value) and not any(source.zeros for source in reader.inputs):
            return True  # 1/Inf, where the reference has a number that the format holds
    return False


def _named(root: Value) -> Suspect:
    operation = root.maker
    assert operation is not None
    what = "NaN" if root.nans else "Inf"
    limit, where = largest(root), placed(operation)
    zeros = [source for source in operation.inputs if source.zeros and source.maker is not None]
    zero = zeros[0] if zeros else None
    if zero is not None and zero.zeroed < LOST:  # of 0/0 the divisor, or better its guard, is the cause, unless the numerator was lost as a whole
        zero = next((source for source in zeros if zero_origin(source)[0] == "vanished-constant"), zeros[-1 if operation.base == "div" else 0])
    if not root.nans and 0 < operation.starved < _smallest_normal(operation):
        text = f"a divisor of {operation.starved:.3g} is below its format's smallest normal number: Inf, in the reference {root.beyond:.4g}"
        return Suspect("underflow", operation, text, operation.starved, _smallest_normal(operation))
    at_pole = zero is not None and operation.base in POLES
    if not root.nans and not at_pole and root.beyond > limit * (1 - root.roundoff):
        text = f"{root.beyond:.4g} in the reference is beyond the largest {root.dtype}, {limit:.5g}"
        return Suspect("overflow", operation, text, root.beyond, limit)
    if zero is not None and (operation.base not in LINEAR or any(source.nonfinite for source in operation.inputs)):
        return of_zero(zero, f"{where} made {what} of it")
    if operation.base.removesuffix("_backward") in POLES:
        guard = _failed_guard(operation)
        if guard is not None:
            text = f"its bound rounds onto the pole of {where}, which it guards: {what}, in the reference {root.beyond:.4g}"
            return Suspect("vanished-constant", guard, text, 1.0, WRONG)
        cause = causes.entered(operation.drifting) or operation
        text = f"this rounding moves an argument of {where} onto its pole: {what}, in the reference {root.beyond:.4g}"
        return Suspect(causes.kind(cause), cause, text, 1.0, WRONG)
    if root.nans and not any(source.nonfinite for source in operation.inputs):
        return Suspect("nan", operation, f"NaN from inputs that the reference has too; there the result is {root.beyond:.4g}", root.nans, 0)
    return Suspect("overflow", operation, f"{what} where the reference has {root.beyond:.4g}", root.beyond, limit)


LINEAR = PRODUCTS | SUMS | frozenset({"mul", "addcmul", "mean", "sum"})
"""Ops that make neither Inf nor NaN of a zero and finite numbers."""


def of_zero(zero: Value, then: str) -> Suspect:
    """What made a zero that the reference does not have; `then` says what came of it."""
    rule, cause = zero_origin(zero)
    text = f"{zero.largest_zeroed:.3g} in the reference became zero here; {then}"
    bound = landed(cause) if rule == "vanished-constant" else None
    if bound is not None and bound[1]:
        text = f"{bound[0]:.6g} is {bound[1]:g} in {cause.outputs[0].dtype} and guards nothing; {then}"
        return Suspect(rule, cause, text, abs(bound[0] - bound[1]), cause.outputs[0].roundoff * abs(bound[1]))
    if rule == "vanished-constant":
        scalars = [abs(scalar) for scalar in cause.scalars if scalar]
        text = f"{min(scalars):.3g} is zero in {cause.outputs[0].dtype} and guards nothing; {then}"
    return Suspect(rule, cause, text, zero.largest_zeroed, half_tiniest(zero))


def _failed_guard(operation: Operation) -> Operation | None:
    """A clamp that stands before a pole, with at most moves and one sum between (`log(1 - p)`), and did not keep values off it."""
    value, sums = operation.drifting, 0
    while value is not None and value.maker is not None:
        maker = value.maker
        if maker.base in GUARDS - SUMS:
            return maker
        sums += maker.base in SUMS
        if sums > 1 or maker.base not in MOVING | SUMS:
            return None
        value = maker.drifting
    return None


def _smallest_normal(operation: Operation) -> float:
    divisor = operation.inputs[-1]
    return formats.of_dtype(divisor.dtype).min_normal if divisor.low else 0.0


class Floods:
    """Tensors most of which became zero, where what they end up in goes wrong, or nothing reads them."""

    def __init__(self) -> None:
        self.unread: list[tuple[Operation, Value]] = []

    def found(self, observation: Observation, spoiled: Collection[Value], readers: Readers) -> list[Suspect]:
        """Those that are known now; of what is there still and unread, later."""
        fresh = [(operation, value) for operation in observation.judged for value in operation.outputs if _flooded(operation, value, spoiled)]
        waiting, self.unread, found = [*self.unread, *fresh], [], []
        for operation, value in waiting:
            if observation.undecided(value) and not readers.get(value):
                self.unread.append((operation, value))
            elif _drowns(value, readers):
                text = f"{100 * value.zeroed:.0f} % of this tensor (up to {value.largest_zeroed:.2g}) is zero in {value.dtype}"
                found.append(Suspect("underflow", operation, text, value.zeroed, LOST))
        return found


def _flooded(operation: Operation, value: Value, spoiled: Collection[Value]) -> bool:
    if not value.low or value.zeroed < LOST or value.maker is not operation or operation.phase != "forward" or value in spoiled:
        return False
    if value.largest_zeroed > smallest_normal(value):
        return False  # the format could hold it: a threshold of zero that rounding moved values across
    if operation.parameter and operation.base in MOVING:
        return False  # weights are as given: a cast of ones that the format cannot hold at all is no fault of the code
    return not any(source.zeros for source in operation.inputs) and determined(operation, value) and zero_origin(value)[0] == "underflow"


def _drowns(value: Value, readers: Readers) -> bool:
    """Whether the loss reaches what is more than zeros: products hand zeros on, a sum with something larger makes them good."""
    waiting, seen = [value], {value}
    while waiting:
        lost = waiting.pop()
        results = [made for reader in readers.get(lost, ()) for made in reader.outputs if made not in seen]
        if not results and lost.alive and all(hands_on(reader, lost) for reader in readers.get(lost, ())):
            return True
        for made in results:
            seen.add(made)
            if made.zeroed >= LOST:
                waiting.append(made)
            elif made.drift > LOST:
                return True
    return False


def _room(observation: Observation) -> str:
    """Up to where a loss scale may grow."""
    room = min((step.backward.room for step in observation.steps), default=math.inf)
    return f"; the largest safe scale is 2^{math.floor(math.log2(room))}" if 0 < room < math.inf else ""


def starved_gradients(observation: Observation, spoiled: Collection[Value]) -> list[Suspect]:
    """Parameter gradients most of which were flushed to zero for want of a loss scale."""
    found = []
    for name, value, scale in observation.gradients.values():
        maker = value.maker
        if maker is None or value.zeroed <= LOST or value in spoiled or not determined(maker, value):
            continue
        rule, cause = zero_origin(value)
        if rule == "cancellation":
            continue  # no scale would have kept it
        if any(made.low and made.zeroed and made.largest_zeroed > 2 * half_tiniest(made) for made in cause.outputs):
            continue  # the format could hold it: the run has come to where the gradient is zero, and the reference beside it
        under = f"under a loss scale of {scale:g}" if scale > 1 else "without a loss scale"
        text = f"{100 * value.zeroed:.0f} % of the gradient of {name or 'a parameter'} is flushed to zero {under}, first here{_room(observation)}"
        severity: Severity = "warning" if scale > 1 else "error"  # a scaler may yet grow to where it fits
        found.append(Suspect("gradient-underflow", cause, text, value.zeroed, LOST, severity))
    return found
