"""Whole numbers that are sums of products of integers: amounts, of which one rounding is one rounding. Positions in the same place are none."""

from __future__ import annotations

import torch

import precheck
from precheck.findings import Report


def integers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-60, 60, shape, generator=torch.Generator().manual_seed(seed))


def cast(*, products: bool, overwritten: bool = False) -> Report:
    """Sums of up to some thousands in half precision, times a scale."""
    with precheck.watch() as report:
        positions = 2049 + 7 * torch.arange(128).view(8, 16)
        numbers = integers(8, 64) @ (integers(64, 16, seed=1) // 8) if products else positions
        if overwritten:
            numbers.copy_(positions)
        report.facts["result"] = float((numbers.half() * 0.02).float().sin().sum())
    return report


def test_sums_of_products_of_integers_are_amounts() -> None:
    assert not cast(products=True).errors


def test_positions_are_none_nor_are_integers_that_were_written_over_such_sums() -> None:
    for report in (cast(products=False), cast(products=True, overwritten=True)):
        (finding,) = report.errors
        assert finding.rule == "integer-rounding"
        assert "in float16, which holds every whole number only up to 2048" in finding.message
