"""Sizes that are equal in an example are told apart where a tensor has both, and what is wrong then is a warning."""

from __future__ import annotations

import pytest
import torch

import precheck

SQUARE = torch.linspace(-2, 3, 25).reshape(5, 5)


def _transposed_place(x: torch.Tensor) -> torch.Tensor:
    """The sum of rows, each divided by the number of rows, where the number of columns is due."""
    return x.sum(1) / len(x)


def _warned(candidate: object, reference: object, x: torch.Tensor = SQUARE) -> list[str]:
    report = precheck.compare_kernels(candidate, reference, x, gradients=False, budget=0.5)
    assert not report.errors, report.summary()
    return [str(each) for each in report.findings if each.rule == "kernel-edge"]


def test_a_kernel_that_takes_the_height_for_the_width_is_warned_of() -> None:
    (told,) = _warned(_transposed_place, lambda x: x.sum(1) / x.shape[1])
    assert "where two sizes of 5 differ" in told
    assert "refuse others" in told


def _refuses(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] != x.shape[1]:
        raise ValueError("a square is needed")
    return _transposed_place(x)


@pytest.mark.parametrize("candidate", [lambda x: x.sum(1) / x.shape[1], _refuses])
def test_a_kernel_that_is_right_or_refuses_what_is_no_square_is_not(candidate: object) -> None:
    assert not _warned(candidate, lambda x: x.sum(1) / x.shape[1])


def test_sizes_that_the_reference_does_not_take_apart_stay_equal() -> None:
    """A product with itself is refused by the reference for what is no square, so that nothing is asked of the candidate."""
    assert not _warned(lambda x: torch.einsum("ij,ji->i", x, x) * (1 + len(x) - x.shape[1]), lambda x: (x @ x).diagonal())
