"""A whole loop under a precision's autocast: each pass sees the weights as the last step left them, as where autocast ends after each pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import precheck

PRECISIONS = pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
Loop = Callable[[], Iterator[float]]


def x() -> torch.Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def with_an_optimizer() -> Iterator[float]:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    while True:
        loss = model(x()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def by_hand() -> Iterator[float]:
    weight = torch.randn(4, 4).requires_grad_()
    while True:
        loss = F.linear(x(), weight).square().mean()
        weight.grad = None
        loss.backward()
        assert weight.grad is not None
        with torch.no_grad():
            weight -= 0.3 * weight.grad
        yield loss.item()


def by_an_average() -> Iterator[float]:
    model, kept = nn.Linear(4, 4), nn.Linear(4, 4)
    while True:
        loss = kept(x()).square().mean()
        for mine, its in zip(kept.parameters(), model.parameters(), strict=True):
            mine.data.lerp_(its.data, 0.3)
        yield loss.item()


LOOPS = pytest.mark.parametrize("loop", [with_an_optimizer, by_hand, by_an_average])


@LOOPS
@PRECISIONS
def test_each_pass_sees_the_weights_as_they_are(loop: Loop, precision: str) -> None:
    torch.manual_seed(0)
    with precheck.watch(precision=precision):
        steps = loop()
        watched = [next(steps) for _ in range(4)]
    torch.manual_seed(0)
    steps, plain = loop(), []
    for _ in range(4):
        with precheck.watch(precision=precision):
            plain.append(next(steps))
    assert len(set(watched)) == 4
    assert watched == plain


@PRECISIONS
def test_a_pass_under_no_grad_leaves_no_cast_without_a_gradient(precision: str) -> None:
    model = nn.Linear(4, 4)
    with precheck.watch(precision=precision):
        with torch.no_grad():
            model(x())
        model(x()).square().mean().backward()
    assert model.weight.grad is not None


def test_autocast_of_the_loop_s_own_is_as_it_was() -> None:
    """Without a precision the block runs as it is: torch's cache outlives a step inside of one autocast, and the watch says nothing of its own."""
    def losses() -> list[float]:
        torch.manual_seed(0)
        steps = with_an_optimizer()
        with torch.autocast("cpu", torch.bfloat16):
            return [next(steps) for _ in range(3)]

    plain = losses()
    with precheck.watch():
        watched = losses()
    assert watched == plain
    assert len(set(plain)) == 1
