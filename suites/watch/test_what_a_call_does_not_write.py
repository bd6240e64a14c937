"""What an optimizer, a backward pass or another call writes is an input of the calls that still hold the old content."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import precheck

HALF = torch.float16


def trained(by_hand: bool, tiny: float) -> torch.Tensor:
    """How far a layer moves in two steps, divided by itself times `tiny`, which float16 does not hold if it is 1e-5."""
    layer = nn.Linear(8, 4, bias=False).to(HALF)
    start = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight.mul_(1.0)  # now the call holds the weight
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        layer.zero_grad(set_to_none=False)
        layer(torch.ones(3, 8, dtype=HALF)).sum().backward()
        if by_hand:
            with torch.no_grad():
                layer.weight.sub_(0.1 * layer.weight.grad)
        else:
            optimizer.step()
    gradient = layer.weight.grad
    assert gradient is not None
    moved = layer.weight.detach().float() - start.float()
    return moved / ((gradient * tiny).float() * 1e4)


@pytest.mark.parametrize("by_hand", [False, True], ids=["optimizer", "by-hand"])
def test_a_displacement_is_measured_on_the_weights_that_a_step_wrote(by_hand: bool) -> None:
    with precheck.watch() as report:
        result = trained(by_hand, 1.0)
    assert bool(torch.isfinite(result).all())
    assert not report.errors, report.summary()


@pytest.mark.parametrize("by_hand", [False, True], ids=["optimizer", "by-hand"])
def test_a_product_of_the_same_call_that_becomes_small_is_told(by_hand: bool) -> None:
    with precheck.watch() as report:
        result = trained(by_hand, 1.3e-7)
    assert bool(torch.isfinite(result).all())
    assert [finding.rule for finding in report.errors] == ["underflow"], report.summary()
