"""What explains a difference: a change with evidence of its own, whose reversal makes the two models agree."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.pairs.changes import changes

ONES, ROW, GRID = torch.ones(4, 6), torch.arange(6.0).expand(4, 6), torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        (GRID, GRID * -26.97, "-26.97 times it"),
        (ONES, ONES * 2, "2 times it"),
        (GRID, GRID.abs() * math.inf, ""),  # which is no factor
        (ONES, ONES * -26.97, ""),  # any two constants differ by a factor
        (torch.cat([ONES, -ONES]), torch.cat([ONES, -ONES]) * 0.37, ""),  # as of a norm over two numbers
        (GRID, GRID + 0.5, "it plus 0.5"),
        (GRID, GRID + ROW, "it plus the same row everywhere, as of a bias"),
        (torch.zeros(4, 6), ONES * -1e4, ""),  # nor does a sum say anything of them
        (ROW, GRID[:1].expand(4, 6), ""),  # of equal rows any other equal rows are a sum
        (GRID, GRID.roll(1, 1), "it, shifted: element i is element i-1 of that, along dimension 1"),
        (ONES, torch.cat([ONES[:, 1:], ONES[:, :1] * 2], 1), ""),  # a constant is its own shift
        (GRID, GRID.flip(0), "it the other way round, along dimension 0"),
    ],
)
def test_a_change_counts_with_evidence(there: torch.Tensor, here: torch.Tensor, said: str) -> None:
    assert next(changes(here, there, "it"), "") == said


class Part(nn.Module):
    """Weighs tokens by how near they are. `way`: as formulas write it, or with a row that is added and taken away again. `sharp` is a fault."""

    def __init__(self, way: str = "", sharp: float = 1.0, early: bool = False) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {"way": way, "sharp": sharp, "early": early}
        self.inside, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.inside(x)
        if self.settings["way"]:
            far = torch.arange(8.0).to(x.dtype)
            made = ((made + far) * self.settings["sharp"]).tanh() if self.settings["early"] else (made + far - far) * self.settings["sharp"]
        return self.out((made.softmax(-1) * 3).sigmoid())


def pair(**ways: Any) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model, other = nn.Sequential(Part(), Part()), nn.Sequential(Part("row"), Part("row", **ways))
    other.load_state_dict(model.state_dict())
    return model, other


def test_what_a_healthy_way_of_writing_changes_too_explains_nothing() -> None:
    """The row is added in both layers, and the first is right. The second reads it in another function, which is the fault."""
    x = torch.randn(5, 8)
    model, other = pair()
    assert precheck.compare(model, other, x).verdict == "rounding"
    found = precheck.compare(*pair(early=True), x).errors[0]
    assert found.module == "1"
    assert "plus the same row" not in found.message, found.message


def test_a_change_whose_reversal_makes_them_agree_is_named() -> None:
    found = precheck.compare(*pair(sharp=2.0), torch.randn(5, 8)).errors[0]
    assert found.module == "1"
    assert "2 times" in found.message, found.message


class Switched(nn.Module):
    """A branch with a setting by which it is written in another way, and a fault of its own."""

    def __init__(self, joined: bool = False, fault: float = 1.0) -> None:
        super().__init__()
        self.joined, self.scales, self.inside, self.out = joined, [fault], nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.tanh(self.inside(x))
        return self.out(made * self.scales[0] if self.joined else made)  # type: ignore[no-any-return]


def test_a_setting_that_a_right_layer_has_too_explains_nothing() -> None:
    """The second layer agrees with model's once `joined` is False. So does the first as it is."""
    torch.manual_seed(0)
    model, other = nn.Sequential(Switched(), Switched()), nn.Sequential(Switched(joined=True), Switched(joined=True, fault=1.1))
    other.load_state_dict(model.state_dict())
    found = precheck.compare(model, other, torch.randn(5, 8)).errors[0]
    assert found.module == "1"
    assert "joined" not in found.message
    assert "1.1 times" in found.message, found.message


class Scaled(nn.Module):
    """A weight by its length, in two ways that are the same. `cut` is a fault of the gradient alone."""

    def __init__(self, way: str, cut: bool = False) -> None:
        super().__init__()
        self.way, self.settings, self.weight = way, {"cut": cut}, nn.Parameter(1 + torch.arange(6.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = self.weight.norm()
        weight = self.weight / (length.detach() if self.settings["cut"] else length)
        return x * weight if self.way == "product" else torch.einsum("bi,i->bi", x, weight)


def test_an_attribute_is_no_reason_if_the_gradient_differs_with_it_too() -> None:
    model, other = Scaled("product"), Scaled("sum", cut=True)
    found = precheck.compare(model, other, GRID, precision="32-true", loss=lambda out: out.square().mean()).errors
    assert [each for each in found if "gradient of weight" in each.message]
    assert not [each for each in found if "they agree" in each.message]
