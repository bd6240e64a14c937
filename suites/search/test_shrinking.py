"""Shrinking by elements, on conditions that are plain functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from precheck.input_search.shrinking import Shrinking


def shrunk(inputs: Any, breaks: Callable[[Any], bool], *, top: float = 64.0, most: int = 400) -> Any:
    asked: list[Any] = []

    def counted(value: Any) -> bool:
        asked.append(value)
        return bool(breaks(value))

    result = Shrinking(inputs, counted, {"": top, "[0]": top, "[x]": top}, most).shrunk()
    assert len(asked) <= most
    assert breaks(result)
    return result


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_elements_that_do_not_matter_become_zero_and_those_that_do_powers_of_two() -> None:
    start = noise(8, 32)
    start[3, 5], start[6, 1] = 13.7, -29.0
    result = shrunk(start, lambda x: x[3, 5] > 5 and x[6, 1].abs() > 20)
    assert result.nonzero().tolist() == [[3, 5], [6, 1]]
    assert (result[3, 5], result[6, 1]) == (8.0, 32.0)  # the least powers of two that are enough


def test_small_numbers_grow_towards_one() -> None:
    start = torch.full((4,), 2.0**-9)
    assert shrunk(start, lambda x: 0 < x[2] < 2.0**-3).tolist() == [0, 0, 2.0**-4, 0]
    assert shrunk(start, lambda x: 0 < x[2] < 2.0**-3, top=2.0**-9).tolist() == [0, 0, 2.0**-9, 0]  # the strategy gives nothing larger


def test_what_all_elements_do_together_a_few_large_ones_do() -> None:
    result = shrunk(torch.full((16, 16), 1.0), lambda x: x.sum() > 200)
    assert result.count_nonzero() == 4  # 4 times 64
    assert float(result.max()) == 64


def test_what_needs_all_elements_becomes_one_number() -> None:
    result = shrunk(noise(4, 16).abs() + 1, lambda x: bool((x > 0.5).all()), top=4.0)
    assert len(result.unique()) == 1


def test_masks_shrink_to_true_tokens_to_zero_and_structures_stay() -> None:
    mask = noise(4, 4) > 0
    mask[1] = False
    result = shrunk((noise(3), [torch.arange(40).view(4, 10)], mask), lambda value: value[1][0][2, 3] > 20 and not value[2][1].any())
    assert isinstance(result, tuple)
    assert not result[0].any()
    assert result[1][0].nonzero().tolist() == [[2, 3]]
    assert (~result[2]).nonzero().tolist() == [[1, 0], [1, 1], [1, 2], [1, 3]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_every_format_is_shrunk_in_its_own(dtype: torch.dtype) -> None:
    start = noise(5, 7).to(dtype)
    result = shrunk(start, lambda x: x.dtype is dtype and x.float()[4, 6] != 0)
    assert int((result.float() != 0).sum()) == 1


def test_memory_becomes_contiguous_unless_that_is_what_matters() -> None:
    start = noise(4, 6).t()
    assert shrunk(start, lambda x: x[1, 2] != 0).is_contiguous()
    assert not shrunk(start, lambda x: not x.is_contiguous()).is_contiguous()


def test_it_stops_when_no_question_is_left_with_what_breaks() -> None:
    start = noise(64, 64)
    assert torch.equal(shrunk(start, lambda x: bool((x == start).all()), most=10), start)


def test_the_users_tensor_and_its_gradient_flag_stay() -> None:
    start = noise(4).requires_grad_()
    before = start.detach().clone()
    result = shrunk(start, lambda x: x[0] != 0)
    assert result.requires_grad
    assert torch.equal(start.detach(), before)
