"""The twelfth frozen set of healthy kernels, first part: norms, softmaxes and activations. Written and committed before any was tried."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes

F = torch.nn.functional


@rewrite("layer norm, chunks of five merged", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), shapes((6, 23), (23,), (23,)))
def chunks_merged(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == x.shape[1:], b.shape == w.shape, len(w) > 0)
    count, mean, spread = 0, torch.zeros(len(x), 1), torch.zeros(len(x), 1)
    for chunk in x.float().split(5, 1):
        size = chunk.shape[1]
        middle = chunk.mean(1, keepdim=True)
        step = middle - mean
        spread = spread + (chunk - middle).square().sum(1, keepdim=True) + step.square() * (count * size / (count + size))
        mean = mean + step * (size / (count + size))
        count += size
    return ((x.float() - mean) * (spread / count + 1e-5).rsqrt() * w.float() + b.float()).to(x.dtype)


def _layer_forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    need(x.dim() == 2, w.shape == x.shape[1:], b.shape == w.shape, len(w) > 0)
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    scale = ((wide - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return ((wide - mean) * scale * w.float() + b.float()).to(x.dtype), (x, w, mean, scale)


def _layer_backward(saved: Any, gradient: torch.Tensor) -> Any:
    x, w, mean, scale = saved
    normed, given = (x.float() - mean) * scale, gradient.float()
    weighed = given * w.float()
    dx = scale * (weighed - weighed.mean(-1, keepdim=True) - normed * (weighed * normed).mean(-1, keepdim=True))
    blocks = [(some * rows).sum(0) for some, rows in zip(given.split(3), normed.split(3), strict=True)]
    return dx.to(x.dtype), sum(blocks, torch.zeros(len(w))).to(w.dtype), given.sum(0).to(w.dtype)


rewrite("layer norm, its gradient from saved statistics", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), shapes((7, 16), (16,), (16,)))(
    function(_layer_forward, _layer_backward)
)


@rewrite("group norm, a mean and a scale for each channel", lambda x, w, b: F.group_norm(x, 2, w, b), shapes((2, 6, 3, 4), (6,), (6,)))
def scale_for_each_channel(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, x.shape[1] % 2 == 0, w.shape == b.shape == x.shape[1:2], x.numel() > 0)
    groups = x.float().reshape(len(x), 2, -1)
    spread, mean = torch.var_mean(groups, -1, correction=0)
    scale = (spread + 1e-5).rsqrt().repeat_interleave(x.shape[1] // 2, 1) * w.float()
    shift = mean.repeat_interleave(x.shape[1] // 2, 1)
    return ((x.float() - shift[..., None, None]) * scale[..., None, None] + b.float()[:, None, None]).to(x.dtype)


@rewrite("batch norm in training, rows in two halves", lambda x, w, b: F.batch_norm(x, None, None, w, b, True), shapes((9, 5), (5,), (5,)))
def two_halves(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == b.shape == x.shape[1:], len(x) > 1, len(w) > 0)
    parts = x.float().tensor_split(2)
    mean = sum((part.sum(0) for part in parts), torch.zeros(len(w))) / len(x)
    spread = sum(((part - mean).square().sum(0) for part in parts), torch.zeros(len(w))) / len(x)
    return ((x.float() - mean) / (spread + 1e-5).sqrt() * w.float() + b.float()).to(x.dtype)


@rewrite("residual and layer norm, both results",
         lambda x, r: ((x.float() + r.float()).to(x.dtype), F.layer_norm((x.float() + r.float()), x.shape[-1:]).to(x.dtype)),
         shapes((5, 18), (5, 18)))  # fmt: skip
def both_results(x: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape == r.shape, x.shape[1] > 0)
    total = torch.add(x.float(), r.float())
    apart = total - total.sum(-1, keepdim=True) / x.shape[1]
    return total.to(x.dtype), (apart * torch.rsqrt((apart * apart).sum(-1, keepdim=True) / x.shape[1] + 1e-5)).to(x.dtype)


@rewrite("residual and rms norm, from the stored sum", lambda x, r, w: (x + r, F.rms_norm(x + r, x.shape[-1:], w, 1e-6)),
         shapes((5, 18), (5, 18), (18,)))  # fmt: skip
def from_the_stored_sum(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape == r.shape, w.shape == x.shape[1:], len(w) > 0)
    stored = (x.float() + r.float()).to(x.dtype)
    wide = stored.float()
    return stored, (wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w.float()).to(x.dtype)


@rewrite("unit rows, by a reciprocal root", lambda x: F.normalize(x.float(), dim=-1, eps=1e-4).to(x.dtype), shapes((6, 13)))
def reciprocal_root(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    length = torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True)
    return (x.float() * length.clamp(min=1e-4).reciprocal()).to(x.dtype)


@rewrite("weight norm, directions in float32", lambda v, g: (v.float() * (g.float() / v.float().norm(dim=1))[:, None]).to(v.dtype),
         shapes((5, 12), (5,)))  # fmt: skip
def directions(v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(v.dim() == 2, g.shape == v.shape[:1])
    squares = sum((part.float().square().sum(1) for part in v.split(4, 1)), torch.zeros(len(v)))
    return (g.float()[:, None] * (v.float() / squares.sqrt()[:, None])).to(v.dtype)


@rewrite("gated rms norm, halves of the width", lambda x, z, w: F.rms_norm(x.float() * F.silu(z.float()), x.shape[-1:], w.float(), 1e-5).to(x.dtype),
         shapes((5, 16), (5, 16), (16,)))  # fmt: skip
def halves_of_the_width(x: torch.Tensor, z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == z.shape, w.shape == x.shape[1:], len(w) > 0)
    gated = x.float() * (z.float() * torch.sigmoid(z.float()))
    squares = torch.stack([part.square().sum(-1) for part in gated.tensor_split(2, -1)]).sum(0)
    return (gated * (squares / x.shape[1] + 1e-5).rsqrt()[:, None] * w.float()).to(x.dtype)


@rewrite("softmax, four columns at a time", lambda x: x.softmax(-1), shapes((6, 19)))
def four_columns(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    most, total = torch.full((len(x), 1), -math.inf), torch.zeros(len(x), 1)
    for tile in x.float().split(4, 1):
        now = torch.maximum(most, tile.amax(1, keepdim=True))
        total = total * (most - now).exp() + (tile - now).exp().sum(1, keepdim=True)
        most = now
    return ((x.float() - most).exp() / total).to(x.dtype)


def _soft_backward(saved: Any, gradient: torch.Tensor) -> torch.Tensor:
    share = saved[0].float()
    inner = gradient.float() * share
    return (inner - share * inner.sum(-1, keepdim=True)).to(gradient.dtype)


def _soft_forward(x: torch.Tensor) -> Any:
    need(x.dim() == 2, x.shape[1] > 0)
    powers = (x.float() - x.float().amax(-1, keepdim=True)).exp()
    made = (powers / powers.sum(-1, keepdim=True)).to(x.dtype)
    return made, (made,)


rewrite("softmax, its gradient from the stored result", lambda x: x.softmax(-1), shapes((5, 14)))(function(_soft_forward, _soft_backward))


@rewrite("log softmax over the first dimension", lambda x: x.log_softmax(0), shapes((11, 6)))
def first_dimension(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, len(x) > 0)
    turned = x.T.contiguous().float()
    return (turned - turned.logsumexp(-1, keepdim=True)).T.to(x.dtype)


def _glu_forward(x: torch.Tensor, y: torch.Tensor) -> Any:
    need(x.shape == y.shape)
    return (F.silu(x.float()) * y.float()).to(x.dtype), (x, y)


def _glu_backward(saved: Any, gradient: torch.Tensor) -> Any:
    x, y = (each.float() for each in saved)
    gate = torch.sigmoid(x)
    dx = gradient.float() * y * gate * (1 + x * (1 - gate))
    return dx.to(gradient.dtype), (gradient.float() * x * gate).to(gradient.dtype)


rewrite("swiglu, its gradient recomputed", lambda x, y: (F.silu(x.float()) * y.float()).to(x.dtype), shapes((6, 9), (6, 9)))(
    function(_glu_forward, _glu_backward)
)


@rewrite("swiglu in bfloat16's way: the gate is stored first", lambda x, y: F.silu(x) * y, shapes((6, 9), (6, 9)))
def gate_is_stored(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    return (x.float() * torch.sigmoid(x.float())).to(x.dtype) * y


@rewrite("gelu by tanh, as a sigmoid", lambda x: F.gelu(x.float(), approximate="tanh").to(x.dtype), shapes((5, 11)))
def as_a_sigmoid(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide))).to(x.dtype)


@rewrite("mish, softplus first", lambda x: F.mish(x.float()).to(x.dtype), shapes((5, 11)))
def softplus_first(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.tanh(torch.logaddexp(wide, torch.zeros_like(wide)))).to(x.dtype)


def _turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    one, two = x.float().chunk(2, -1)
    cosine, sine = angles.float().cos(), angles.float().sin()
    return torch.cat([one * cosine - two * sine, two * cosine + one * sine], -1).to(x.dtype)


@rewrite("rope, a row and its half turned row", _turned, shapes((3, 5, 8), (5, 4)))
def half_turned_row(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[-1] % 2 == 0, angles.shape == (x.shape[1], x.shape[2] // 2))
    half = x.shape[-1] // 2
    cosine, sine = (made.float().repeat(1, 2) for made in (angles.float().cos(), angles.float().sin()))
    other = torch.cat([-x[..., half:], x[..., :half]], -1).float()
    return (x.float() * cosine + other * sine).to(x.dtype)


@rewrite(
    "queries normed and turned in one", lambda x, w, angles: _turned(F.rms_norm(x, x.shape[-1:], w, 1e-6), angles), shapes((3, 5, 8), (8,), (5, 4))
)
def normed_and_turned(x: torch.Tensor, w: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.shape == x.shape[2:], x.shape[-1] % 2 == 0, x.shape[-1] > 0, angles.shape == (x.shape[1], x.shape[2] // 2))
    wide = x.float()
    normed = (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w.float()).to(x.dtype).float()
    one, two = normed[..., : x.shape[-1] // 2], normed[..., x.shape[-1] // 2 :]
    parts = (one * angles.float().cos() - two * angles.float().sin(), two * angles.float().cos() + one * angles.float().sin())
    return torch.cat(parts, -1).to(x.dtype)
