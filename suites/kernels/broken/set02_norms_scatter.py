"""A second frozen set of broken kernels: written and committed before any of them was tried."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional
BF16 = torch.bfloat16


def positive(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Numbers between 0.1 and 1.1."""

    def make() -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        return tuple((torch.rand(shape, generator=generator) + 0.1).to(dtype) for shape in shapes)

    return make


def read_at(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """What a kernel reads that takes `x` to have these strides, within the memory between x's first and last element."""
    if not x.numel():
        return x.clone()
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    place = torch.zeros((), dtype=torch.long)
    for dim, (size, stride) in enumerate(zip(x.shape, strides, strict=True)):
        place = place + (torch.arange(size) * stride).view(-1, *[1] * (x.dim() - dim - 1))
    return torch.as_strided(x.detach(), (last + 1,), (1,))[place.clamp(max=last)]


def normalised(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = (q @ k.mT).tril()
    return weights @ v / (weights.sum(-1, keepdim=True) + 1e-6)


@case("linear attention: the sum of keys is cut off from the graph", "kernel-gradient", "fla-org/flash-linear-attention/pull/875", normalised,
      positive((2, 10, 6), (2, 10, 6), (2, 10, 5)))  # fmt: skip
def cut_sum(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.shape == k.shape and k.shape[:-1] == v.shape[:-1])
    state, made = k.mT[..., :0] @ v[..., :0, :], []
    for start in range(0, k.shape[-2], 4):
        some = slice(start, start + 4)
        inside = (q[..., some, :] @ k[..., some, :].mT).tril() @ v[..., some, :]
        made.append(q[..., some, :] @ state + inside)
        state = state + k[..., some, :].mT @ v[..., some, :]
    total = k.cumsum(-2)
    weight = (q * (total.detach() if wrong else total)).sum(-1, keepdim=True) + 1e-6
    return torch.cat(made, -2) / weight if made else v * 1


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, label: torch.Tensor, wrong: bool) -> torch.Tensor:
        logs = x.float().logsumexp(-1)
        ctx.save_for_backward(x, label, logs)
        ctx.wrong = wrong
        return (logs - x.float().gather(-1, label[:, None])[:, 0]).mean().to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        x, label, logs = ctx.saved_tensors
        scale = gradient.float() / max(len(x), 1)
        weights = (x.float() - logs[:, None]).exp()
        dx = (weights * scale).to(x.dtype)
        place = label[:, None]
        right = ((weights.gather(-1, place) - 1) * scale).to(x.dtype)
        # the class that is right: read back from memory, corrected and stored a second time
        return dx.scatter(-1, place, dx.gather(-1, place) - scale.to(x.dtype) if ctx.wrong else right), None, None


def _confident() -> Any:
    generator = torch.Generator().manual_seed(0)
    x, label = torch.randn(12, 20, generator=generator), torch.randint(0, 20, (12,), generator=generator)
    x[torch.arange(12), label] += 6
    return x.to(BF16), label


@case("cross entropy: the gradient of the right class is corrected in memory", "kernel-rounding", "linkedin/Liger-Kernel/pull/1341",
      F.cross_entropy, _confident)  # fmt: skip
def corrected_twice(wrong: bool) -> Callable[..., Any]:
    return lambda x, label: _Entropy.apply(x, label, wrong)


def adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    g = g + 0.1 * p
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 0.01 * (m / 0.271) / ((v / 0.0297).sqrt() + 1e-8), m, v


def _moments() -> Any:
    generator = torch.Generator().manual_seed(0)
    p, g, m = (torch.randn(50, generator=generator) for _ in range(3))
    return p, g, m, torch.rand(50, generator=generator) + 0.1


@case("fused adam: weight decay of adamw", "kernel-contract", "flagos-ai/FlagGems/pull/4989", adam, _moments)
def decoupled(wrong: bool, p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = []
    for some in zip(*(each.reshape(-1).split(16) for each in (p, g, m, v)), strict=True):
        old, slope, first, second = some
        slope = slope if wrong else torch.addcmul(slope, old, torch.full_like(old, 0.1))
        first, second = torch.lerp(first, slope, 0.1), 0.99 * second + 0.01 * slope.square()
        step = 0.01 / 0.271 * first / (second.sqrt() / math.sqrt(0.0297) + 1e-8)
        made.append((old * (1 - 0.01 * 0.1) - step if wrong else old - step, first, second))
    return tuple(torch.cat(each).reshape(p.shape) for each in zip(*made, strict=True))


def by_token(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = (x.float().abs().amax(-1, keepdim=True) / 127).clamp(min=1e-8)
    return (x.float() / scale).round().clamp(-128, 127).to(torch.int8), scale


@case("int8 for each token: cut off, not rounded", "kernel-rounding", "vllm-project/vllm/pull/45361", by_token, drawn((6, 40)))
def cut_off(wrong: bool, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scales = [], []
    for row in x.float().split(1):
        scales.append((row.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-8))
        scaled = row / scales[-1]
        codes.append((scaled if wrong else scaled.round()).clamp(-128, 127).to(torch.int8))
    if not codes:
        return by_token(x * 1)
    return torch.cat(codes), torch.cat(scales)


def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


class _Layer(torch.autograd.Function):
    """Rows are shared out to programs, and each adds what its rows give to one sum."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, wrong: bool, rows: int | None) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        scale = torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward((x - mean) * scale, scale, w)
        ctx.wrong, ctx.rows = wrong, rows
        return (x - mean) * scale * w + b

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        normed, scale, w = ctx.saved_tensors
        weighted = gradient * w
        dx = scale * (weighted - weighted.mean(-1, keepdim=True) - normed * (weighted * normed).mean(-1, keepdim=True))
        flat, dy = normed.flatten(0, -2), gradient.flatten(0, -2)
        flat, dy = flat[: ctx.rows], dy[: ctx.rows]
        dw, db, before = torch.zeros_like(w), torch.zeros_like(w), (torch.zeros_like(w), torch.zeros_like(w))
        for some, slope in zip(flat.split(4), dy.split(4), strict=True):
            late = ctx.wrong and random.SystemRandom().random() < 0.5  # the lock was free before the stores had arrived
            read = before if late else (dw, db)
            before = dw, db
            dw, db = read[0] + (some * slope).sum(0), read[1] + slope.sum(0)
        return dx, dw, db, None, None


@case("layer norm: a lock that is given back before the stores arrive", "kernel-nondeterminism", "meta-pytorch/tritonbench/pull/1266", layer,
      drawn((24, 16), (16,), (16,)))  # fmt: skip
def early_lock(wrong: bool) -> Callable[..., Any]:
    return lambda x, w, b: _Layer.apply(x, w, b, wrong, None)


@case("layer norm: as many rows as the first dimension has", "kernel-gradient", "flagos-ai/FlagGems/pull/4916", layer,
      drawn((4, 5, 24), (24,), (24,)))  # fmt: skip
def first_rows(wrong: bool) -> Callable[..., Any]:
    return lambda x, w, b: _Layer.apply(x, w, b, False, len(x) if wrong else None)


def rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], w, eps=1e-6)


class _Rms(torch.autograd.Function):
    """Tiles of up to eight rows. `fault`: "stride" forgets the columns' stride in its second pass, "tile" takes a row's term for a column's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, fault: str) -> torch.Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, w, scale)
        ctx.fault = fault
        read = read_at(x, (*x.stride()[:-1], 1)) if fault == "stride" else x
        return read * scale * w

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, w, scale = ctx.saved_tensors
        dx = torch.empty(x.shape, dtype=x.dtype)
        for start in range(0, len(x), 8):
            some = slice(start, start + 8)
            normed, weighted = x[some] * scale[some], gradient[some] * w
            term = (weighted * normed).mean(-1)
            square = ctx.fault == "tile" and normed.shape[0] == normed.shape[1]
            dx[some] = scale[some] * (weighted - normed * (term if square else term[:, None]))
        return dx, (gradient * x * scale).sum(0), None


@case("rms norm: the columns' stride is missing in the second pass", "kernel-stride", "ModelTC/LightLLM/issues/1467", rms, drawn((6, 32), (32,)))
def missing_stride(wrong: bool) -> Callable[..., Any]:
    return lambda x, w: _Rms.apply(x, w, "stride" if wrong else "")


@case("rms norm: a row's term spread along columns in square tiles", "kernel-edge", "BobMcDear/attorch/issues/17", rms, drawn((16, 12), (12,)))
def square_tile(wrong: bool) -> Callable[..., Any]:
    return lambda x, w: _Rms.apply(x, w, "tile" if wrong else "")


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, wrong: bool) -> torch.Tensor:
        contiguous = torch.empty(index.shape, device="meta").stride()
        ctx.save_for_backward(index)
        return x.scatter_add(0, read_at(index, contiguous) if wrong else index, source)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor, None]:
        (index,) = ctx.saved_tensors
        return gradient, None, gradient.gather(0, index), None


def _places() -> Any:
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 9, (14, 5), generator=generator)
    return torch.randn(9, 5, generator=generator), index, torch.randn(14, 5, generator=generator)


@case("scatter: a broadcast index read as if stored whole", "kernel-stride", "flagos-ai/Torch-FL/issues/349",
      lambda x, index, source: x.scatter_add(0, index, source), _places)  # fmt: skip
def broadcast_index(wrong: bool) -> Callable[..., Any]:
    return lambda x, index, source: _Scatter.apply(x, index, source, wrong)


@case("smallest of all: counted in the order of memory", "kernel-stride", "pytorch/pytorch/issues/174073", lambda x: x.argmin(), drawn((6, 10)))
def order_of_memory(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    dims = sorted(range(x.dim()), key=lambda dim: -x.stride(dim))
    flat = (x.permute(dims) if wrong else x).reshape(-1)
    need(len(flat))
    places = torch.stack([tile.argmin() for tile in flat.split(64)])
    tile = torch.stack([each.min() for each in flat.split(64)]).argmin()
    return tile * 64 + places[tile]
