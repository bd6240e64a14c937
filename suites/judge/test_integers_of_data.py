"""Lengths, buckets and places that data come to by low arithmetic: wrong where they differ at all from those of float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import precheck
from precheck.findings import Finding
from precheck.observe.shadow.flips import recut
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.remarks import Recut

FRAMES = 390
SHARES = torch.tensor([0.0731, 0.1357, 0.2468, 0.3141, 0.3819, 0.4669, 0.6180, 0.7071, 0.9119])
LOW = torch.bfloat16
Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Padded(nn.Module):
    """Recordings whose lengths are shares of the longest."""

    def __init__(self, lengths: Rule) -> None:
        super().__init__()
        self.linear, self.lengths = nn.Linear(4, 4), lengths

    def forward(self, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x)
        here = torch.arange(FRAMES) < self.lengths(shares, hidden).unsqueeze(1)
        return hidden.float().sum() * here.float().mean()


def errors(lengths: Rule, precision: str = "bf16-mixed") -> list[Finding]:
    torch.manual_seed(0)
    return precheck.measure(Padded(lengths), {"x": torch.randn(9, 4), "shares": SHARES}, precision=precision).errors


@pytest.mark.parametrize("lengths", [
    lambda shares, hidden: (shares.to(LOW) * FRAMES).ceil().long(),
    lambda shares, hidden: (shares.to(LOW) * FRAMES).long(),
    lambda shares, hidden: (shares.to(LOW) * FRAMES).round().int(),
    lambda shares, hidden: (shares.to(LOW) * FRAMES).floor().clamp(min=1).to(torch.int64),
], ids=["ceil", "long", "round", "floor and clamp"])  # fmt: skip
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_lengths_of_rounded_shares(lengths: Rule, precision: str) -> None:
    first = errors(lengths, precision)[0]
    assert first.rule == "integer-rounding"
    assert "of 9 numbers that aten._to_copy.default at " in first.message
    assert "makes integers are others than in float32, since they were rounded to bfloat16 before: " in first.message
    assert "test_integers_of_data.py:" in first.source


@pytest.mark.parametrize("lengths", [
    lambda shares, hidden: (shares.float() * FRAMES).ceil().long(),
    lambda shares, hidden: (hidden.sum(-1).sigmoid().to(LOW) * FRAMES).round().long(),  # what a network says is rounded by whoever computes it
    lambda shares, hidden: (torch.rand(9, dtype=LOW) * FRAMES).long(),  # nothing is wrong with a draw
    lambda shares, hidden: (shares.to(LOW) * 100).round().to(torch.int8).long(),  # a code, whose last digit is a rounding
], ids=["in float32", "of a network", "drawn", "a code"])  # fmt: skip
def test_other_integers_are_none(lengths: Rule) -> None:
    assert errors(lengths) == []


def test_inputs_that_the_precision_stores_low_are_what_they_are() -> None:
    assert errors(lambda shares, hidden: (shares * FRAMES).round().long(), "bf16-true") == []


def told(wide: list[float], made: list[float], step: Callable[[torch.Tensor], torch.Tensor] = torch.round) -> Recut | None:
    operation = Operation(1, "round.default", "forward", "", "model.py:1", 1)
    recut(operation, step, torch.tensor(made, dtype=LOW), torch.tensor(wide), torch.tensor(made, dtype=LOW))
    return operation.recut


def test_the_figures() -> None:
    assert told([10.2, 20.4, 30.3], [10.0, 21.0, 31.0]) == Recut(2, 3, 20.0, 21.0)


@pytest.mark.parametrize("made", [20.0, 21.0])
def test_where_float32_does_not_tell_either_is_right(made: float) -> None:
    """Within eight spacings of float32 of where it jumps."""
    assert told([20.5], [made]) is None
    assert told([20.5 + 8 * 2.0**-19], [made]) is None
    assert told([float(torch.tensor(20.0) + 2.0**-18)], [made], torch.ceil) is None


def test_what_is_not_finite_is_for_others_to_say() -> None:
    assert told([20.4, float("inf")], [float("nan"), 3.0]) is None
