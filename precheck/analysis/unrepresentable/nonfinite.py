"""Finds Inf and NaN that the reference does not have: where they first appear, whether they do harm, and what made them.

They are healed if all results made from them are finite and right (a mask before a softmax, a clamp, `where`). They do harm if NaN follows from Inf,
or a wrong finite result from either, if Python reads them, if they become a parameter's gradient, or if nothing reads them, as long as they are no
mask. A copy in another dtype is no reader. The op where the cause entered is blamed: the zero divisor, the constant that vanished, the cast that
overflowed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Set
from typing import Literal

from precheck import formats, ops
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.ledger import exempts
from precheck.analysis.limit import Limit
from precheck.analysis.propagation import attribution, causes
from precheck.analysis.propagation.output_impact import ROUNDINGS
from precheck.analysis.propagation.provenance import (
    descendants,
    effective_roundoff,
    is_alias,
    is_power_without_pole,
    largest,
    placed,
    smallest_normal,
    underflow_threshold,
    zero_origin,
)
from precheck.analysis.propagation.walks import NEARBY, Walk
from precheck.analysis.rounding.function_limits import ADDED
from precheck.analysis.rounding.steep_functions import NOT_STEEP
from precheck.analysis.unrepresentable import zeros
from precheck.analysis.unrepresentable.zeros import LOST_TENSOR
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.words import digits

HARMED = Limit(0.25, "relative error")
"""Inf or NaN does harm if a result made from it is at least this far off: not one digit of the result is right."""
FILLS = Limit(3, "different numbers")
"""A mask of -Inf stands for at most so many different numbers in the reference: its constant, and sums of two or three such masks. Data that overflow
have as many different numbers as elements."""

How = Literal["beyond the format", "small divisor", "failed guard", "moved onto a pole", "beyond its edge", "not a number", "infinite"]


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Broken(Fact):
    """Inf or NaN that does harm: the value where it appeared first, and how it was made."""

    how: How
    root: Value

    @property
    def what(self) -> str:
        """Inf or NaN, and the reference's number, in words."""
        return f"{_kind(self.root)}, in the reference {digits(self.root.beyond)}"

    @property
    def where(self) -> str:
        """The op that made it, in words."""
        return placed(self.root.maker) if self.root.maker is not None else "the block's input"


class Spread:
    """Follows Inf and NaN from where they first appear (their root), and collects the values that harmful ones spoil."""

    def __init__(self) -> None:
        self.carriers: dict[Value, Value] = {}  # for each non-finite value its root
        self.spoiled: set[Value] = set()
        self.reported: set[Value] = set()  # roots that have done harm

    def roots(self, observation: Observation, readers: Readers) -> list[Value]:
        """The roots that do harm. Each is returned once."""
        _carry(self.carriers, observation.judged)
        carriers = dict(self.carriers)
        _carry(carriers, observation.ahead)
        opened: dict[Value, list[Value]] = {root: [] for root in self.carriers.values()}
        for value, root in carriers.items():
            if root in opened:
                opened[root].append(value)
        unreported = ((root, carried) for root, carried in opened.items() if root.maker is not None and root not in self.reported)
        harmful = (root for root, carried in unreported if _harmful(root, carried, readers, observation))
        found = [root for root in harmful if not skipped_by_scaler(root, observation)]
        self.reported.update(found)
        self.spoiled = descendants(observation, [*self.spoiled, *(value for root in found for value in (root, *opened[root]))])
        return found

    @property
    def open(self) -> set[Value]:
        """Roots that may still do harm."""
        return set(self.carriers.values()) - self.reported

    def keep(self, values: Set[Value]) -> None:
        """Forgets all other values, which no later op can read."""
        self.carriers = {value: root for value, root in self.carriers.items() if value in values}
        self.spoiled &= values
        self.reported &= set(self.carriers.values())


def _carry(carriers: dict[Value, Value], operations: Iterable[Operation]) -> None:
    for operation in operations:
        for value in operation.outputs:
            if value.nonfinite and value not in carriers:
                carriers[value] = next((carriers[given] for given in operation.inputs if given in carriers), value)


@exempts(
    "overflow", "nan", reason="the scaler handles such gradients: it skips the step and lowers the scale",
    needed_by=("scaler-of-each-epoch (mended)", "schedule-through-skips (mended)"),
)  # fmt: skip
def skipped_by_scaler(root: Value, observation: Observation) -> bool:
    """A gradient that is too large only because of the loss scale, at a scale of 1 or a smaller one at which the run goes on."""
    operation = _maker(root)
    if operation.phase != "backward" or largest(root) == math.inf:
        return False
    held = [step.scale for step in observation.steps if not step.skipped and step.last > operation.number]
    reached = min(1.0, *held) if held else 1.0
    return operation.scale > reached and root.beyond / operation.scale * reached <= largest(root)


def _harmful(root: Value, carried: list[Value], readers: Readers, observation: Observation) -> bool:
    """Whether Inf or NaN does harm, in any of the values that carry it on. A mask does none."""
    maker, open_ends = _maker(root), []
    for value in carried:
        readings = [reader for reader in readers.get(value, ()) if reader is not value.maker and reader.base not in ops.FRESH]
        consumers = [reader for reader in readings if not is_alias(reader, value)]
        if any(_harms(reader, readers) for reader in consumers) or _descends(value, maker, observation):
            return True
        if not consumers or (consumers == readings and not any(reader.outputs for reader in consumers)):
            open_ends.append(value)
    return any(not mask_fill(root, maker, end) for end in open_ends if not observation.undecided(end))


@exempts(
    "overflow", "nan", reason="-Inf in a mask is intended, and hides the numbers that it is combined with",
    needed_by=("masks_handed_out", "logged_copies"),
)  # fmt: skip
def mask_fill(root: Value, maker: Operation, end: Value) -> bool:
    """Whether an Inf that nothing reads comes from a constant, or from its sum with something: it is a mask, or a masked tensor.

    Gradients are no constants, and NaN masks nothing. A mask lies below all scores. So Inf that is still alive when the block ends is no mask if it
    stands for more than `FILLS` different numbers, or if one of them is above zero. A fill occurs several times, or beside numbers that need no
    rounding. An infinite number that occurs once, among rounded numbers, belongs to the data.
    """
    if root.drift and root.nonfinite <= root.distinct_overflows:
        return False
    if maker.base not in ops.CONSTANTS or end.maker is None or end.nans or (maker.derived and maker.phase == "backward"):
        return False
    if root.distinct_overflows and end.alive and (root.distinct_overflows > FILLS or not root.negative):
        return False
    return end.maker.base in ops.CONSTANTS or (end.maker.base in ops.SUMS and root.negative and root.distinct_overflows <= FILLS)


def _harms(reader: Operation, readers: Readers) -> bool:
    """Whether Inf or NaN among the inputs of an op makes its result wrong: NaN, a wrong number, a zero.

    NaN that an op was given and gives on does no harm yet. It may be the branch that a `where` does not take. Where it ends it does: as a gradient,
    as a wrong number, unread."""
    computes, given = reader.phase in ("forward", "optimizer", "data"), any(source.nans for source in reader.inputs)
    for value in reader.outputs:
        if value.nans and not given:
            return True
        if not value.nans and _raised_from_minus_infinity(reader):
            continue
        if not value.nonfinite and reader.base not in ops.MOVING and value.drift > HARMED and computes:
            return True  # if it only moves numbers, a finite result is made of finite ones alone, and has the errors of these
        if not value.zeros or value.largest_zeroed <= underflow_threshold(value) or any(source.zeros for source in reader.inputs):
            continue
        if _beneath_the_format(value, readers):
            continue
        # 1/Inf, where the reference has a number that the format can hold. Terms may cancel without Inf, where float32 keeps a rounding.
        if reader.base in ops.SEPARATE or (reader.base not in ops.SUMS and computes and value.zeroed > value.roundoff):
            return True  # a sum with Inf is infinite, and its zeros are made of other terms
    left_out = given and reader.flips is not None and reader.flips.changed  # a choice among numbers takes no NaN, or takes it before all others
    return bool(reader.reads or reader.parted or left_out)


def _beneath_the_format(value: Value, readers: Readers) -> bool:
    """Whether the zeros of 1/Inf do no harm: the reference has subnormal numbers there, less than a rounding of the tensor, and nothing that is made
    of them is infinite, zero or wrong by more than a few roundings. A reciprocal of any number beyond a format is subnormal in it."""
    if value.largest_zeroed >= smallest_normal(value) or value.zeroed > value.roundoff or not readers.get(value):
        return False
    walk = Walk([value], NEARBY)
    for _, reader in walk.with_readers(readers):
        if reader.reads or any(
            made.nonfinite or made.zeroed > made.roundoff or made.drift > ROUNDINGS * effective_roundoff(made) for made in reader.outputs
        ):
            return False
        walk.follow(made for made in reader.outputs if made.zeros)
    return walk.whole


def _raised_from_minus_infinity(reader: Operation) -> bool:
    """Whether an op raises e to numbers that are -Inf because they are beyond a format, as a softmax does too. It gives zero, as it does for any
    number so far down: e^-448 is already below 10^-194. What is wrong beside zeros comes of others. -Inf that is log 0 stands for smaller ones."""
    beyond = [source for source in reader.inputs if source.nonfinite]
    return reader.base in ops.SOFTMAXES | ops.EXPONENTIALS and any(beyond) and all(it.negative and it.beyond >= largest(it) for it in beyond)


def _descends(value: Value, maker: Operation, observation: Observation) -> bool:
    """Whether Inf of the forward pass becomes a parameter's gradient.

    On the way a derivative may heal it, as the function itself does. That of erf squares Inf, and is zero there.
    """
    return maker.phase == "forward" and value in observation.parameter_gradients


def fact_on_root(root: Value, observation: Observation) -> Fact:
    """The fact on the op that made Inf or NaN from finite values at `root`."""
    operation, limit = _maker(root), largest(root)
    zero = _zero(operation, root)
    divisor = operation.inputs[-1] if operation.inputs else None
    normal = formats.of_dtype(divisor.dtype).min_normal if divisor is not None and divisor.low else 0.0
    if not root.nans and 0 < operation.starved < normal:
        return Broken(rule="underflow", operation=operation, measured=operation.starved, limit=normal, how="small divisor", root=root)
    at_pole = zero is not None and operation.base in ops.POLES
    if not root.nans and not at_pole and root.beyond > limit * (1 - root.roundoff):
        return Broken(rule="overflow", operation=operation, measured=root.beyond, limit=limit, how="beyond the format", root=root)
    if zero is not None and (operation.base not in ops.POLYNOMIAL or any(source.nonfinite for source in operation.inputs)):
        return zeros.fact_on_lost_number(zero, f"{placed(operation)} made {_kind(root)} of it")
    if operation.base.removesuffix("_backward") in ops.POLES and not (is_power_without_pole(operation) and operation.scalars[0] % 1 == 0):
        guard = _failed_guard(operation)
        if guard is not None:
            return Broken(rule="vanished-constant", operation=guard, measured=1.0, limit=HARMED, how="failed guard", root=root)
        if _beyond_edge(operation, root):
            return Broken(rule="amplified-rounding", operation=operation, measured=1.0, limit=HARMED, how="beyond its edge", root=root)
        cause = op_that_moved_argument(operation, observation) or operation
        return Broken(rule=causes.rule_for(cause), operation=cause, measured=1.0, limit=HARMED, how="moved onto a pole", root=root)
    if root.nans and not any(source.nonfinite for source in operation.inputs):
        return Broken(rule="nan", operation=operation, measured=root.nans, limit=0, how="not a number", root=root)
    return Broken(rule="overflow", operation=operation, measured=root.beyond, limit=limit, how="infinite", root=root)


def _beyond_edge(operation: Operation, root: Value) -> bool:
    """Whether ordinary roundings have put numbers that are one in theory beyond the end of a function's domain. No line on the way is at fault, and
    in any format they may be: the function is what should be changed, or bounded. A tensor with a larger error has lost digits on another line."""
    source = operation.drifting
    return bool(root.nans) and operation.base in ops.ENDS_AT_ONE and source is not None and source.drift <= ADDED * effective_roundoff(source)


def op_that_moved_argument(operation: Operation, observation: Observation) -> Operation | None:
    """The op whose rounding moved an argument, of a quotient the divisor. It is the last op that made half of the error, or the last line with a part
    in it, whichever is later. A wide difference and a wide function of single numbers, such as a logarithm near one, round nothing, however much they
    amplify: their terms were rounded before."""
    source = operation.inputs[-1] if operation.base in ops.RECIPROCALS else operation.drifting
    levelled = causes.levelling(source)
    if source is None or levelled is not None:
        return levelled
    nearest, cause = causes.error_source(source), attribution.Attribution(source, observation.operations).cause()
    if nearest is None or cause is None or attribution.own_error(nearest, nearest.outputs[0]):
        return attribution.later(nearest, cause)
    if nearest.base in ops.SUMS:
        return nearest if attribution.is_variance_of_squares(nearest, cause) else cause
    return cause if len(nearest.inputs) == 1 and nearest.base not in NOT_STEEP else attribution.later(nearest, cause)


def _zero(operation: Operation, root: Value) -> Value | None:
    """The input whose zeros are the cause. For 0/0 it is the divisor, preferably with a vanished guard, unless most of the numerator was lost. Inf
    comes of an operand at which the function has a pole: of a quotient's divisor, and not of its numerator."""
    poles = () if root.nans else ops.INFINITE_AT.get(operation.base, ())
    given = [operation.inputs[place] for place in poles if place < len(operation.inputs)] if poles else operation.inputs
    lost = [source for source in given if source.zeros and source.maker is not None and not is_power_without_pole(operation)]
    if not lost or lost[0].zeroed >= LOST_TENSOR:
        return lost[0] if lost else None
    unguarded = (source for source in lost if zero_origin(source)[0] == "vanished-constant")
    return next(unguarded, lost[-1 if operation.base == "div" else 0])


def _kind(root: Value) -> str:
    """Inf or NaN, in words."""
    return "NaN" if root.nans else "Inf"


def _maker(root: Value) -> Operation:
    assert root.maker is not None
    return root.maker


def _failed_guard(operation: Operation) -> Operation | None:
    """A clamp before a pole that did not keep values off it. At most moves and one sum may be between them (`log(1 - p)`).

    Every format holds 0 and 1. If these are its bounds, it keeps nothing off a pole, and what lies there was moved before.
    """
    value, sums = operation.drifting, 0
    while value is not None and value.maker is not None:
        maker = value.maker
        if maker.base in ops.GUARDS - ops.SUMS:
            return None if len(maker.inputs) == 1 and all(scalar % 1 == 0 for scalar in maker.scalars) else maker
        sums += maker.base in ops.SUMS
        if sums > 1 or maker.base not in ops.MOVING | ops.SUMS:
            return None
        value = maker.drifting
    return None
