"""Which module is named where right code is given something wrong: weights for one call, arguments by their names, one call too many."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

import precheck

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
MEAN: dict[str, Any] = {"loss": lambda out: out.square().mean()}


class Film(nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return x * (1 + scale) + shift


class Layer(nn.Module):
    """`own`: what its own code does wrongly."""

    def __init__(self, own: str = "", named: bool = False) -> None:
        super().__init__()
        self.own, self.named, self.up, self.both, self.film = own, named, nn.Linear(8, 8), nn.Linear(8, 16), Film()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, shift = self.both(x).tanh().chunk(2, -1)
        scale, shift = (shift, scale) if self.own == "exchanged" else (scale, shift)
        y = self.film(x, shift=shift, scale=scale) if self.named else self.film(x, scale, shift)
        y = x + self.up(y).relu()
        return y * 1.1 if self.own == "factor" else y


class Average(nn.Module):
    """Two networks, and the result of a third that lies between them. `wrong`: how it is made."""

    def __init__(self, wrong: str = "", stacked: bool = False, own: str = "") -> None:
        super().__init__()
        self.wrong, self.stacked = wrong, stacked
        self.nets = nn.ModuleList([nn.Sequential(Layer(), Layer(own, named=stacked)) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = (dict(net.named_parameters()) for net in self.nets)
        rate = 0.4 if self.wrong == "rate" else 0.5
        mixed = {name: rate * value + (1 - rate) * two[name].detach() for name, value in one.items()}
        if self.stacked and not self.wrong:
            mixed = {name: torch.stack([one[name], two[name].detach()]).mean(0) for name in one}
        if self.wrong == "gradient":
            mixed = {name: 0.5 * value + 0.5 * two[name] for name, value in one.items()}
        if self.wrong == "cut":
            mixed = {name: value.detach() for name, value in mixed.items()}
        if self.wrong == "a layer":
            mixed = {name: value for name, value in mixed.items() if not name.startswith("1.up")}
        made: torch.Tensor = functional_call(self.nets[0], mixed, (x,))
        return made + self.nets[1](x)


def named(model: nn.Module, other: nn.Module) -> list[str]:
    torch.manual_seed(0)
    for value in model.parameters():
        nn.init.normal_(value, std=0.4)
    other.load_state_dict(model.state_dict())
    return [each.module for each in precheck.compare(model, other, X, **MEAN).errors[:1]]


@pytest.mark.parametrize("wrong", ["", "rate", "cut", "a layer", "gradient"])
def test_the_code_that_lends_wrong_weights_is_named(wrong: str) -> None:
    assert named(Average(), Average(wrong, stacked=True)) == ([""] if wrong else [])


def test_a_module_with_a_fault_is_named_though_its_weights_are_lent() -> None:
    assert named(Average(), Average(own="factor")) == ["nets.0.1"]


@pytest.mark.parametrize(("own", "module"), [("", []), ("exchanged", ["1"])])
def test_arguments_by_name_are_told_by_their_names(own: str, module: list[str]) -> None:
    assert named(nn.Sequential(Layer(), Layer()), nn.Sequential(Layer(), Layer(own, named=True))) == module


class Often(nn.Module):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.layer = times, nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = x + self.layer(x)
        return x


@pytest.mark.parametrize("times", [2, 3, 4])
def test_the_code_that_calls_a_right_module_once_too_often_is_named(times: int) -> None:
    assert named(Often(3), Often(times)) == ([] if times == 3 else [""])
