"""What is read of a fault decides whether it does harm: of NaN beside a `where`, of zeros that are kept, of a loop's states."""

from __future__ import annotations

import math

import torch
from scenario import finds, passes, watched

HALF = torch.float16
STEEP = torch.linspace(-3.0, 3.0, 64)


def left_out_by_where() -> torch.Tensor:
    small = (torch.linspace(1.0, 3.0, 16) * 1e-8).half()
    return torch.where(small < 1e-4, torch.ones(16, dtype=HALF), small * 2 / small).float()


def given_on() -> torch.Tensor:
    small = (torch.linspace(1.0, 3.0, 16) * 1e-8).half()  # fault
    return (small * 2 / small).float() + 1


def derived_beside_where() -> torch.Tensor | None:
    leaf = (torch.linspace(1.0, 3.0, 16) * 1e-8).requires_grad_()
    small = leaf.half()  # fault
    torch.where(small < 1e-4, torch.ones(16, dtype=HALF), small * 2 / small).float().sum().backward()
    return leaf.grad


def test_nan_that_a_where_leaves_out_does_no_harm_unless_its_derivative_is_nan_too() -> None:
    passes(left_out_by_where)
    finds(given_on, "underflow", says="made NaN of it")
    finds(derived_beside_where, "underflow", says="made NaN of it")


def quotient_of_a_lost_numerator() -> torch.Tensor:
    scores = torch.tensor([3.1, 3.10001, 2.0, 3e4, 2.9e4]).half()
    rest = scores - scores[0]
    return (rest / torch.full((5,), 0.25, dtype=HALF)).float()  # fault


def test_a_zero_numerator_makes_no_infinite_quotient() -> None:
    """What is infinite here is beyond the format. The lost difference, 10^-5, is divided like the others."""
    finds(quotient_of_a_lost_numerator, "overflow", says="beyond the largest float16")


def raised_from_minus_infinity() -> torch.Tensor:
    scores = torch.linspace(0.0, 12.0, 64).half()
    return torch.softmax(((scores - scores.amax()) / torch.full((), 1e-4, dtype=HALF)).float(), -1)


def test_e_to_minus_infinity_is_what_it_would_be_anyway() -> None:
    passes(raised_from_minus_infinity)


def logistic_by_parts() -> torch.Tensor:
    scores = torch.linspace(-14.0, 14.0, 64).half()
    return torch.where(scores > 0, 1 / (1 + torch.exp(-scores)), torch.sigmoid(scores)).float()


def logarithm_of_a_part() -> torch.Tensor:
    scores = torch.linspace(-14.0, 14.0, 64).half()
    raised = torch.exp(-scores)
    return torch.log(1 / (1 + raised)).float()


def test_one_by_infinity_is_less_than_a_rounding_unless_a_logarithm_reads_it() -> None:
    passes(logistic_by_parts)
    assert [each.rule for each in watched(logarithm_of_a_part).errors] == ["overflow", "underflow"]


def kept_and_multiplied() -> torch.Tensor:
    share = torch.tensor(1.7).half() * 1e-8  # fault
    _ = share * 2
    return share


def added_to_larger() -> tuple[torch.Tensor, torch.Tensor]:
    share = torch.tensor([1.7, 2.1]).half() * 1e-8
    return share, share * 2 + torch.tensor([1.0, 3.0]).half()


def test_a_zero_that_the_program_keeps_is_a_result_unless_something_larger_is_made_of_it() -> None:
    finds(kept_and_multiplied, "underflow")
    passes(added_to_larger)


def tiny(numbers: torch.Tensor) -> torch.Tensor:
    power = numbers * numbers
    return power + power.flip(0)


def beneath_a_larger_number() -> torch.Tensor:
    return tiny((torch.linspace(1.0, 2.0, 64) * 1e-5).half()) * 2 + torch.linspace(1.0, 2.0, 64).half()


def returned_alone() -> torch.Tensor:
    numbers = (torch.linspace(1.0, 2.0, 64) * 1e-5).half()
    return numbers * numbers  # fault


def test_a_functions_result_beneath_the_format_is_nothing_beside_a_larger_number() -> None:
    passes(beneath_a_larger_number)
    finds(returned_alone, "underflow")


def beyond_one() -> torch.Tensor:
    """0.9998 is one in half, and what is added to its cube is rounded up."""
    share = torch.cat([torch.linspace(-0.9, 0.9, 62), torch.tensor([0.9998, 0.9998])]).half()
    cosine = share * share * share + 0.00055
    return torch.acos(cosine)  # fault


def test_a_number_beyond_a_functions_end_by_a_rounding_is_told_at_the_function() -> None:
    """A number that has lost digits before is told where it lost them (`subtracted_and_added` in test_ops_nonfinite)."""
    finding = finds(beyond_one, "amplified-rounding", says="beyond the end of this function's domain")
    assert ".clamp(-1, 1)" in finding.advice


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return 14 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights_of_a_wide_exponent() -> torch.Tensor:
    query, key = drawn(64, 64, seed=3051).half(), drawn(4096, 64, seed=3052).half()  # fault
    scores = (query.float() @ key.float().T) * (math.log2(math.e) / 8)
    shares = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return (shares / shares.sum(-1, keepdim=True)) @ drawn(4096, 16, seed=3053)


def test_a_wide_exponents_line_has_rounded_nothing() -> None:
    finds(weights_of_a_wide_exponent, "amplified-rounding", says="is amplified")


def decayed(turns: int, less: float, *, kept: bool = False) -> torch.Tensor:
    keys, values = (torch.randn((24, 16), generator=torch.Generator().manual_seed(seed)) for seed in (2311, 2312))
    keys, values = (5 * keys).half(), values.half()
    above, below, most = torch.zeros(16, dtype=HALF), torch.zeros(16, dtype=HALF), torch.full((16,), -1e4, dtype=HALF)
    told = []
    for turn in range(turns):
        key, value = keys[turn % 24], values[turn % 24]
        now = torch.maximum(most - less, key)
        past, fresh = torch.exp(most - less - now), torch.exp(key - now)
        above, below, most = past * above + fresh * value, past * below + fresh, now
        told.append((above / below).float())
    return torch.stack([*told, below.float()] if kept else told)


def test_a_loops_exponent_and_the_sum_of_its_weights_are_what_is_read_of_them() -> None:
    """A sum of weights that the program returns is a result. So is one whose quotient is wrong."""
    passes(lambda: decayed(24, 0.3))
    told = watched(lambda: decayed(24, 0.3, kept=True)).errors
    assert [each.rule for each in told] == ["accumulated-drift"]
    assert watched(lambda: decayed(200, 0.01)).errors
