"""Weights whose rows were reordered when they were converted, as pairs of a head to halves: gradients are compared in that order."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import precheck

SIZE = 6


class Turned(nn.Module):
    """Pairs of features turned by an angle each: neighbours, or elements of two halves."""

    def __init__(self, halves: bool = False, gain: float = 1.0) -> None:
        super().__init__()
        self.halves, self.gain, self.q, self.last = halves, gain, nn.Linear(5, SIZE), nn.Linear(SIZE // 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, angles = self.q(x), torch.arange(1.0, SIZE // 2 + 1)
        one, two = q.chunk(2, -1) if self.halves else (q[..., ::2], q[..., 1::2])
        return self.gain * self.last((one * angles.cos() - two * angles.sin()).tanh())


def pair(permuted: bool = True, gain: float = 1.0) -> tuple[Turned, Turned]:
    torch.manual_seed(0)
    model, other = Turned(), Turned(halves=True, gain=gain)
    other.load_state_dict(model.state_dict())
    if permuted:
        order = [*range(0, SIZE, 2), *range(1, SIZE, 2)]
        other.q.weight.data, other.q.bias.data = model.q.weight.data[order], model.q.bias.data[order]
    return model, other


X = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_rows_in_another_order_are_the_same_rows(precision: str) -> None:
    report = precheck.compare(*pair(), X, precision=precision)
    assert report.verdict in ("bitwise", "rounding"), report.summary()


def test_rows_as_they_were_are_told_with_the_layer() -> None:
    (error, *_) = precheck.compare(*pair(permuted=False), X).errors
    assert error.module == "", error  # the model's own code takes the rows in the other order


def test_a_reordered_layer_is_not_the_first_that_differs() -> None:
    (error, *_) = precheck.compare(*pair(gain=0.9), X).errors
    assert error.module == "", error
    assert "gain is 0.9" in error.message
