"""Drift is blamed on the module whose code made it, not on the layer that was handed it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import precheck


class Attention(nn.Module):
    """Its own code lies between two linear layers."""

    def __init__(self, spoil: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.project, self.out, self.spoil = nn.Linear(16, 16), nn.Linear(16, 16), spoil

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(input=self.spoil(self.project(x)))


class Block(nn.Module):
    def __init__(self, spoil: Callable[[torch.Tensor], torch.Tensor], residual: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.attention, self.norm, self.residual = Attention(spoil), nn.LayerNorm(16), residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.residual(x + self.attention(x)))


def sound(x: torch.Tensor) -> torch.Tensor:
    return x


def shifted(x: torch.Tensor) -> torch.Tensor:
    """There and back by 300, where bfloat16 keeps whole numbers at best."""
    return (x + 300) - 300


def squared(x: torch.Tensor) -> torch.Tensor:
    """Out of float16's range on the way."""
    return (x * 300).square().square().sqrt().sqrt() / 300


def measured(precision: str, **planted: Callable[[torch.Tensor], torch.Tensor]) -> precheck.Report:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), Block(**{"spoil": sound, "residual": sound} | planted), nn.Linear(16, 4))
    return precheck.measure(model, torch.randn(4, 8), precision=precision, loss=lambda out: out.float().square().mean(), depth="boundaries")


@pytest.mark.parametrize(("precision", "rule", "fault"), [("bf16-true", "accumulated-drift", shifted), ("16-true", "overflow", squared)])
@pytest.mark.parametrize(("place", "module", "fed"), [("spoil", "1.attention", "1.attention.out"), ("residual", "1", "1.norm")])
def test_the_module_whose_code_made_it_is_named(
    precision: str, rule: str, fault: Callable[[torch.Tensor], torch.Tensor], place: str, module: str, fed: str
) -> None:
    first = measured(precision, **{place: fault}).errors[0]
    assert (first.rule, first.module) == (rule, module), first
    assert first.message.endswith(f"; the error begins in the code of {module}, which passes it to {fed}")


def test_a_layer_that_errs_itself_is_named_itself() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    with torch.no_grad():
        model[1].weight.fill_(3e4)
    first = precheck.measure(model, torch.rand(4, 8) * 100, precision="16-true").errors[0]
    assert (first.rule, first.module) == ("overflow", "1")
    assert "made it" not in first.message


def test_the_models_own_forward_is_called_that() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(shifted(x))

    torch.manual_seed(0)
    first = precheck.measure(Model(), torch.randn(4, 8), precision="bf16-true", depth="boundaries").errors[0]
    assert first.module == ""
    assert first.message.endswith("; the error begins in the model's own forward, which passes it to head")


def test_nothing_is_relocated_in_a_sound_model() -> None:
    assert measured("bf16-true").findings == []
