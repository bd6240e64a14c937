"""Inf and flushed numbers in a few lines of torch: healed or harmful by what reads them. Limits are in test_ops_nonfinite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scenario import finds, passes, watched

LARGEST = 65504.0


def low(number: float) -> torch.Tensor:
    return torch.full((4,), number).half()


def kept() -> torch.Tensor:
    return low(300) * 300  # fault


def shape_taken() -> tuple[torch.Tensor, torch.Tensor]:
    """As backward() does, which begins with ones_like(loss)."""
    big = low(300) * 300  # fault
    return torch.ones_like(big), big.new_zeros(4)


def copied() -> torch.Tensor:
    big = low(300) * 300  # fault
    return big.float()


def read_by_python() -> torch.Tensor:
    big = low(300) * 300  # fault
    big[0].item()
    return big.clamp(max=6e4)


def spoilt() -> torch.Tensor:
    big = low(300) * 300  # fault
    moved = -big
    return moved - moved


def handed_on() -> torch.Tensor:
    big = low(300) * 300  # fault
    for _ in range(3):
        big = big * 2
    return big


def inverted() -> torch.Tensor:
    big = low(300) * 300  # fault
    return 1 / big


@pytest.mark.parametrize("program", [kept, shape_taken, copied, read_by_python, spoilt, handed_on, inverted], ids=lambda program: program.__name__)
def test_an_infinity_harms(program: object) -> None:
    """Told once, where it first appeared, with its numbers."""
    finding = finds(program, "overflow", says="90000 in the reference is beyond the largest float16, 65504")  # type: ignore[arg-type]
    assert (finding.op, finding.measured, finding.limit) == ("aten.mul.Tensor", 9e4, LARGEST)


def clamped() -> torch.Tensor:
    return (low(300) * 300).clamp(max=6e4)


def moved_and_clamped() -> torch.Tensor:
    return (-(low(300) * 300)).clamp(min=-1)


def copied_and_clamped() -> torch.Tensor:
    big = low(300) * 300
    big.clone()
    return big.clamp(max=6e4)


@pytest.mark.parametrize("program", [clamped, moved_and_clamped, copied_and_clamped], ids=lambda program: program.__name__)
def test_an_infinity_that_every_reader_heals_harms_nobody(program: object) -> None:
    passes(program)  # type: ignore[arg-type]


def flushed() -> torch.Tensor:
    tiny = low(1e-5) * 1e-5  # fault
    return tiny.float()


def flushed_beside_one() -> torch.Tensor:
    return (low(1e-5) * 1e-5).float() + 1


def test_what_was_flushed_and_only_copied_is_lost() -> None:
    """Widened and returned: zeros that are float32's by now. Beside a one they are nothing."""
    finds(flushed, "underflow", says="100% of this tensor became zero in float16, numbers up to 1e-10")
    passes(flushed_beside_one)


def saturated() -> torch.Tensor | None:
    """The derivative of erf squares Inf and takes the exponential of minus that, which is zero, as it is in the reference."""
    weight = torch.nn.Parameter(low(300))
    torch.erf(weight * 300).sum().backward()
    return weight.grad


def gradient_that_overflows() -> torch.Tensor | None:
    weight = torch.nn.Parameter(low(1))
    big = low(300) * 300  # fault
    (weight * big).sum().backward()
    return weight.grad


def test_an_infinity_that_a_derivative_heals_harms_nobody() -> None:
    """A parameter's gradient is none of these."""
    passes(saturated)
    finds(gradient_that_overflows, "overflow", says="90000 in the reference is beyond the largest float16, 65504")


def logarithm_of_ones() -> torch.Tensor:
    survival = (1 - 0.01 * torch.linspace(0.01, 1, 64)).half()  # fault
    return 1 / -survival.log()


def test_an_infinity_and_the_error_that_led_to_it_are_told_once() -> None:
    """Some of these numbers are one in half, whose logarithm is zero. The others have no digit left in theirs."""
    finds(logarithm_of_ones, "amplified-rounding")


def growing() -> torch.Tensor:
    """Some of these are beyond float32 as well."""
    return torch.exp(torch.linspace(1, 200, 300).half()).reciprocal()  # fault


def masked_scores() -> torch.Tensor:
    """The reference has the -Inf of the mask, and no score of it overflows."""
    scores, hidden = torch.full((4, 8), 300.0).half().square(), torch.arange(8) > 5  # fault
    return torch.softmax(torch.where(hidden, torch.full((8,), -torch.inf).half(), scores) - 1, -1)


@pytest.mark.parametrize(("program", "everywhere"), [(growing, True), (masked_scores, False)])
def test_float32_is_no_cure_where_it_overflows_too(program: Callable[[], torch.Tensor], everywhere: bool) -> None:
    finding = finds(program, "overflow", says="in the reference is beyond the largest float16, 65504")
    assert ("other elements overflow in the reference too" in finding.message) == everywhere
    assert ("float32 overflows here too" in finding.remedy) == everywhere
    assert (".float()" in finding.remedy or "float32 from" in finding.remedy or "in float32" in finding.remedy) != everywhere


def grown(ratio: torch.Tensor) -> torch.Tensor:
    """The quotient is NaN where a ratio has become one, and the step is taken there."""
    step = ratio.log()
    return 1 + torch.where(step.abs() < 0.05, step, (ratio - 1) / step)


def left_out() -> torch.Tensor:
    return grown(torch.linspace(0.997, 1.003, 64).bfloat16())


def let_in() -> torch.Tensor:
    ratio = torch.linspace(0.997, 1.003, 64).bfloat16()
    step = ratio.log()
    return 1 + (ratio - 1) / step


def in_its_gradient() -> torch.Tensor | None:
    weight = torch.nn.Parameter(torch.linspace(0.997, 1.003, 64))
    grown(weight.bfloat16()).float().sum().backward()
    return weight.grad


def test_nan_that_a_choice_leaves_out_harms_nobody() -> None:
    """The numbers that it chooses may have errors of their own. NaN in a result or in a gradient does harm: the choice is no guard there."""
    assert not watched(left_out).errors
    for program in (let_in, in_its_gradient):
        told = [error.message for error in watched(program).errors]
        assert any("in the reference became zero here" in message and "made NaN of it" in message for message in told), told


LOWEST = torch.finfo(torch.float32).min


def sentinel() -> torch.Tensor:
    scores = torch.full((4,), LOWEST).half()  # fault
    scores[0] = 1
    return (scores.float() != LOWEST).sum()


def sentinel_of_its_format() -> torch.Tensor:
    """torch rounds the number, too, and finds it again."""
    scores = torch.full((4,), LOWEST).half()
    scores[0] = 1
    return (scores != LOWEST).sum()


def infinity_asked_for() -> torch.Tensor:
    scores = torch.full((4,), -1e6).half()
    scores[0] = 1
    return torch.where(scores == -torch.inf, 0.0, scores)


def test_a_number_that_became_infinite_is_not_found_again() -> None:
    """A test for equality shows it, unless it asks for Inf: the program knows of that."""
    finds(sentinel, "overflow", says="is beyond the largest float16, 65504")
    for program in (sentinel_of_its_format, infinity_asked_for):
        passes(program)


def directions(digits: int = 4) -> torch.Tensor:
    """Steps of any size, made one long. What is added to their sizes is for steps of nought."""
    steps = torch.logspace(0, -digits, 500)[:, None].to(torch.float16)
    return steps / (steps.square().sum(-1, keepdim=True).sqrt() + 1e-6)  # fault


def test_zeros_that_a_guard_covers_are_told_and_no_rounding_of_the_root() -> None:
    finds(directions, "underflow", says="numbers become subnormal or zero here; 7% of the elements of aten.div.Tensor")
    passes(lambda: directions(digits=1))
