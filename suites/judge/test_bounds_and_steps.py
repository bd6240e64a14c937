"""Bounds that a comparison rounds onto its numbers, numbers that become other whole ones, and what an optimizer's step loses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scenario import finds, passes

LOW, HALF = torch.bfloat16, torch.float16
SURE = torch.sigmoid(torch.linspace(-10, 20, 40))
Compares = Callable[[torch.Tensor], torch.Tensor]


def test_a_bound_that_is_one() -> None:
    def taken() -> torch.Tensor:
        sure = SURE.to(LOW)
        return torch.where(sure > 0.999, 1.0, 0.0)  # fault

    found = finds(taken, "vanished-constant", says=": 0.999 is 1 in bfloat16, in which these numbers are compared: all 40 answers are alike, and 17")
    assert found.advice == "compare in float32: call .float() on what this line reads"


def test_a_bound_that_is_one_already_is_not_mended_by_comparing_in_float32() -> None:
    def taken() -> torch.Tensor:
        sure = SURE.to(LOW)
        return torch.where(sure > torch.tensor(0.999).to(LOW), 1.0, 0.0)  # fault

    found = finds(taken, "vanished-constant", says=": 0.999 is 1 in bfloat16")
    assert found.advice.endswith(", and do not store 0.999 in bfloat16 before")


def test_a_share_that_is_one_is_not_mended_by_a_larger_constant() -> None:
    def averaged() -> torch.Tensor:
        share = torch.tensor(0.999, dtype=LOW)  # fault
        return (1 - share) * torch.linspace(1, 2, 40)

    assert finds(averaged, "vanished-constant", says=": 0.999 is 1 in bfloat16").advice == "leave out this cast"


def test_a_bound_that_is_zero_beside_a_single_number() -> None:
    def hollow() -> torch.Tensor:
        weight = torch.tensor([0.0, 1.0, 0.0, 2.0]).to(HALF)
        return torch.where(torch.tensor(1e-9) > weight, 1.0, 0.0)  # fault

    finds(hollow, "vanished-constant", says=": 1e-09 is 0 in float16")


@pytest.mark.parametrize(
    "compares", [
        lambda sure: sure >= 0.999, lambda sure: sure > 0.99, lambda sure: sure.float() > 0.999, lambda sure: sure > torch.tensor([0.999]),
        lambda sure: sure[:20] > 0.999, lambda sure: sure[-1] > 0.999,
    ], ids=["or equal", "not one", "wide", "no single number", "none is", "one answer"],
)  # fmt: skip
def test_bounds_that_decide_as_they_should(compares: Compares) -> None:
    passes(lambda: torch.where(compares(SURE.to(LOW)), 1.0, 0.0))


def test_a_clamp_whose_bounds_are_one_number() -> None:
    ratios = 1 + 1e-3 * torch.linspace(-1, 1, 40)

    def clipped() -> torch.Tensor:
        return ratios.to(LOW).clamp(1 - 3e-4, 1 + 4e-4)  # fault

    found = finds(clipped, "vanished-constant", says=": 0.9997 and 1.0004 are both 1 in bfloat16, so that this makes 1 of every number")
    assert found.advice == "stay in float32 on this line"


@pytest.mark.parametrize(
    "clipped", [
        lambda ratios: ratios.clamp(1 - 3e-4, 1 + 4e-4), lambda ratios: ratios.to(LOW).clamp(0.8, 1.2),
        lambda ratios: ratios.to(LOW).clamp(max=1.0004), lambda ratios: ratios.to(LOW).clamp(0.0, 1.0), lambda ratios: ratios.to(LOW).clamp(0.5, 0.5),
    ], ids=["wide", "far apart", "one bound", "held", "one number"],
)  # fmt: skip
def test_clamps_that_leave_something(clipped: Compares) -> None:
    ratios = (1 + 0.3 * torch.linspace(-1, 1, 40)).to(LOW)
    passes(lambda: (clipped(ratios.float()), ratios + 1))


def test_draws_that_are_rounded_as_the_bound_is() -> None:
    """What lies between 0.998 and 1 becomes 1 as 0.999 does: either answer is as right."""
    passes(lambda: torch.where(torch.linspace(0.1, 0.9989, 50).to(LOW) > 0.9988, 1.0, 0.0))


def coded(size: float) -> torch.Tensor:
    """Rows in codes by scales in half; `size` is that of the faintest row."""
    x = torch.linspace(-1, 1, 32) * torch.tensor([[1.0], [0.5], [size]])
    scale = (x.abs().amax(1, keepdim=True) / 127).to(HALF)
    return (x / scale.float().clamp_min(1e-12)).round().clamp(-127, 127).to(torch.int8)


def test_numbers_that_become_other_whole_ones_show_an_error() -> None:
    def codes() -> torch.Tensor:
        x = torch.linspace(-1, 1, 32) * torch.tensor([[1.0], [0.5], [1.1e-5]])
        scale = (x.abs().amax(1, keepdim=True) / 127).to(HALF)  # fault
        return (x / scale.float()).round().to(torch.int8)

    finds(codes, "amplified-rounding")


def test_neighbouring_codes_show_none() -> None:
    passes(lambda: coded(0.1))


class ByHand(torch.optim.Optimizer):
    """An optimizer that the user wrote."""

    def __init__(self, weights: object, rule: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        super().__init__(weights, {})  # type: ignore[arg-type]
        self.rule = rule

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            self.rule(weight, weight.grad)


def trained(rule: Callable[[torch.Tensor, torch.Tensor], None], dtype: torch.dtype = torch.float32, steps: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(6, 8, generator=generator).to(dtype))
    optimizer = ByHand([weight], rule)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", LOW, enabled=dtype is torch.float32):
            loss = (torch.randn(16, 8, generator=generator).to(dtype) @ weight.T).float().square().mean()
        loss.backward()
        optimizer.step()
    return weight.detach()


def test_a_step_of_numbers_that_became_zero() -> None:
    def descended() -> torch.Tensor:
        def rule(weight: torch.Tensor, gradient: torch.Tensor) -> None:
            square = (1e-4 * gradient).half().square().float()  # fault
            weight.sub_(1e-3 * gradient / (square.sqrt() + 1e-7))

        return trained(rule)

    finds(descended, "underflow", says="rule() is ")


def test_a_correction_that_is_zero() -> None:
    def descended() -> torch.Tensor:
        count = torch.zeros((), dtype=LOW)

        def rule(weight: torch.Tensor, gradient: torch.Tensor) -> None:
            count.add_(1)
            correction = 1 - 0.999**count  # fault
            weight.sub_(correction.sqrt() * gradient)

        return trained(rule)

    finds(descended, "cancellation", says=": on the same inputs as the reference, rule() is off by 100% of its norm")


def rounded(weight: torch.Tensor, gradient: torch.Tensor) -> None:
    weight.sub_(0.01 * gradient.to(LOW) / (gradient.to(LOW).abs() + 1e-8))


def differences(weight: torch.Tensor, gradient: torch.Tensor) -> None:
    """A rounding that a difference enlarges is another one in each step."""
    weight.sub_(0.01 * (gradient - gradient.to(LOW) * 0.99).to(weight.dtype))


@pytest.mark.parametrize("rule", [rounded, differences])
def test_a_step_that_is_rounded(rule: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    passes(lambda: trained(rule))
