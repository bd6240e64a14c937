"""A cast is named in place of a later line if its own rounding does the harm. The later line is named if a change of it is enough."""

from __future__ import annotations

import pytest
import torch
from graph import Graph
from scenario import finds, passes
from torch import nn

from precheck.analysis.rounding.function_errors import OwnError

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


def mass(kind: torch.dtype = HALF) -> torch.Tensor:
    class Mass(nn.Module):
        def forward(self, p: torch.Tensor) -> torch.Tensor:
            momentum = (p / 1.0).to(kind).norm(dim=-1)  # fault
            energy = (p.square().sum(-1) + 1e-2).sqrt()
            return ((energy - momentum) * (energy + momentum)).sqrt()

    return Mass()(10 + normal(64, 3))


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


@pytest.mark.parametrize(("call", "words"), [(2, "on the same inputs as the reference, f() is off by"), (1, "what f() returns is off by")])
def test_a_function_is_not_said_to_be_off_by_itself_if_another_one_has_cast(call: int, words: str) -> None:
    run = Graph()
    cast = run.op("aten._to_copy.default", call=call)
    shown = run.op("aten.rsub.Scalar", cast, call=2)
    assert cast.maker is not None
    assert shown.maker is not None
    fact = OwnError(
        rule="amplified-rounding",
        operation=cast.maker,
        measured=47.0,
        limit=13.0,
        function="f",
        made="a rounding",
        shown=shown.maker,
        off=0.18,
        own=0.0016,
    )
    assert fact.found.startswith(words)


def test_what_a_difference_in_float32_moves_onto_a_pole_was_rounded_before() -> None:
    finds(mass, "amplified-rounding", says="this rounding moves a number to where aten.sqrt.default")
    passes(lambda: mass(torch.float32), wide=True)
