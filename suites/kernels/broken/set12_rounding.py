"""The twelfth frozen set of broken kernels, third part: rounding, formats that sums are kept in, other functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional
BF16, HALF = torch.bfloat16, torch.float16


_stored = function(
    lambda x, r: (((x.float() + r.float()).view(torch.int32) & -65536).view(torch.float32).to(BF16), ()), lambda saved, given: (given, given)
)
"""The sum in bfloat16, the lower bits of float32 cut off."""


@case("residual and rms norm in bfloat16: the sum is cut off, not rounded", "kernel-rounding", "ROCm/aiter/issues/5151",
      lambda x, r: (x + r, F.rms_norm(x + r, x.shape[-1:], None, 1e-6)), drawn((5, 16), (5, 16), dtype=BF16))  # fmt: skip
def sum_cut_off(wrong: bool, x: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape == r.shape, x.shape[-1] > 0)
    stored = _stored(x, r) if wrong else (x.float() + r.float()).to(BF16)
    wide = stored.float()
    return stored, (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(BF16)


def _eight(x: torch.Tensor) -> torch.Tensor:
    """The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, ties to the even code."""
    grid = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=x.dtype)
    middles = (grid[1:] + grid[:-1]) / 2
    size = x.detach().abs()[..., None]
    odd = torch.arange(7) % 2 == 1
    return grid[torch.where(odd, size >= middles, size > middles).sum(-1)] * x.detach().sign()


@case("four bits: ties are rounded away from zero", "kernel-rounding", "ROCm/aiter/pull/3992", _eight,
      lambda: (torch.arange(-28.0, 28).view(7, 8) / 4,))  # fmt: skip
def ties_away(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    size = x.detach().abs()
    step = torch.where(size >= 4, 2.0, torch.where(size >= 2, 1.0, 0.5))
    codes = (size / step + 0.5).floor() if wrong else (size / step).round()
    return (codes * step).clamp(max=6) * x.detach().sign()


@case("norm of float16: the weight's gradient passes through bfloat16", "kernel-rounding", "linkedin/Liger-Kernel/pull/1253",
      lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-5), drawn((6, 16), (16,), dtype=HALF))  # fmt: skip
def through_bfloat16(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 2, w.shape == x.shape[1:], len(w) > 0)
        wide = x.float()
        scale = (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return (wide * scale * w.float()).to(x.dtype), (wide * scale, scale, w)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        normed, scale, w = saved
        weighed = gradient.float() * w.float()
        dw = (gradient.float() * normed).sum(0)
        dx = scale * (weighed - normed * (weighed * normed).mean(-1, keepdim=True))
        return dx.to(w.dtype), (dw.to(BF16) if wrong else dw).to(w.dtype)

    return function(forward, backward)


def _decays(s: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Scores that decay between two places."""
    so_far = F.logsigmoid(g).cumsum(0)
    return s * (so_far[:, None] - so_far).tril().exp().tril()


@case("scores that decay: equal terms of the gates' gradient are rounded, then subtracted", "kernel-rounding", "meta-pytorch/attention-gym/pull/461",
      _decays, drawn((6, 6), (6,)))  # fmt: skip
def rounded_then_subtracted(wrong: bool) -> Callable[..., Any]:
    def forward(s: torch.Tensor, g: torch.Tensor) -> Any:
        need(s.dim() == 2, s.shape == (len(g), len(g)))
        made = (F.logsigmoid(g).cumsum(0)[:, None] - F.logsigmoid(g).cumsum(0)).tril().exp().tril()
        return s * made, (s, made, g)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        s, made, g = saved
        shares = gradient * s * made
        if wrong:
            rows = (gradient.to(BF16).float() * (s * made).to(BF16).float()).sum(1)
            slopes = rows - ((gradient * s).to(BF16).float() * made).sum(0)
        else:
            shares = shares.tril(-1)
            slopes = shares.sum(1) - shares.sum(0)
        return gradient * made, slopes.flip(0).cumsum(0).flip(0) * torch.sigmoid(-g)

    return function(forward, backward)


@case("logarithm of a sigmoid: the sigmoid comes first", "kernel-rounding", "sony/nnabla-ext-cuda/pull/295", F.logsigmoid, drawn((5, 8)))
def sigmoid_first(wrong: bool) -> Callable[..., Any]:
    return lambda x: torch.log(torch.sigmoid(x)) if wrong else -torch.logaddexp(-x, torch.zeros(()))


@case("softplus: of a number far below zero nothing is left", "kernel-rounding", "kvark/meganeura/pull/164",
      lambda x: torch.logaddexp(x, torch.zeros((), dtype=x.dtype)), drawn((5, 8)))  # fmt: skip
def nothing_is_left(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    return _softplus(x, torch.log(1 + torch.exp(-x.abs())) if wrong else torch.log1p(torch.exp(-x.abs())))


_softplus = function(lambda x, rest: (x.clamp(min=0) + rest, (x,)), lambda saved, given: (given * torch.sigmoid(saved[0]), None))
"""With the derivative of softplus, which has no corner at 0."""


@case("sums so far in bfloat16: the running value is stored and read again", "kernel-accumulation", "ml-explore/mlx/pull/3907",
      lambda x: x.cumsum(-1), drawn((4, 20), dtype=BF16))  # fmt: skip
def read_again(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    total, made = x[:, 0].float(), [x[:, 0]]
    for column in x.unbind(1)[1:]:
        total = (total.to(BF16).float() if wrong else total) + column.float()
        made.append(total.to(BF16))
    return torch.stack(made, 1)


@case("experts joined: eight parts are added up in bfloat16", "kernel-accumulation", "vllm-project/vllm/issues/15045",
      lambda x: x.sum(1), drawn((5, 8, 6), dtype=BF16))  # fmt: skip
def eight_parts(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3)
    total = torch.zeros(x.shape[0], x.shape[2], dtype=BF16 if wrong else torch.float32)
    for part in x.unbind(1):
        total = total + part
    return total.to(BF16)


@case("variance of float16: means are kept in float16", "kernel-accumulation", "pytorch/pytorch/pull/141052",
      lambda x: x.var(-1, correction=0), drawn((4, 40), dtype=HALF))  # fmt: skip
def means_in_half(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[-1] > 0)
    wide = x if wrong else x.float()
    mean, spread = torch.zeros_like(wide[:, 0]), torch.zeros_like(wide[:, 0])
    for count, column in enumerate(wide.unbind(1), 1):
        step = column - mean
        mean = mean + step / count
        spread = spread + step * (column - mean)
    return (spread / x.shape[-1]).to(x.dtype)


@case("convolution of bfloat16: taps are added up in bfloat16", "kernel-accumulation", "pytorch/pytorch/pull/188998",
      lambda x, w: F.conv1d(x, w), drawn((2, 6, 14), (5, 6, 4), dtype=BF16))  # fmt: skip
def taps_added(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 3, x.shape[1] == w.shape[1], min(*x.shape, *w.shape) > 0, x.shape[2] >= w.shape[2])
    length = x.shape[2] - w.shape[2] + 1
    total = torch.zeros(len(x), len(w), length, dtype=BF16 if wrong else torch.float32)
    for tap in range(w.shape[2]):
        for some, rows in zip(x[:, :, tap : tap + length].float().split(2, 1), w[:, :, tap].float().split(2, 1), strict=True):
            total = (total + torch.einsum("bcl,oc->bol", some, rows)).to(total.dtype)
    return total.to(BF16)


@case("frobenius norm divided out: squares are added up in float16", "kernel-accumulation", "ScalingIntelligence/KernelBench/issues/165",
      lambda x: x / (torch.linalg.vector_norm(x) + 1e-3), drawn((6, 24), dtype=HALF))  # fmt: skip
def squares_in_half(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    total = torch.zeros((), dtype=HALF if wrong else torch.float32)
    for row in x:
        total = (total + row.float().square().sum()).to(total.dtype)
    return (x.float() / (total.float().sqrt() + 1e-3)).to(HALF)


def _shares(x: torch.Tensor) -> torch.Tensor:
    """Shares of the best two, made to add up to one, times a scale."""
    best = x.softmax(-1).topk(2).values
    return 2.5 * best / best.sum(-1, keepdim=True)


@case("shares of the best two that add up to one: the scale is left out", "kernel-contract", "sgl-project/sglang/pull/31449", _shares, drawn((6, 9)))
def scale_left_out(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[-1] >= 2)
    return (1.0 if wrong else 2.5) * x.topk(2).values.softmax(-1)


@case(
    "shares of the best two: of these two alone", "kernel-contract", "lablup/mlxcel/pull/391", lambda x: x.softmax(-1).topk(2).values, drawn((6, 9))
)
def two_alone(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[-1] >= 2)
    best = x.topk(2).values
    return best.softmax(-1) if wrong else (best - x.logsumexp(-1, keepdim=True)).exp()


def _dequantised(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    return ((codes.view(*scales.shape, 4) - zeros[..., None]) * scales[..., None]).flatten(1)


@case("codes in groups: the zero of the first group for a whole tile", "kernel-contract", "sgl-project/sglang/pull/37759", _dequantised,
      lambda: (whole(5, 16, most=16), drawn((5, 4))()[0], whole(5, 4, most=16, seed=5)))  # fmt: skip
def first_zero(wrong: bool, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, scales.dim() == 2, zeros.shape == scales.shape, codes.shape == (len(scales), 4 * scales.shape[1]))
    place = torch.arange(codes.shape[1]) // 4
    return (codes - zeros[:, place // 2 * 2 if wrong else place]) * scales[:, place]


@case("transposed convolution with a norm folded in: channels of a group have the first group's scales", "kernel-contract",
      "pytorch/pytorch/issues/180995", lambda x, w, s: F.conv_transpose1d(x, w, groups=2) * s[:, None],
      drawn((2, 4, 6), (4, 3, 3), (6,)))  # fmt: skip
def first_scales(wrong: bool, x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 3, x.shape[1] == len(w), len(w) % 2 == 0, len(s) == 2 * w.shape[1], min(*x.shape, *w.shape) > 0)
    half = len(s) // 2
    scales = torch.cat([s[:half], s[:half] if wrong else s[half:]]).view(2, 1, half, 1)
    folded = (w.view(2, -1, half, w.shape[2]) * scales).flatten(0, 1)
    return F.conv_transpose1d(x, folded, groups=2)


@case("product of codes: a bias with its scale is added to sums without one", "kernel-contract", "pytorch/executorch/pull/20655",
      lambda a, b, bias, s: ((a @ b).to(bias.dtype) + bias) * s,
      lambda: (whole(5, 8, most=9, least=-8).float(), whole(8, 6, most=9, least=-8, seed=4).float(),
      *drawn((6,), (6,))()))  # fmt: skip
def bias_with_its_scale(wrong: bool, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2, b.dim() == 2, a.shape[1] == len(b), bias.shape == s.shape, bias.shape == b.shape[1:])
    sums = a @ b
    return (sums + bias * s) * s if wrong else sums * s + bias * s
