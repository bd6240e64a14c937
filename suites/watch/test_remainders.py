"""Sums in a low format that keep what did not arrive: told only where nobody adds it back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import precheck
from precheck.analysis import ledger

LOW = torch.bfloat16


def steps(number: int = 40) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [(1e-3 + 1e-3 * torch.randn(64, 64, generator=generator)).to(LOW) for _ in range(number)]


def start() -> torch.Tensor:
    return torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).to(LOW)


def kept(add_back: bool) -> torch.Tensor:
    """What did not arrive is measured in each step. It goes into the next, or is thrown away."""
    weight, remainder = start(), torch.zeros(64, 64, dtype=LOW)
    for step in steps():
        remainder = remainder + step if add_back else step
        before = weight.clone()
        weight.add_(remainder)
        remainder = remainder - (weight - before)
    return weight


def measured(add_back: bool) -> torch.Tensor:
    """The program looks at how far a weight has moved, or keeps what it has not."""
    weight, remainder = start(), torch.zeros(64, 64, dtype=LOW)
    for step in steps():
        remainder.add_(step)
        before = weight.clone()
        weight.add_(remainder)
        if add_back:
            remainder.add_(before.sub_(weight))
        else:
            assert (weight - before).abs().max() < 1
            remainder.zero_()
    return weight


def total(add_back: bool) -> torch.Tensor:
    """Nine hundred terms, whose sum passes the number from which they are less than half its spacing."""
    held, remainder = torch.zeros((), dtype=LOW), torch.zeros((), dtype=LOW)
    for term in (0.5 + torch.rand(900, generator=torch.Generator().manual_seed(0))).to(LOW):
        given = term - remainder if add_back else term
        more = held + given
        remainder = (more - held) - given
        held = more
    return held


def rules(code: Callable[[bool], torch.Tensor], add_back: bool) -> set[str]:
    with precheck.watch() as report:
        result = code(add_back)
    assert result.dtype == LOW
    return {finding.rule for finding in report.errors}


@pytest.mark.parametrize("code", [kept, measured, total], ids=lambda code: code.__name__)
def test_a_remainder_heals_where_it_is_added_back(code: Callable[[bool], torch.Tensor]) -> None:
    assert rules(code, True) == set()
    assert "absorption" in rules(code, False)


def test_without_its_exemption_the_first_step_is_a_merge_that_is_lost() -> None:
    with ledger.without("remainder_kept"):
        assert rules(measured, True) == {"absorption"}


def test_the_same_number_added_again_and_again_is_taken_back_by_nobody() -> None:
    """(s + y) + y has y twice."""
    one, count = torch.ones(16, dtype=LOW), torch.zeros(16, dtype=LOW)
    with precheck.watch() as report:
        for _ in range(600):
            count = count + one
    assert count[0] == 256
    assert [finding.rule for finding in report.errors] == ["absorption"]
