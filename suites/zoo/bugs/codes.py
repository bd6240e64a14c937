"""Integer codes with their scales and zero points, and neighbours among points that were stored in half precision."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def faint_rows(wide: bool) -> torch.Tensor:
    """Rows coded in 8 bits by scales of their own. Cast to half for the division, the scale of a faint row is zero, and replaced by 6e-5."""
    x = (normal(4, 32) * torch.tensor([[1.0], [1e-2], [2e-6], [1e-6]])).half()
    scale = x.float().abs().amax(1, keepdim=True) / 127
    by = scale if wide else scale.to(x.dtype)  # culprit: int8-scale
    by = torch.where(by == 0, torch.full_like(by, torch.finfo(by.dtype).tiny), by)
    codes = (x.to(by.dtype) / by).round().clamp(-127, 127).to(torch.int8)
    return (codes.float() * scale) / x.float().abs().amax(1, keepdim=True)


def dequantised(small_first: bool) -> torch.Tensor:
    """Sums of products of codes, times a large scale of the weights and a small one of the inputs, in this order in half precision."""
    inputs, weights = (normal(8, 128) * 30).round().clamp(-127, 127).int(), (normal(128, 16, seed=1) * 3).round().clamp(-8, 7).int()
    sums, of_weights, of_inputs = (inputs @ weights).half(), torch.full((16,), 127.0).half(), torch.full((8, 1), 0.008).half()
    return sums * of_inputs * of_weights if small_first else sums * of_weights * of_inputs  # culprit: dequantise-order


def cached_values(dtype: torch.dtype) -> torch.Tensor:
    """Values of a cache in 4 bits, with scale and zero point in half precision; a sink of attention lies beyond its range."""
    values = normal(6, 32).to(LOW)
    values[2, 5] = -90_000.0
    low, high = values.float().amin(1, keepdim=True), values.float().amax(1, keepdim=True)
    scale, zero = ((high - low) / 15).to(dtype), low.to(dtype)  # culprit: zero-point
    codes = ((values.float() - zero.float()) / scale.float()).round().clamp(0, 15)
    return codes * scale.float() + zero.float()


def neighbours(dtype: torch.dtype) -> torch.Tensor:
    """Distances to the four nearest of 1200 points on a half moon, which lie 2e-3 apart; the index keeps its points in half precision."""
    turn = torch.arange(1200) * (torch.pi / 1200)
    points = torch.stack((turn.cos(), turn.sin()), 1) + 1e-3 * uniform(1200, 2)
    points = points.to(dtype).float()  # culprit: near-duplicates
    apart = (points[:, None] - points).square().sum(-1).sqrt()
    return apart.topk(5, largest=False).values[:, 1:]


def averaged(drawn_anew: bool) -> torch.Tensor:
    """Gradients of 32 steps in four bits, rounded by chance and averaged. Each launch of the kernel takes the seed 0."""
    mean, total = 0.1 * normal(32, 32, seed=1), torch.zeros(32, 32)
    for step in range(32):
        gradient = mean + 0.002 * normal(32, 32, seed=step + 2)
        scale = gradient.abs().amax(1, keepdim=True) / 7
        drawn = torch.rand(gradient.shape, generator=torch.Generator().manual_seed(1000 + step if drawn_anew else 1000))
        codes = torch.floor(gradient / scale + drawn).clamp(-8, 7)  # culprit: seed-of-each-launch
        total += codes * scale
    return (total / 32).to(LOW)


BUGS = (
    Bug("seed-of-each-launch", "AMD-AGI/Primus-Turbo#365", ("biased-rounding",), "aten.floor.default", lambda: averaged(False),
        lambda: averaged(True)),
    Bug("int8-scale", "Comfy-Org/comfy-kitchen#60", ("amplified-rounding", "underflow"), "aten._to_copy.default", lambda: faint_rows(False),
        lambda: faint_rows(True)),
    Bug("dequantise-order", "openvinotoolkit/openvino#34528", ("overflow",), "aten.mul.Tensor", lambda: dequantised(False),
        lambda: dequantised(True)),
    Bug("zero-point", "vllm-project/vllm#53334", ("overflow", "nan"), "aten._to_copy.default", lambda: cached_values(HALF),
        lambda: cached_values(WIDE)),
    Bug("near-duplicates", "NVIDIA/cuvs#195", ("cancellation", "amplified-rounding"), "aten._to_copy.default", lambda: neighbours(HALF),
        lambda: neighbours(WIDE), expected_miss="there and back on one line is a rounding that is meant, so the reference rounds too"),
)  # fmt: skip
