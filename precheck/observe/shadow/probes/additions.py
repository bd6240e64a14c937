"""Repeats an addition on samples of its operands in the reference precision, to know what an accumulator would hold without losses.

The shadow does not show this: it adds the shadows of the terms, and the run's terms may already differ from these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.comparing.statistics import sampled
from precheck.observe.shadow.replaying.replay import OpCall, tensors_in, with_items, with_written

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call

OnSamples = Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor]
"""Applies the op to a sample of the accumulator and samples of the other operands."""


def on_samples(call: Call, accumulator: torch.Tensor, limit: int) -> tuple[list[torch.Tensor], OnSamples] | None:
    """Returns samples of the operands other than `accumulator`, and the op on samples. None if the op is not elementwise.

    For an op on lists of tensors, only the part for this accumulator is taken.
    """
    args, kwargs = _share(call, accumulator)
    operands = list(tensors_in(*args, *kwargs.values()))
    if call.plan.base not in ops.ELEMENTWISE or not all(_alike(tensor, accumulator, limit) for tensor in operands):
        return None
    others, wide = [tensor for tensor in operands if tensor is not accumulator], call.mode.replay.reference

    def made(held: torch.Tensor, given: Sequence[torch.Tensor]) -> torch.Tensor:
        floats = (few.to(wide) if few.is_floating_point() else few for few in given)  # whole numbers are what the program adds, in any format
        samples = dict(zip(map(id, others), floats, strict=True)) | {id(accumulator): held.clone()}

        def sample(item: Any) -> Any:
            return samples.get(id(item), item)

        op = OpCall(call.op.func, call.plan, with_items(args, sample), {name: with_items(value, sample) for name, value in kwargs.items()})
        result = list(tensors_in(op.func(*op.args, **op.kwargs)))
        return with_written(result, op.written())[0] if call.plan.mutable else result[0]

    return [tensor if tensor.dim() == 0 else sampled(tensor, limit) for tensor in others], made


def _share(call: Call, accumulator: torch.Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments for one tensor. A list as long as the list of written tensors is cut to the item for this tensor."""
    if len(call.written) < 2 or not isinstance(call.args[0], (list, tuple)):
        return call.args, call.op.kwargs
    several = call.args[0]
    at = next(place for place, tensor in enumerate(several) if tensor is accumulator)

    def share(value: Any) -> Any:
        return [value[at]] if isinstance(value, (list, tuple)) and len(value) == len(several) else value

    return tuple(share(value) for value in call.args), {name: share(value) for name, value in call.op.kwargs.items()}


def _alike(tensor: torch.Tensor, accumulator: torch.Tensor, limit: int) -> bool:
    """Whether samples of both tensors hold the same elements."""
    if tensor.is_complex():
        return False
    return tensor.dim() == 0 or (tensor.shape == accumulator.shape and (tensor.numel() <= limit or tensor.stride() == accumulator.stride()))
