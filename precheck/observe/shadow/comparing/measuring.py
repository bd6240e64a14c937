"""Fills in the `Value` of a result by comparing it with its shadow. It measures only as much as the errors of the inputs make necessary."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.formats import FORMATS, ONE_ROUNDING
from precheck.observe.shadow.comparing.fetching import SAMPLE as FETCHED
from precheck.observe.shadow.comparing.statistics import DOUBTFUL, SAMPLE, compare, norm, ratio, sampled
from precheck.observe.shadow.operations import Operation, Origin, Value
from precheck.observe.shadow.probes import draws
from precheck.observe.shadow.replaying import eigenvectors
from precheck.torch_support import cuda_blocks, emulation
from precheck.words import dtype_name

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call

SUSPECT = 0.01
"""A value gets a perturbed shadow from this share of elements without a correct digit. It shows whether float32 determines what follows."""
GLANCE = 4096
"""Elements that are measured of a wide tensor in an optimizer step. Such a tensor is as far off as the gradients it is computed from."""
_ADDING_UP = ops.SUMS | ops.REDUCTIONS | ops.DIFFERENCES | ops.MOVING | ops.CHOSEN
_ROUNDOFF = {each.dtype: each.unit_roundoff for each in FORMATS.values() if each.dtype_name}


def roundoff(dtype: torch.dtype, low: frozenset[torch.dtype]) -> float:
    """The unit roundoff of a low format. 0 for other formats, whose own is negligible."""
    return _ROUNDOFF.get(dtype, 0.0) if dtype in low else 0.0


def fresh(call: Call, output: torch.Tensor) -> Value:
    """A new value for a result of a call, not measured yet.

    An emulated format rounds inside products and is stored in a wider one, so its unit roundoff is passed on to all later values.
    """
    packet, low = call.plan.packet, output.dtype in call.mode.low
    coarsest = max([value.roundoff for value in call.inputs], default=0.0)
    kept = low or (call.plan.base in ops.MOVING and any(value.kept_low for value in call.inputs))
    unit = roundoff(output.dtype, call.mode.low) if low else coarsest
    if emulation.active():
        unit = max(unit, coarsest, emulation.roundoff(packet))
    return Value(call.operation, tuple(output.shape), dtype_name(output.dtype), unit, low, kept, since=_since(call, output.dtype) if low else None)


def _since(call: Call, dtype: torch.dtype) -> Origin | None:
    """The user's line whose cast or factory makes the low result of a call low: without it the op would be wide. Notes the operands' on the op.
    A product is low without it, since autocast makes it so or its weights are low, but not where the block has turned autocast off."""
    operation, base = call.operation, call.plan.base
    if operation.autocast and not operation.derived:
        operation.cuda_off = cuda_blocks.inside()
        _cast_for(call)
    given = [value.since for value in call.inputs if value.low]
    asked = base not in ops.PRODUCTS or (operation.autocast_left and given and all(given))
    if operation.plain or operation.converts or operation.derived or not asked or dtype is torch.float32:  # which nobody decided
        return None
    origin = next(filter(None, given), None)
    operation.since = (dtype_name(dtype), origin) if origin else None
    if given or not (base in ops.CASTS or not call.inputs):
        return origin
    return Origin(operation.blamed, operation.site, operation.policy) if operation.blamed else None


def _cast_for(call: Call) -> None:
    """Marks the casts that autocast has made for an op: one instruction of the program runs both."""
    makers = [value.maker for value in call.inputs if value.maker is not None and value.maker.base in ops.CASTS]
    here = [maker for maker in makers if maker.source == call.operation.source]
    if here:
        instruction = call.mode.lines.frames.instruction(1)
        for maker in here:
            maker.implicit = maker.instruction == instruction


def outside(tensor: torch.Tensor, low: frozenset[torch.dtype] = frozenset()) -> Value:
    """The value of a tensor from outside the block. Its content counts as exact. `low`: the formats in which a tensor counts as stored low."""
    stored = tensor.dtype in low
    return Value(None, tuple(tensor.shape), dtype_name(tensor.dtype), roundoff(tensor.dtype, low), stored, stored)


def suspicious(operation: Operation, value: Value) -> bool:
    return value.dead >= SUSPECT and operation.phase == "forward" and not value.zeros


def measure(call: Call, value: Value, output: torch.Tensor, shadow: torch.Tensor, perturbed: torch.Tensor | None, place: int) -> None:
    """Fills in the value of output number `place` of a call."""
    operation, inputs = call.operation, call.inputs
    if place in ops.UNWRITTEN.get(call.plan.base, ()):
        return
    if call.plan.packet.startswith("_amp_"):  # the scaler's own arithmetic: it keeps Inf and NaN
        before = next((source for tensor, source in zip(call.floats, inputs, strict=True) if tensor is output), None)
        if before is not None:
            _unscaled(value, before, shadow)
        return
    call.mode.losses.undefined.made(call, output, shadow)
    if operation.in_optimizer and not value.low and not any(source.nonfinite or source.zeros for source in inputs):
        if output.numel() > GLANCE and not isinstance(output, torch.nn.Parameter):
            value.drift = operation.drift_in
        else:
            compare(value, sampled(output, GLANCE), sampled(shadow, GLANCE))
        return
    if not value.low and not [source for source in inputs if source.drift or source.nonfinite]:
        return  # run and shadow computed the same op on the same numbers
    # in an optimizer step most tensors are intermediate results that live for one op
    limit = FETCHED if operation.in_optimizer and not isinstance(output, torch.nn.Parameter) else SAMPLE
    compare(value, output, shadow, perturbed, zeros=bool([source for source in inputs if source.zeros]), limit=limit)
    call.mode.losses.undefined.given(call, value, output)
    if value.drift > DOUBTFUL * value.roundoff and value.drift > DOUBTFUL * operation.drift_in:
        operation.part_drift = _in_parts(call, value)
    call.mode.exponents.opened(operation, value, shadow)
    if value.nonfinite and call.plan.base in ops.RECIPROCALS:
        _starved(operation, call.floats[-1])
    jumped = value.drift > 2 * DOUBTFUL * value.roundoff and value.drift > 8 * operation.drift_in
    if call.plan.base in ops.CASTS:
        return  # its kernel only rounds; what it cuts off is no fault of the kernel
    drawn = call.plan.tagged and call.op.draws()  # repeated, it would take random numbers of the user's
    if jumped and not drawn and operation.phase in ("forward", "backward") and (call.before_scatter or not call.written):
        right = exact(call, place)
        own = relative_error(output, right)
        value.terms = _terms(call, right, place) if call.plan.base in ops.UNEVEN else 0.0
        value.weighting = _weighting(call, right, place, value.rounded) if call.plan.base in ops.ATTENTION else 0.0
        value.local = own if math.isfinite(own) else None  # a result that is zero on paper, as the norm of a single number, has no relative error
        if value.local is not None and emulation.quantises(operation.packet):
            value.roundoff, value.local = max(value.roundoff, value.local / ONE_ROUNDING), None
        operation.amplifies = _amplified(call, shadow, place)


def _unscaled(value: Value, before: Value, shadow: torch.Tensor) -> None:
    """A gradient that was divided by the loss scale has the error that it had, and is as large as its shadow is now."""
    value.nonfinite, value.nans, value.beyond, value.drift, value.dead = before.nonfinite, before.nans, before.beyond, before.drift, before.dead
    if value.drift:
        value.norm = norm(shadow)


def _in_parts(call: Call, value: Value) -> float | None:
    """The largest error of the inputs of a call, if one of them is part of a storage. The value of such a storage may describe another part of it.

    None if all inputs are whole storages. A part that the call has overwritten is gone: it may have been as far off as the result.
    """
    drifts, parted = [source.drift for source in call.inputs], False
    for place, (tensor, cell) in enumerate(zip(call.floats, call.cells, strict=True)):
        if cell is None or not tensor.numel() or tensor.numel() == cell.content.numel():
            continue
        parted = True
        if any(tensor is written for written in call.written):
            return value.drift
        shadow = sampled(call.shadows[id(tensor)])
        drifts[place] = ratio(norm(sampled(tensor).to(shadow.dtype) - shadow), norm(shadow))
    return max(drifts) if parted else None


def measure_cast(call: Call, value: Value, output: torch.Tensor, shadow: torch.Tensor, perturbed: torch.Tensor | None) -> None:
    """Measures a cast, in which only rounding can happen."""
    compare(value, output, shadow, perturbed)
    call.mode.exponents.opened(call.operation, value, shadow)


def measure_cast_alone(value: Value, source: torch.Tensor, output: torch.Tensor, before: Value) -> None:
    """Measures what a cast of wrong numbers has rounded itself: the run has both. One rounding is no more than an estimate of it: just below a power
    of two numbers lose half as much, relative to their size, as just above. A cast of right numbers has no other error than its own."""
    if before.drift and value.drift and not value.nonfinite:
        given = sampled(source)
        value.stored = ratio(norm(sampled(output).to(given.dtype) - given), norm(given))


def _starved(operation: Operation, divisor: torch.Tensor) -> None:
    sizes = divisor.detach().float().abs()
    sizes = sizes[sizes > 0]
    operation.starved = float(sizes.min()) if sizes.numel() else 0.0


def copies_before_scatter(call: Call) -> dict[int, torch.Tensor]:
    """Copies of the low-format tensors that a scattering call is about to add to, by the tensor's id."""
    if call.plan.base not in ops.SCATTERING or call.op.argument("accumulate") is False:
        return {}
    return {id(tensor): tensor.clone() for tensor in call.written if tensor.dtype in call.mode.low}


def operand(call: Call, known: dict[int, torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """The operand to use in a replay: from `known`, or the run's own in the reference precision if it has no shadow, such as a sparse one."""
    if id(tensor) in known:
        return known[id(tensor)]
    if is_workspace(call, tensor):
        return workspace(call, tensor)
    return tensor.to(call.mode.replay.wide(tensor.dtype)) if tensor.dtype in call.mode.low else tensor


def is_workspace(call: Call, tensor: torch.Tensor) -> bool:
    """Whether it is the bytes that a kernel has left for its derivative."""
    return call.plan.base in ops.PAYLOADS and tensor.dtype == torch.uint8


def workspace(call: Call, tensor: torch.Tensor) -> torch.Tensor:
    """What the forward kernel left in the reference precision. The run's own is shorter: on it the kernel would write past the end of the memory."""
    payload: torch.Tensor | None = call.mode.memory.payload(tensor)
    if payload is None:
        raise RuntimeError("the forward kernel's workspace has no replayed twin")
    return payload


def exact(call: Call, place: int = 0) -> torch.Tensor:
    """Result number `place` of the op in the reference precision, on the run's own inputs."""
    replay = call.mode.replay
    wide = {id(tensor): call.before_scatter.get(id(tensor), tensor).to(replay.wide(tensor.dtype)) for tensor in call.floats}
    results = replay.call(call.op, lambda tensor: operand(call, wide, tensor))
    if len(results) == len(call.results):
        eigenvectors.as_in_run(call, call.results, results)
    return results[place]


def _amplified(call: Call, shadow: torch.Tensor, place: int) -> int | None:
    """The place of the input whose error makes most of the error of a result: each is taken from the run once, and all others from the shadow.
    How far off an input is does not say so. In normal equations a rounding of the matrix is multiplied by its condition number, and an error that the
    data had is not. None if no more than one input is wrong, or the op adds up its terms' errors."""
    wrong = [number for number, source in enumerate(call.inputs) if source.drift]
    if len(wrong) < 2 or call.written or call.plan.base in _ADDING_UP:
        return None
    off = {}
    for number in wrong:
        given = call.floats[number]
        known = call.shadows | {id(given): given.to(call.mode.replay.wide(given.dtype))}
        off[number] = relative_error(call.mode.replay.call(call.op, functools.partial(operand, call, known))[place], shadow)
    return max(wrong, key=off.__getitem__)


def _terms(call: Call, right: torch.Tensor, place: int) -> float:
    """How many numbers the op adds up for an element of its result `right`: the mean, in which an element counts by its square, as in an error."""
    ones = {id(tensor): torch.ones_like(tensor, dtype=right.dtype) for tensor in call.floats}
    counts, weights = call.mode.replay.call(call.op, lambda tensor: operand(call, ones, tensor))[place], right.square()
    return ratio(float((counts * weights).sum()), float(weights.sum()))


def _weighting(call: Call, right: torch.Tensor, place: int, unit: float) -> float:
    """The relative error that a rounding of an attention kernel's weights makes in its result `right`. The kernel stores them in the low format, and
    multiplies values by them. A rounding of each product's other factor, in which the kernel is linear, does as much, and needs no weights."""
    operands = {id(tensor): tensor.to(right.dtype) for tensor in call.floats}
    for at in ops.LINEAR_IN[call.plan.base]:
        operands[id(call.floats[at])] = draws.by_signs(call.mode.noise, operands[id(call.floats[at])], unit)
    moved = call.mode.replay.call(call.op, lambda tensor: operand(call, operands, tensor))[place]
    return ratio(norm(moved - right), norm(right))


def relative_error(output: torch.Tensor, exact: torch.Tensor) -> float:
    """The relative error against the exact result. Errors of one subnormal spacing per element are ignored, as are elements that are not finite."""
    error = torch.nan_to_num(output.to(exact.dtype) - exact, nan=0.0, posinf=0.0, neginf=0.0)
    subnormal = torch.finfo(output.dtype).smallest_normal * torch.finfo(output.dtype).eps * math.sqrt(output.numel())
    return ratio(max(0.0, norm(error) - subnormal), norm(exact))
