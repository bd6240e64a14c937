"""Distances of two tensors: the same for a long matrix, which is read in parts, as for a short one."""

from __future__ import annotations

import pytest
import torch

from precheck.pairs.distances import LONG, squared_distance


@pytest.mark.parametrize("dtype", [torch.bool, torch.float8_e4m3fn, torch.uint8, torch.int32, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("size", [16, 300], ids=["short", "long"])
def test_two_elements_that_differ_by_one(dtype: torch.dtype, size: int) -> None:
    assert (size * size >= LONG) is (size == 300)
    exact = (torch.arange(size * size).view(size, size) % 3 == 0).float()
    value = exact.clone()
    value[0, :2] = 1 - value[0, :2]
    assert squared_distance(value.to(dtype), exact.to(dtype)).whole == 2.0
    assert squared_distance(exact.to(dtype), exact.to(dtype)).whole == 0.0
