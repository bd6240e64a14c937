"""A constant that is left out shows where there are few terms, and is another function there; what is wrong by its size stays an edge."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import precheck

SHARES = torch.rand(3, 40, generator=torch.Generator().manual_seed(2)) + 1


def _smoothed(x: torch.Tensor) -> torch.Tensor:
    return (x[:, ::2].sum(1) + 1e-5) / (x.sum(1) + 1e-5)


def _without(x: torch.Tensor) -> torch.Tensor:
    return x[:, ::2].sum(1) / (x.sum(1) + 1e-5)


def _twice(x: torch.Tensor) -> torch.Tensor:
    return (x[:, ::2].sum(1) + 2e-5) / (x.sum(1) + 1e-5)


def _last_left_out(x: torch.Tensor) -> torch.Tensor:
    """Columns in tiles of four: what is left behind the last whole tile is not added up."""
    whole = x[:, : x.shape[1] // 4 * 4]
    return (whole[:, ::2].sum(1) + 1e-5) / (whole.sum(1) + 1e-5)


@pytest.mark.parametrize(("candidate", "rule", "words"), [
    (_without, "kernel-contract", "the reference without its 1e-05 gives the same"),
    (_twice, "kernel-contract", "the reference with twice its 1e-05 gives the same"),
    (_last_left_out, "kernel-edge", "in the example's sizes it is right"),
])  # fmt: skip
def test_a_constant_is_told_from_a_size(candidate: Callable[..., torch.Tensor], rule: str, words: str) -> None:
    (told,) = precheck.compare_kernels(candidate, _smoothed, SHARES, gradients=False, budget=3).errors
    assert told.rule == rule
    assert words in str(told)
    assert ("became" in str(told)) == (rule == "kernel-edge")  # small numbers show a constant, before short sums do
