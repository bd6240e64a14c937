"""A module with right code is not blamed for its mask or option: the code that calls it is, and the message says what it gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import precheck

ROWS = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(1))


class Reading(nn.Module):
    """Attention that is told which tokens it may read. `open`: it reads all the same."""

    def __init__(self, open_: bool = False) -> None:
        super().__init__()
        self.open, self.qkv = open_, nn.Linear(8, 24)

    def forward(self, x: torch.Tensor, seen: torch.Tensor, scaled: bool = True) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        seen = torch.ones_like(seen) if self.open else seen
        return x + F.scaled_dot_product_attention(q, k, v, seen, scale=8**-0.5 if scaled else 1.0)


class Hidden(Reading):
    """The same with a mask that says which tokens are hidden."""

    def forward(self, x: torch.Tensor, seen: torch.Tensor, scaled: bool = True) -> torch.Tensor:
        return super().forward(x, ~seen, scaled)


class Net(nn.Module):
    """Two layers, of which `fault` says what the second is given."""

    def __init__(self, kind: Any = Reading, **second: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([kind(), kind(**second)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.ones(7, 7, dtype=torch.bool).tril()
        hidden = isinstance(self.layers[0], Hidden)
        for number, layer in enumerate(self.layers):
            x = self.asked(layer, number, x, ~seen if hidden else seen)
        return x

    def asked(self, layer: nn.Module, number: int, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return layer(x, seen)  # type: ignore[no-any-return]


class Later(Net):
    def asked(self, layer: nn.Module, number: int, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return layer(x, seen | torch.ones_like(seen).tril(1) if number else seen)  # type: ignore[no-any-return]


class Unscaled(Net):
    def asked(self, layer: nn.Module, number: int, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return layer(x, seen, number == 0)  # type: ignore[no-any-return]


def told(other: nn.Module) -> precheck.Report:
    return precheck.compare(Net(), other, ROWS, loss=lambda out: out.square().mean())


@pytest.mark.parametrize(("other", "words"), [
    (Later, "layers.1 is given another seen than model's: of 49 truth values 6 are true in other alone, 0 in model alone"),
    (Unscaled, "layers.1 is given another scaled than model's: False, and not True"),
])  # fmt: skip
def test_the_code_that_gives_a_wrong_mask_or_option_is_named(other: Any, words: str) -> None:
    error = told(other()).errors[0]
    assert error.module == ""
    assert error.message.endswith(words)


def test_a_layer_that_does_not_use_its_mask_is_named_itself() -> None:
    assert told(Net(open_=True)).errors[0].module == "layers.1"


def test_a_mask_with_the_other_meaning_is_no_fault() -> None:
    assert not told(Net(Hidden)).errors
