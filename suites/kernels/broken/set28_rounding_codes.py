"""The twenty-eighth frozen set of broken kernels, third part: rounding, sums, codes. Of links an excerpt was read."""

from __future__ import annotations

import functools
from typing import Any

import torch
from cases import case, drawn, need, whole, wide

F = torch.nn.functional


@case("logarithm of one plus a number: the one is added first", "kernel-rounding", "CE-Programming/toolchain/issues/515",
      lambda x: x.square().log1p(), drawn((4, 8)))  # fmt: skip
def the_one_is_added_first(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    square = x.square()
    return (1 + square).log() if wrong else torch.special.xlog1py(torch.ones_like(square), square)


@case("what a gain leaves, power less one: the one is taken away last", "kernel-rounding", "apache/spark/pull/1659",
      lambda x: x.clamp(max=20).expm1(), drawn((4, 8)))  # fmt: skip
def the_one_is_taken_away_last(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    up = x.clamp(max=20)
    if wrong:
        return up.exp() - 1
    half = (up / 2).tanh()
    return torch.where(up.abs() < 0.5, 2 * half / (1 - torch.where(up.abs() < 0.5, half, 0)), up.exp() - 1)


@case("variance of each window of four: kept up as numbers come and go", "kernel-rounding", "pandas-dev/pandas/pull/63048",
      lambda x: x.unfold(0, 4, 1).var(1), drawn((12,)))  # fmt: skip
def kept_up_as_numbers_come_and_go(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, len(x) >= 4)
    if not wrong:
        windows = torch.stack([x[at : len(x) - 3 + at] for at in range(4)])
        return (windows - windows.sum(0) / 4).square().sum(0) / 3
    mean = x[:4].mean()
    out = [(x[:4] - mean).square().sum()]
    for at in range(4, len(x)):
        before, mean = mean, mean + (x[at] - x[at - 4]) / 4
        out.append(out[-1] + (x[at] - x[at - 4]) * (x[at] - mean + x[at - 4] - before))
    return torch.stack(out) / 3


@case("softmax: powers that are infinite share one, and the others have none", "kernel-rounding", "open-edge-platform/geti/pull/1507",
      lambda x: x.softmax(1), drawn((3, 7)))  # fmt: skip
def powers_that_are_infinite_share_one(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    if not wrong:
        return (x - x.logsumexp(1, keepdim=True)).exp()
    powers = x.exp()
    endless = powers == torch.inf
    count = endless.sum(1, keepdim=True)
    shares = powers.masked_fill(endless, 0) / (powers.masked_fill(endless, 0).sum(1, keepdim=True) + 1e-30)
    return torch.where(count > 0, endless.to(x.dtype) / count.clamp(min=1), shares)


@case("how two columns vary together: the mean product less the product of means", "kernel-rounding",
      "OxWearables/biobankAccelerometerAnalysis/issues/69", lambda x, y: ((x - x.mean()) * (y - y.mean())).mean(),
      lambda: tuple(each + 20 for each in drawn((16,), (16,))()))  # fmt: skip
def mean_product_less_product_of_means(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, x.shape == y.shape, len(x) > 0)
    if wrong:
        return (x * y).mean() - x.mean() * y.mean()
    return torch.dot(x - x.sum() / len(x), y - y.sum() / len(y)) / len(x)


@wide
def _rope(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] == 8, at.shape == x.shape[:1])
    phase = at[:, None].float() * 1000.0 ** (-torch.arange(4) / 4)
    one, two = x.chunk(2, 1)
    return torch.cat([one * phase.cos() - two * phase.sin(), two * phase.cos() + one * phase.sin()], 1)


@case("rope in bfloat16: phases are taken in it, too", "kernel-rounding", "keras-team/keras-hub/pull/1497", _rope,
      lambda: (*drawn((6, 8), dtype=torch.bfloat16)(), whole(6, most=500)))  # fmt: skip
def phases_are_taken_in_it(wrong: bool, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] == 8, at.shape == x.shape[:1])
    kind = x.dtype if wrong else torch.float32
    phase = at[:, None].to(kind) * (1000.0 ** (-torch.arange(4) / 4)).to(kind)
    cos, sin = phase.cos().float(), phase.sin().float()
    one, two = x.float().chunk(2, 1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], 1).to(x.dtype)


def _spread(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return F.layer_norm(x, x.shape[1:])


@case("layer norm in float16: squares are added up in it", "kernel-accumulation", "SKaiNET-developers/SKaiNET/issues/1281", wide(_spread),
      drawn((4, 24), dtype=torch.float16))  # fmt: skip
def squares_are_added_up_in_it(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    up = x.float() - x.float().mean(1, keepdim=True)
    total = torch.zeros(len(x), dtype=x.dtype if wrong else torch.float32)
    for column in up.to(total.dtype).unbind(1):
        total = total + column * column
    return (up * (total.float() / x.shape[1] + 1e-5).rsqrt()[:, None]).to(x.dtype)


@functools.cache
def _coded(wrong: bool) -> Any:
    """An operator: numbers in eight bits and back, with a zero between the least and the largest. The wrong one moves the zero into its range."""

    def coded(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2, x.shape[1] > 1)
        least, most = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
        if not wrong:
            least, most = least.clamp(max=0), most.clamp(min=0)
        scale = ((most - least) / 255).clamp(min=1e-6)
        zero = (-128 - least / scale).round().clamp(-128, 127)
        return (((x / scale).round() + zero).clamp(-128, 127) - zero) * scale

    made = torch.library.custom_op(f"set28::coded_{'wrong' if wrong else 'right'}", coded, mutates_args=())
    made.register_fake(torch.empty_like)
    made.register_autograd(lambda ctx, g: g)
    return made


def _levels(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    least, most = x.detach().amin(1, keepdim=True).clamp(max=0), x.detach().amax(1, keepdim=True).clamp(min=0)
    scale = ((most - least) / 255).clamp(min=1e-6)
    zero = (-128 - least / scale).round().clamp(-128, 127)
    found = (((x.detach() / scale).round() + zero).clamp(-128, 127) - zero) * scale
    return x + (found - x.detach())


@case("rows in eight bits and back, an operator: of rows without a zero the place of zero is cut off", "kernel-contract",
      "TrenTorch/TrenTorch/pull/191", _levels, lambda: (torch.cat([drawn((3, 6))()[0], drawn((2, 6))()[0].abs() + 2]),))  # fmt: skip
def place_of_zero_is_cut_off(wrong: bool) -> Any:
    return _coded(wrong)
