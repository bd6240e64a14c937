"""Finds zeros that the reference does not have: lost numbers, tensors that became mostly zero (floods), gradients without a loss scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from precheck.analysis.facts import Fact, Readers
from precheck.analysis.limit import Limit
from precheck.analysis.provenance import determined, is_alias, rounded_bound, smallest_normal, underflow_threshold, zero_origin
from precheck.analysis.walks import Walk
from precheck.observe.shadow.operations import Observation, Operation, Value

LOST = Limit(0.5, "share of the norm", "A tensor is lost if at least this share became zero, in it or in a result that is made from it.")


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Missed(Fact):
    """A zero where the reference has another number, and its effect (`then`)."""

    zero: Value
    then: str


def missed(zero: Value, then: str) -> Missed:
    """The fact on the op that made a zero which the reference does not have. `then` describes the effect."""
    mechanism, cause = zero_origin(zero)
    bound = rounded_bound(cause) if mechanism == "vanished-constant" else None
    if bound is not None and bound[1]:
        measured, limit = abs(bound[0] - bound[1]), cause.outputs[0].roundoff * abs(bound[1])
    else:
        measured, limit = zero.largest_zeroed, underflow_threshold(zero)
    return Missed(mechanism=mechanism, operation=cause, measured=measured, limit=limit, zero=zero, then=then)


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Flooded(Fact):
    """A tensor that became mostly zero, and does harm."""

    value: Value


class Floods:
    """Collects tensors that became mostly zero, if a result made from them is wrong, or nothing reads them."""

    def __init__(self) -> None:
        self.unread: list[tuple[Operation, Value]] = []

    def found(self, observation: Observation, spoiled: Collection[Value], readers: Readers) -> list[Flooded]:
        """The floods that are known now. A tensor that exists and is not read yet waits for a later part."""
        fresh = [(operation, value) for operation in observation.judged for value in operation.outputs if _flooded(operation, value, spoiled)]
        waiting, self.unread, found = [*self.unread, *fresh], [], []
        for operation, value in waiting:
            if observation.undecided(value) and not readers.get(value):
                self.unread.append((operation, value))
            elif _drowns(value, readers):
                found.append(Flooded(mechanism="underflow", operation=operation, measured=value.zeroed, limit=LOST, value=value))
        return found


def _flooded(operation: Operation, value: Value, spoiled: Collection[Value]) -> bool:
    if not value.low or value.zeroed < LOST or value.maker is not operation or operation.phase != "forward" or value in spoiled:
        return False
    if value.largest_zeroed > smallest_normal(value):
        return False  # the format can hold them: rounding has moved them across a threshold, such as a ReLU's
    return not any(source.zeros for source in operation.inputs) and determined(operation, value) and zero_origin(value)[0] == "underflow"


def _drowns(value: Value, readers: Readers) -> bool:
    """Whether the lost numbers make a later result wrong that is not mostly zero. Products keep the zeros, and a larger term in a sum hides them."""
    walk = Walk([value])
    for lost in walk:
        reading = readers.get(lost, ())
        results = [made for reader in reading for made in reader.outputs]
        if any(made.drift > LOST > made.zeroed for made in results) or (lost.alive and all(is_alias(reader, lost) for reader in reading)):
            return True
        walk.follow(made for made in results if made.zeroed >= LOST)
    return False


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Starved(Fact):
    """A parameter's gradient that became mostly zero without a sufficient loss scale."""

    parameter: str
    scale: float  # the loss scale


def starved_gradients(observation: Observation, spoiled: Collection[Value]) -> list[Starved]:
    """Parameter gradients that were mostly flushed to zero without a sufficient loss scale."""
    found = []
    for name, value, scale in observation.gradients.values():
        maker = value.maker
        if maker is None or value.zeroed <= LOST or value in spoiled or not determined(maker, value):
            continue
        rule, cause = zero_origin(value)
        if rule == "cancellation":
            continue  # no loss scale prevents that
        if any(made.zeroed and made.largest_zeroed > 2 * underflow_threshold(made) for made in cause.outputs):
            continue  # the format can hold it: rounded terms have cancelled, or the gradient really is zero here
        found.append(
            Starved(
                mechanism="gradient-underflow", operation=cause, measured=value.zeroed, limit=LOST,
                severity="warning" if scale > 1 else "error", parameter=name, scale=scale,  # the scaler may still grow until it fits
            )
        )  # fmt: skip
    return found
