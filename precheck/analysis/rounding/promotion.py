"""Finds formats that spread by type promotion: float32 where the weights are low or autocast rounds, and low formats in a float32 run.

Under autocast a float32 table, mask or scale makes activations float32, until the next product casts them back: an island. It costs memory and time,
and the digits that it adds are lost at the cast. Some float32 was asked for: ops that autocast runs in float32 (norms, softmaxes), casts by the user,
layers with float32 weights, and a residual stream that is float32 already. What a module of torch's own mixes (the bias of a Linear under `vmap`,
the cell of an `LSTMCell`), its user cannot change on that line.
"""

from __future__ import annotations

import dataclasses

from precheck import formats, ops
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.limit import Limit
from precheck.analysis.propagation.provenance import elements
from precheck.analysis.propagation.walks import NEARBY, Walk
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.torch_support.autocast import FLOAT32, FLOAT32_UNLESS_DTYPE

WIDE = frozenset({"float32", "float64"})
LOW = frozenset({"bfloat16", "float16"})


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Lowered(Fact):
    """A tensor that is stored low in a float32 run, and read as float32. The op that made it is blamed, or the reader if the block was given it."""

    read: Operation
    dtype: str


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class WidenedProduct(Fact):
    """A float32 product with a weight that is stored low. The other operand became float32 by type promotion, which nobody asked for."""

    product: Operation
    low: Value
    wide: Value


def leaks(observation: Observation, readers: Readers) -> list[Fact]:
    """The places where a format spreads that nobody asked for."""
    judge = _lowered if observation.exact else _widened
    forward = (operation for operation in observation.judged if operation.phase in ("forward", "data") and operation.outputs)
    return [*(found for operation in forward if (found := judge(operation)) is not None), *islands(observation, readers)]


def _lowered(operation: Operation) -> Lowered | None:
    """The fact that an op makes a wide result from a low input. None if autocast, autograd or a cast on the same line made the input low."""
    low = next((value for value in operation.inputs if value.dtype in LOW), None)
    if low is None or operation.outputs[0].dtype not in WIDE:
        return None
    if low.maker is not None and (low.maker.autocast or low.maker.derived or low.maker.source == operation.source):
        return None
    unit, limit = formats.of_dtype(low.dtype).unit_roundoff, formats.of_dtype("float32").unit_roundoff
    return Lowered(rule="dtype-leak", operation=low.maker or operation, measured=unit, limit=limit, read=operation, dtype=low.dtype)


def _widened(operation: Operation) -> WidenedProduct | None:
    """The fact that a product with a low weight runs in float32, since an earlier op met a wide tensor."""
    if operation.base not in ops.PRODUCTS or operation.outputs[0].dtype not in WIDE:
        return None
    # weights that the block was given, or that a conversion of the model made; a cast to float32 keeps the low values
    weights = [value for value in operation.inputs if value.dtype in LOW and (value.maker is None or value.maker.converts)]
    others = [value for value in operation.inputs if value not in weights]
    found = next((found for value in others if (found := _promoted(value))), None) if weights else None
    if found is None:
        return None
    cause, low, wide = found
    return WidenedProduct(
        rule="dtype-leak", operation=cause, measured=32, limit=16, severity="warning", product=operation, low=low, wide=wide
    )


def _promoted(value: Value) -> tuple[Operation, Value, Value] | None:
    """The earlier op in which a low tensor met a smaller wide one, a table, a mask or a scale, and both. None if the wide type was asked for."""
    walk = Walk([value], NEARBY)
    for each in walk:
        maker = each.maker
        if maker is None or maker.phase not in ("forward", "data") or maker.outputs[0].dtype not in WIDE:
            continue
        operands = _mixed_operands(maker)
        if operands is not None and elements(operands[1]) < elements(operands[0]):
            return maker, *operands
        walk.follow(source for source in maker.inputs if source.dtype in WIDE)
    return None


WIDENED = frozenset(name.partition(".")[0] for name in (*FLOAT32, *FLOAT32_UNLESS_DTYPE))
"""Ops that autocast runs in float32."""
GATHERING = ops.PRODUCTS | ops.REDUCTIONS | ops.SOFTMAXES | ops.CENTRED | ops.AVERAGES | ops.DECOMPOSED | ops.EXPONENTIALS | ops.LOGARITHMS | WIDENED
"""Ops that do not work element by element, or that autocast runs in float32."""
LARGE = Limit(0.05, "share of the forward pass's elements")
"""An island is reported if at least this share of all elements that the forward pass makes lie in it: one in twenty."""


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Island(Fact):
    """An op with a low and a wide operand, whose result stays float32 until autocast casts it for a product."""

    low: Value
    wide: Value
    stretch: int  # how many ops it has
    cast: Operation


def islands(observation: Observation, readers: Readers) -> list[Island]:
    """The islands in the order of the run. An op belongs to one island only."""
    forward = [operation for operation in observation.judged if operation.phase == "forward" and operation.outputs]
    made = sum(elements(operation.outputs[0]) for operation in forward if not operation.parameter)
    found, grouped = list[Island](), set[Operation]()
    for operation in forward:
        apart = operation.autocast and not operation.plain and operation.base not in GATHERING and operation not in grouped
        operands = _mixed_operands(operation) if apart else None
        island = _cast_back(operation, readers) if operands is not None else None
        if operands is None or island is None:
            continue
        stretch, cast = island
        grouped |= stretch
        share = sum(elements(each.outputs[0]) for each in stretch) / made
        if share >= LARGE:
            found.append(Island(
                rule="dtype-leak", operation=operation, measured=share, limit=LARGE, severity="warning", low=operands[0], wide=operands[1],
                stretch=len(stretch), cast=cast,
            ))  # fmt: skip
    return found


def _mixed_operands(operation: Operation) -> tuple[Value, Value] | None:
    """The low and the wide operand of an op with a float32 result, if the block was given the wide one, and it is no weight and no larger."""
    low = next((value for value in operation.inputs if value.dtype in LOW and value.shape), None)
    wide = next((value for value in operation.inputs if value.dtype in WIDE and value.shape), None)
    if low is None or wide is None or not operation.mixed or operation.parameter or operation.outputs[0].dtype not in WIDE:
        return None
    return (low, wide) if wide.maker is None and elements(wide) <= elements(low) else None


def _cast_back(operation: Operation, readers: Readers) -> tuple[set[Operation], Operation] | None:
    """The ops of an island, and the cast by autocast that ends it. None if anything else reads their results, or the user keeps them."""
    walk, casts = Walk([operation], NEARBY), list[Operation]()
    for each in walk:
        value = each.outputs[0]
        consumers = [reader for reader in readers.get(value, ()) if reader.phase == "forward"]
        if not consumers:
            return None
        for reader in consumers:
            if _cast_for_a_product(reader, readers):
                casts.append(reader)
                continue
            if reader.base in GATHERING or not reader.outputs or not _elementwise(reader, value):
                return None
            walk.follow([reader])
    return (walk.reached, casts[0]) if casts and walk.whole else None


def _cast_for_a_product(reader: Operation, readers: Readers) -> bool:
    """Whether an op is a cast by autocast for a product on the same line."""
    cast = reader.autocast and reader.base in ops.CASTS and bool(reader.outputs) and reader.outputs[0].dtype in LOW
    return cast and any(product.base in ops.PRODUCTS and product.source == reader.source for product in readers.get(reader.outputs[0], ()))


def _elementwise(reader: Operation, value: Value) -> bool:
    """Whether a reader works element by element, and has neither a float32 weight nor another wide tensor of that size as an operand."""
    if elements(reader.outputs[0]) != elements(value):
        return False
    others = [source for source in reader.inputs if source is not value and source.dtype in WIDE]
    return not reader.parameter and all(source.maker is None and elements(source) < elements(value) for source in others)
