"""Says what to change on a line so that an op computes in a wider format."""

from __future__ import annotations

from precheck import ops
from precheck.analysis.facts import Readers
from precheck.analysis.propagation.provenance import placed
from precheck.observe.shadow.operations import Observation, Operation, Origin
from precheck.observe.shadow.places.source import installed, shortened

_WIDENING = {"float32": ".float()", "float64": ".double()"}
_OF_ONE_DTYPE = ops.SCATTERING | ops.BLENDS | ops.PRODUCTS
"""Ops that torch refuses where the tensor that they write into has another dtype than what is written: index_add_, scatter_add_, lerp_, addmm_."""


def wide_format(observation: Observation) -> str:
    """The name of the reference's format."""
    return "float64" if observation.exact else "float32"


def widened(operation: Operation, wide: str) -> str:
    """How to compute an op in the format `wide`, as the beginning of a sentence: "pass dtype=torch.float32 to sum"."""
    call, made = _WIDENING[wide], next((value.dtype for value in operation.outputs), "")
    if operation.converts == "held":
        return f"keep this tensor in {wide}: the model's conversion to {made} rounds it"
    if operation.converts == "given":
        return f"give this input in {wide}"
    if operation.policy:
        return _by_policy(operation)
    if (operation.implicit and not operation.plain) or operation.cuda_off:
        return uncast(operation, wide)
    of_module = operation.implicit and operation.plain and operation.module  # autocast's own, which no line of the user's has
    if operation.base in ops.CASTS and made != wide and operation.derived:  # without the cast in the forward pass the gradient is as low
        return f"the gradient of a {made} tensor is {made}: keep the tensor that this line casts in {wide}, from where it is made on"
    if operation.base in ops.CASTS and made != wide and not of_module:
        return _stored(operation, made, wide) if operation.in_place else left_out(operation)
    if operation.plain and operation.module:
        how = "torch.autocast(..., enabled=False)" if operation.autocast else f"its weights in {wide}"
        return f"run module {operation.module} in {wide}, with {how} and {call} on its input"
    if operation.derived:
        return f"compute this line and its backward pass in {wide}"
    if not operation.inputs and made != wide:
        return f"do not create it in {made}"
    if operation.base in ops.WIDENED:
        return f"pass dtype=torch.{wide} to {operation.base.strip('_')}"
    if operation.in_place and made != wide:
        return _stored(operation, made, wide)
    if operation.autocast and not operation.autocast_left and operation.base in ops.PRODUCTS:
        return uncast(operation, wide)
    if line := since(operation):
        return f"stay in {wide} from {line} on"
    if made == wide:  # it does compute in it, on what was rounded before
        return f"keep what this line reads in {wide}, from where it is made on"
    here = operation.since is not None and _asked_at(operation.since[1]) == operation.blamed  # its own line casts
    return f"stay in {wide} on this line" if here else f"call {call} on what this line reads"


def _by_policy(operation: Operation) -> str:
    """How to leave out a cast that FSDP makes, for the module that is called on the op's line. Without it nothing that the module gets is cast."""
    if operation.policy == "output_dtype":
        return "FSDP makes this cast: leave output_dtype out of the mixed-precision policy of the module that this line calls"
    return (f"FSDP makes this cast: set {operation.policy}=False in the mixed-precision policy of the module that this line calls, and cast in its "
            "forward only what its weights multiply")  # fmt: skip


def _stored(operation: Operation, made: str, wide: str) -> str:
    """How an op that writes into a tensor of the format `made` keeps its result in the format `wide`: it has to write into a tensor of that
    format."""
    if operation.in_optimizer:
        return f"keep the weights and the optimizer's states in {wide}"
    line = since(operation)
    into = f"let it write into a {wide} tensor" + (f", not into one that is {made} since {line}" if line else f", not into a {made} one")
    return into + others_widened(operation, wide)


def others_widened(operation: Operation, wide: str) -> str:
    """How to convert the other operands of an op whose target is now in the format `wide`. "" if torch accepts operands of two formats there."""
    alike = operation.base in _OF_ONE_DTYPE and operation.in_place and any(value.low for value in operation.inputs[1:])
    return f", and call {_WIDENING[wide]} on its other operands, since torch asks for one dtype" if alike else ""


def within_range(operation: Operation, readers: Readers, wide: str) -> str:
    """How to compute an op in the format `wide` for its range. If the line writes into a low tensor, that tensor has to change too: it cannot hold
    the result."""
    how, results = widened(operation, wide), frozenset(operation.outputs)
    writers = (reader for value in operation.outputs for reader in readers.get(value, ()) if reader.in_place and reader.blamed == operation.blamed)
    low = (reader for reader in writers if reader.inputs and reader.inputs[0] not in results and any(value.low for value in reader.outputs))
    writer = next(low, None)
    return how if writer is None or operation.in_place else f"{how}, and {_stored(writer, writer.outputs[0].dtype, wide)}"


def rescaled(operation: Operation, direction: str) -> str:
    """How a factor brings an op's result "up" or "down" into the range of its format. "" if no factor of an input is one of the result: the
    exponential of half a number is not half its exponential. A gradient has the factors of its loss."""
    if operation.derived:
        return f"scale the loss {direction}, and undo this in the gradients"
    exponent = ops.EXPONENTS.get(operation.base, operation.scalars[0] if operation.base == "pow" and operation.scalars else 0.0)
    against = {"up": "down", "down": "up"}[direction]
    way = f"scale its input {direction if exponent > 0 else against}, and undo this later"
    return way if exponent and operation.inputs else ""


def uncast(operation: Operation, wide: str) -> str:
    """How to compute an op in the format `wide` where autocast casts for it."""
    if operation.cuda_off:
        return "the block around this line turns off CUDA's autocast, not the CPU's: torch.autocast(x.device.type, enabled=False) turns off either"
    return f"run this line with torch.autocast(..., enabled=False) and {_WIDENING[wide]} on what it reads"


def added_wide(wide: str) -> str:
    """How to have autograd add up the gradients of a tensor in the format `wide`: in that of the tensor, of which each use casts a copy."""
    return f"cast the tensor to {wide} once, before all its uses; for a weight under autocast, set cache_enabled=False"


def since(operation: Operation) -> str:
    """The earlier line at which a value became low, by a cast or where it was created. If a helper does so, the line that calls it. "" if there is
    none, or if a library does it for an op of the user's: the user cannot change the library."""
    line = _asked_at(operation.since[1]) if operation.since is not None else ""
    foreign = installed(line) and not installed(operation.blamed)
    return "" if foreign or line in ("", operation.blamed) else shortened(line)


def _asked_at(origin: Origin) -> str:
    """The line that calls the helper in which a cast is made. Other callers of the helper may need the cast."""
    lines = origin.site.lines if origin.site is not None else []
    return lines[0] if lines else f"{origin.line} (by {origin.policy} of FSDP)" if origin.policy else origin.line


def left_out(operation: Operation) -> str:
    """How to leave out a cast of the user's."""
    lines = operation.site.lines if operation.site is not None else []
    return f"leave out this cast for the call at {shortened(lines[0])}" if lines else "leave out this cast"


def kept(operation: Operation, reader: Operation, wide: str) -> str:
    """How to keep the result of an op in the format `wide` until another op has read it. That op may round its result if the code does so today."""
    rounds = reader.blamed != operation.blamed and any(value.low for value in reader.outputs)
    until = f", and round after {placed(reader)}" if rounds else ""
    return widened(operation, wide) + until
