"""The code is named that ran just before the first wrong value: rows in another batch, a part of a list, an input that one block alone reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import precheck

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
MEAN: dict[str, Any] = {"loss": lambda out: out.square().mean()}


class Halves(nn.Module):
    """A norm over each half of the batch, in a part. `fault`: both halves at once, or a norm with another eps or with a hook."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault, self.head = fault, nn.Linear(6, 2)
        self.part = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, eps=1e-2 if fault == "eps" else 1e-5), nn.Tanh())
        if fault == "hook":
            self.part[1].register_forward_hook(lambda module, args, out: out * 1.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.part(x) if self.fault == "whole" else torch.cat([self.part(each) for each in x.chunk(2)])
        return self.head(made)  # type: ignore[no-any-return]


def of(kind: type[nn.Module], model: nn.Module, *ways: Any) -> nn.Module:
    other = kind(*ways)
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize(("fault", "module"), [("whole", ""), ("eps", "part.1"), ("hook", "part.1")])
def test_a_norm_over_other_rows_is_the_fault_of_the_code_that_groups_them(fault: str, module: str) -> None:
    model = Halves()
    assert precheck.compare(model, of(Halves, model, fault), X, **MEAN).errors[0].module == module
    assert not precheck.compare(model, of(Halves, model), X, **MEAN).errors


class Reads(nn.Module):
    """A block that reads one of two tables. `swapped`: the other one."""

    def __init__(self, number: int, swapped: bool = False) -> None:
        super().__init__()
        self.number, self.line = (1 - number) if swapped else number, nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, tables: list[torch.Tensor]) -> torch.Tensor:
        return x + torch.tanh(self.line(x) * tables[self.number])


class Tables(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault, self.blocks = fault, nn.ModuleList([Reads(0), Reads(1, fault == "swapped"), Reads(0)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tables = [torch.linspace(0.5, 1.5, 6).to(x.dtype), torch.linspace(2, 1, 6).to(x.dtype) * (1.5 if self.fault == "table" else 1)]
        for block in self.blocks:
            x = block(x, tables)
        return x


@pytest.mark.parametrize(("fault", "module"), [("table", ""), ("swapped", "blocks.1")])
def test_an_input_that_another_block_does_not_read_is_not_right_for_that(fault: str, module: str) -> None:
    model = Tables()
    assert precheck.compare(model, of(Tables, model, fault), X, **MEAN).errors[0].module == module
    assert not precheck.compare(model, of(Tables, model), X, **MEAN).errors


class Shares(nn.Module):
    """A mean of equal streams, whose shares have no gradient on paper. `again`: divided by their sum again. `fault`: they do not add up to one."""

    def __init__(self, again: bool = False, fault: bool = False) -> None:
        super().__init__()
        self.again, self.fault, self.line, self.shares = again, fault, nn.Linear(6, 6), nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = (3 * self.shares).softmax(0)
        shares = shares / shares.sum() if self.again else shares
        shares = shares + self.shares.sigmoid() / 4 if self.fault else shares
        return (self.line(x)[..., None] * shares).sum(-1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_gradient_that_is_zero_on_paper_in_a_modules_own_code(precision: str) -> None:
    torch.manual_seed(1)
    model = Shares(True)
    for fault in (False, True):
        assert bool(precheck.compare(model, of(Shares, model, False, fault), X, precision=precision, **MEAN).errors) is fault
