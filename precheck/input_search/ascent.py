"""Changes the signs of an input along the gradient until a result overflows: a combination that random draws do not hit.

A sum of n products is n times as large as each if all signs agree, and only about √n times if they are random. Only signs are changed, so
that the magnitudes stay those that the strategy drew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from precheck.observe import state
from precheck.observe.containers import call, mapped, tensors
from precheck.observe.job import Job
from precheck.precisions import Precision

_STEPS = 12
"""The most steps. If the signs of the gradient settle, they do so within a few steps."""
_MANY = 16
"""How many of the largest results get a backward pass."""


class _Tallest(TorchFunctionMode):
    """Collects the results with the largest magnitudes among those in the low format, with their autograd graphs."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.results: list[tuple[float, torch.Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype is self.dtype and result.requires_grad and result.numel():
            greatest = float(result.detach().abs().nan_to_num(posinf=0.0).amax())  # Inf is left out, since it comes from a mask
            self.results = sorted([*self.results, (greatest, result)], key=lambda pair: -pair[0])[:_MANY]
        return result


def ascended(start: Any, job: Job, precision: Precision, breaks: Callable[[Any], bool], signed: Collection[str]) -> Any:
    """Returns a failing input with the magnitudes of `start` and other signs at the paths in `signed`. None if it finds none.

    The model is restored. An exception that it raises ends the ascent.
    """
    inputs = start
    for _ in range(_STEPS):
        try:
            turned = _turned(inputs, _gradients(inputs, job, precision), signed)
            if turned is None or breaks(turned):
                return turned
        except Exception:  # no graph, or an input that the model does not accept
            return None
        inputs = turned
    return None


def _turned(inputs: Any, gradients: dict[str, torch.Tensor], signed: Collection[str]) -> Any:
    """Returns `inputs` with the signs of the gradients. None if they have these signs already."""
    paths, changed = iter(path for path, _ in tensors(inputs)), False

    def turn(value: torch.Tensor) -> torch.Tensor:
        nonlocal changed
        path = next(paths)
        gradient = gradients.get(path)
        if gradient is None or path not in signed:
            return value
        turned = torch.where(gradient == 0, value, value.abs() * gradient.sign().to(value.dtype))
        changed |= not torch.equal(turned, value)
        return turned

    result = mapped(inputs, turn)
    return result if changed else None


def _gradients(inputs: Any, job: Job, precision: Precision) -> dict[str, torch.Tensor]:
    """The gradients by path of the largest element of one op's result. The op is the one that other signs could raise most, if it were linear."""
    leaves = mapped(inputs, lambda value: state.floats_to(torch.float32)(value).requires_grad_(value.is_floating_point()))
    floating = {path: value for path, value in tensors(leaves) if value.is_floating_point()}
    with _run(job, precision), _Tallest(precision.compute_dtype if precision.autocasts else torch.float32) as tallest:
        call(job.model, leaves)
        found = [_gradient(result, floating) for _, result in tallest.results]
    return max(found, key=lambda gradients: _potential(gradients, floating), default={})


def _gradient(result: torch.Tensor, floating: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    flat = result.reshape(-1)
    tallest = flat[flat.detach().abs().argmax()].double()
    target = -tallest if tallest < 0 else tallest  # not abs, whose gradient at 0 is 0
    gradients = torch.autograd.grad(target, list(floating.values()), allow_unused=True, retain_graph=True)
    return {path: gradient.nan_to_num() for path, gradient in zip(floating, gradients, strict=True) if gradient is not None}


def _potential(gradients: dict[str, torch.Tensor], floating: dict[str, torch.Tensor]) -> float:
    """The sum of all |element · gradient|: the value that a linear result would have if all signs agreed."""
    return sum(float((gradient.double() * floating[path].detach().double()).abs().sum()) for path, gradient in gradients.items())


@contextlib.contextmanager
def _run(job: Job, precision: Precision) -> Iterator[None]:
    with state.preserved(job.model, job.loss), torch.inference_mode(False), torch.enable_grad():
        wide = state.floats_to(torch.float32)
        state.refresh(job.model, parameter=wide, buffer=wide)
        state.seed(job.seed)
        with precision.autocast(job.device):
            yield
