"""A function that casts wide numbers and computes low with them is held to what its roundings add up to. One that is given low numbers is not."""

from __future__ import annotations

from collections.abc import Callable

import torch

import precheck
from precheck.findings import Finding

LOW = torch.bfloat16
CENTRES = torch.arange(24) * 0.4
DISTANCES = 9 * torch.rand(200, generator=torch.Generator().manual_seed(0))
SHARES = 0.46 + 0.1 * torch.rand(200, generator=torch.Generator().manual_seed(1))


class Model(torch.nn.Module):
    """Computes what it hands to a function, so that this is no data."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function((x + 1).log().exp() - 1)


def errors(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[Finding]:
    model = Model(function)
    with precheck.watch(model) as report:
        kept = model(x)
    del kept
    return report.errors


def bells(distances: torch.Tensor) -> torch.Tensor:
    """Narrow bells around distances that are cast first: several roundings on two lines, and none of them has half of the error."""
    distances, centres = distances.to(LOW), CENTRES.to(LOW)
    return (-0.5 * ((distances[:, None] - centres) / 0.08).square()).exp().float()


def bells_rounded_late(distances: torch.Tensor) -> torch.Tensor:
    return (-0.5 * ((distances[:, None] - CENTRES) / 0.08).square()).to(LOW).exp().float()


def log_odds(share: torch.Tensor) -> torch.Tensor:
    """Of shares about a half, so that odds are about one and their logarithm is about nought: off by 3 %."""
    share = share.to(LOW)
    return ((1 - share) / share).log().float()


def log_odds_in_float32(share: torch.Tensor) -> torch.Tensor:
    return ((1 - share) / share).log().to(LOW).float()


def log_odds_of(share: torch.Tensor) -> torch.Tensor:
    return ((1 - share) / share).log().float()


class Rounded(torch.nn.Module):
    """Gives a function low numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return log_odds_of(x)


def rounds(share: torch.Tensor) -> torch.Tensor:
    """What some turns add, each rounded twice on one line: a loop's roundings are no single one that is amplified."""
    left = torch.zeros(200)
    for turn in range(2):
        left = left + ((share + 0.2 * turn).to(LOW) - (0.5 * share).to(LOW)).float()
        left = left * 0.9
    return left


def test_roundings_of_several_lines_count_together() -> None:
    found = errors(bells, DISTANCES)
    assert [error.rule for error in found] == ["amplified-rounding"]
    assert "bells() is " in found[0].message
    assert "on the same inputs as the reference, " in found[0].message


def test_bells_that_are_rounded_late() -> None:
    assert errors(bells_rounded_late, DISTANCES) == []


def test_arithmetic_that_nobody_asked_for_in_a_low_format() -> None:
    found = errors(log_odds, SHARES)
    assert found
    assert "log_odds() is " in found[0].message


def test_odds_in_float32() -> None:
    assert errors(log_odds_in_float32, SHARES) == []


def test_a_function_that_is_given_low_numbers_computes_low_because_it_must() -> None:
    """Its own error is beyond four unit roundoffs, which a function may have that cannot help it."""
    model = Rounded()
    with precheck.watch(model) as report:
        kept = model(SHARES.to(LOW))
    assert len(kept) == len(SHARES)
    assert report.errors == []


def test_roundings_of_a_loop_stay_apart() -> None:
    assert errors(rounds, SHARES) == []


class Remaining(torch.nn.Module):
    """One method tells the share that is done, another one what is left of it, in float32."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def done(self, steps: torch.Tensor) -> torch.Tensor:
        return (steps.float() / 1000).to(self.dtype)

    def left(self, done: torch.Tensor) -> torch.Tensor:
        return 1 - done.float()

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        return 100 * self.left(self.done(steps))


STEPS = torch.arange(970, 1000)


def test_an_exact_number_that_a_model_stores_low_is_not_given_low_to_what_subtracts_it() -> None:
    """Steps are whole, so the share has no error before it is cast. Its code could have kept it wide."""
    model = Remaining(LOW)
    with precheck.watch(model) as report:
        kept = model(STEPS)
    assert len(kept) == len(STEPS)
    (found,) = report.errors
    assert int(found.source.rpartition(":")[2]) == Remaining.done.__code__.co_firstlineno + 1


def test_what_is_stored_wide_or_given_low_is_subtracted_rightly() -> None:
    wide, low = Remaining(torch.float32), Remaining(LOW)
    with precheck.watch(wide) as report:
        kept = [wide(STEPS)]
    assert report.findings == []
    with precheck.watch(low) as report:
        kept.append(100 * low.left((STEPS.float() / 1000).to(LOW)))
    assert len(kept) == 2
    assert report.errors == []


class Turning(torch.nn.Module):
    """Counts samples, and turns them to angles. What is taken off is whole turns, so an angle has the error of all its turns."""

    def __init__(self, dtype: torch.dtype, *, wraps: bool = True) -> None:
        super().__init__()
        self.dtype, self.wraps = dtype, wraps

    def turned(self, rate: torch.Tensor, first: int | torch.Tensor) -> torch.Tensor:
        samples = (torch.arange(14) * 1096 + first).to(self.dtype)
        turns = samples * rate[:, None]
        return 6.28 * torch.remainder(turns, 1) if self.wraps else turns

    def forward(self, rate: torch.Tensor) -> torch.Tensor:
        return self.turned(rate, 0)


RATES = torch.linspace(0.0006, 0.0012, 4)


def test_whole_numbers_that_a_model_counts_and_casts_are_its_own() -> None:
    model = Turning(LOW)
    with precheck.watch(model) as report:
        kept = model(RATES)
    assert len(kept) == len(RATES)
    (found,) = report.errors
    assert "turned() is off by " in found.message
    assert int(found.source.rpartition(":")[2]) == Turning.turned.__code__.co_firstlineno + 1


def test_whole_numbers_that_are_counted_wide_or_whose_rounding_is_not_enlarged() -> None:
    kept = []
    for model in (Turning(torch.float32), Turning(LOW, wraps=False)):
        with precheck.watch(model) as report:
            kept.append(model(RATES))
        assert report.errors == []
    assert len(kept) == 2
