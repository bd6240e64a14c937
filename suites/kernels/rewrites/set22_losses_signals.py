"""The twenty-second frozen set of healthy kernels, first part: losses, activations, norms, signals. Committed before any was tried."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import function, need, rewrite, shapes

F = torch.nn.functional


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


@rewrite("huber loss by what is cut off", _wide(lambda x, t: F.huber_loss(x, t, reduction="none")), shapes((4, 6), (4, 6)))
def by_what_is_cut_off(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(x.shape == t.shape)
    e = x.float() - t.float()
    near = e.clamp(-1, 1)
    return (near * near / 2 + (e - near).abs()).to(x.dtype)


@rewrite("quantile loss by one largest", _wide(lambda x, t: torch.where(t >= x, 0.3 * (t - x), 0.7 * (x - t))), shapes((4, 6), (4, 6)))
def by_one_largest(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(x.shape == t.shape)
    e = t.float() - x.float()
    return torch.maximum(0.3 * e, -0.7 * e).to(x.dtype)


@rewrite("logarithm of a cosh, of the magnitude", _wide(lambda x: F.softplus(-2 * x) + x - math.log(2)), shapes((5, 7)))
def of_the_magnitude(x: torch.Tensor) -> torch.Tensor:
    size = x.float().abs()
    return (size + torch.log1p((-2 * size).exp()) - math.log(2)).to(x.dtype)


@rewrite("scaled exponential unit, its way back from the result", _wide(F.selu), shapes((5, 7)))
def way_back_from_the_result(x: torch.Tensor) -> torch.Tensor:
    scale, alpha = 1.0507009873554805, 1.6732632423543772

    def forward(v: torch.Tensor) -> Any:
        y = scale * torch.where(v > 0, v, alpha * torch.expm1(v))
        return y, (v, y)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        return g * torch.where(saved[0] > 0, scale, saved[1] + scale * alpha)

    return function(forward, backward)(x.float()).to(x.dtype)


@rewrite("softplus by a largest and a small rest", _wide(F.softplus), shapes((5, 7)))
def largest_and_rest(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return function(lambda v: (v.clamp(min=0) + torch.log1p((-v.abs()).exp()), (v,)), lambda saved, g: g * torch.sigmoid(saved[0]))(wide).to(x.dtype)


@rewrite("mish by powers", _wide(F.mish), shapes((5, 7)))
def by_powers(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    power = wide.clamp(max=20).exp()
    inner = power * (power + 2)
    return torch.where(wide > 20, wide, wide * (inner / (inner + 2))).to(x.dtype)


@rewrite("norm of groups, two passes", lambda x: F.group_norm(x, 2), shapes((3, 4, 8)))
def two_passes(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] % 2 == 0, x.numel() > 0)
    rows = x.float().reshape(len(x), 2, -1)
    apart = rows - rows.sum(2, keepdim=True) / rows.shape[2]
    return (apart / (apart.square().sum(2, keepdim=True) / rows.shape[2] + 1e-5).sqrt()).view(x.shape).to(x.dtype)


@rewrite("channels normed by their neighbours, shifted sums", _wide(lambda x: F.local_response_norm(x, 3, alpha=1.0, beta=0.5, k=2.0)),
      shapes((3, 5, 4)))  # fmt: skip
def shifted_sums(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.numel() > 0)
    squares = x.float().square()
    total = squares.clone()
    total[:, 1:] = total[:, 1:] + squares[:, :-1]
    total[:, :-1] = total[:, :-1] + squares[:, 1:]
    return (x.float() * torch.rsqrt(2 + total / 3)).to(x.dtype)


@rewrite("rows of length one, by the largest first", _wide(lambda x: x / x.square().sum(1, keepdim=True).sqrt().clamp(min=1e-6)), shapes((5, 8)))
def by_the_largest_first(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    wide = x.float()
    return function(_unit, _unit_back)(wide).to(x.dtype)


def _unit(v: torch.Tensor) -> Any:
    length = torch.linalg.vector_norm(v, dim=1, keepdim=True)
    return v / length.clamp(min=1e-6), (v, length)


def _unit_back(saved: Any, g: torch.Tensor) -> torch.Tensor:
    v, length = saved
    unit = v / length.clamp(min=1e-6)
    inner = g - unit * (g * unit).sum(1, keepdim=True) * (length >= 1e-6)
    return inner / length.clamp(min=1e-6)


@rewrite("variance of rows, halves joined", _wide(lambda x: x.var(1, correction=0)), shapes((5, 16)))
def halves_joined(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    wide = x.float()
    parts = [each for each in wide.split((x.shape[1] + 1) // 2, 1) if each.shape[1]]
    means = [each.mean(1) for each in parts]
    mean = sum(each.shape[1] * m for each, m in zip(parts, means, strict=True)) / x.shape[1]
    inner = sum((each - m[:, None]).square().sum(1) + each.shape[1] * (m - mean).square() for each, m in zip(parts, means, strict=True))
    return (inner / x.shape[1]).to(x.dtype)


@rewrite("divergence of shares, by their logarithms",
      _wide(lambda x, y: F.kl_div(x.log_softmax(1), y.log_softmax(1), reduction="none", log_target=True).sum(1)),
         shapes((4, 6), (4, 6)))  # fmt: skip
def by_their_logarithms(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape)
    one, two = x.float().log_softmax(1), y.float().log_softmax(1)
    return (two.softmax(1) * (two - one)).sum(1).to(x.dtype)


@rewrite("twice as many numbers, by slices", lambda x: F.interpolate(x[:, None], scale_factor=2, mode="linear", align_corners=False)[:, 0],
      shapes((3, 8)))  # fmt: skip
def by_slices(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    wide = x.float()
    before, after = torch.cat([wide[:, :1], wide[:, :-1]], 1), torch.cat([wide[:, 1:], wide[:, -1:]], 1)
    return torch.stack([0.25 * before + 0.75 * wide, 0.75 * wide + 0.25 * after], 2).flatten(1).to(x.dtype)


@rewrite("numbers smoothed, by a matrix", _wide(lambda x: F.conv1d(x[:, None], torch.tensor([[[0.25, 0.5, 0.25]]]), padding=1)[:, 0]), shapes((3, 9)))
def by_a_matrix(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0, bool(x.isfinite().all()))
    places = torch.arange(x.shape[1])
    far = (places[:, None] - places).abs()
    return (x.float() @ torch.where(far == 0, 0.5, torch.where(far == 1, 0.25, 0.0))).to(x.dtype)


@rewrite("sums of windows, from sums so far of blocks", lambda x: F.avg_pool1d(x[:, None], 4, 4)[:, 0], shapes((3, 12)))
def from_blocks(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 4)
    blocks = x.shape[1] // 4
    return torch.einsum("nbk->nb", x[:, : 4 * blocks].float().view(len(x), blocks, 4)).div(4).to(x.dtype)


@rewrite("sums from behind, by a triangle", _wide(lambda x: x.flip(1).cumsum(1).flip(1)), shapes((3, 9)))
def by_a_triangle(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, bool(x.isfinite().all()))
    return (x.float() @ torch.ones(x.shape[1], x.shape[1]).tril()).to(x.dtype)


@rewrite("a turn by an angle, as a product of complex numbers", _wide(lambda x, y, a: x * a.cos() - y * a.sin()), shapes((4, 5), (4, 5), (4, 5)))
def product_of_complex(x: torch.Tensor, y: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape == a.shape)
    wide = a.float()
    return torch.view_as_real(torch.complex(x.float(), y.float()) * torch.polar(torch.ones_like(wide), wide))[..., 0].to(x.dtype)
