"""Which values of a function count as its results: a wrong number inside it does no harm if nothing that leaves the function is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch

import precheck

LOW, HALF = torch.bfloat16, torch.float16


def accused(code: Callable[[], object]) -> list[str]:
    with precheck.watch() as report:
        kept = code()
    del kept
    return [f"{error.rule} {error.source.rpartition('/')[2]}" for error in report.errors]


def uniform(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def system(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A symmetric matrix whose rows are led by their diagonal, and a right side."""
    beside = torch.ones(size - 1)
    return (6 * torch.eye(size) - torch.diag(beside, 1) - torch.diag(beside, -1)).to(HALF), uniform(size).to(HALF)


def conjugate_gradients(matrix: torch.Tensor, b: torch.Tensor, *, direction: bool) -> torch.Tensor:
    """The solution after four iterations, or the last direction, whose error is that of the small residual."""
    x, residual = torch.zeros_like(b), b
    way, size = residual, residual @ residual
    for _ in range(4):
        image = matrix @ way
        rate = size / (way @ image)
        x, residual = x + rate * way, residual - rate * image
        new = residual @ residual
        way, size = residual + new / size * way, new
    return way if direction else x


def test_directions_of_a_solver_whose_solution_is_right() -> None:
    """Each direction is off by up to 16 unit roundoffs, and the solution by 1.2: the directions become small beside it."""
    assert accused(lambda: conjugate_gradients(*system(24), direction=False)) == []


def test_a_direction_that_is_returned() -> None:
    lines, start = inspect.getsourcelines(conjugate_gradients)
    line = start + next(number for number, text in enumerate(lines) if "residual - rate" in text)
    assert accused(lambda: conjugate_gradients(*system(24), direction=True)) == [f"cancellation test_function_results.py:{line}"]


def squares(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT


def rates(one: torch.Tensor, other: torch.Tensor, *, near: bool) -> torch.Tensor:
    """Squares of a small difference, from a function of their own. Beside a large number they are right, alone they are not."""
    made = squares(one - other)
    return (made + 4096.0) if near else made


@pytest.mark.parametrize(("near", "found"), [(True, 0), (False, 1)])
def test_what_a_function_hands_to_another_that_it_calls(near: bool, found: int) -> None:
    """The difference goes to `squares`. It is no result of `rates` for that: what `squares` returns decides."""
    one = uniform(16, 32)
    exact = one + 0.01 * uniform(16, 32).flip(0)
    assert len(accused(lambda: rates(one.exp().to(LOW), exact.exp().to(LOW), near=near))) == found


def weights_of(one: torch.Tensor, other: torch.Tensor, *, unit: bool) -> torch.Tensor:
    """Numbers without a correct digit: by their own mean, as a small correction of one, or their mean itself."""
    left = (one.exp() - other.exp()).square()
    mean = left.mean(-1, keepdim=True)
    return 1.0 + 2.0**-12 * (left / mean) if unit else mean


@pytest.mark.parametrize(("unit", "found"), [(True, 0), (False, 1)])
def test_a_mean_that_is_only_a_unit(unit: bool, found: int) -> None:
    one = uniform(32, 64)
    near = one + 2.0**-10 * uniform(32, 64).flip(0)
    assert len(accused(lambda: weights_of(one.to(LOW), near.to(LOW), unit=unit))) == found


class Distance(torch.nn.Module):
    """A large number less powers of differences, which are stored low. Their error is small beside it, and that of their derivative is not."""

    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(1.0 + uniform(8, 16), requires_grad=trained)

    def forward(self, bound: torch.Tensor) -> torch.Tensor:
        left = (2 * bound).to(LOW) - (2 * self.weight).to(LOW)
        return 1e5 - (left.float() / 0.2).pow(7).sum(-1)


@pytest.mark.parametrize(("trained", "found"), [(True, 1), (False, 0)])
def test_a_result_that_is_right_and_its_gradient_that_is_not(trained: bool, found: int) -> None:
    model = Distance(trained)
    bound = 1.1 + uniform(8, 16) + 0.1 * uniform(8, 16).flip(0)

    def code() -> object:
        result = model(bound)
        if trained:
            result.sum().backward()
        return result, model.weight.grad

    assert len(accused(code)) == found
