"""What a function hands to another is judged there: where nothing of it is left, in a part of it, in whole numbers, and whatever chaos follows."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import nn

import precheck
from precheck.findings import Finding

LOW = torch.bfloat16
Function = Callable[..., torch.Tensor]


def errors(code: Callable[[], object]) -> list[Finding]:
    with precheck.watch() as report:
        kept = code()
    del kept
    return report.errors


def at(function: Function, text: str) -> str:
    """The end of the place of the first line of a function that has that text in it."""
    lines, start = inspect.getsourcelines(function)
    return f"test_results_of_functions.py:{start + next(number for number, line in enumerate(lines) if text in line)}"


class Model(nn.Module):
    """A model whose forward pass calls a function, and `then` another on the result."""

    def __init__(self, function: Function, then: Function = torch.clone) -> None:
        super().__init__()
        self.function, self.then = function, then

    def forward(self, given: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        return self.then(self.function(given, low))


def left_to_do(step: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    done = (step.double() / 1_000_000).to(low)
    return (1 - done).float()


def beside_more(left: torch.Tensor) -> torch.Tensor:
    return torch.linspace(1, 2, 40) + left


def test_a_function_of_which_nothing_is_left_is_wrong_whatever_is_added() -> None:
    (found,) = errors(lambda: Model(left_to_do, beside_more)(torch.arange(998_700, 998_740), LOW))
    assert (found.rule, "left_to_do() is off by 100% of its norm" in found.message) == ("amplified-rounding", True)
    assert found.source.endswith(at(left_to_do, ".to(low)"))  # the cast, which is all that makes the difference low


@pytest.mark.parametrize(("first", "low"), [(998_700, torch.float32), (400_000, LOW)], ids=["float32", "half is left"])
def test_a_function_of_which_digits_are_left(first: int, low: torch.dtype) -> None:
    assert errors(lambda: Model(left_to_do, beside_more)(torch.arange(first, first + 40), low)) == []


KEPT = -0.05 * (1 + torch.rand(2, 300, generator=torch.Generator().manual_seed(1)))


def fading(kept: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    total = kept.to(low).cumsum(-1).float()
    return (total[:, :, None] - total[:, None, :]).tril().exp().tril()


def softly(kept: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    total = kept.cumsum(-1)
    return (total[:, :, None] - total[:, None, :]).tril().exp().tril().to(low)


def test_a_part_whose_error_the_rest_has_hidden() -> None:
    (found,) = errors(lambda: Model(fading)(KEPT, LOW))
    assert found.source.endswith(at(fading, "total ="))
    assert "times as large in the part that aten.tril.default at " in found.message


def test_a_part_that_is_rounded_once() -> None:
    assert errors(lambda: Model(softly)(KEPT, LOW)) == []


ECCENTRIC = 0.9 + 0.09 * torch.rand(256, generator=torch.Generator().manual_seed(2))


def short_axis(eccentric: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return (1 - eccentric.square()).sqrt().to(low).float()


def missed(eccentric: torch.Tensor, axis: torch.Tensor) -> torch.Tensor:
    """What was measured, less the place: thousandths of it."""
    return (1 - eccentric.square()).sqrt() * (1 + 1e-3 * torch.linspace(0.5, 1, 256)) - axis


def iterated(numbers: torch.Tensor) -> torch.Tensor:
    numbers = (100 * numbers).sigmoid()
    for _ in range(48):
        numbers = 3.9 * numbers * (1 - numbers)
    return numbers


class Orbit(nn.Module):
    """One function rounds, another subtracts, and chaos follows in a third."""

    def forward(self, eccentric: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        return iterated(missed(eccentric, short_axis(eccentric, low)))


def test_a_difference_that_a_function_returns_is_wrong_however_chaotic_is_what_follows() -> None:
    first = errors(lambda: Orbit()(ECCENTRIC, LOW))[0]
    assert first.source.endswith(at(short_axis, "return"))
    assert errors(lambda: Orbit()(ECCENTRIC, torch.float32)) == []


def ticks(milliseconds: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    seconds = (milliseconds.float() / 1000).to(low)
    since = seconds - seconds[:, :1]
    return (since * 25).round().long()


def test_integers_of_an_exact_difference_are_blamed_on_what_rounded_its_terms() -> None:
    frames = torch.tensor([[41_233], [88_961]]) + 520 * torch.arange(8)
    (found,) = errors(lambda: Model(ticks)(frames, LOW))
    assert found.rule == "integer-rounding"
    assert found.source.endswith(at(ticks, "seconds ="))
    assert errors(lambda: Model(ticks)(frames, torch.float32)) == []
