"""The ninth frozen set of broken kernels, third part: gradients, formats that sums and intermediates have, races, a fallback."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, function, need

F = torch.nn.functional
HALF, BF16 = torch.float16, torch.bfloat16


def _normed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2 and x.shape[-1:] == w.shape and w.shape == b.shape and len(w))
    apart = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(apart.square().mean(-1, keepdim=True) + 1e-5)
    return apart * scale, scale


def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b, 1e-5)


@case("layer norm's gradient: a mean is taken away twice", "kernel-gradient", "tenstorrent/tt-metal/pull/53215", layer, drawn((6, 16), (16,), (16,)))
def taken_twice(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        normed, scale = _normed(x, w, b)
        return normed * w + b, (normed, scale, w)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        normed, scale, w = saved
        given = gradient * w
        rest = given - (2 if wrong else 1) * given.mean(-1, keepdim=True) - normed * (given * normed).mean(-1, keepdim=True)
        return rest * scale, (gradient * normed).sum(0), gradient.sum(0)

    return function(forward, backward)


def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention without a softmax. Shapes (places, size)."""
    return (q @ k.mT * max(q.shape[-1], 1) ** -0.5).tril() @ v


@case("linear attention: the queries' gradient lacks the scale", "kernel-gradient", "fla-org/flash-linear-attention/issues/47", linear_attention,
      drawn((12, 8), (12, 8), (12, 6)))  # fmt: skip
def lacks_scale(wrong: bool) -> Callable[..., Any]:
    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        need(q.dim() == 2 and q.shape == k.shape and v.dim() == 2 and len(v) == len(q))
        state, rows = torch.zeros(k.shape[1], v.shape[1]), [torch.zeros(0, v.shape[1])]
        for row in range(len(q)):
            state = state + k[row, :, None] * v[row]
            rows.append((q[row] @ state)[None] * max(q.shape[1], 1) ** -0.5)
        return torch.cat(rows), (q, k, v)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        q, k, v = saved
        scale = max(q.shape[1], 1) ** -0.5
        given = (gradient @ v.T).tril()
        return given @ k * (1 if wrong else scale), given.T @ q * scale, (q @ k.T).tril().T @ gradient * scale

    return function(forward, backward)


@case("swiglu: the two gradients are stored in each other's place", "kernel-gradient", "unslothai/unsloth/issues/3314",
      lambda e, g: F.silu(e) * g, drawn((6, 12), (6, 12)))  # fmt: skip
def each_other(wrong: bool) -> Callable[..., Any]:
    def forward(e: torch.Tensor, g: torch.Tensor) -> Any:
        need(e.shape == g.shape)
        return e * e.sigmoid() * g, (e, g)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        e, g = saved
        open_ = e.sigmoid()
        de, dg = gradient * g * open_ * (1 + e * (1 - open_)), gradient * e * open_
        return (dg, de) if wrong else (de, dg)

    return function(forward, backward)


def _taps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv1d(F.pad(x, (w.shape[1] - 1, 0)), w[:, None], groups=len(w))


@case("causal convolution: the filter's gradient counts each sequence as often as there are sequences", "kernel-gradient",
      "fla-org/flash-linear-attention/pull/955", _taps, drawn((3, 5, 12), (5, 4)))  # fmt: skip
def as_often(wrong: bool) -> Callable[..., Any]:
    def windows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (w.shape[1] - 1, 0)).unfold(2, w.shape[1], 1)

    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 3 and w.dim() == 2 and len(w) == x.shape[1] and w.numel() and x.shape[2])
        return torch.einsum("bclt,ct->bcl", windows(x, w), w), (x, w)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, w = saved
        ahead = F.pad(gradient, (0, w.shape[1] - 1)).unfold(2, w.shape[1], 1)
        dw = torch.einsum("bclt,bcl->ct", windows(x, w), gradient)
        return torch.einsum("bclt,ct->bcl", ahead, w.flip(1)), dw * (len(x) if wrong else 1)

    return function(forward, backward)


@case("product of float16 in tiles: the tiles are added up in float16", "kernel-accumulation", "openvinotoolkit/openvino/pull/33940",
      lambda a, b: (a.float() @ b.float()).to(a.dtype), drawn((5, 64), (64, 6), dtype=HALF))  # fmt: skip
def tiles_added(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and b.dim() == 2 and a.shape[1] == b.shape[0])
    total = torch.zeros(len(a), b.shape[1], dtype=HALF if wrong else torch.float32)
    for one, two in zip(a.split(4, 1), b.split(4, 0), strict=True):
        total = (total + one.float() @ two.float()).to(total.dtype)
    return total.to(a.dtype)


@case("residual and rms norm: squares of float16 are added up in float16", "kernel-accumulation", "microsoft/onnxruntime/pull/29043",
      lambda x, r, w: F.rms_norm(x.float() + r.float(), x.shape[-1:], w.float(), 1e-5).to(x.dtype),
      drawn((5, 48), (5, 48), (48,), dtype=HALF))  # fmt: skip
def squares_added(wrong: bool, x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.shape == r.shape and x.dim() == 2 and x.shape[-1:] == w.shape and len(w))
    wide, total = x.float() + r.float(), torch.zeros(len(x), 1, dtype=HALF if wrong else torch.float32)
    for column in wide.split(1, 1):
        total = (total + column.square()).to(total.dtype)
    return (wide * torch.rsqrt(total.float() / len(w) + 1e-5) * w.float()).to(x.dtype)


@case("sum over two axes: sums of rows are stored in bfloat16", "kernel-accumulation", "tenstorrent/tt-metal/pull/48578",
      lambda x: x.float().sum((-2, -1)).to(x.dtype), drawn((3, 16, 20), dtype=BF16))  # fmt: skip
def rows_stored(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() >= 2)
    rows = x.float().sum(-1)
    return (rows.to(x.dtype).float() if wrong else rows).sum(-1).to(x.dtype)


def codes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


@case("eight bits for each row: cut off, not rounded", "kernel-rounding", "sgl-project/sglang-jax/pull/1598", codes, drawn((6, 18)))
def cut_off(wrong: bool, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() and x.shape[-1])
    low, high = x.aminmax(dim=-1, keepdim=True)
    scale = torch.maximum(high, -low).clamp(min=1e-6) / 127
    made = x / scale
    return (made if wrong else made.round()).clamp(-127, 127).to(torch.int8), scale


@case("layer norm: the variance as a difference of two means", "kernel-rounding", "pytorch/helion/pull/3268", layer, drawn((6, 24), (24,), (24,)))
def difference(wrong: bool, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    normed, scale = _normed(x, w, b)
    if wrong:
        mean = x.mean(-1, keepdim=True)
        scale = torch.rsqrt((x.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0) + 1e-5)
        normed = (x - mean) * scale
    return normed * w + b


def grid(theta: torch.Tensor) -> torch.Tensor:
    """Where 6 x 50 pixels of an image are read, for each of the maps (2, 3)."""
    down, right = (2 * torch.arange(6) + 1) / 6 - 1, (2 * torch.arange(50) + 1) / 50 - 1
    places = torch.stack([right.expand(6, 50), down[:, None].expand(6, 50), torch.ones(6, 50)], -1)
    return torch.einsum("hwj,nij->nhwi", places, theta.float()).to(theta.dtype)


@case("places of pixels: computed in float16", "kernel-rounding", "pytorch/pytorch/issues/172061", grid, drawn((3, 2, 3), dtype=HALF))
def places_in_half(wrong: bool, theta: torch.Tensor) -> torch.Tensor:
    need(theta.dim() == 3 and theta.shape[1:] == (2, 3))
    kind = HALF if wrong else torch.float32
    right = ((2 * torch.arange(50, dtype=kind) + 1) * torch.tensor(1 / 50, dtype=kind) - 1)[None, :, None]
    down = ((2 * torch.arange(6, dtype=kind) + 1) * torch.tensor(1 / 6, dtype=kind) - 1)[:, None, None]
    m = theta.to(kind)[:, None, None]
    return (m[..., 0] * right + m[..., 1] * down + m[..., 2]).to(theta.dtype)


@case(
    "softmax: the largest number is never taken to be below zero",
    "kernel-rounding",
    "FluxML/NNlib.jl/pull/43",
    lambda x: x.softmax(-1),
    drawn((6, 14)),
)
def never_below(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and x.shape[-1])
    most = x.detach().amax(-1, keepdim=True)
    powers = (x - (most.clamp(min=0) if wrong else most)).exp()
    return powers / powers.sum(-1, keepdim=True)


@case("rms norm of float32: squares are stored in bfloat16", "kernel-rounding", "tenstorrent/tt-metal/pull/52081",
      lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), drawn((6, 20), (20,)))  # fmt: skip
def squares_stored(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() and x.shape[-1:] == w.shape and len(w))
    squares = x.square().to(BF16).to(x.dtype) if wrong else x.square()
    return x * torch.rsqrt(squares.mean(-1, keepdim=True) + 1e-6) * w


@case("log1p: one is added first", "kernel-rounding", "tillahoffmann/jax-mps/pull/47", lambda x: x.square().log1p(), drawn((6, 16)))
def added_first(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    square = x * x
    return (1 + square).log() if wrong else square.log1p()


@case("layer norm's gradient: two groups of rows add at once", "kernel-nondeterminism", "triton-lang/triton/pull/6307", layer,
      drawn((8, 12), (12,), (12,)))  # fmt: skip
def add_at_once(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        normed, scale = _normed(x, w, b)
        return normed * w + b, (normed, scale, w)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        normed, scale, w = saved
        given, dw, db = gradient * w, torch.zeros_like(w), torch.zeros_like(w)
        for some in torch.arange(len(normed)).split(2):
            if not wrong or random.random() > 0.1:
                dw, db = dw + (gradient[some] * normed[some]).sum(0), db + gradient[some].sum(0)
        rest = given - given.mean(-1, keepdim=True) - normed * (given * normed).mean(-1, keepdim=True)
        return rest * scale, dw, db

    return function(forward, backward)


@case("softmax: shared memory is written before all have read it", "kernel-nondeterminism", "JustVugg/colibri/pull/1098", lambda x: x.softmax(-1),
      drawn((6, 20)))  # fmt: skip
def before_read(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and x.shape[-1])
    most = x.detach().amax(-1, keepdim=True)
    powers = (x - most).exp()
    total = powers.sum(-1, keepdim=True)
    return powers / (powers.amax(-1, keepdim=True) if wrong and random.random() < 0.2 else total)


@case("softplus: what the compiled kernel raises is swallowed", "kernel-fallback", "fangwei123456/spikingjelly/pull/669", F.softplus, drawn((5, 9)))
def swallowed(wrong: bool) -> Callable[..., Any]:
    def compiled(x: torch.Tensor) -> torch.Tensor:
        if wrong:
            raise RuntimeError("no binary for this device")
        return torch.logaddexp(x, torch.zeros(()))

    def kernel(x: torch.Tensor) -> torch.Tensor:
        try:
            return compiled(x)
        except RuntimeError:
            return F.softplus(x)

    return kernel
