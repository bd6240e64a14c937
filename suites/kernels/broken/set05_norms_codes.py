"""A fifth frozen set of broken kernels, and their twins: written and committed before any of them was tried. Of links an excerpt was read.

Two twins were mended, which were accused rightly: they stopped with an IndexError where there are no rows. A sum that was to be kept in float16 was
added up in a wider format by torch's own `cumsum`, and is a loop now. Later a third was accused rightly: it gave a large number for a NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional
FP16, BF16 = torch.float16, torch.bfloat16


def grouped(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x.float(), 2, w.float(), b.float()).to(x.dtype)


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, wrong: str) -> torch.Tensor:
        need(x.dim() >= 3 and not (x.shape[1] % 2) and x.numel() and x.numel() >= 4 * len(x))
        wide = x.float().reshape(len(x), 2, -1)
        mean = wide.mean(-1, keepdim=True)
        factor = torch.rsqrt((wide - mean).square().mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x, w, mean, factor)
        ctx.wrong = wrong
        normed = ((wide - mean) * factor).reshape(len(x), x.shape[1], -1)
        return (normed * w.float()[:, None] + b.float()[:, None]).reshape(x.shape).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        x, w, mean, factor = ctx.saved_tensors
        rows, channels = x.shape[:2]
        wide, given = x.float().reshape(rows, 2, -1), gradient.float().reshape(rows, channels, -1)
        normed = (wide - mean) * factor
        inner = (given * w.float()[:, None]).reshape(rows, 2, -1)
        if ctx.wrong == "constants":
            into = inner * factor
        else:
            into = (inner - inner.mean(-1, keepdim=True) - normed * (inner * normed).mean(-1, keepdim=True)) * factor
        if ctx.wrong == "group":  # the statistics of another group
            group = torch.arange(channels) % 2
            each = (x.float().reshape(rows, channels, -1) - mean[:, group]) * factor[:, group]
        else:
            each = normed.reshape(rows, channels, -1)
        return into.reshape(x.shape).to(x.dtype), (given * each).sum((0, 2)).to(w.dtype), given.sum((0, 2)).to(w.dtype), None


@case("group norm: a channel's group, counted modulo", "kernel-gradient", "tenstorrent/tt-metal/pull/56202", grouped,
      drawn((3, 6, 10), (6,), (6,)))  # fmt: skip
def group_modulo(wrong: bool) -> Callable[..., Any]:
    return lambda x, w, b: _Grouped.apply(x, w, b, "group" if wrong else "")


@case("group norm: mean and deviation taken for constants", "kernel-gradient", "ooples/AiDotNet/pull/702", grouped,
      drawn((3, 4, 12), (4,), (4,)))  # fmt: skip
def constants(wrong: bool) -> Callable[..., Any]:
    return lambda x, w, b: _Grouped.apply(x, w, b, "constants" if wrong else "")


def squares(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ((a - b).float().square() + 0.5 * (a + b).float()).to(a.dtype)


@case("similarity of images: an output with the strides of its input, written as if dense", "kernel-stride", "rahul-goel/fused-ssim/pull/44", squares,
      drawn((2, 3, 6, 7), (2, 3, 6, 7)))  # fmt: skip
def kept_strides(wrong: bool) -> Callable[..., Any]:
    class Similar(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            need(a.shape == b.shape)
            ctx.save_for_backward(a, b)
            made = squares(a.contiguous(), b.contiguous())
            out = torch.zeros_like(a) if wrong else torch.zeros(a.shape, dtype=a.dtype)
            room = out.untyped_storage().nbytes() // out.element_size() if out.numel() else 0
            torch.as_strided(out, (min(room, out.numel()),), (1,)).copy_(made.flatten()[:room])
            return out

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            a, b = ctx.saved_tensors
            away = 2 * (a - b).float() * gradient.float()
            half = 0.5 * gradient.float()
            return (away + half).to(a.dtype), (half - away).to(b.dtype)

    return Similar.apply


def _packed() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    x, scale = torch.randn(6, 32, generator=generator), torch.rand(10, generator=generator) + 0.1
    return x, torch.randint(0, 256, (10, 16), generator=generator).to(torch.uint8), scale


def signed(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Two signed numbers of four bits in each byte."""
    parts = torch.stack([codes & 15, codes >> 4], -1).flatten(1).to(torch.int64)
    return x @ ((parts ^ 8) - 8).to(x.dtype).mT * scale


@case("four bits: a borrow from the next number of a word", "kernel-contract", "gittensor-ai-lab/sparkinfer/pull/761", signed, _packed)
def borrowed(wrong: bool, x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1] == 2 * codes.shape[-1] and len(codes) == len(scale))
    halves = []
    for half in (codes & 15, codes >> 4):
        lanes = half.to(torch.int64) ^ 8
        borrow = F.pad((lanes < 8).to(torch.int64), (1, 0))[:, :-1] * (torch.arange(codes.shape[-1]) % 4 != 0) if wrong else 0
        halves.append(lanes - 8 - borrow)
    return F.linear(x, torch.stack(halves, -1).flatten(1).to(x.dtype)) * scale


def split_halves(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Low halves are the first of a block, high halves the second, eight less."""
    return x @ (torch.cat([codes & 15, codes >> 4], -1).to(x.dtype) - 8).mT * scale


@case("four bits: halves of a block read in turn", "kernel-contract", "kekzl/imp/pull/722", split_halves, _packed)
def interleaved(wrong: bool, x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1] == 2 * codes.shape[-1] and len(codes) == len(scale))
    first, second = (x[:, ::2], x[:, 1::2]) if wrong else x.chunk(2, -1)
    low, high = (codes & 15).to(x.dtype), (codes >> 4).to(x.dtype)
    return (F.linear(first, low) + F.linear(second, high) - 8 * x.sum(-1, keepdim=True)) * scale


def sampled(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Between neighbours, and at the ends outside of them."""
    need(x.shape[-1])
    places = places.clamp(0, x.shape[-1] - 1)
    low = places.detach().floor().long().clamp(max=max(x.shape[-1] - 2, 0))
    high = (low + 1).clamp(max=x.shape[-1] - 1)
    return torch.lerp(x.gather(-1, low), x.gather(-1, high), (places - low).to(x.dtype))


def _placed() -> tuple[torch.Tensor, ...]:
    x, places = drawn((5, 12), (5, 9))()
    return x, places * 5 + 5


class _Sampled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, places: torch.Tensor, wrong: bool) -> torch.Tensor:
        need(x.shape[-1] and len(x) == len(places))
        last = x.shape[-1] - 1
        at = places.clamp(0, last)
        low = at.floor().long().clamp(max=max(last - 1, 0))
        high, share = (low + 1).clamp(max=last), (at - low).to(x.dtype)
        ctx.save_for_backward(x, places, low, high, share)
        ctx.wrong = wrong
        return x.gather(-1, low) * (1 - share) + x.gather(-1, high) * share

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        x, places, low, high, share = ctx.saved_tensors
        inside = (places >= 0) & (places <= x.shape[-1] - 1)
        given = gradient * inside if ctx.wrong else gradient
        into = torch.zeros_like(x).scatter_add(-1, low, given * (1 - share)).scatter_add(-1, high, given * share)
        slope = (x.gather(-1, high) - x.gather(-1, low)) * gradient
        return into, torch.where(inside, slope, 0).to(places.dtype), None


@case("samples between places: those outside give the ends no gradient", "kernel-gradient", "ooples/AiDotNet.Tensors/pull/390", sampled, _placed)
def lost_ends(wrong: bool) -> Callable[..., Any]:
    return lambda x, places: _Sampled.apply(x, places, wrong)


def so_far(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(~seen, float("-inf")).logcumsumexp(-1).clamp(min=-1e4)


def _seen() -> tuple[torch.Tensor, ...]:
    seen = torch.rand(5, 20, generator=torch.Generator().manual_seed(4)) < 0.7
    seen[:2, 0] = True
    seen[2, :4] = False
    return drawn((5, 20))()[0], seen


@case("logarithms of sums so far: a masked beginning is NaN", "kernel-mask", "tinygrad/tinygrad/pull/17853", so_far, _seen)
def masked_beginning(wrong: bool, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    wide = torch.where(seen, x, -torch.inf)
    made, most, total = [], torch.full_like(wide[..., 0], -torch.inf), torch.zeros_like(wide[..., 0])
    for column in wide.unbind(-1):
        now = torch.maximum(most, column)
        base = now if wrong else torch.where(now.isinf(), 0, now)
        total = total * (most - base).exp() + (column - base).exp()
        made.append(torch.where(total == 0, 1, total).log() + base if not wrong else total.log() + base)
        if not wrong:
            made[-1] = torch.where(total == 0, -torch.inf, made[-1])
        most = now
    return torch.stack(made, -1).clamp(min=-1e4) if made else wide


@case("sum of all: added up in float16", "kernel-accumulation", "cactus-compute/cactus/pull/344", lambda x: x.float().sum(-1).to(x.dtype),
      drawn((5, 90), dtype=FP16))  # fmt: skip
def low_sum(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape[:-1], dtype=x.dtype if wrong else torch.float32)
    for column in x.unbind(-1):
        total = total + column
    return total.to(x.dtype)


def instance(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return ((wide - wide.mean(-1, keepdim=True)) * torch.rsqrt(wide.var(-1, correction=0, keepdim=True) + 1e-3)).to(x.dtype)


@case("instance norm: the sum of squares leaves float16", "kernel-accumulation", "openvinotoolkit/openvino/pull/35942", instance,
      drawn((2, 3, 120), dtype=FP16))  # fmt: skip
def low_squares(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    away = wide - wide.mean(-1, keepdim=True)
    if wrong:
        squares = torch.zeros_like(x[..., :1])
        for place in away.to(x.dtype).split(1, -1):
            squares = squares + place * place
        squares = squares.float()
    else:
        squares = away.square().sum(-1, keepdim=True)
    return (away * torch.rsqrt(squares / max(x.shape[-1], 1) + 1e-3)).to(x.dtype)
