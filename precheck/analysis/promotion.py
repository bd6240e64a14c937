"""Finds formats that spread by type promotion: float32 where the weights are low, and low formats in a float32 run."""

from __future__ import annotations

import dataclasses

from precheck import formats, ops
from precheck.analysis.facts import Fact
from precheck.analysis.provenance import elements
from precheck.analysis.walks import Walk
from precheck.observe.shadow.operations import Observation, Operation, Value

NEAR = 64
"""The most ops that a search from a product back to the promotion of its input visits."""
WIDE = frozenset({"float32", "float64"})
LOW = frozenset({"bfloat16", "float16"})


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Lowered(Fact):
    """A tensor that is stored low in a float32 run, and read as float32. The op that made it is blamed, or the reader if the block was given it."""

    read: Operation
    dtype: str


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Widened(Fact):
    """A float32 product with a weight that is stored low. The other operand became float32 by type promotion, which nobody asked for."""

    product: Operation
    low: Value
    wide: Value


def leaks(observation: Observation) -> list[Lowered] | list[Widened]:
    """The places where a format spreads that nobody asked for."""
    forward = [operation for operation in observation.judged if operation.phase in ("forward", "data") and operation.outputs]
    if observation.exact:
        return [found for operation in forward if (found := _lowered(operation)) is not None]
    return [made for operation in forward if (made := _widened(operation)) is not None]


def _lowered(operation: Operation) -> Lowered | None:
    """The fact that an op makes a wide result from a low input. None if autocast, autograd or a cast on the same line made the input low."""
    low = next((value for value in operation.inputs if value.dtype in LOW), None)
    if low is None or operation.outputs[0].dtype not in WIDE:
        return None
    if low.maker is not None and (low.maker.autocast or low.maker.derived or low.maker.source == operation.source):
        return None
    unit, limit = formats.of_dtype(low.dtype).unit_roundoff, formats.of_dtype("float32").unit_roundoff
    return Lowered(mechanism="dtype-leak", operation=low.maker or operation, measured=unit, limit=limit, read=operation, dtype=low.dtype)


def _widened(operation: Operation) -> Widened | None:
    if operation.base not in ops.PRODUCTS or operation.outputs[0].dtype not in WIDE:
        return None
    weights = [value for value in operation.inputs if value.dtype in LOW and _given(value)]  # a cast to float32 keeps the low values
    others = [value for value in operation.inputs if value not in weights]
    cause = next((found for value in others if (found := _promoted(value))), None) if weights else None
    if cause is None:
        return None
    low, wide = (next(value for value in cause.inputs if (value.dtype in LOW) is which) for which in (True, False))
    return Widened(
        mechanism="dtype-leak", operation=cause, measured=32, limit=16, severity="warning", product=operation, low=low, wide=wide
    )


def _given(value: Value) -> bool:
    """Whether the block was given the value, or a conversion of the model's weights made it."""
    return value.maker is None or bool(value.maker.converts)


def _promoted(value: Value) -> Operation | None:
    """The earlier op in which a low tensor met a smaller wide one that is no weight. None if the wide type was asked for."""
    walk = Walk([value], NEAR)
    for each in walk:
        maker = each.maker
        if maker is None or maker.phase not in ("forward", "data") or maker.outputs[0].dtype not in WIDE:
            continue
        low = [source for source in maker.inputs if source.dtype in LOW and source.shape]
        wide = [source for source in maker.inputs if source.dtype in WIDE]
        if maker.mixed and low and wide and not maker.parameter and _fewer(wide, low):
            return maker
        walk.follow(wide)
    return None


def _fewer(wide: list[Value], low: list[Value]) -> bool:
    """Whether the wide tensors have dimensions, were given to the block, and are smaller than the low one: a table, a mask, a scale."""
    size = max(elements(value) for value in low)
    return all(value.shape and value.maker is None and elements(value) < size for value in wide)
