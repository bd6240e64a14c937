"""What the reference makes of whole numbers, at the end of a domain, and of NaN among numbers from which a program chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import precheck


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def errors(code: Callable[[], torch.Tensor], precision: str | None = "32-true") -> list[str]:
    with precheck.watch(precision=precision) as report:
        kept = code()
    assert kept.numel()
    return [f"{finding.rule}: {finding.message}" for finding in report.errors]


@pytest.fixture
def bfloat16_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


def test_a_power_of_a_count_is_beyond_float32_and_not_beyond_the_reference() -> None:
    (found,) = errors(lambda: (1.25 ** torch.arange(480)).log().sum())
    assert found.startswith("overflow: aten.pow.Scalar")
    assert "beyond the largest float32" in found
    assert errors(lambda: (1.25 ** torch.arange(300)).log().sum()) == []


@pytest.mark.usefixtures("bfloat16_by_default")
def test_a_quotient_of_counts_is_rounded_where_bfloat16_is_the_default() -> None:
    (found,) = errors(lambda: (torch.arange(4000) / 10).sin(), None)
    assert found.startswith("amplified-rounding: aten.div.Tensor")
    assert errors(lambda: (torch.arange(16) / 10).sin(), None) == []
    assert errors(lambda: (torch.arange(4000).float() / 10).sin(), None) == []


def angles(by_cosine: bool) -> torch.Tensor:
    """Between vectors and others, half of which are three times the vector: there the cosine is one, but for the reference's rounding."""
    one = normal(200, 12)
    two = torch.cat([3 * one[:100], normal(100, 12, seed=1)])
    if by_cosine:
        return torch.acos((one * two).sum(1) / (one.square().sum(1).sqrt() * two.square().sum(1).sqrt())).mean()
    one, two = one / one.norm(dim=1, keepdim=True), two / two.norm(dim=1, keepdim=True)
    return 2 * torch.atan2((one - two).norm(dim=1), (one + two).norm(dim=1)).mean()


def test_the_reference_does_not_leave_a_domain_by_its_own_rounding() -> None:
    (found,) = errors(lambda: angles(by_cosine=True))
    assert "roundings have put a number beyond the end of this function's domain: NaN" in found
    assert errors(lambda: angles(by_cosine=False)) == []


def nearest(direct: bool) -> torch.Tensor:
    """The five nearest points of each, itself among them: its expanded square is often below zero."""
    points = torch.tensor([12.0, -7.0, 3.0]) + 0.5 * normal(80, 3)
    squares = points.square().sum(1)
    expanded = squares[:, None] + squares - 2 * points @ points.T
    distances = (points[:, None] - points).norm(dim=-1) if direct else expanded.sqrt()
    return normal(80, 4, seed=1)[distances.topk(5, dim=1, largest=False)[1]].mean(1)


def test_a_choice_that_leaves_nan_out() -> None:
    found = errors(lambda: nearest(direct=False))
    assert found
    assert found[0].startswith("cancellation: aten.sub.Tensor")
    assert "aten.sqrt.default" in found[0]
    assert "made NaN of it" in found[0]
    assert errors(lambda: nearest(direct=True)) == []


def faded(centred: bool) -> torch.Tensor:
    """How readings lie in what was seen before, by an average that forgets. Their differences are right to two digits, their squares to none."""
    levels, given = 800 + 100 * torch.arange(6.0), []
    mean, square, spread = levels, levels.square(), torch.zeros(6)
    for turn in range(30):
        reading = levels + 0.02 * normal(6, seed=turn)
        apart = reading - mean
        mean = mean + 0.3 * apart
        square = 0.3 * reading.square() + 0.7 * square
        spread = 0.7 * (spread + 0.3 * apart.square())
        given.append((spread if centred else square - mean.square()).sqrt())
    return torch.stack(given[5:])


def test_a_zero_is_put_down_to_what_made_most_of_its_error() -> None:
    """An earlier difference that is inexact, too, has less than half of it."""
    (found,) = (each for each in errors(lambda: faded(centred=False)) if "made NaN of it" in each)
    assert "in the reference became zero here" in found
    assert not any("NaN" in each for each in errors(lambda: faded(centred=True)))
