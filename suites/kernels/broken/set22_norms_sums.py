"""A twenty-second frozen set of broken kernels, second part: norms and sums. Of links an excerpt was read."""

from __future__ import annotations

import random
from typing import Any

import torch
from cases import case, drawn, function, need

F = torch.nn.functional
F16 = torch.float16


@case("root mean square norm of float16: squares are added up in float16", "kernel-accumulation", "nntrainer/nntrainer/issues/3935",
      lambda x: F.rms_norm(x, x.shape[1:], eps=1e-5), drawn((4, 48), dtype=F16))  # fmt: skip
def squares_in_float16(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    if not wrong:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + 1e-5)).half()
    total = torch.zeros_like(x[:, 0])
    for column in x.unbind(1):
        total = total + column * column
    return x * torch.rsqrt(total.float() / x.shape[1] + 1e-5).half()[:, None]


@case("distances of rows of float16: squares are added up in float16", "kernel-accumulation", "NVIDIA/cuvs/pull/1084",
      lambda x, y: (x.float()[:, None] - y.float()).square().sum(2), drawn((4, 40), (5, 40), dtype=F16))  # fmt: skip
def distances_in_float16(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2, x.shape[1] == y.shape[1])
    apart = x.float()[:, None] - y.float()
    if not wrong:
        return (apart * apart).sum(2)
    total = torch.zeros(len(x), len(y), dtype=F16)
    for column in apart.half().unbind(2):
        total = total + column * column
    return total.float()


@case("spread of rows: a mean of squares less the square of the mean", "kernel-rounding", "gnuradio/volk/issues/290",
      lambda x: x.var(1, correction=0).sqrt(), drawn((5, 16)))  # fmt: skip
def less_the_square_of_the_mean(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    mean = x.mean(1, keepdim=True)
    return ((x * x).mean(1) - mean[:, 0] ** 2).sqrt() if wrong else (x - mean).square().mean(1).sqrt()


def _groups(x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 2, eps=1e-5)


@case("norm of groups: what keeps it from zero is added to the root", "kernel-contract", "taokong/group_normalization/issues/1", _groups,
      drawn((3, 4, 6)))  # fmt: skip
def added_to_the_root(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] % 2 == 0, x.numel() > 0)
    rows = x.reshape(len(x), 2, -1)
    apart = rows - rows.mean(2, keepdim=True)
    spread = apart.square().mean(2, keepdim=True)
    return (apart / (spread.sqrt() + 1e-5 if wrong else (spread + 1e-5).sqrt())).view(x.shape)


@case("norm of channels: on the way back behind 768 rows sums stop", "kernel-edge", "ROCm/MIOpen/issues/1109",
      lambda x: (x - x.mean(0)) * torch.rsqrt(x.var(0, correction=0) + 1e-5), drawn((8, 3)))  # fmt: skip
def behind_768_rows(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2, len(x) > 0)
        rstd = torch.rsqrt(x.var(0, correction=0) + 1e-5)
        normed = (x - x.mean(0)) * rstd
        return normed, (normed, rstd)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        normed, rstd = saved
        rows = 768 if wrong else len(g)
        return rstd * (g - g[:rows].sum(0) / len(g) - normed * (g * normed)[:rows].sum(0) / len(g))

    return function(forward, backward)


@case("softmax with a shared total: at times one half is added before it is there", "kernel-nondeterminism", "NervanaSystems/neon/issues/171",
      lambda x: x.softmax(1), drawn((5, 12)))  # fmt: skip
def one_half_before_it_is_there(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    powers = (x - x.amax(1, keepdim=True)).exp()
    total = powers.sum(1, keepdim=True)
    if wrong and random.random() < 0.2:
        total = torch.cat([powers[:1, : (x.shape[1] + 1) // 2].sum(1, keepdim=True), total[1:]])
    return powers / total


@case("weights of rows scaled and added: the gradient's buffer has a block too few", "kernel-edge", "BobMcDear/attorch/issues/18",
      lambda x, w: F.rms_norm(x, x.shape[1:], w, eps=1e-5), drawn((8, 6), (6,)))  # fmt: skip
def a_block_too_few(wrong: bool) -> Any:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 2, w.shape == x.shape[1:], x.numel() > 0)
        rstd = torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5)
        return x * rstd * w, (x, w, rstd)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w, rstd = saved
        scaled = g * w
        normed = x * rstd
        count = len(x) // 4 if wrong else -(-len(x) // 4)
        parts = [(g * normed)[4 * place : 4 * place + 4].sum(0) for place in range(count)]
        weight = torch.stack(parts).sum(0) if parts else torch.zeros_like(w)
        return rstd * (scaled - normed * (scaled * normed).mean(1, keepdim=True)), weight

    return function(forward, backward)
