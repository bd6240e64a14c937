"""Low numbers in a function: whether the precision asks for them, or its author's own casts have made them. Own ones are allowed fewer roundings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch

import precheck
from precheck.findings import Finding

LOW = torch.bfloat16


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def errors(code: Callable[[], object]) -> list[Finding]:
    with precheck.watch() as report:
        kept = code()
    del kept
    return report.errors


def switched(*on: bool) -> contextlib.ExitStack:
    """Autocast blocks, one inside the other, that are on or off."""
    blocks = contextlib.ExitStack()
    for each in on:
        blocks.enter_context(torch.autocast("cpu", dtype=LOW, enabled=each))
    return blocks


def apart(x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The squared distance of each pair."""
    x = x.to(low)
    squares = x.square().sum(-1)
    return (squares.unsqueeze(-1) + squares - 2 * x @ x.T).clamp(min=0).float()


class Pairs(torch.nn.Module):
    """Multiplies what it has computed and cast, inside such blocks."""

    def __init__(self, low: torch.dtype, *on: bool) -> None:
        super().__init__()
        self.low, self.on, self.scale = low, on, torch.nn.Parameter(torch.ones(48))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        alike = torch.nn.functional.normalize(given * self.scale, dim=-1)
        with switched(*self.on):
            return torch.exp(-2 * apart(alike, self.low)).mean()


def told_of_pairs(*on: bool, low: torch.dtype = LOW) -> list[str]:
    """The rules of its errors."""
    given = 0.2 * seeded(24, 48) + seeded(48, seed=1)
    return [error.rule for error in errors(lambda: Pairs(low, *on)(given))]


def test_a_product_of_the_authors_casts_where_autocast_is_switched_off() -> None:
    assert told_of_pairs(True, False) == ["cancellation"]


@pytest.mark.parametrize("on", [(), (True,), (False,), (True, False, True)])
def test_the_same_product_where_a_precision_may_ask_for_it(on: tuple[bool, ...]) -> None:
    """Autocast would cast as well; and a block that is off where nothing is on, as with `enabled=use_amp`, asks for nothing."""
    assert told_of_pairs(*on) == []


def test_in_float32_it_is_right() -> None:
    assert told_of_pairs(True, False, low=torch.float32) == []


def strides(steps: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.log(1 + torch.exp(steps + bias.to(steps.dtype))).float()


class Stepping(torch.nn.Module):
    def __init__(self, kept: torch.dtype) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.tensor([-2.9, -3.2, -3.0, -3.3], dtype=kept))

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        return strides(steps, self.bias) * 2


@pytest.mark.parametrize(
    ("given", "kept", "rules"), [(LOW, torch.float32, ["amplified-rounding"]), (LOW, LOW, []), (torch.float32, torch.float32, [])]
)
def test_a_low_number_that_meets_a_cast_of_the_authors(given: torch.dtype, kept: torch.dtype, rules: list[str]) -> None:
    """Of a low and a wide number torch makes a wide one. So only the cast makes low what follows. If both are given low, the precision asks for
    it."""
    steps = (0.3 * seeded(2, 64, 4)).to(LOW).to(given)
    assert [error.rule for error in errors(lambda: Stepping(kept)(steps))] == rules


def calibrated(reading: torch.Tensor) -> torch.Tensor:
    straight = reading * 1.07
    return straight + 0.9


def gained(before: torch.Tensor, after: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The logarithm of a ratio that is nearly one. A helper is called on each number, and each of its lines rounds both."""
    ratio = calibrated(after.to(low)) / calibrated(before.to(low))
    return torch.log(ratio).float()


class Gaining(torch.nn.Module):
    def __init__(self, low: torch.dtype) -> None:
        super().__init__()
        self.low, self.scale = low, torch.nn.Parameter(torch.ones(()))

    def forward(self, before: torch.Tensor) -> torch.Tensor:
        before = before * self.scale
        return gained(before, before * 1.12, self.low) * 2


def test_a_helper_that_is_called_twice_is_no_loop() -> None:
    """Its roundings add up as those of different lines do, though no line has half of them."""
    before = 3 + seeded(400).abs()
    (error,) = errors(lambda: Gaining(LOW)(before))
    assert "gained() is off by" in error.message
    assert errors(lambda: Gaining(torch.float32)(before)) == []


def apart_by_shares(differing: torch.Tensor, compared: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How far two sequences are apart, of whole numbers that bfloat16 has."""
    share = differing.to(low) / compared.to(low)
    return -torch.log(1 - share).float()


@pytest.mark.parametrize(("low", "rules"), [(LOW, ["amplified-rounding"]), (torch.float32, [])])
def test_a_cast_that_loses_nothing_is_the_authors_too(low: torch.dtype, rules: list[str]) -> None:
    """No error passes a cast of small whole numbers. They are no numbers that the function was given low."""
    differing, compared = 15 + torch.arange(40), 904 + 8 * torch.arange(40)
    assert [error.rule for error in errors(lambda: apart_by_shares(differing, compared, low) * 2)] == rules
