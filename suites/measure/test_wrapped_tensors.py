"""Tensors of a subclass that wraps other tensors: they have no memory of their own. Ops see the tensors in them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import precheck


class Wrapped(torch.Tensor):
    """Holds bfloat16 numbers and computes in float32, as the training tensors of torchao's float8 do with theirs."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Wrapped:
        made: Wrapped = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=torch.float32, device=held.device)  # type: ignore[attr-defined]
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def inner(value: Any) -> Any:
            return value.held.float() if isinstance(value, Wrapped) else value

        return func(*map(inner, args), **{name: inner(value) for name, value in (kwargs or {}).items()})


def wrapped(x: torch.Tensor) -> torch.Tensor:
    return Wrapped(x.detach().to(torch.bfloat16))


class Wraps(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return wrapped(x)


class Net(nn.Module):
    """`through`: what wraps the input, a function or a module."""

    def __init__(self, through: Any) -> None:
        super().__init__()
        self.linear, self.through = nn.Linear(8, 8), through

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + torch.mm(self.through(x), torch.eye(8))  # type: ignore[no-any-return]


@pytest.mark.parametrize("depth", ["ops", "boundaries"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("through", [wrapped, Wraps()], ids=["function", "module"])
def test_a_boundary_that_gives_one_is_passed_over(through: Any, precision: str, depth: str) -> None:
    """Its numbers were read where it has none: a segmentation fault on a CPU, an illegal memory access on a GPU."""
    torch.manual_seed(0)
    report = precheck.measure(Net(through), torch.randn(4, 8), precision=precision, loss=lambda out: out.float().square().mean(), depth=depth)
    assert not report.errors
    names = [row.tensor for row in report.boundaries]
    assert "linear" in names
    assert not [name for name in names if "through" in name or "wrapped()" in name]
