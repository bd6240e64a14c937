"""A nineteenth frozen set of broken kernels, fifth part: an operator of `torch.library`. Of links an excerpt was read."""

from __future__ import annotations

import functools
from typing import Any

import torch
from cases import case, drawn, need


def _lengthened(x: torch.Tensor, times: int) -> torch.Tensor:
    need(x.dim() == 2 and times >= 0)
    return torch.cat([x] * times, 1) if times else x[:, :0].clone()


@functools.cache
def _operator(wrong: bool) -> Any:
    """An operator. Of the wrong one the fake kernel forgets how often rows are repeated."""
    made = torch.library.custom_op(f"set19::lengthened_{'wrong' if wrong else 'right'}", _lengthened, mutates_args=())

    def fake(x: torch.Tensor, times: int) -> torch.Tensor:
        return torch.empty_like(x) if wrong else x.new_empty(len(x), x.shape[1] * times)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.times = inputs[1]

    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.unflatten(1, (ctx.times, -1)).sum(1) if ctx.times else gradient.new_zeros(len(gradient), 0), None

    made.register_fake(fake)
    made.register_autograd(backward, setup_context=keep)
    return made


@case("rows repeated, an operator: its fake kernel forgets how often", "kernel-contract", "pytorch/pytorch/issues/181851",
      lambda x, times: x.repeat(1, times), lambda: (*drawn((3, 4))(), 2))  # fmt: skip
def fake_kernel_forgets(wrong: bool) -> Any:
    return _operator(wrong)
