"""A decay that is so near to one that a low state keeps each number: what was added is never forgotten."""

from __future__ import annotations

import pytest
import torch

import precheck
from precheck.findings import Finding

LOW, HALF, WIDE = torch.bfloat16, torch.float16, torch.float32


def errors(decay: float, dtype: torch.dtype, steps: int, size: float = 1.0) -> list[Finding]:
    """What is found in the running mean of squared gradients, as a hand-written optimizer keeps it."""
    generator = torch.Generator().manual_seed(0)
    with precheck.watch() as report:
        squares = torch.zeros(64, dtype=dtype)
        for _ in range(steps):
            gradient = size * torch.randn(64, generator=generator)
            squares.mul_(decay)
            squares.add_((1 - decay) * gradient.square())
    return report.errors


def test_a_decay_without_effect() -> None:
    [error] = errors(0.999, LOW, 16)
    assert (error.rule, error.op) == ("absorption", "aten.mul_.Tensor")
    assert "factors of 0.999 changed no element: the numbers of bfloat16 are at least 0.39% apart" in error.message
    assert "what was added is never forgotten" in error.message


@pytest.mark.parametrize(
    ("decay", "dtype", "steps"),
    [
        (0.999, WIDE, 16),
        (0.999, HALF, 16),  # neighbours in float16 are 0.05 % apart
        (0.99, LOW, 16),
        (0.999, LOW, 6),  # too few to tell
        (1.0, LOW, 16),  # a plain sum is meant
    ],
)
def test_a_decay_that_arrives_or_is_none(decay: float, dtype: torch.dtype, steps: int) -> None:
    assert errors(decay, dtype, steps) == []


def test_a_small_decay_needs_more_steps() -> None:
    """Together the factors have to change what the format can show: 0.9999 needs 78 of them."""
    assert errors(0.9999, LOW, 40) == []
    assert [error.op for error in errors(0.9999, LOW, 100)] == ["aten.mul_.Tensor"]


def test_an_average_that_stands_still() -> None:
    """Where the additions are lost as well, how much of the updates arrived is what is told."""
    with precheck.watch() as report:
        average, followed = torch.ones(64, dtype=LOW), 1.5 * torch.ones(64)
        for _ in range(40):
            average.mul_(0.999)
            average.add_(0.001 * followed)
    assert report.errors
    assert all("updates in a row should add arrived" in error.message for error in report.errors)


def test_factors_of_what_a_forward_pass_has_just_made() -> None:
    """Each is one rounding of another tensor, and no state."""
    with precheck.watch() as report:
        kept = [torch.randn(64, generator=torch.Generator().manual_seed(seed)).to(LOW).mul_(0.999) for seed in range(20)]
    del kept
    assert report.errors == []
