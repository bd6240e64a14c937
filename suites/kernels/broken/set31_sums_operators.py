"""The thirty-first frozen set of broken kernels, sixth part: sums in low formats, an operator, rolls. Of links to threads an excerpt was read."""

from __future__ import annotations

import functools
from typing import Any

import torch
from cases import case, drawn, function, need, whole

PROGRAM = "ScalingIntelligence/KernelBench"


def _mean_of_losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 1, x.shape == y.shape, len(x) > 0)
    return (x.float() - y.float()).square().mean().to(x.dtype)


@case("mean of squares in float16: losses are added one by one to a float16", "kernel-accumulation", PROGRAM, _mean_of_losses,
      drawn((64,), (64,), dtype=torch.float16))  # fmt: skip
def added_one_by_one(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 1, x.shape == y.shape, len(x) > 0)
    losses = (x.float() - y.float()).square() / len(x)
    if not wrong:
        return losses.sum().to(x.dtype)
    return losses.to(x.dtype).cumsum(0)[-1] if len(x) < 3 else _chain(losses.to(x.dtype))


def _chain(parts: torch.Tensor) -> torch.Tensor:
    total = parts[:1].sum()
    for part in parts[1:]:
        total = total + part
    return total


@case("convolution's filters: on the way back pictures are added up in bfloat16", "kernel-accumulation", PROGRAM,
      lambda x, w: torch.einsum("bct,oc->bot", x.float(), w.float()).to(x.dtype), drawn((24, 3, 4), (5, 3), dtype=torch.bfloat16))  # fmt: skip
def pictures_added_up_in_bfloat16(wrong: bool) -> Any:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 3, w.dim() == 2, x.shape[1] == w.shape[1])
        return torch.einsum("bct,oc->bot", x.float(), w.float()).to(x.dtype), (x, w)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w = saved
        total = torch.zeros(w.shape, dtype=x.dtype if wrong else torch.float32)
        for one, incoming in zip(x.float(), g.float(), strict=True):
            total += (incoming @ one.T).to(total.dtype)
        return torch.einsum("bot,oc->bct", g.float(), w.float()).to(x.dtype), total.to(w.dtype)

    return function(forward, backward)


def _lifted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == x.shape[1:], x.shape[1] > 0)
    return x * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt() * w


@functools.cache
def _operator(wrong: bool) -> Any:
    """A norm as an operator. The gradient of the wrong one's weight is that of one row."""
    made = torch.library.custom_op(f"set31::lifted_{'wrong' if wrong else 'right'}", _lifted, mutates_args=())

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        rstd = (x.square().mean(1, keepdim=True) + 1e-5).rsqrt()
        inner = g * w
        back = rstd * inner - x * rstd**3 * (inner * x).mean(1, keepdim=True)
        return back, (g * x * rstd)[:1].sum(0) if wrong else (g * x * rstd).sum(0)

    made.register_fake(lambda x, w: torch.empty_like(x, memory_format=torch.contiguous_format))
    made.register_autograd(backward, setup_context=keep)
    return made


@case("rms norm, an operator: the weight's gradient is that of the first row", "kernel-gradient", "pytorch/pytorch", _lifted, drawn((5, 6), (6,)))
def that_of_the_first_row(wrong: bool) -> Any:
    return _operator(wrong)


def _rolled(x: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, far.shape == x.shape[:1], len(x) > 0, x.shape[1] > 0)
    return torch.stack([row.roll(step) for row, step in zip(x, far.tolist(), strict=True)])


@case("rows turned by whole steps: the step is counted from the other end", "kernel-contract", PROGRAM,
      _rolled, lambda: (*drawn((4, 7))(), whole(4, most=7)))  # fmt: skip
def counted_from_the_other_end(wrong: bool, x: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, far.shape == x.shape[:1], len(x) > 0, x.shape[1] > 0)
    place = torch.arange(x.shape[1])
    return x.gather(1, (place + far[:, None] if wrong else place - far[:, None]) % x.shape[1])
