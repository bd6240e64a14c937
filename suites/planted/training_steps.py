"""A network's own training steps, plainly: under a precision, in float32, or in float64 as the reference. Nothing watches them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import precheck
from precheck.torch_support.autocast import cuda_policy_on_cpu

LARGEST_SCALE = 2.0**16  # GradScaler's own default


class Widened(TorchFunctionMode):
    """float64 wherever code says float32, `.float()` included: code that keeps a part in float32 by hand is then exact in it, too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        wide = tuple(torch.float64 if each is torch.float32 else each for each in args)
        named = {key: torch.float64 if value is torch.float32 else value for key, value in (kwargs or {}).items()}
        return func(*wide, **named)


@contextlib.contextmanager
def wide() -> Iterator[None]:
    """The block computes in float64."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Widened():
            yield
    finally:
        torch.set_default_dtype(default)


def converted(value: Any, dtype: torch.dtype) -> Any:
    """Inputs in another format; whole numbers and masks stay."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value.clone()
    if isinstance(value, dict):
        return {key: converted(each, dtype) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(converted(each, dtype) for each in value)
    return value


class Steps:
    """A network's model and inputs, made ready for one precision. `exact` makes them the float64 reference of that precision:
    with the weights and inputs that the precision stores."""

    def __init__(self, code: ModuleType, precision: str, *, exact: bool = False, scale: float = LARGEST_SCALE) -> None:
        self.code, self.precision, self.exact = code, precheck.PRECISIONS[precision], exact
        torch.manual_seed(0)
        self.model: torch.nn.Module = code.make()
        self.inputs = code.batch()
        if self.precision.param_dtype is not torch.float32:
            self.model, self.inputs = self.model.to(self.precision.param_dtype), converted(self.inputs, self.precision.param_dtype)
        if exact:
            self.model, self.inputs = self.model.double(), converted(self.inputs, torch.float64)
        self.start = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        make = getattr(code, "optimizer", None)
        self.optimizer = make([each for each in self.model.parameters() if each.requires_grad]) if make else None
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=self.precision.scaler and not exact)
        self.output: Any = None
        self.loss: torch.Tensor | None = None
        self.gradients: dict[str, torch.Tensor] = {}
        self.done = 0

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """Autocast as the precision has it; for the reference, float64."""
        with wide() if self.exact else self.precision.autocast("cpu"):
            yield

    def step(self) -> None:
        """Forward, loss, backward, update."""
        own, loss = getattr(self.code, "step", None), getattr(self.code, "loss", None)
        if own is not None:
            with wide() if self.exact else contextlib.nullcontext():
                own(self.model, self.inputs, self.optimizer, self.scaler, self.context)
            return
        self.model.zero_grad()
        with self.context():
            output = called(self.model, self.inputs)
            self.output = output if self.output is None else self.output
            if loss is None:
                return
            value = loss(output)
        with wide() if self.exact else cuda_policy_on_cpu():  # a checkpoint recomputes its forward pass here
            self.scaler.scale(value).backward()
            self.loss = value.detach() if self.loss is None else self.loss
            self._keep_gradients()
            if self.optimizer is not None:
                self.scaler.step(self.optimizer)
                self.scaler.update()

    def run(self) -> Steps:
        for _ in range(getattr(self.code, "STEPS", 1)):
            self.step()
        return self

    def _keep_gradients(self) -> None:
        """Those of the first step, without the loss scale."""
        if not self.gradients:
            by = self.scaler.get_scale() if self.scaler.is_enabled() else 1.0
            found = {name: each.grad for name, each in self.model.named_parameters() if each.grad is not None}
            self.gradients = {name: gradient.detach().double() / by for name, gradient in found.items()}

    @property
    def overflowed(self) -> bool:
        """Whether a lower loss scale is due."""
        return self.scaler.is_enabled() and not all(bool(each.isfinite().all()) for each in self.gradients.values())


def called(model: torch.nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
