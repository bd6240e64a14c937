"""Repeats an addition on samples of its operands in the reference precision, to know what an accumulator would hold without losses.

The shadow does not show this: it adds the shadows of the terms, and the run's terms may already differ from these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.comparing.statistics import sampled
from precheck.observe.shadow.replaying.replay import OpCall, tensors_in, with_written
from precheck.torch_support.dense_parts import continuous

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
    func, planned, args, kwargs = call.op.func, call.plan, _places(args, operands), _places(kwargs, operands)
    own = [tensor is accumulator for tensor in operands]
    wide = call.mode.replay.reference

    def made(held: torch.Tensor, given: Sequence[torch.Tensor]) -> torch.Tensor:
        rest = iter(given)
        samples = [held.clone() if mine else next(rest).to(wide) for mine in own]
        op = OpCall(func, planned, _filled(args, samples), _filled(kwargs, samples))
        result = list(tensors_in(func(*op.args, **op.kwargs)))
        return with_written(result, op.written())[0] if planned.mutable else result[0]

    return [tensor if tensor.dim() == 0 else sampled(tensor, limit) for tensor, mine in zip(operands, own, strict=True) if not mine], made


class _Place(int):
    """The number of an operand. It stands in the operand's place among the arguments."""


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
    if not continuous(tensor) or tensor.is_complex():
        return False
    return tensor.dim() == 0 or (tensor.shape == accumulator.shape and (tensor.numel() <= limit or tensor.stride() == accumulator.stride()))


def _places(value: Any, operands: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return _Place(next(number for number, tensor in enumerate(operands) if tensor is value))
    if isinstance(value, dict):
        return {name: _places(each, operands) for name, each in value.items()}
    return type(value)(_places(each, operands) for each in value) if isinstance(value, (tuple, list)) else value


def _filled(value: Any, samples: list[torch.Tensor]) -> Any:
    if isinstance(value, _Place):
        return samples[value]
    if isinstance(value, dict):
        return {name: _filled(each, samples) for name, each in value.items()}
    return type(value)(_filled(each, samples) for each in value) if isinstance(value, (tuple, list)) else value
