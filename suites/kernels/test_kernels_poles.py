"""Next to a pole of the reference nothing is known, not even that a result is finite. Elsewhere what is not finite is a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import need

import precheck

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(3)).abs() + 0.5
SQUARES = torch.randn(5, 2, 2, generator=torch.Generator().manual_seed(4)) + 3 * torch.eye(2)
"""Matrices with an inverse. Trials make others of them whose rows are one number each: an elimination in float64 leaves 1e-17 of a determinant."""
TRIALS = 40


def _inverse(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1:] == (2, 2), bool(x.isfinite().all()))
    return torch.linalg.inv(x)


def _by_determinants(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1:] == (2, 2))
    (p, q), (r, s) = x[:, 0].unbind(1), x[:, 1].unbind(1)
    return torch.stack([s, -q, -r, p], 1).unflatten(1, (2, 2)) / (p * s - q * r)[:, None, None]


def _errors(candidate: Callable[..., Any], reference: Callable[..., Any], gradients: bool = True, x: torch.Tensor = X) -> list[str]:
    return [each.rule for each in precheck.compare_kernels(candidate, reference, (x,), trials=TRIALS, gradients=gradients).errors]


@pytest.mark.parametrize("gradients", [False, True])
def test_an_infinity_is_no_fault_where_the_reference_divides_by_nothing_but_rounding(gradients: bool) -> None:
    assert not _errors(_by_determinants, _inverse, gradients, SQUARES)


def test_a_wrong_inverse_is_one_all_the_same() -> None:
    assert _errors(lambda x: _by_determinants(x).mT, _inverse, False, SQUARES) == ["kernel-contract"]


@pytest.mark.parametrize(("candidate", "reference"), [
    (lambda x: x.square() / (x - x), lambda x: x.square() / (x - x + 1e-3 * x)),  # a thousandth is more than rounding
    (lambda x: (x * 60).exp() / (x * 60).exp(), lambda x: (x * 60 - x * 60).exp()),  # it overflows
    (lambda x: (x - x.amax()) / (x - x.amax()), lambda x: (x - x.amax()) / (x - x.amax() - 1e-6)),  # zero, where it is crossed
    (lambda x: (x - x.amin()).square() / (x - x.amin()), lambda x: x - x.amin()),  # a least one
    (lambda x: torch.where(x > X[0, 0], 1, 0) / (x - X[0, 0] != 0), lambda x: torch.where(x > float(X[0, 0]), 1.0, 0.0)),  # a jump
], ids=["near", "overflow", "zero", "least", "jump"])  # fmt: skip
def test_elsewhere_it_is_one(candidate: Callable[..., Any], reference: Callable[..., Any]) -> None:
    assert _errors(candidate, reference, False)
