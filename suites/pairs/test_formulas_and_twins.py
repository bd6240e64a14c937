"""What the first wrong op does otherwise than model is said, and a part of a right block tells what is no fault in its twin of another block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import precheck
from precheck.pairs.matching import matched

W = 8
X = torch.randn(3, 5, W, generator=torch.Generator().manual_seed(1))
Way = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """A norm and a layer, and what is made of the layer's result and the block's input."""

    def __init__(self, made: Way) -> None:
        super().__init__()
        self.made, self.norm, self.inner, self.outer = made, nn.LayerNorm(W), nn.Linear(W, W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.made(self.inner(self.norm(x)), x))


def formula(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return 0.5 * y * (1 + torch.tanh(0.7978845608028654 * (y + 0.044715 * y**3))) + x


def pair(right: Way, wrong: Way, first: Way | None = None) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model, other = nn.Sequential(Block(right), Block(right)), nn.Sequential(Block(first or right), Block(wrong))
    other.load_state_dict(model.state_dict())
    return model, other


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (lambda y, x: F.silu(y), lambda y, x: F.gelu(y), "of what its gelu reads, model computes silu, and other gelu"),
        (formula, lambda y, x: F.gelu(y) + x, "of what its gelu reads, model computes pow and tanh, and other gelu"),
        (lambda y, x: y.softmax(-1), lambda y, x: y.softmax(1), "its softmax has dim 1, and model's has dim 2"),
        (lambda y, x: y.clamp(-0.5, 0.5), lambda y, x: y.clamp(max=0.5), "its clamp has min None, and model's has min -0.5"),
        (lambda y, x: (y - y.mean(-1, keepdim=True)).square(), lambda y, x: y.square(), "model computes mean, and other does not"),
    ],
)
def test_what_the_first_wrong_op_does_otherwise(right: Way, wrong: Way, said: str) -> None:
    assert precheck.compare(*pair(right, right), X).verdict != "different"
    found = precheck.compare(*pair(right, wrong), X).errors[0]
    assert found.module == "1"
    assert said in found.message, found.message


def turned(y: torch.Tensor, x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    """Turns pairs of numbers, as complex ones."""
    pairs = torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones((), dtype=y.dtype), torch.tensor(0.3, dtype=y.dtype))).flatten(-2) * by + x


def by_parts(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    a, b = y[..., ::2], y[..., 1::2]
    cosine, sine = torch.tensor(0.3, dtype=y.dtype).cos(), torch.tensor(0.3, dtype=y.dtype).sin()
    return torch.stack([a * cosine - b * sine, a * sine + b * cosine], -1).flatten(-2) + x


def test_complex_numbers_that_a_right_block_has_too_are_no_fault() -> None:
    """`model` has none of them. The line of the fault is that behind them."""

    def wrong(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        made = turned(y, x)
        return F.relu(made)

    assert precheck.compare(*pair(by_parts, turned), X).verdict != "different"
    found = precheck.compare(*pair(by_parts, wrong, first=turned), X).errors[0]
    assert found.source.endswith(f":{wrong.__code__.co_firstlineno + 2}"), found.source
    assert "relu" in found.message


class Filters(nn.Module):
    """A layer that holds its weight with axes in any order."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        self.order = order
        self.taps = nn.Parameter(torch.randn(4, 3, 2, 5, generator=torch.Generator().manual_seed(2)).permute(order).contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        back = [self.order.index(axis) for axis in range(4)]
        return torch.einsum("bi,oijk->bojk", x, self.taps.permute(back)).sum((-1, -2))


@pytest.mark.parametrize("order", [(2, 3, 1, 0), (0, 3, 2, 1), (0, 1, 2, 3)])
def test_a_weight_with_its_axes_in_another_order_is_models_weight(order: tuple[int, ...]) -> None:
    model, other = Filters((0, 1, 2, 3)), Filters(order)
    link = matched(model, other, {}).links[0]
    assert link.same
    theirs, ours = dict(other.named_parameters()), dict(model.named_parameters())
    found = link.of_other(theirs)
    assert found is not None
    assert torch.equal(found, ours["taps"])
    assert torch.equal(link.placed(found, {name: value.shape for name, value in theirs.items()})["taps"], theirs["taps"])
    assert precheck.compare(model, other, torch.randn(3, 3), loss=lambda out: out.square().mean()).verdict != "different"


class Heads(nn.Module):
    """Both weights of a part in one module, where `model` has a layer for each."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.wrong, self.up, self.down = wrong, nn.Parameter(torch.zeros(W, 2, 4)), nn.Parameter(torch.zeros(2, 4, W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.einsum("btd,dhe->bthe", x, self.up)
        return torch.einsum("bthe,hed->btd", made.relu() if self.wrong else made.tanh(), self.down)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(W, W, bias=False), nn.Linear(W, W, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).tanh())


def by_heads(lost: str = "", wrong: bool = False) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    parts: Any = [Layers() for _ in range(3)]
    others: Any = [Heads(wrong and n == 1) for n in range(3)]
    with torch.no_grad():
        for n, (part, other) in enumerate(zip(parts, others, strict=True)):
            other.up.copy_(part.up.weight.T.unflatten(1, (2, 4)))
            other.down.copy_(part.down.weight.unflatten(0, (2, 4)) if lost and n == 1 else part.down.weight.T.unflatten(0, (2, 4)))
    return nn.Sequential(*parts), nn.Sequential(*others)


def test_a_module_that_holds_the_weights_of_a_module_stands_for_it() -> None:
    assert precheck.compare(*by_heads(), X).verdict != "different"
    found = precheck.compare(*by_heads(wrong=True), X).errors[0]
    assert found.module == "1"
    assert "of what its relu reads, model computes tanh, and other relu" in found.message, found.message


def test_a_weight_in_another_order_than_in_a_right_block_is_named() -> None:
    found = precheck.compare(*by_heads(lost="turned"), X).errors[0]
    assert found.module == "1"
    assert "1.down holds model's numbers in another shape, and 0.down, which is right, model's numbers with axes in order 2, 0, 1" in found.message
