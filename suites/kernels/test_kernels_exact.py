"""What float64 does not know itself, and what a chain in logarithms rounds: correct kernels of both pass, broken ones do not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import precheck


def one_sigmoid(x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    """Gelu by tanh. Far below zero it is a number of 1e-36, where one plus a tanh is 0 in float64 too."""
    wide = x.float() * factor
    return (wide * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide))).to(x.dtype)


def by_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_float64_rounds_to_zero_may_be_another_number(dtype: torch.dtype) -> None:
    x = torch.linspace(-10, -6, 64).view(4, 16).to(dtype)
    assert precheck.compare_kernels(one_sigmoid, by_tanh, x, trials=20).verdict in ("rounding", "bitwise")


def test_a_wrong_number_beside_it_is_found() -> None:
    x = torch.linspace(-10, -2, 64).view(4, 16).bfloat16()
    report = precheck.compare_kernels(lambda x: one_sigmoid(x, 1.03), by_tanh, x, trials=10)
    assert [each.rule for each in report.errors] == ["kernel-contract"]


def test_what_float64_says_otherwise_of_large_numbers_is_no_doubt() -> None:
    """A difference in float64 of more than its roundings is another function, and not what float64 leaves open."""
    x = torch.linspace(1e3, 2e3, 64).view(4, 16)
    report = precheck.compare_kernels(lambda x: x * x + 3e-6 * x.flip(0) * x, lambda x: x * x, x, trials=10)
    assert report.errors


def stepwise(low: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        total, made = None, []
        for column in x.float().unbind(-1):
            total = column if total is None else torch.logaddexp(total, column).to(low).float()
            made.append(total)
        return torch.stack(made, -1).to(x.dtype) if made else torch.zeros_like(x)

    return kernel


@pytest.mark.parametrize(("low", "wrong"), [(torch.float32, False), (torch.float16, True), (torch.bfloat16, True)])
def test_logarithms_of_sums_in_a_chain(low: torch.dtype, wrong: bool) -> None:
    x = torch.rand(3, 1025, generator=torch.Generator().manual_seed(0))
    report = precheck.compare_kernels(stepwise(low), lambda x: torch.logcumsumexp(x, -1), x, trials=60, gradients=False)
    assert bool(report.errors) == wrong, report.summary()
