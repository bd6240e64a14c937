"""Full sorts: scores that the format makes equal are in the order of their places, and that is told only where something goes by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import precheck
from precheck.findings import Finding

LOW = torch.bfloat16


def probabilities(offset: float, dtype: torch.dtype, rows: int = 1) -> torch.Tensor:
    """Of a classifier that is as sure of all as the offset says."""
    x = torch.randn(rows, 400, 32, generator=torch.Generator().manual_seed(0))
    weight = torch.linspace(-0.1, 0.1, 32)
    return torch.sigmoid((x.to(dtype) @ weight.to(dtype)) + offset)


def errors(rank: Callable[[], torch.Tensor]) -> list[Finding]:
    with precheck.watch() as report:
        rank()
    assert not [finding for finding in report.findings if finding.severity == "warning"]
    return report.errors


def area(scores: torch.Tensor) -> torch.Tensor:
    """Under the curve of hits by rank."""
    hits = (torch.arange(scores.shape[-1]) % 3 == 0).float()
    return hits[scores.argsort(-1, descending=True)].cumsum(-1).mean(-1)


@pytest.mark.parametrize("rows", [1, 8])
def test_probabilities_next_to_one(rows: int) -> None:
    first = errors(lambda: area(probabilities(6.0, LOW, rows)))[0]
    assert (first.rule, first.op) == ("decision-flip", "aten.sigmoid.default")
    assert "what is stored here decides aten.sort.default at " in first.message
    who, share = ("the one row chooses", "") if rows == 1 else (f"100% of {rows} rows choose", "100% ")
    assert f": {who} differently from the reference, {share}because bfloat16 makes distinct scores equal" in first.message


@pytest.mark.parametrize("rank", [
    lambda: area(probabilities(6.0, torch.float32)),  # mended
    lambda: area(probabilities(0.0, LOW)),  # some neighbours change places, as many do in float16
    lambda: area(torch.sigmoid(torch.linspace(5, 7, 400).to(LOW)).to(LOW).new_tensor([0.5, 0.25, 0.75] * 20)),  # given as they are
    lambda: area(torch.softmax(4 * torch.randn(1, 400, generator=torch.Generator().manual_seed(0)).half(), -1) ** 3),  # a tail of zeros
    lambda: probabilities(6.0, LOW).sort(-1).values[:, 200],  # a median, for which places mean nothing
], ids=["in float32", "in the middle", "given", "a tail of zeros", "a median"])  # fmt: skip
def test_orders_that_mean_nothing_or_are_right(rank: Callable[[], torch.Tensor]) -> None:
    assert errors(rank) == []
