"""Rows of a softmax that are masked as a whole: the shadow takes the run's, where it is a mask, and where the run's is finite."""

from __future__ import annotations

import pytest
import torch

import precheck
from precheck.findings import Report

SCORES = torch.randn(4, 8, 16, generator=torch.Generator().manual_seed(0)) * 3


def watched(mask: torch.Tensor, function: object = torch.softmax, dtype: torch.dtype = torch.float16) -> Report:
    with precheck.watch() as report:
        held = function(SCORES.to(dtype) + mask.to(dtype), -1)  # type: ignore[operator]
    assert held.shape == SCORES.shape
    return report


def rows(lowest: float, *masked: int) -> torch.Tensor:
    mask = torch.zeros(4, 8, 16)
    mask[..., 12:] = lowest
    mask[list(masked)] = lowest
    return mask


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
@pytest.mark.parametrize("lowest", [-10_000.0, -32_752.0])
def test_rows_of_padded_queries_are_no_fault(lowest: float, function: object) -> None:
    assert not watched(rows(lowest, 2, 3), function).errors


def test_in_bfloat16_too() -> None:
    assert not watched(rows(-1e9, 3), dtype=torch.bfloat16).errors


def test_an_offset_of_all_rows_is_no_mask() -> None:
    """What takes the digits of every row leaves nothing: that is a fault, however large the offset."""
    (finding,) = watched(torch.full((4, 8, 16), -10_000.0)).errors[:1]
    assert finding.rule == "amplified-rounding"


def test_rows_above_any_mask_are_scores() -> None:
    """At -5000 half still tells scores apart by four, and no mask is so near."""
    (finding,) = watched(rows(-5000.0, 2, 3)).errors[:1]
    assert finding.rule == "amplified-rounding"


def test_rows_that_are_not_finite_stay_a_fault() -> None:
    (finding,) = watched(rows(-65_504.0, 2, 3) - 30).errors[:1]
    assert finding.rule == "overflow"
