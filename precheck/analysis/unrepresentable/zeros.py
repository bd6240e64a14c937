"""Finds zeros that the reference does not have: lost numbers, tensors that became mostly zero, gradients without a loss scale."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

from precheck import ops
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.limit import Limit
from precheck.analysis.propagation.output_impact import GARBAGE, ROUNDINGS, has_part, hidden_by_larger_terms
from precheck.analysis.propagation.provenance import (
    determined,
    elements,
    is_alias,
    reached_bound,
    smallest_normal,
    underflow_threshold,
    underflowed,
    zero_origin,
    zero_share,
)
from precheck.analysis.propagation.walks import Walk
from precheck.observe.shadow.operations import Observation, Operation, Value

LOST_TENSOR = Limit(0.5, "share of the norm")
"""A tensor is lost if at least this share became zero, in it or in a result that is made from it."""


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Missed(Fact):
    """A zero where the reference has another number, and its effect (`then`)."""

    zero: Value
    then: str


def fact_on_lost_number(zero: Value, then: str) -> Missed:
    """The fact on the op that made a zero which the reference does not have. `then` describes the effect. The number that is told is that op's, and
    not what a later op would have made of it."""
    rule, cause = zero_origin(zero)
    bound = reached_bound(cause) if rule == "vanished-constant" else None
    if bound is not None:
        measured, limit = abs(bound[0] - bound[1]), cause.outputs[0].roundoff * abs(bound[1])
    else:
        zero = next((made for made in cause.outputs if made.zeros), zero)
        measured, limit = zero.largest_zeroed, underflow_threshold(zero)
    return Missed(rule=rule, operation=cause, measured=measured, limit=limit, zero=zero, then=then)


def underflow_behind(cause: Operation, value: Value) -> Operation | None:
    """The op whose underflow is why elements of a later result have no correct digit, if at least half as many of what `cause` made became zero. A
    guard that is added to them hides the zeros, and no quotient enlarges the error of one rounding so far."""
    made = cause.outputs[0]
    if not made.zeros or 2 * zero_share(made) < value.dead:
        return None
    rule, origin = zero_origin(made)
    return origin if rule == "underflow" and underflowed(*origin.outputs) else None


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class LostTensor(Fact):
    """A tensor that became mostly zero, and does harm."""

    value: Value


class LostTensors:
    """Collects tensors that became mostly zero, if a result made from them is wrong, or nothing reads them."""

    def __init__(self) -> None:
        self.unread: list[tuple[Operation, Value]] = []

    def found(self, observation: Observation, spoiled: Collection[Value], readers: Readers) -> list[LostTensor]:
        """Those that are known now. A tensor that exists and is not read yet waits for a later part."""
        fresh = [(operation, value) for operation in observation.judged for value in operation.outputs if _is_lost(operation, value, spoiled)]
        waiting, self.unread, found = [*self.unread, *fresh], [], []
        for operation, value in waiting:
            if observation.undecided(value) and not readers.get(value):
                self.unread.append((operation, value))
            elif _makes_wrong(value, readers):
                found.append(LostTensor(rule="underflow", operation=operation, measured=value.zeroed, limit=LOST_TENSOR, value=value))
        return found


def _is_lost(operation: Operation, value: Value, spoiled: Collection[Value]) -> bool:
    """Whether an op of the forward pass has made a tensor mostly zero, since its format cannot hold the numbers."""
    if not value.low or value.zeroed < LOST_TENSOR or value.maker is not operation or operation.phase != "forward" or value in spoiled:
        return False
    if value.largest_zeroed > smallest_normal(value):
        return False  # the format can hold them: rounding has moved them across a threshold, such as a ReLU's
    if operation.drift_in >= LOST_TENSOR:
        return False  # the numbers were lost before: a bias without a gradient, which Adam moves by chance
    return not any(source.zeros for source in operation.inputs) and determined(value) and zero_origin(value)[0] == "underflow"


def _makes_wrong(value: Value, readers: Readers) -> bool:
    """Whether the lost numbers make a later result wrong that is not mostly zero. Products keep the zeros, and a larger term in a sum hides them: a
    sum without digits for a bias is not wrong because of it. What the program keeps is a result, if nothing is made of the zeros but other zeros."""
    walk, kept, used = Walk([value]), False, False
    for lost in walk:
        reading = [reader for reader in readers.get(lost, ()) if reader.base not in ops.FRESH]
        results = [made for reader in reading if reader.base not in ops.ADDENDS or has_part(reader, lost) for made in reader.outputs]
        wrong = (made for made in results if made.drift > LOST_TENSOR > made.zeroed and (made.alive or not hidden_by_larger_terms(made, readers)))
        if any(wrong) or (lost.alive and all(is_alias(reader, lost) for reader in reading)):
            return True
        walk.follow(made for made in results if made.zeroed >= LOST_TENSOR)
        kept = kept or lost.alive
        used = used or not all(reader.outputs and all(made.zeroed >= LOST_TENSOR for made in reader.outputs) for reader in reading)
    return kept and not used


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Starved(Fact):
    """A parameter's gradient that became mostly zero without a sufficient loss scale, or was made from one that did."""

    parameter: str
    scale: float  # the loss scale
    dead: float = 0.0  # share of its elements without a correct digit, if it is made from a gradient that became zero


def starved_gradients(observation: Observation, spoiled: Collection[Value]) -> list[Starved]:
    """Gradients that were mostly flushed to zero without a sufficient loss scale: those of parameters, and those that the user's own code reads."""
    found, told = [], set[Operation]()
    for name, value, scale in [*observation.gradients.values(), *_asked_for(observation)]:
        flushed = _flushed_before(value)
        if flushed is None or flushed.maker is None or value in spoiled or not determined(flushed):
            continue
        rule, cause = zero_origin(flushed)
        if rule == "cancellation" or (cause in told and not name):
            continue  # no loss scale prevents a cancellation
        if any(made.zeroed and _size_of_zeroed(made) > 2 * underflow_threshold(made) for made in cause.outputs):
            continue  # the format can hold it: rounded terms have cancelled, or the gradient really is zero here
        told.add(cause)
        found.append(
            Starved(
                rule="gradient-underflow", operation=cause, measured=flushed.zeroed, limit=LOST_TENSOR,
                severity="warning" if scale > 1 else "error", parameter=name, scale=scale,  # the scaler may still grow until it fits
                dead=0.0 if flushed is value else value.dead,
            )
        )  # fmt: skip
    return found


def _size_of_zeroed(value: Value) -> float:
    """Root mean square of the elements that became zero, in the reference. A few larger elements may have become zero by earlier roundings."""
    return value.zeroed * value.norm / math.sqrt(max(1.0, zero_share(value) * elements(value)))


def _asked_for(observation: Observation) -> list[tuple[str, Value, float]]:
    """Gradients that the user's own code reads, as `torch.autograd.grad` returns them, with their loss scales."""
    known = observation.parameter_gradients
    read = (value for operation in observation.operations if operation.phase == "forward" and not operation.derived for value in operation.inputs)
    asked = dict.fromkeys(value for value in read if value.maker is not None and value.maker.derived and value not in known)
    return [("", value, value.maker.scale) for value in asked if value.maker is not None]


def _flushed_before(value: Value) -> Value | None:
    """The gradient that became mostly zero: this one, or one that it was made from and that left most of its elements without a correct digit."""
    if value.zeroed > LOST_TENSOR:
        return value
    held: Value | None = value
    while value.dead > LOST_TENSOR and held is not None and held.maker is not None and held.maker.derived and held.drift >= value.drift:
        if held.zeroed > LOST_TENSOR:
            return held
        held = held.maker.drifting
    return None


def lost_terms(operation: Operation, value: Value) -> list[Value]:
    """The operand of a mostly wrong sum, if lost numbers (zeros) are its error and no other operand has one.

    Many small terms that became zero are little of the norm, but much of the sum: 2000 at 2^-11 beside a one are 2 % of the norm, half the sum.
    """
    worst = operation.drifting
    if operation.base not in ops.REDUCTIONS or value.dead < GARBAGE or worst is None or not worst.zeros or worst.zeroed < worst.drift / 2:
        return []
    exact = all(source is worst or source.drift <= ROUNDINGS * source.roundoff for source in operation.inputs)
    return [worst] if exact and determined(value) else []
