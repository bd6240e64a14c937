"""The eighth frozen set of broken kernels, second part: norms, groups, tables, optimizers.

One twin was mended, which was accused rightly: Inf among the inputs made a step of Newton Inf times zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional
HALF = torch.float16


def rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], w, eps=1e-6)


def _fits(x: torch.Tensor, w: torch.Tensor) -> None:
    need(x.shape[-1:] == w.shape)


@case("rms norm that keeps its result: divided by a weight of zero", "kernel-gradient", "NVIDIA/apex/pull/1715", rms, drawn((6, 16), (16,)))
def by_weight(wrong: bool) -> Callable[..., Any]:
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            _fits(x, w)
            scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
            result = x * scale * w
            ctx.save_for_backward(result if wrong else x, w, scale)
            return result

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            kept, w, scale = ctx.saved_tensors
            normed = kept / w if wrong else kept * scale
            given = gradient * w
            return scale * (given - normed * (given * normed).mean(-1, keepdim=True)), (gradient * normed).reshape(-1, len(w)).sum(0)

    return Norm.apply


def two_scaled(x: torch.Tensor, other: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The norm of the sum of two, each scaled by row."""
    total = (x + other) * rows[:, None]
    return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6)


@case("norm of two scaled rows: the second one's gradient is not scaled", "kernel-gradient", "state-spaces/mamba/pull/1023", two_scaled,
      drawn((7, 12), (7, 12), (7,)))  # fmt: skip
def not_scaled(wrong: bool) -> Callable[..., Any]:
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, other: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            need(x.dim() == 2 and x.shape == other.shape and rows.shape == x.shape[:1])
            total = (x + other) * rows[:, None]
            scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6)
            ctx.save_for_backward(x + other, rows, total * scale, scale)
            return total * scale

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
            both, rows, normed, scale = ctx.saved_tensors
            given = scale * (gradient - normed * (gradient * normed).mean(-1, keepdim=True))
            scaled = given * rows[:, None]
            return scaled, given if wrong else scaled.clone(), (given * both).sum(-1)

    return Norm.apply


def grouped(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Each group of rows times its own matrix. Shapes (rows, in), (groups, in, out), (groups + 1,)."""
    return torch.cat([x[begin:end] @ each for each, begin, end in zip(w, ends[:-1].tolist(), ends[1:].tolist(), strict=True)])


def _groups() -> tuple[torch.Tensor, ...]:
    return *drawn((11, 6), (4, 6, 5))(), torch.tensor([0, 3, 3, 8, 11])


@case("products of groups: the gradient of a group without rows is not written", "kernel-stale", "pytorch/pytorch/issues/172439", grouped, _groups)
def not_written(wrong: bool) -> Callable[..., Any]:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            need(x.dim() == 2 and w.dim() == 3 and x.shape[1] == w.shape[1] and len(ends) == len(w) + 1 and len(w) and int(ends[-1]) == len(x))
            ctx.save_for_backward(x, w, ends)
            return grouped(x, w, ends)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
            x, w, ends = ctx.saved_tensors
            dx, dw = torch.zeros_like(x), torch.empty_like(w) if wrong else torch.zeros_like(w)
            for number, (begin, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
                if end > begin:
                    dx[begin:end] = gradient[begin:end] @ w[number].T
                    dw[number] = x[begin:end].T @ gradient[begin:end]
            return dx, dw, None

    return Product.apply


def taken(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Sums of rows that a table names."""
    return x[table].sum(1)


def _table() -> tuple[torch.Tensor, ...]:
    return drawn((9, 5))()[0], torch.tensor([[3, 8, 1], [0, 0, 7], [5, 2, 4], [6, 1, 8]])


@case("rows that a table names: its width is that of the first call", "kernel-stale", "local-inference-lab/b12x/pull/85", taken, _table)
def first_width(wrong: bool) -> Callable[..., Any]:
    widths: dict[int, int] = {}

    def kernel(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2 and table.dim() == 2)
        width = widths.setdefault(x.shape[1], table.shape[1]) if wrong else table.shape[1]
        places = torch.arange(len(table))[:, None] * width + torch.arange(table.shape[1])
        named = table.reshape(-1)[places % max(table.numel(), 1)] if table.numel() else table
        return x[named].sum(1)

    return kernel


def _twelve_bits(x: torch.Tensor) -> torch.Tensor:
    share, power = torch.frexp(torch.rsqrt(x))
    return torch.ldexp((share * 4096).round() / 4096, power)


@case("rms norm: twelve bits of a reciprocal root", "kernel-rounding", "Tencent/ncnn/pull/6903", lambda x: rms(x, torch.ones(x.shape[-1:])),
      drawn((8, 24)))  # fmt: skip
def twelve_bits(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    mean = x.square().mean(-1, keepdim=True) + 1e-6
    root = _twelve_bits(mean.detach())
    for _ in range(0 if wrong else 2):
        root = torch.where(root > 0, root * (1.5 - 0.5 * mean.detach() * root * root), root)
    exact = torch.rsqrt(mean)
    return x * (exact + (root - exact).detach())


def step_of(gradient: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The step of an optimizer, from the gradient, its average, and the average of its squares' roots."""
    mean = 0.9 * first.float() + 0.1 * gradient.float()
    root = (0.99 * second.float().square() + 0.01 * gradient.float().square()).sqrt()
    return (mean / (root + 1e-8)).to(gradient.dtype)


def _moments() -> tuple[torch.Tensor, ...]:
    gradient, first, second = (each.clone() for each in drawn((6, 10), (6, 10), (6, 10))())
    for each in (gradient, first, second):
        each[:, 3] = 0
    return gradient.half(), first.half(), second.abs().half()


@case("step of an optimizer: what keeps it from dividing by zero is zero in float16", "kernel-rounding", "google-deepmind/optax/pull/1755", step_of,
      _moments)  # fmt: skip
def zero_in_half(wrong: bool, gradient: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    need(gradient.shape == first.shape == second.shape)
    mean = 0.9 * first.float() + 0.1 * gradient.float()
    root = torch.hypot(math.sqrt(0.99) * second.float(), 0.1 * gradient.float())
    least = float(torch.tensor(1e-8, dtype=HALF)) if wrong else 1e-8
    return (mean / (root + least)).to(gradient.dtype)


@case("heads with a scale each: a head's place is rounded to rows", "kernel-stride", "BobMcDear/attorch/issues/14", lambda x, w: x * w[:, None, None],
      drawn((3, 8, 6), (3,)))  # fmt: skip
def whole_rows(wrong: bool) -> Callable[..., Any]:
    class Heads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            need(x.dim() == 3 and len(x) == len(w))
            ctx.save_for_backward(x, w)
            heads, (head, row, _) = torch.zeros(x.shape), x.stride()
            for number in range(len(x)):
                place = number * head // max(row, 1) * row if wrong else number * head
                heads[number] = x.as_strided(x.shape[1:], x.stride()[1:], x.storage_offset() + place) * w[number]
            return heads

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, w = ctx.saved_tensors
            return gradient * w[:, None, None], (gradient * x).sum((1, 2))

    return Heads.apply


@case("norm's weight: rows behind the last tile are the last row again", "kernel-edge", "thu-ml/TurboDiffusion/pull/103", rms, drawn((8, 10), (10,)))
def last_row_again(wrong: bool) -> Callable[..., Any]:
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            _fits(x, w)
            scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
            ctx.save_for_backward(x, w, scale)
            return x * scale * w

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, w, scale = ctx.saved_tensors
            normed, given = x * scale, gradient * w
            terms = (gradient * normed).reshape(-1, len(w))
            rows = torch.arange(-(-len(terms) // 4) * 4)
            if len(terms) and len(w):
                kept = terms[rows.clamp(max=len(terms) - 1)]
                terms = kept if wrong else kept * (rows < len(terms))[:, None]
            return scale * (given - normed * (given * normed).mean(-1, keepdim=True)), terms.sum(0)

    return Norm.apply


def masked_losses(logits: torch.Tensor, labels: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels, reduction="none") * counted


def _counted() -> tuple[torch.Tensor, ...]:
    return drawn((6, 9))()[0], torch.tensor([3, 8, 0, 7, 5, 1]), torch.tensor([True, False, True, True, False, True])


@case("cross entropy of some tokens: the caller's labels are overwritten", "kernel-mutation", "ServiceNow/Fast-LLM/pull/253", masked_losses, _counted)
def labels_overwritten(wrong: bool, logits: torch.Tensor, labels: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    need(logits.dim() == 2 and labels.shape == counted.shape == logits.shape[:1] and logits.shape[1])
    kept = labels.view(-1) if wrong else labels.clone()
    kept.masked_fill_(~counted, -100)
    return F.cross_entropy(logits, kept, reduction="none", ignore_index=-100)
