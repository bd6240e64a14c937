"""A rounding that several ops of one function amplify together, each of them by less than one op may.

In `exp(x) - 1 - x` in a low format each subtraction makes the error five or seven times larger, and both together sixty times. To its author a
function computes one thing. So its own rounding may cost it as much as it may cost one op, whatever the number of ops.
"""

from __future__ import annotations

from collections.abc import Mapping

from precheck.judge import causes
from precheck.judge.events import Suspect
from precheck.judge.lineage import PRODUCTS, felt, placed
from precheck.observe.shadow.operations import Operation, Value

NARROWED = 8.0
"""Three bits lost to a cast that the user wrote and no product asked for: without it there would be no error here. Sharp softmaxes of scores that a
product made low, which is as the precision has it, lose up to 14.6 times one rounding."""
COMPUTED = 32.0
"""Five bits lost to a rounding of low arithmetic, as by one op (`rounding.PLAIN`)."""
ROUNDINGS = 16.0
"""Roundings that the result is off by then, as for one op (`rounding.PLAIN_ROUNDINGS`)."""


def amplified(
    operation: Operation, value: Value, functions: Mapping[str, str], readers: Mapping[Value, list[Operation]], known: dict[Value, Operation]
) -> Suspect | None:
    """The rounding of the function at hand that `value`, a result of `operation` in it, is off by, if it is amplified too far."""
    cause = causes.entered(value, known)
    if cause is None or cause is operation or _function(cause, functions) != _function(operation, functions) or cause.plain or cause.converts:
        return None
    made = cause.outputs[0]
    stored = causes.own(made)
    if not stored or stored < causes.HALF * made.drift:
        return None
    gain, narrowed = value.drift / stored, narrows(cause) and not any(reader.base in PRODUCTS for reader in readers.get(made, ()))
    if gain < (NARROWED if narrowed else COMPUTED) or (not narrowed and value.drift < ROUNDINGS * felt(value)):
        return None
    asked = "a cast to" if narrowed else "its rounding to"
    text = f"{asked} {made.dtype} costs {stored:.2g} of its norm here, and {gain:.0f} times that by {placed(operation)}"
    return Suspect("amplified-rounding", cause, text, gain, NARROWED if narrowed else COMPUTED)


def narrows(operation: Operation) -> bool:
    """Whether it casts wide numbers to a low format."""
    return operation.base in ("_to_copy", "copy") and not any(source.low for source in operation.inputs)


def _function(operation: Operation, functions: Mapping[str, str]) -> str:
    return functions.get(operation.blamed, operation.source)
