"""A cast is named in place of a later line if its own rounding does the harm. The later line is named if a change of it is enough."""

from __future__ import annotations

import torch
from scenario import finds, passes
from torch import nn

HALF = torch.float16


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def market(kind: torch.dtype = HALF) -> torch.Tensor:
    class Market(nn.Module):
        def forward(self, moves: torch.Tensor) -> torch.Tensor:
            return self.returns(self.prices(moves)).float()

        def prices(self, moves: torch.Tensor) -> torch.Tensor:
            return (100 * (0.01 * moves).cumsum(1).exp()).to(kind)  # fault

        def returns(self, prices: torch.Tensor) -> torch.Tensor:
            return prices[:, 1:].log() - prices[:, :-1].log()

    return Market()(normal(64, 96))


def orders() -> torch.Tensor:
    class Orders(nn.Module):
        def forward(self, chances: torch.Tensor) -> torch.Tensor:
            return self.after(self.counted(chances)).float()

        def counted(self, chances: torch.Tensor) -> torch.Tensor:
            return (chances.abs() * 100).round().to(HALF)

        def after(self, many: torch.Tensor) -> torch.Tensor:
            return (many + 1).lgamma() - (many + 2).lgamma()  # fault

    return Orders()(normal(64, 96))


def test_a_cast_is_named_whose_rounding_no_later_line_takes_away() -> None:
    """Logarithms of rounded prices, in float32, are as wrong."""
    finds(market, "amplified-rounding", says="its rounding error grows at aten.sub.Tensor")
    passes(lambda: market(torch.float32), wide=True)


def test_the_later_line_is_named_where_the_cast_loses_nothing() -> None:
    """Whole numbers to 2048 are exact in float16, and logarithms of their factorials are not."""
    finds(orders, "cancellation")
