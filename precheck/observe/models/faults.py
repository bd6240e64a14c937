"""Plants faults into a user's own model and optimizer for the duration of a block.

A fault on a tensor is a forward hook. It finds the tensor by the record key that `Boundaries` gives it, and changes it in place, so that the run
keeps its tensors and their names, and only the values can be noticed. A fault on updates is a subclass that replaces the optimizer's class.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from precheck import interrupts
from precheck.observe.containers import mapped, tensors
from precheck.observe.job import Job
from precheck.observe.recording.module_hooks import Boundaries
from precheck.observe.records import Trace
from precheck.torch_internals import in_backward, no_dispatch, overlapping

Change = Callable[[torch.Tensor], None]
"""Changes values in place. They have no autograd graph."""


class Effect:
    """The effect of a planted fault at its first call: the relative change of the tensor, by norms."""

    def __init__(self) -> None:
        self.size: float | None = None  # None: the tensor was never made

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

    def note_all(self, before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> None:
        """The same for all tensors of a result, taken together."""
        if before and self.size is None:
            self.note(*(torch.cat([each.detach().reshape(-1).double() for each in some]) for some in (before, after)))


class _Planting(Boundaries):
    """Names tensors as `Boundaries` does. It does not record them, but passes the wanted one to `meet`."""

    def __init__(self, model: torch.nn.Module, key: str, meet: Callable[[torch.Tensor], None]) -> None:
        super().__init__(model, Trace())
        self.wanted, self.meet = key.removeprefix("output:").rpartition("@")[0], meet

    def _entering(self, name: str) -> Any:
        enter = super()._entering(name)

        def hook(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if not name and not in_backward():
                self.calls.clear()  # a forward pass begins
            enter(module, args, kwargs)

        return hook

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        with interrupts.held(), super().attached(), self._called():
            yield

    @contextlib.contextmanager
    def _called(self) -> Iterator[None]:
        """Sees the result of a scripted model, which accepts no hooks, by a temporary subclass of its class."""
        original = type(self.model)
        if not isinstance(self.model, torch.jit.ScriptModule):
            yield
            return

        def call(model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = original.__call__(model, *args, **kwargs)
            self._returned("", result, 0)
            return result

        called = types.new_class(original.__name__, (original,), exec_body=lambda body: body.update(__call__=call))
        object.__setattr__(self.model, "__class__", called)  # a traced model would pass the attribute on to the module inside
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
    """Inside the block, `change` is applied to the output with that record key, in each call."""

    def meet(tensor: torch.Tensor) -> None:
        before, values = tensor.detach().clone(), tensor.data  # .data: like rounding, unknown to autograd
        if overlapping(values) == 1:  # elements of an expanded tensor share memory
            values = tensor.data = values.contiguous()
        change(values)
        effect.note(before, values)

    with _Planting(job.model, key, meet).attached():
        yield job


@contextlib.contextmanager
def gradient_spoiled(job: Job, key: str, change: Change, effect: Effect) -> Iterator[Job]:
    """The same for the gradient of that output."""

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
    """Yields a job whose optimizer steps like the user's own, except that `parameter` never changes."""
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
    """Replaces the optimizer's class, so that copies of it (`optimizer_rollout`) have the fault too. In such a copy, no weight changes."""
    original, instances = type(optimizer), vars(optimizer).get("step")  # schedules replace it on the instance

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
    values.copy_(rolled(values))


def rolled(values: torch.Tensor) -> torch.Tensor:
    """Returns the values with each row at the place of the next one, along the first dimension with several."""
    rows = next((dimension for dimension, size in enumerate(values.shape) if size > 1), None)
    return values if rows is None else values.roll(1, rows)


def replaced(by: torch.Tensor) -> Change:
    def change(values: torch.Tensor) -> None:
        values.copy_(by)

    return change


def drifted(share: float) -> Change:
    """A change that makes a tensor wrong by that share of its norm."""

    def change(values: torch.Tensor) -> None:
        values.mul_(1 + share)

    return change


def infinite(values: torch.Tensor) -> None:
    """Sets the first finite element to Inf."""
    flat = values.reshape(-1).isfinite().nonzero()
    if len(flat):
        place = torch.unravel_index(flat[0, 0], values.shape)
        values[place] = float("inf")


def other(inputs: Any) -> Any:
    """Another input of the same shapes, with the elements of each tensor in reverse order. None if that changes nothing.
    A float tensor of a single value is halved. Masks (only 0 and 1) stay, unless there is nothing else.
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
