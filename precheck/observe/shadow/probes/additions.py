"""Repeats an addition on samples of its operands in the reference precision, to know what an accumulator would hold without losses.

The shadow does not show this: it adds the shadows of the terms, and the run's terms may already differ from these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.dense_parts import continuous
from precheck.observe.shadow.comparing.statistics import sampled
from precheck.observe.shadow.operations import Operation, Value
from precheck.observe.shadow.replaying.replay import OpCall, tensors_in, with_written

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call

QUANTISER = 64
"""Values that are looked at between a number and what a quantiser has made of it."""
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


def takes_back(operation: Operation) -> bool:
    """Whether a sum subtracts a term from a sum that contains it, as Kahan summation computes its remainder, or a number's own rounding from it.

    (s + y) - s is the part of y that arrived in the sum. It is no accumulator, whatever s is. (s + y) + y is no such sum.
    """
    if _own_rounding(operation):
        return True
    for value, sign in _signed(operation):
        maker = value.maker
        if maker is None or maker is operation:
            continue
        before = [(_copied(term), sign * each) for term, each in _signed(maker)]
        if any((_copied(term), -each) in before for term, each in _signed(operation) if term is not value):
            return True
    return False


def _own_rounding(operation: Operation) -> bool:
    """Whether an op subtracts a number from its own copy in another format, which is zero in the reference. Neighbours in one tensor differ there.
    A wide tensor without a shadow is another value in each op that reads it. If all differences are zero, it is the same tensor."""
    terms = _difference(operation)
    if terms is None or terms[0] is terms[1] or any(made.drift != math.inf for made in operation.outputs):
        return False
    first, second = map(_copied, terms)
    return first is second or first.maker is second.maker is None


def takes_from_codes(operation: Operation) -> bool:
    """Whether an op subtracts a number from what a quantiser has made of it, or the reverse: x and (x / s).to(float8) * s, by any scales and bounds.

    A straight-through gradient makes this difference, and so does error feedback. The difference is what rounding to codes has lost.
    """
    terms = _difference(operation)
    if terms is None:
        return False
    first, second = map(_copied, terms)
    return _made_of_codes(first, second) or _made_of_codes(second, first)


def _made_of_codes(made: Value, given: Value) -> bool:
    """Whether `made` is `given`, scaled, rounded to a float of eight bits and scaled back."""
    waiting, met = [(made, False)], set[tuple[Value, bool]]()
    while waiting and len(met) < QUANTISER:
        value, coded = waiting.pop()
        if coded and _copied(value) is given:
            return True
        maker = value.maker
        if maker is not None and (value, coded) not in met and maker.base in ops.SCALING | ops.WHOLE_COPIES | ops.BOUNDS_BELOW:
            waiting += [(each, coded or value.dtype.startswith("float8")) for each in maker.inputs]
        met.add((value, coded))
    return False


def remainder_of(operation: Operation) -> Value | None:
    """The sum t = s + y whose remainder an op makes: (s - t) + y, or (t - s) - y. What t has lost is then known, and may be added later."""
    given = _terms(operation)
    takers = [maker for value in given if (maker := value.maker) is not None and takes_back(maker)]
    totals = ((total, _terms(maker)) for maker in takers for total in _terms(maker))
    return max((total for total, others in totals if (added := _terms(total.maker)) & given and added & others), key=_number, default=None)


def _number(value: Value) -> int:
    return value.maker.number if value.maker is not None else 0


def _terms(operation: Operation | None) -> set[Value]:
    """The terms of a sum, before copies."""
    return set() if operation is None else {_copied(value) for value, _ in _signed(operation)}


def _difference(operation: Operation) -> tuple[Value, Value] | None:
    """The two terms of an op that subtracts one from the other. None if it does something else."""
    terms = _signed(operation)
    return (terms[0][0], terms[1][0]) if len(terms) == 2 and terms[0][1] != terms[1][1] else None


def _signed(operation: Operation) -> list[tuple[Value, int]]:
    """The terms of a sum with their signs. Negative: the second operand of `sub`, the first of `rsub`, the second under `alpha=-1`."""
    if operation.base not in ops.SUMS:
        return []
    taken = {"sub": 1, "rsub": 0}.get(operation.base, 1 if -1 in operation.scalars else None)
    return [(value, -1 if place == taken else 1) for place, value in enumerate(operation.inputs)]


def _copied(value: Value) -> Value:
    """The value of which this one is a copy, or the value itself."""
    while value.maker is not None and value.maker.base in ops.WHOLE_COPIES and len(value.maker.inputs) == 1 and not value.maker.converts:
        value = value.maker.inputs[0]
    return value


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
