"""A function that masks what it computes: its own error is that of the elements that the mask leaves."""

from __future__ import annotations

import pytest
import torch
from test_own_errors import LOW, line_of, normal
from torch import nn

import precheck
from precheck.observe.shadow.comparing.statistics import apart

FILLS = [-torch.inf, torch.finfo(torch.float32).min]


def decays(exponents: torch.Tensor, low: torch.dtype, fill: float) -> torch.Tensor:
    """What is left at each place of what each earlier place put in."""
    ends = exponents.cumsum(-1)
    between = ends.to(low).unsqueeze(-1) - ends.to(low).unsqueeze(-2)
    later = torch.ones(between.shape[-2:], dtype=torch.bool).triu(1)
    return torch.exp(between.float().masked_fill(later, fill))


class Mixer(nn.Module):
    def __init__(self, low: torch.dtype, fill: float) -> None:
        super().__init__()
        self.low, self.fill, self.out = low, fill, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, rates: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = decays(-rates, self.low, self.fill) @ self.out(x).float()
        return mixed


@pytest.mark.parametrize("fill", FILLS)
def test_a_rounding_behind_a_mask_is_named_where_it_is_made(fill: float) -> None:
    given = normal(4, 64, 8), normal(4, 64, seed=1).square()
    first = precheck.measure(Mixer(LOW, fill), given, precision="bf16-mixed").errors[0]
    assert first.source.endswith(f":{line_of(decays, 'between =')}")
    assert "on the same inputs as the reference, decays() is off by " in first.cause
    assert precheck.measure(Mixer(torch.float32, fill), given, precision="bf16-mixed").errors == []


@pytest.mark.parametrize("fill", FILLS)
def test_masked_elements_are_no_part_of_an_error(fill: float) -> None:
    shadow = torch.tensor([3.0, 4.0, fill])
    assert apart(torch.tensor([3.0, 4.5, fill]), shadow) == pytest.approx(0.1)
