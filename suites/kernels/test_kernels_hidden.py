"""Which elements a computed mask hides is a fault of the mask; what is done with each element is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import need

import precheck

ROWS = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))


def _told(candidate: Any, reference: Any, inputs: Any = ROWS) -> list[str]:
    return [each.rule for each in precheck.compare_kernels(candidate, reference, inputs, trials=60, gradients=False).errors]


def _largest(x: torch.Tensor, count: int) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 3)
    return torch.where(x >= x.topk(count, 1).values[:, -1:], x.tanh(), 0)


def _above_the_mean(x: torch.Tensor, factor: float) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return x.masked_fill(x.tanh() < factor * x.tanh().mean(1, keepdim=True), 0.0)


@pytest.mark.parametrize("hides", [lambda x, wrong: _largest(x, 3 if wrong else 2), lambda x, wrong: _above_the_mean(x, -1.0 if wrong else 1.0)])
def test_other_elements_that_are_hidden_are_a_fault_of_the_mask(hides: Any) -> None:
    assert _told(lambda x: hides(x, True), lambda x: hides(x, False)) == ["kernel-mask"]


def _best(x: torch.Tensor, count: int) -> torch.Tensor:
    """Shares of the best of each row, which are one together."""
    need(x.dim() == 2, x.shape[1] > 3)
    return x.masked_fill(x.tanh() < x.tanh().topk(count, 1).values[:, -1:], -torch.inf).softmax(1)


def _of_used_rows(x: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    return torch.where(used, x.sum(1), -1e9).softmax(0)[:, None] * x


WHOLE = torch.tensor([[1.0, -1, 2], [1, 1, -2], [0, 0, 0], [2, 1, -1], [-1, 0, 1]])


def test_so_are_elements_that_count_in_the_results_of_others() -> None:
    assert _told(lambda x: _best(x, 3), lambda x: _best(x, 2)) == ["kernel-mask"]
    by_their_sum = _told(lambda x: _of_used_rows(x, x.sum(1) != 0), lambda x: _of_used_rows(x, (x != 0).any(1)), WHOLE)
    assert by_their_sum == ["kernel-mask"]


def test_two_functions_of_rows_are_no_mask_unless_a_row_changes_the_results_of_others() -> None:
    def bent(x: torch.Tensor, least: float) -> torch.Tensor:
        return torch.where((x.sum(1) > least)[:, None], x, x.square())

    assert _told(lambda x: bent(x, 1.5), lambda x: bent(x, 0.5), WHOLE) == ["kernel-contract"]


def test_another_function_of_what_is_shown_is_none_of_the_mask() -> None:
    assert _told(lambda x: _largest(x, 2) * 1.5, lambda x: _largest(x, 2)) == ["kernel-contract"]


def test_a_bound_of_each_element_is_none_of_a_mask() -> None:
    assert _told(lambda x: torch.where(x > 0.4, x, 0), lambda x: torch.where(x > 0.1, x, 0)) == ["kernel-contract"]


def test_a_sum_over_a_square_grows_too() -> None:
    def in_float16(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 3)
        total = torch.zeros(len(x), dtype=x.dtype)
        for column in x.flatten(1).unbind(1):
            total = total + column
        return (total / max(x.shape[1] * x.shape[2], 1)).to(x.dtype)

    x = torch.randn(2, 12, 12, generator=torch.Generator().manual_seed(0)).add(1).half()
    assert _told(in_float16, lambda x: x.float().mean((1, 2)).half(), x) == ["kernel-accumulation"]
