"""Functions and light in short formats that are written so that nothing cancels, overflows or is compared with noise."""

from __future__ import annotations

import math
from typing import Any

import torch
from bugs.bug import normal, uniform

HALF, LOW = torch.float16, torch.bfloat16


def shrinkage_by_a_series() -> torch.Tensor:
    """What the hyperbolic tangent leaves of a number in bfloat16, by its series where the number is small and by a difference where it is not."""
    x = (1.5 * normal(300)).to(LOW)
    square = x * x
    series = x * square * (1 / 3 - square * (2 / 15 - square * (17 / 315)))
    return torch.where(x.abs() < 0.6, series, x - torch.tanh(x)).float()


def stretch_by_log1p() -> torch.Tensor:
    """The inverse hyperbolic sine in bfloat16 of sizes, with the sign put back: its argument is never a difference."""
    x = (6 * (2 * uniform(300) - 1)).to(LOW)
    size = x.abs()
    return (torch.sign(x) * torch.log1p(size + size * size / (1 + torch.sqrt(size * size + 1)))).float()


class BoundedSlope(torch.autograd.Function):
    """A stretch whose slope is written out for large numbers by their reciprocals, whose squares are in half's range."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return torch.asinh(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = context.saved_tensors
        size = x.abs().clamp(min=1)
        small, large = x.clamp(-1, 1), 1 / size
        return gradient * torch.where(x.abs() > 1, large * torch.rsqrt(1 + large * large), torch.rsqrt(1 + small * small))


def slope_by_reciprocals() -> torch.Tensor:
    """Gradients of a stretch in half, of pixels up to a thousand."""
    pixels = (1000 * uniform(200).square()).to(HALF).requires_grad_()
    BoundedSlope.apply(pixels).float().sum().backward()
    assert pixels.grad is not None
    return pixels.grad.float()


class OpenGate(torch.autograd.Function):
    """A GELU with a slope that is put together from ops."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return torch.nn.functional.gelu(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = context.saved_tensors
        below = 0.5 * (1 + torch.erf(0.7071067811865476 * x))
        return gradient * (below + x * torch.exp(-0.5 * x * x) * 0.3989422804014327)


def slope_of_open_gates() -> torch.Tensor:
    """Gradients of gates in bfloat16 that are open: one and an error function are added there, and nothing cancels."""
    gates = (3 * uniform(200)).to(LOW).requires_grad_()
    OpenGate.apply(gates).float().sum().backward()
    assert gates.grad is not None
    return gates.grad.float()


def cells_of_a_power_of_two() -> torch.Tensor:
    """Places within cells that are an eighth wide, in half: quotient, product and difference are exact."""
    x = ((1920 * uniform(300)).floor() / 64).to(HALF)
    return (x - torch.floor(x * 8) * 0.125).float()


def odds_that_are_clear() -> torch.Tensor:
    """Log odds of chances far from a half, in bfloat16."""
    p = torch.cat([0.03 + 0.2 * uniform(100), 0.75 + 0.2 * uniform(100, seed=1)]).to(LOW)
    return (torch.log(p / (1 - p)) / 1.3).float()


def unit(axis: tuple[float, float, float], spread: float, seed: int) -> torch.Tensor:
    found = torch.tensor(axis) + spread * normal(300, 3, seed=seed)
    return (found / found.norm(dim=-1, keepdim=True)).to(HALF)


def highlight_of_a_rough_wall() -> torch.Tensor:
    """The distribution of Trowbridge and Reitz in half, of a wall so rough that what is below the line stays near one."""
    cosine = (unit((0.3, 0.9, 0.2), 0.3, 0) * unit((0.3, 0.9, 0.2), 0.3, 1)).sum(-1)
    below = cosine * cosine * (0.9**4 - 1) + 1
    return (0.9**4 / (math.pi * below * below)).float()


def sheen_of_a_curtain() -> torch.Tensor:
    """A sheen whose exponent is four, by cosines in half."""
    return ((unit((0.1, 0.5, 0.85), 0.2, 2) * unit((0.1, 0.5, 0.85), 0.2, 3)).sum(-1).clamp(min=0) ** 4).float()


def light_of_a_small_panel() -> torch.Tensor:
    """Light of a panel of two metres in half, whose area and distances have squares in range."""
    points = torch.cat([6 * (2 * uniform(64, 2) - 1), 2 + uniform(64, 1, seed=1)], -1).to(HALF)
    side, distance = torch.tensor(2.0, dtype=HALF), points.norm(dim=-1)
    return (side * side / math.pi / distance / distance).float()


def light_along_a_wide_rim() -> torch.Tensor:
    """Sines of angles between thirty and ninety degrees, by clamped cosines in half."""
    cosine = (unit((1.0, 0.2, 0.1), 0.2, 4) * torch.tensor([0.3, 0.3, 0.9]).to(HALF)).sum(-1).clamp(-1, 1)
    return torch.sqrt(1 - cosine * cosine).float()


def probe_of_few_rays() -> torch.Tensor:
    """A probe of light in half whose eight rays are each a share of the mean before they are added."""
    light = torch.zeros(3, dtype=HALF)
    for frame in range(6):
        mean = torch.zeros(3, dtype=HALF)
        for ray in (900 * uniform(8, 3, seed=frame)).to(HALF):
            mean = mean + ray * 0.125
        light = torch.lerp(light, mean, 0.5)
    return light.float()


IDIOMS = (
    shrinkage_by_a_series, stretch_by_log1p, slope_by_reciprocals, slope_of_open_gates, cells_of_a_power_of_two, odds_that_are_clear,
    highlight_of_a_rough_wall, sheen_of_a_curtain, light_of_a_small_panel, light_along_a_wide_rim, probe_of_few_rays,
)  # fmt: skip
