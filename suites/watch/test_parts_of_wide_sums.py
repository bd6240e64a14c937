"""Differences of two parts of a wide tensor, which a wide sum has made of a low one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import precheck

LINES = Path(__file__).read_text(encoding="utf8").splitlines()


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def path() -> torch.Tensor:
    """Two hundred places, each about one from the last."""
    return (torch.tensor([1.0, 0.3, 0.0]) + 0.2 * seeded(200, 3)).cumsum(0)


def turned(places: torch.Tensor) -> torch.Tensor:
    return (places.bfloat16() @ torch.linalg.qr(seeded(3, 3, seed=1))[0].bfloat16()).float()  # the turn


def moved_a_little() -> torch.Tensor:
    """Low places that are moved a little in float32. How far each is from the next is lost, as it is without the move."""
    return (turned(path()) + 0.01 * seeded(200, 3, seed=2)).diff(dim=0).norm(dim=-1)


def moved_twice() -> torch.Tensor:
    places = turned(path()) + 0.01 * seeded(200, 3, seed=2)
    return (places - 0.02 * seeded(200, 3, seed=3)).diff(dim=0).norm(dim=-1)


def wide_and_moved_by_a_low_number() -> torch.Tensor:
    """Wide places that a low number moves a little."""
    small = 0.01 * (seeded(200, 8, seed=2).bfloat16() @ seeded(8, 3, seed=3).bfloat16()).float()
    return (path() + small).diff(dim=0).norm(dim=-1)


def far_apart() -> torch.Tensor:
    """Low places that are as far from the next one as from the origin."""
    return (turned(seeded(200, 3, seed=4)) + 0.01 * seeded(200, 3, seed=2)).diff(dim=0).norm(dim=-1)


@pytest.mark.parametrize("code", [moved_a_little, moved_twice])
def test_a_small_wide_move_gives_no_digit_back(code: Callable[[], torch.Tensor]) -> None:
    with precheck.watch() as report:
        result = code()
    assert result.isfinite().all()
    finding = next(iter(report.errors))
    assert LINES[int(finding.source.rpartition(":")[2]) - 1].endswith("# the turn")


@pytest.mark.parametrize("code", [wide_and_moved_by_a_low_number, far_apart])
def test_parts_that_have_their_digits_are_left_in_peace(code: Callable[[], torch.Tensor]) -> None:
    with precheck.watch() as report:
        result = code()
    assert result.isfinite().all()
    assert not report.errors
