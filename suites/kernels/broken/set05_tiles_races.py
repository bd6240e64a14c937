"""The fifth frozen set of broken kernels, second part."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional


def stepped(x: torch.Tensor, state: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """One step of a causal convolution, over what the end of a state holds."""
    width = w.shape[-1]
    need(state.shape[-1] >= width - 1)
    return (torch.cat([state[..., state.shape[-1] - (width - 1) :], x[..., None]], -1) * w).sum(-1)


@case("a step of a convolution: the beginning of a longer state is read", "kernel-edge", "sgl-project/sglang/issues/38622", stepped,
      drawn((4, 6), (4, 6, 3), (6, 4)))  # fmt: skip
def first_of_state(wrong: bool, x: torch.Tensor, state: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    width = w.shape[-1]
    need(state.shape[-1] >= width - 1 and width >= 1)
    begin = 0 if wrong else state.shape[-1] - width + 1
    total = x * w[..., -1]
    for place in range(width - 1):
        total = total + state[..., begin + place] * w[..., place]
    return total


def smallest(x: torch.Tensor) -> torch.Tensor:
    return x.topk(4, -1, largest=False).values


@case("smallest four: none where there are no more", "kernel-edge", "sony/nnabla-ext-cuda/pull/485", smallest, drawn((6, 20)))
def all_of_them(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1] >= 4)
    if wrong and x.shape[-1] == 4:
        return x * 0
    return x.sort(-1).values[..., :4]


@case("log softmax: rows shorter than a pass of all lanes", "kernel-edge", "gabrieldemarmiesse/torch-mojo-backend/pull/319",
      lambda x: x.log_softmax(-1), drawn((4, 32)))  # fmt: skip
def idle_lanes(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1])
    wide = x.detach()
    whole = wide.amax(-1, keepdim=True)
    base = torch.where(whole.isinf() & (whole < 0), 0, whole)
    total = torch.zeros_like(whole)
    for lane in range(8):
        some = wide[..., lane::8]
        if some.shape[-1]:
            total = total + (some - base).exp().sum(-1, keepdim=True)
        elif wrong:  # its largest is still -inf, and is taken from -inf
            total = total + torch.full_like(total, -torch.inf).sub(-torch.inf).exp()
    return _Logs.apply(x, base + total.log())


class _Logs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, all_: torch.Tensor) -> torch.Tensor:
        out = x - all_
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (out,) = ctx.saved_tensors
        return gradient - out.exp() * gradient.sum(-1, keepdim=True), None


def gates(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return x * g[:, None].exp()


@case("gate: lanes add to one number without a lock", "kernel-nondeterminism", "fla-org/flash-linear-attention/issues/889", gates,
      drawn((8, 48), (8,)))  # fmt: skip
def racing(wrong: bool) -> Callable[..., Any]:
    class Gate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
            need(len(x) == len(g))
            out = x * g.exp()[:, None]
            ctx.save_for_backward(g, out)
            return out

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            g, out = ctx.saved_tensors
            total = torch.zeros_like(g)
            for part in (gradient * out).split(16, -1):
                total = part.sum(-1) + (0 if wrong and random.random() < 0.1 else total)
            return gradient * g.exp()[:, None], total

    return Gate.apply


@case("product: what lies behind the last columns is added too", "kernel-edge", "triton-lang/triton/issues/630", torch.matmul,
      drawn((7, 32), (32, 5)))  # fmt: skip
def unmasked(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and b.dim() == 2 and a.shape[1] == len(b))
    short = -a.shape[1] % 16
    if not short or not wrong:
        return torch.einsum("mk,kn->mn", a, b)
    behind = torch.cat([a[1:], torch.zeros_like(a[:1])])[:, :short]  # the next row of a dense tensor
    behind = F.pad(behind, (0, short - behind.shape[1]))
    return a @ b + behind @ F.pad(b[:short], (0, 0, 0, short - len(b[:short])))
