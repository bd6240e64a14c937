"""Kinds of numbers that expose faults of kernels: large and small ones, outliers, ties, zeros, non-finite ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from precheck import formats

Change = Callable[[torch.Tensor, torch.Generator, formats.Format], torch.Tensor]
"""Changes float64 numbers. Takes the numbers, a generator, and the format that will store them."""


def _some(values: torch.Tensor, generator: torch.Generator, share: float) -> torch.Tensor:
    """A random mask with about that share of the elements, at least one."""
    chosen = torch.rand(values.shape, generator=generator) < share
    if values.numel() and not bool(chosen.any()):
        chosen.view(-1)[int(torch.randint(values.numel(), (), generator=generator))] = True
    return chosen


def _outliers(values: torch.Tensor, generator: torch.Generator, fmt: formats.Format) -> torch.Tensor:
    return torch.where(_some(values, generator, 0.02), values * 256, values)


def _ties(values: torch.Tensor, generator: torch.Generator, fmt: formats.Format) -> torch.Tensor:
    """Halves, of which many are equal, and eighths, which are ties of finer grids. Of smaller numbers, halves of a power of two near these."""
    typical = float(values.square().mean().sqrt()) if values.numel() else 0.0
    unit = 2.0 ** min(round(math.log2(typical)), 0) if 0 < typical < math.inf else 1.0
    return unit * torch.where(_some(values, generator, 0.25), (values / unit * 8).round() / 8, (values / unit * 2).round() / 2)


def _powers(values: torch.Tensor, generator: torch.Generator, fmt: formats.Format) -> torch.Tensor:
    """Numbers a little below a power of two, and above. A lower format rounds them to the power, so that what reads an exponent changes."""
    step = max(2.0**-13, fmt.epsilon)
    whole = torch.ldexp(values.sign(), values.abs().clamp(min=fmt.min_normal).log2().round().int())
    return whole * torch.where(_some(values, generator, 0.5), 1 - step, 1 + step)


def _zeros(values: torch.Tensor, generator: torch.Generator, fmt: formats.Format) -> torch.Tensor:
    """A row of zeros, and zeros of both signs elsewhere."""
    changed = torch.where(_some(values, generator, 0.1), torch.zeros(()).double().copysign(values), values)
    if values.dim() > 1 and len(changed):
        changed.view(-1, changed.shape[-1])[0] = 0
    return changed


def _rows(values: torch.Tensor, generator: torch.Generator, fmt: formats.Format) -> torch.Tensor:
    """Rows in which all numbers are equal."""
    return values[..., :1].expand(values.shape).clone() if values.dim() > 1 else values


def _subnormal(values: torch.Tensor, generator: torch.Generator, fmt: formats.Format) -> torch.Tensor:
    return torch.where(_some(values, generator, 0.2), values * fmt.min_normal / 4, values)


def _planted(number: float) -> Change:
    def change(values: torch.Tensor, generator: torch.Generator, fmt: formats.Format) -> torch.Tensor:
        changed = values.clone()
        if changed.numel():
            changed.view(-1)[int(torch.randint(changed.numel(), (), generator=generator))] = number
        return changed

    return change


def _at_ends(values: torch.Tensor, generator: torch.Generator, fmt: formats.Format) -> torch.Tensor:
    """-Inf as the first number of the first row and the last of the last. A largest number so far is still -Inf behind the first."""
    changed = values.clone()
    if changed.numel():
        changed.view(-1)[[0, -1]] = -math.inf
    return changed


def beside(values: torch.Tensor, number: float, generator: torch.Generator, fmt: formats.Format) -> torch.Tensor:
    """Some numbers at a threshold, of either sign, and some next to it."""
    step = max(abs(number) * fmt.epsilon, fmt.min_normal)
    near = torch.where(_some(values, generator, 0.5), number, torch.where(_some(values, generator, 0.5), number - step, number + step))
    near = torch.where(_some(values, generator, 0.25), -near, near)
    return torch.where(_some(values, generator, 0.5), near, values)


def upon(values: torch.Tensor, number: float, generator: torch.Generator) -> torch.Tensor:
    """Some numbers at a threshold, of either sign, and none next to it.

    A number next to it may be rounded onto it in an intermediate, as 1 + x is, so that correct kernels have it on either side. A sum of both
    kinds may then be off by a whole element, and one at the threshold itself, whose side is certain, would be lost among these.
    """
    at = torch.where(_some(values, generator, 0.25), -number, number)
    return torch.where(_some(values, generator, 0.5), at, values)


FAMILIES: dict[str, Change] = {
    "plain": lambda values, generator, fmt: values,
    "below": lambda values, generator, fmt: -values.abs() - 0.25,
    "above": lambda values, generator, fmt: values.abs() + 0.25,
    "large": lambda values, generator, fmt: values * 64,
    "small": lambda values, generator, fmt: values * 2.0**-10,
    "offset": lambda values, generator, fmt: values + 30,
    "offset below": lambda values, generator, fmt: values - 16 * (fmt.precision >= 24),  # exp(-16) is float32's spacing of 1
    "outliers": _outliers,
    "ties": _ties,
    "beside powers": _powers,
    "all alike": lambda values, generator, fmt: values,
    "ends": lambda values, generator, fmt: values,
    "rows twice": lambda values, generator, fmt: values,
    "zeros": _zeros,
    "equal rows": _rows,
    "rising rows": lambda values, generator, fmt: values.sort(-1).values if values.dim() else values,
    "falling rows": lambda values, generator, fmt: values.sort(-1, descending=True).values if values.dim() else values,
    "subnormal": _subnormal,
    "opposed": lambda values, generator, fmt: values.abs() + 8,
    "far below": lambda values, generator, fmt: -values.abs() * 64 - 96,
    "NaN": _planted(math.nan),
    "Inf": _planted(float("inf")),
    "-Inf": _planted(float("-inf")),
    "-Inf at ends": _at_ends,
}
SPECIAL = ("NaN", "Inf", "-Inf", "-Inf at ends")
"""Kinds that are planted into one tensor at a time, and judged by which results become non-finite."""
OPPOSED = "opposed"
"""Kind with one tensor below zero and all others above, one tensor after another. Sums of products with it are then far below zero, and where all
have one sign they never are. They are small enough for float64's powers, and for a mask of -10000."""
AT_THRESHOLDS = ("threshold", "threshold itself", "only zeros")
"""Kinds that one tensor has at a time, where the reference compares its numbers."""
ORDERED = ("rising rows", "falling rows")
"""Kinds whose rows are in order: the largest number so far changes at each place, or never."""
WITHIN = ("small", "ties", "beside powers", "equal rows", "rows twice", *ORDERED)
"""Kinds that numbers of one sign have too, between the least and the largest of the example, but for small ones."""
EQUAL = ("ties", "equal rows")
"""Kinds with equal numbers, which probabilities have too."""
LARGE = ("far below", "large", OPPOSED, "offset", "outliers")
"""Kinds with larger numbers than the example's, for which a power or a product may overflow."""
WORDS = {
    "plain": "plain numbers", "below": "numbers below zero", "above": "numbers above zero", "far below": "numbers below -96",
    "large": "numbers of about 64", "small": "numbers of about 1e-3", "offset": "numbers about 30",
    "offset below": "numbers about -16", "outliers": "outliers", "ties": "ties",
    "zeros": "zeros", "equal rows": "rows that are one number each", "subnormal": "subnormal numbers",
    "rising rows": "rising rows", "falling rows": "falling rows",
    "scaled": "numbers for which a constant of the reference matters", "ends": "shares of exactly 0 and 1", "rows twice": "each row twice",
    "all alike": "whole numbers that are all the same, and masks that are all True", "NaN": "a NaN", "Inf": "an Inf",
    OPPOSED: "numbers beyond 8, those of one input below zero and all others above",
    "-Inf": "a -Inf", "-Inf at ends": "a -Inf at either end", "beside powers": "numbers beside powers of two",
    "threshold": "numbers with which the reference compares them", "only zeros": "zeros alone",
    "threshold itself": "numbers that are exactly those with which the reference compares them",
}  # fmt: skip


def rare(family: str, number: float) -> str:
    """Where numbers of that kind are, in words, if kernels need not be right there. "" if they have to be.

    Kernels are right for numbers between 2^-10 and 2^6 of the example's, as other kinds ask. What matters beyond these is told by a warning:
    correct kernels have it in another place (torch's own derivative of a likeness of rows passes over its least length). So is a share of exactly 0
    or 1 in an example that has none, since a logarithm of it may be more than a kernel takes on.
    """
    if family == "ends":
        return "a share is exactly 0 or 1, which the reference takes"
    if family == "scaled" and not 2.0**-10 <= number <= 2.0**6:
        return f"numbers are {number:.2g} times the example's, so that a constant of the reference matters"
    return ""
