"""Functions that a format's kernels are built of: what is left of a difference, of a quotient, of a logarithm or of an error function."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def tanhshrink(x: torch.Tensor) -> torch.Tensor:
    """What the hyperbolic tangent leaves of a number."""
    return x - torch.tanh(x)  # culprit: shrunk-coefficients


def shrunk(dtype: torch.dtype) -> torch.Tensor:
    """Coefficients of a sparse code after their shrinkage, a third of whose cubes is left; in bfloat16 hardly any is. Off by 9 %."""
    dictionary = normal(24, 48) / 24**0.5
    codes = (0.09 * normal(32, 24, seed=1) @ dictionary).to(LOW)
    return tanhshrink(codes.to(dtype)).to(LOW).float()


def by_roots(x: torch.Tensor) -> torch.Tensor:
    """The inverse of the hyperbolic sine, by its formula."""
    return torch.log(x + torch.sqrt(x * x + 1))  # culprit: stretched-negatives


def by_log1p(x: torch.Tensor) -> torch.Tensor:
    size = x.abs()
    return torch.sign(x) * torch.log1p(size + size * size / (1 + torch.sqrt(size * size + 1)))


def stretched(stable: bool) -> torch.Tensor:
    """Stretched residuals of an image in bfloat16, between minus five and five. Off by 6 %."""
    residuals = (5 * (2 * uniform(400) - 1)).to(LOW)
    return (by_log1p(residuals) if stable else by_roots(residuals)).float()


class Stretch(torch.autograd.Function):
    """A stretch of brightness by the inverse hyperbolic sine, with a slope that is written out."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, wide: bool) -> torch.Tensor:
        context.save_for_backward(x)
        context.wide = wide
        return torch.asinh(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = context.saved_tensors
        x = x.float() if context.wide else x
        return (gradient * torch.rsqrt(x * x + 1)).to(gradient.dtype), None  # culprit: slope-of-bright-pixels


def slopes_of_brightness(wide: bool) -> torch.Tensor:
    """Gradients of a picture in half whose pixels are between ninety and two thousand; from 256 on they are nought. Off by 35 %."""
    pixels = (90 + 1900 * uniform(16, 16).square()).to(HALF).requires_grad_()
    Stretch.apply(pixels, wide).float().sum().backward()
    assert pixels.grad is not None
    return pixels.grad.float()


class Gate(torch.autograd.Function):
    """A GELU whose slope is put together from ops: half of one and the error function, and the density."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, by_complement: bool) -> torch.Tensor:
        context.save_for_backward(x)
        context.by_complement = by_complement
        return functional.gelu(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = context.saved_tensors
        if context.by_complement:
            wide = x.float()
            slope = 0.5 * torch.special.erfc(-0.7071067811865476 * wide) + wide * torch.exp(-0.5 * wide * wide) * 0.3989422804014327
            return gradient * slope.to(x.dtype), None
        below = 0.5 * (1 + torch.erf(0.7071067811865476 * x))  # culprit: slope-of-shut-gates
        density = torch.exp(-0.5 * x * x) * 0.3989422804014327
        return gradient * (below + x * density), None


def slopes_of_gates(by_complement: bool) -> torch.Tensor:
    """Gradients of gates that are nearly shut, between minus four and minus 2.8, in bfloat16. Off by 5 %."""
    gates = (-2.8 - 1.2 * uniform(96)).to(LOW).requires_grad_()
    Gate.apply(gates, by_complement).float().sum().backward()
    assert gates.grad is not None
    return gates.grad.float()


def left_over(x: torch.Tensor, divisor: torch.Tensor, by_reciprocal: bool) -> torch.Tensor:
    """What is left of numbers after whole multiples of a divisor."""
    if by_reciprocal:
        times = torch.trunc(x * (1 / divisor))  # culprit: place-in-a-cell
        return x - times * divisor  # culprit: place-in-a-cell
    return torch.fmod(x.float(), divisor.float()).to(x.dtype)


def places_in_cells(by_reciprocal: bool) -> torch.Tensor:
    """Places of points within the cells of a grid, which are three thirty-seconds wide, in bfloat16, which has both. Off by 200 %."""
    return left_over((16 + 176 * uniform(200)).floor().to(LOW) / 16, torch.tensor(0.09375, dtype=LOW), by_reciprocal).float()


def recalibrated(chances: torch.Tensor, temperature: float, dtype: torch.dtype) -> torch.Tensor:
    """Log odds of chances, by a temperature."""
    p = chances.to(dtype)
    return torch.log(p / (1 - p)) / temperature  # culprit: even-chances


def odds_of_even_games(dtype: torch.dtype) -> torch.Tensor:
    """Log odds of games that are nearly even, whose chances are kept in bfloat16. Off by 4 %."""
    return recalibrated(((123 + 11 * uniform(300)).floor() / 256).to(LOW), 0.7, dtype).float()


BUGS = (
    Bug("shrunk-coefficients", "tenstorrent/tt-metal#47323", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: shrunk(LOW),
        lambda: shrunk(WIDE)),
    Bug("stretched-negatives", "tenstorrent/tt-metal#47067", ("cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: stretched(False), lambda: stretched(True),
        expected_miss="its result is off by 5 unit roundoffs of bfloat16 (1.9 % of its norm), and a function that computes low may be off by 13"),
    Bug("slope-of-bright-pixels", "tenstorrent/tt-metal#55725", ("overflow",), "aten.mul.Tensor", lambda: slopes_of_brightness(False),
        lambda: slopes_of_brightness(True), phase="backward"),
    Bug("slope-of-shut-gates", "tenstorrent/tt-metal#38643", ("cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: slopes_of_gates(False), lambda: slopes_of_gates(True), phase="backward"),
    Bug("place-in-a-cell", "tenstorrent/tt-metal#56384", ("amplified-rounding", "cancellation", "decision-flip", "integer-rounding"),
        "aten.mul.Tensor", lambda: places_in_cells(True), lambda: places_in_cells(False)),
    Bug("even-chances", "tenstorrent/tt-metal#46471", ("amplified-rounding", "cancellation"), "aten.div.Tensor",
        lambda: odds_of_even_games(LOW), lambda: odds_of_even_games(WIDE),
        expected_miss="its result is off by 7 unit roundoffs of bfloat16 (2.8 % of its norm), and a function that computes low may be off by 13"),
)  # fmt: skip
