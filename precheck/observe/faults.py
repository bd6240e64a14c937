"""Faults planted into a user's own model and optimizer, for the length of a block.

A fault on a tensor is a forward hook on the user's modules. It finds the tensor by the record key that `Boundaries` gives it, and changes it in
place, so that the run keeps its tensors and their names. What is caught is then the value. A fault on updates is a subclass of the optimizer's own
class, put in its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from precheck import interrupts
from precheck.observe.containers import mapped, tensors
from precheck.observe.job import Job
from precheck.observe.module_hooks import Boundaries
from precheck.observe.records import Trace
from precheck.torch_internals import in_backward, no_dispatch, overlapping

Change = Callable[[torch.Tensor], None]
"""In place, on values without a graph."""


class Effect:
    """The effect of a planted fault: the share of its norm by which it changed the tensor, at its first call."""

    def __init__(self) -> None:
        self.size: float | None = None  # None: it was never met

    def note(self, before: torch.Tensor, after: torch.Tensor) -> None:
        if self.size is not None:
            return
        if torch.equal(before, after):
            self.size = 0.0
            return
        wide = torch.complex128 if before.is_complex() else torch.float64
        norm = float(torch.linalg.vector_norm(before.to(wide)))
        moved = float(torch.linalg.vector_norm(after.to(wide) - before.to(wide)))
        self.size = moved / norm if norm else float("inf")


class _Planting(Boundaries):
    """Names tensors as `Boundaries` does and hands the one wanted over, instead of recording it."""

    def __init__(self, model: torch.nn.Module, key: str, meet: Callable[[torch.Tensor], None]) -> None:
        super().__init__(model, Trace())
        self.wanted, self.meet = key.removeprefix("output:").rpartition("@")[0], meet

    def _entering(self, name: str) -> Any:
        enter = super()._entering(name)

        def hook(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if not name and not in_backward():
                self.calls.clear()  # a forward begins
            enter(module, args, kwargs)

        return hook

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        with interrupts.held(), super().attached(), self._called():
            yield

    @contextlib.contextmanager
    def _called(self) -> Iterator[None]:
        """What a scripted model returns, which takes no hooks: by a subclass of its class, for as long."""
        original = type(self.model)
        if not isinstance(self.model, torch.jit.ScriptModule):
            yield
            return

        def call(model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = original.__call__(model, *args, **kwargs)
            self._returned("", result, 0)
            return result

        called = types.new_class(original.__name__, (original,), exec_body=lambda body: body.update(__call__=call))
        object.__setattr__(self.model, "__class__", called)  # a traced one would hand it on to what is inside
        try:
            yield
        finally:
            object.__setattr__(self.model, "__class__", original)

    def _passed(self, name: str, tensor: torch.Tensor, roundings: int) -> None:
        if name == self.wanted:
            with torch.no_grad(), no_dispatch(), torch.autocast(tensor.device.type, enabled=False):
                self.meet(tensor)


@contextlib.contextmanager
def spoiled(job: Job, key: str, change: Change, effect: Effect) -> Iterator[Job]:
    """Inside the block, `change` is made to the output whose record has that key, each time that it is made."""

    def meet(tensor: torch.Tensor) -> None:
        before, values = tensor.detach().clone(), tensor.data  # .data: as rounding would, unknown to autograd
        if overlapping(values) == 1:  # of an expanded tensor, one element is several
            values = tensor.data = values.contiguous()
        change(values)
        effect.note(before, values)

    with _Planting(job.model, key, meet).attached():
        yield job


@contextlib.contextmanager
def gradient_spoiled(job: Job, key: str, change: Change, effect: Effect) -> Iterator[Job]:
    """The same of the gradient that comes back for that output."""

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        with no_dispatch():
            after = gradient.detach().clone()
            change(after)
            effect.note(gradient.detach(), after)
            return after

    def meet(tensor: torch.Tensor) -> None:
        if tensor.requires_grad and not in_backward():
            tensor.register_hook(hook)

    with _Planting(job.model, key, meet).attached():
        yield job


@contextlib.contextmanager
def update_lost(job: Job, parameter: str, effect: Effect) -> Iterator[Job]:
    """Inside the block, the optimizer of the job yielded steps as the user's own does, but `parameter` stays where it is."""
    make = job.optimizer
    assert make is not None
    names = [name for name, each in job.model.named_parameters() if each.requires_grad]
    made: list[tuple[Any, type, dict[str, Any]]] = []

    def factory(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = make(parameters)
        if isinstance(optimizer, torch.optim.Optimizer):
            made.append((optimizer, type(optimizer), dict(vars(optimizer))))
            _lose(optimizer, parameters[names.index(parameter)], effect)
        return optimizer

    with interrupts.held():
        try:
            yield dataclasses.replace(job, optimizer=factory)
        finally:
            for optimizer, original, attributes in reversed(made):
                optimizer.__class__ = original
                if "step" in attributes:
                    optimizer.step = attributes["step"]


def _lose(optimizer: Any, target: torch.Tensor, effect: Effect) -> None:
    """By the class, since copies of an optimizer (`ageing`) have its class alone; all that such a copy steps on stays."""
    original, instances = type(optimizer), vars(optimizer).get("step")  # which schedules put there

    def around(own: Any, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        held = [each for group in own.param_groups for each in group["params"]]
        lost = [target] if own is optimizer else held
        kept = [each.detach().clone() for each in lost]
        result = step(*args, **kwargs)
        with torch.no_grad():
            for each, before in zip(lost, kept, strict=True):
                if own is optimizer:
                    effect.note(before, each.detach())
                each.copy_(before)
        return result

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(self, lambda *a, **k: original.step(self, *a, **k), *args, **kwargs)

    optimizer.__class__ = types.new_class(original.__name__, (original,), exec_body=lambda body: body.update(step=step))
    if instances is not None:
        optimizer.step = lambda *args, **kwargs: around(optimizer, instances, *args, **kwargs)


def zeroed(values: torch.Tensor) -> None:
    values.zero_()


def shuffled(values: torch.Tensor) -> None:
    """Each row in the place of the next; rows are along the first dimension that has more than one."""
    rows = next((dimension for dimension, size in enumerate(values.shape) if size > 1), None)
    if rows is not None:
        values.copy_(values.roll(1, rows))


def replaced(by: torch.Tensor) -> Change:
    def change(values: torch.Tensor) -> None:
        values.copy_(by)

    return change


def drifted(share: float) -> Change:
    """Off by that share of its norm."""

    def change(values: torch.Tensor) -> None:
        values.mul_(1 + share)

    return change


def infinite(values: torch.Tensor) -> None:
    """One element, the first that is finite."""
    flat = values.reshape(-1).isfinite().nonzero()
    if len(flat):
        place = torch.unravel_index(flat[0, 0], values.shape)
        values[place] = float("inf")


def other(inputs: Any) -> Any:
    """Another input of the same shapes, with values that occur in `inputs`: each tensor back to front; None where that is no other.

    A float tensor of one value becomes half of it. Masks (nothing but 0 and 1) stay, unless there is nothing else.
    """
    for masks in (False, True):
        changed = mapped(inputs, functools.partial(_other, masks=masks))
        if any(not torch.equal(one, another) for (_, one), (_, another) in zip(tensors(inputs), tensors(changed), strict=True)):
            return changed
    return None


def _other(value: torch.Tensor, *, masks: bool) -> torch.Tensor:
    if isinstance(value, torch.nn.Parameter) or value.dtype is torch.bool or value.layout != torch.strided or not value.numel():
        return value
    alike = bool((value == value.reshape(-1)[0]).all())
    if alike and value.is_floating_point():
        fresh = value.detach() * 0.5
    elif masks or not bool(((value == 0) | (value == 1)).all()):
        fresh = value.detach().reshape(-1).flip(0).reshape(value.shape)
    else:
        return value
    return fresh.requires_grad_(value.requires_grad)
