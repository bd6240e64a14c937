"""Formats that spread by type promotion: float32 where the weights are low, and low formats where float32 was asked for."""

from __future__ import annotations

import dataclasses

from precheck import formats
from precheck.analysis.facts import Fact
from precheck.analysis.provenance import PRODUCTS, elements
from precheck.observe.shadow.operations import Observation, Operation, Value

NEAR = 64
"""Ops looked through between a product and what has promoted its input."""
WIDE = frozenset({"float32", "float64"})
LOW = frozenset({"bfloat16", "float16"})


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Lowered(Fact):
    """What is stored low in a run that is to be float32, and read as float32. Its maker is blamed, or the reader, where the block was given it."""

    read: Operation
    dtype: str


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Widened(Fact):
    """A product in float32 with a weight that is stored low: what it is multiplied by became float32 by promotion, at no one's request."""

    product: Operation
    low: Value
    wide: Value


def leaks(observation: Observation) -> list[Lowered] | list[Widened]:
    """Where a format spreads that nobody asked for."""
    forward = [operation for operation in observation.judged if operation.phase in ("forward", "data") and operation.outputs]
    if observation.exact:
        return [found for operation in forward if (found := _lowered(operation)) is not None]
    return [made for operation in forward if (made := _widened(operation)) is not None]


def _lowered(operation: Operation) -> Lowered | None:
    """What autocast has made low was asked for, as is a rounding on one line."""
    low = next((value for value in operation.inputs if value.dtype in LOW), None)
    if low is None or operation.outputs[0].dtype not in WIDE:
        return None
    if low.maker is not None and (low.maker.autocast or low.maker.derived or low.maker.source == operation.source):
        return None
    unit, limit = formats.of_dtype(low.dtype).unit_roundoff, formats.of_dtype("float32").unit_roundoff
    return Lowered(mechanism="dtype-leak", operation=low.maker or operation, measured=unit, limit=limit, read=operation, dtype=low.dtype)


def _widened(operation: Operation) -> Widened | None:
    if operation.base not in PRODUCTS or operation.outputs[0].dtype not in WIDE:
        return None
    weights = [value for value in operation.inputs if value.dtype in LOW and _given(value)]  # a widening cast hands on what it has
    others = [value for value in operation.inputs if value not in weights]
    cause = next((found for value in others if (found := _promoted(value))), None) if weights else None
    if cause is None:
        return None
    low, wide = (next(value for value in cause.inputs if (value.dtype in LOW) is which) for which in (True, False))
    return Widened(
        mechanism="dtype-leak", operation=cause, measured=32, limit=16, severity="warning", product=operation, low=low, wide=wide
    )


def _given(value: Value) -> bool:
    """Whether it is as the block was given it, or as a weight was converted."""
    return value.maker is None or bool(value.maker.converts)


def _promoted(value: Value) -> Operation | None:
    """The op behind it in which a low tensor met a smaller wide one that is no weight. None where the wide type was asked for."""
    waiting, seen = [value], {value}
    while waiting and len(seen) < NEAR:
        maker = waiting.pop(0).maker
        if maker is None or maker.phase not in ("forward", "data") or maker.outputs[0].dtype not in WIDE:
            continue
        low = [source for source in maker.inputs if source.dtype in LOW and source.shape]
        wide = [source for source in maker.inputs if source.dtype in WIDE]
        if maker.mixed and low and wide and not maker.parameter and _fewer(wide, low):
            return maker
        fresh = [source for source in wide if source not in seen]
        seen.update(fresh)
        waiting += fresh
    return None


def _fewer(wide: list[Value], low: list[Value]) -> bool:
    """Whether the wide ones, which have dimensions, are given and smaller than the low one: a table, a mask, a scale."""
    size = max(elements(value) for value in low)
    return all(value.shape and value.maker is None and elements(value) < size for value in wide)
