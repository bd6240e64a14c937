"""What is Inf or NaN is told in its class: what memory held, where there is nothing to add up, and a range that was left."""

from __future__ import annotations

from typing import Any

import torch

import precheck


def _told(candidate: Any, reference: Any, inputs: Any) -> list[str]:
    report = precheck.compare_kernels(candidate, reference, inputs, gradients=False, budget=1)
    return [each.rule for each in report.errors]


def _product(fills: float | None, raises: bool = False) -> Any:
    """A product with a vector that leaves its result as it is where there is nothing to add up; or fills it with a number first; or raises."""

    def kernel(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(a)) if fills is None else torch.full((len(a),), fills)
        if raises and not len(x):
            raise IndexError("no columns")
        return torch.mv(a, x, out=out) if len(x) else out

    return kernel


def test_what_memory_held_is_no_result_where_there_are_no_columns() -> None:
    inputs = (torch.linspace(-1, 2, 12).reshape(3, 4), torch.linspace(1, 3, 4))
    assert _told(_product(None), torch.mv, inputs) == ["kernel-stale"]
    assert _told(_product(0.0), torch.mv, inputs) == []


def test_a_kernel_without_columns_may_give_nan_each_time() -> None:
    """It has nothing to compute, and says so. That depends on no memory."""
    inputs = (torch.linspace(-1, 2, 12).reshape(3, 4), torch.linspace(1, 3, 4))
    assert _told(_product(torch.nan), torch.mv, inputs) == []


def test_powers_of_products_that_overflow_left_their_range() -> None:
    """Longer rows have larger products, whose powers overflow: no sum of them has lost digits."""
    inputs = (torch.linspace(-1, 2, 24).reshape(4, 6).sin(), torch.linspace(1, 3, 24).reshape(4, 6).cos())
    assert _told(lambda a, b: (a @ b.T).exp().sum(1).log(), lambda a, b: (a @ b.T).logsumexp(1), inputs) == ["kernel-rounding"]


def test_a_sum_of_squares_in_float16_that_overflows_is_one_of_additions() -> None:
    """With plain numbers it is finite in long rows, and loses digits there."""
    inputs = torch.randn(4, 12, generator=torch.Generator().manual_seed(1)).half()

    def chain(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(len(x), dtype=torch.float16)
        for column in x.T:
            total = total + column * column
        return x * torch.rsqrt(total.float() / x.shape[1] + 1e-6)[:, None].half()

    assert _told(chain, lambda x: torch.nn.functional.rms_norm(x, x.shape[1:], eps=1e-6), inputs) == ["kernel-accumulation"]


def test_the_cure_for_a_range_that_was_left_is_no_wider_rounding_and_helps() -> None:
    """The powers are in float32 already."""

    def softmax(x: torch.Tensor, *, shifted: bool = False) -> torch.Tensor:
        powers = (x - x.amax(-1, keepdim=True) if shifted else x).exp()
        return powers / powers.sum(-1, keepdim=True)

    def reference(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    inputs = torch.linspace(-1, 2, 48).reshape(3, 16).sin()
    (error,) = precheck.compare_kernels(softmax, reference, inputs, gradients=False, trials=60).errors
    assert error.rule == "kernel-rounding"
    assert error.remedy.startswith("keep the intermediate in range: subtract the largest number before exp")
    assert not precheck.compare_kernels(lambda x: softmax(x, shifted=True), reference, inputs, gradients=False, trials=60).errors


def test_an_intermediate_in_a_low_format_is_told_to_be_computed_in_float32() -> None:
    inputs = torch.linspace(-1, 2, 64).reshape(4, 16).sin()
    (error,) = precheck.compare_kernels(lambda x: x.bfloat16().exp().float(), lambda x: x.exp(), inputs, gradients=False, trials=40).errors
    assert error.remedy.startswith("compute in float32 inside")
