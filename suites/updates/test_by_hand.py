"""Loops that take their steps by hand, or by an optimizer that torch has never heard of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from twin import BF16, ENOUGH, START, TOO_LITTLE, moved, told, watched, weight


def _subtracted(own: nn.Parameter, rate: float) -> None:
    own.data -= rate * own.grad  # type: ignore[operator]


def _in_place(own: nn.Parameter, rate: float) -> None:
    own.data.sub_(rate * own.grad)  # type: ignore[operator]


def _alpha(own: nn.Parameter, rate: float) -> None:
    own.add_(own.grad, alpha=-rate)  # type: ignore[arg-type]


def _copied(own: nn.Parameter, rate: float) -> None:
    own.copy_(own - rate * own.grad)  # type: ignore[operator]


def _replaced(own: nn.Parameter, rate: float) -> None:
    own.data = own.data - rate * own.grad  # type: ignore[operator]


def _foreach(own: nn.Parameter, rate: float) -> None:
    torch._foreach_add_([own], [own.grad], alpha=-rate)


def _wide(own: nn.Parameter, rate: float) -> None:
    own.copy_(own.float() - rate * own.grad.float())  # type: ignore[union-attr]


def _by_number(own: nn.Parameter, rate: float) -> None:
    own.sub_(rate * float(own.grad[0]))  # type: ignore[index]


def _divided(own: nn.Parameter, rate: float) -> None:
    own.addcdiv_(own.grad, torch.ones_like(own), value=-rate)  # type: ignore[arg-type]


BY_HAND = [_subtracted, _in_place, _alpha, _copied, _replaced, _foreach, _wide, _by_number, _divided]


@pytest.mark.parametrize("rate", [ENOUGH, TOO_LITTLE], ids=["enough", "too-little"])
@pytest.mark.parametrize("way", BY_HAND)
def test_steps_by_hand(way: Callable[[nn.Parameter, float], None], rate: float) -> None:
    own = weight()

    def code() -> None:
        for _ in range(6):
            own.grad = None
            (own * torch.ones(64, dtype=BF16)).sum().backward()
            with torch.no_grad():
                way(own, rate)

    report = watched(code)
    assert moved(own) == (rate == ENOUGH)
    assert {finding.rule for finding in told(report)} <= {"lost-update", "absorption"}
    assert bool(report.errors) == (not moved(own)), report.summary()


class Momentum:
    """An optimizer that torch has never heard of."""

    def __init__(self, parameters: list[nn.Parameter], rate: float) -> None:
        self.parameters, self.rate, self.moments = parameters, rate, [torch.zeros_like(each) for each in parameters]

    @torch.no_grad()
    def step(self) -> None:
        for own, moment in zip(self.parameters, self.moments, strict=True):
            moment.mul_(0.9).add_(own.grad)  # type: ignore[arg-type]
            own.add_(moment, alpha=-self.rate)


@pytest.mark.parametrize("rate", [ENOUGH, TOO_LITTLE / 10], ids=["enough", "too-little"])
def test_an_optimizer_that_is_none_of_torch(rate: float) -> None:
    own = weight()
    optimizer = Momentum([own], rate)

    def code() -> None:
        for _ in range(6):
            own.grad = None
            own.sum().backward()
            optimizer.step()

    report = watched(code)
    assert bool(report.errors) == (not moved(own)), report.summary()


@pytest.mark.parametrize("kept", [True, False], ids=["put-back", "subtracted-again"])
def test_a_climb_that_the_program_takes_back_is_no_step(kept: bool) -> None:
    """A climb of a hundredth of a spacing is lost, and so does not count where the old weight is put back. Else it and its way back are steps."""
    own = weight()

    def code() -> None:
        for turn in range(6):
            own.grad = None
            own.sum().backward()
            with torch.no_grad():
                if turn % 2 == 0:
                    old = own.clone()
                    own.add_(own.grad, alpha=TOO_LITTLE)  # type: ignore[arg-type]
                elif kept:
                    own.copy_(old)
                    own.sub_(own.grad, alpha=ENOUGH)  # type: ignore[arg-type]
                else:
                    own.sub_(own.grad, alpha=TOO_LITTLE)  # type: ignore[arg-type]

    report = watched(code)
    assert bool(report.errors) is not kept, report.summary()


def _summed(compensated: bool) -> nn.Parameter:
    """Steps of a thousandth of what the weight sees. What each has lost is kept for the next, or not; its memory ends with this function."""
    own, lost = weight(), torch.zeros(64, dtype=BF16)
    for _ in range(4):
        own.grad = None
        (own * torch.ones(64, dtype=BF16)).sum().backward()
        with torch.no_grad():
            step = -TOO_LITTLE * own.grad + lost  # type: ignore[operator]
            new = own + step
            if compensated:
                lost.copy_(step - (new - own))
            own.copy_(new)
    return own


@pytest.mark.parametrize("compensated", [True, False], ids=["kahan", "plain"])
def test_a_remainder_whose_memory_is_gone_at_the_end(compensated: bool) -> None:
    kept = []
    report = watched(lambda: kept.append(_summed(compensated)))
    assert [each.rule for each in told(report)] == ([] if compensated else ["lost-update"])


@pytest.mark.parametrize("rate", [ENOUGH, 0.003], ids=["enough", "too-little"])
def test_lost_steps_that_make_the_next_gradients_wrong(rate: float) -> None:
    """The gradient falls by half in 0.003, so float32 has another from its second step on, where the weight has not moved."""
    own = weight()
    optimizer = torch.optim.SGD([own], lr=rate)

    def code() -> None:
        for _ in range(4):
            optimizer.zero_grad()
            ((own.float() - START) * 200).exp().sum().div(200).backward()
            optimizer.step()

    report = watched(code)
    assert ("lost-update" in [each.rule for each in told(report)]) == (rate < ENOUGH), report.summary()
