"""Faults that look like another class, and what looks like a fault: each beside the kernel that is right, or of the other class."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import precheck
from precheck.analysis.noise_floor import kernel_floor as floor
from precheck.kernels import memory

Kernel = Callable[..., Any]


def told(candidate: Kernel, reference: Kernel, inputs: Any, trials: int = 90) -> list[str]:
    report = precheck.compare_kernels(candidate, reference, inputs, trials=trials)
    return [each.rule for each in report.errors]


def test_which_of_many_equals_are_among_the_largest_is_open() -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))

    def sorted_(x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] < 3:
            raise ValueError("three columns are needed")
        return x.sort(-1, descending=True).values[..., :3]

    def doubled(x: torch.Tensor) -> torch.Tensor:
        made = sorted_(x)
        return made + (made - made.detach())  # the gradient counts twice

    assert told(sorted_, lambda x: x.topk(3, -1).values, x) == []
    assert told(doubled, lambda x: x.topk(3, -1).values, x) == ["kernel-gradient"]


def test_a_jump_is_shared_by_equals_alone() -> None:
    known = floor.combined(torch.zeros(5).double(), torch.float32, [torch.zeros(5)])
    known.shared_by_equals(torch.zeros(5))
    assert known.jumps is None
    known.jumped(torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]).double())
    known.shared_by_equals(torch.tensor([2.0, 3.0, 2.0, 4.0, 2.0]))
    assert known.jumps is not None
    assert known.jumps.tolist() == [1, 0, 1, 0, 1]


def joined(parts: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return torch.where(seen[..., None], parts, 0).sum(0) / seen.sum(0).clamp(min=1)[:, None]


@pytest.mark.parametrize("least", [0, 1])
def test_rows_that_are_all_alike_are_other_numbers_and_not_strides_alone(least: int) -> None:
    """In the example each column is seen by some row. Where one row stands for all, a column is seen by none."""

    def kernel(parts: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return torch.where(seen[..., None], parts, 0).sum(0) / seen.sum(0).clamp(min=least)[:, None]

    seen = torch.rand(4, 7, generator=torch.Generator().manual_seed(3)) < 0.6
    seen[0] = True
    found = told(kernel, joined, (torch.randn(4, 7, 8, generator=torch.Generator().manual_seed(0)), seen))
    assert found == ([] if least else ["kernel-mask"])


@pytest.mark.parametrize(("share", "rule", "seed"), [*(
    (share, "kernel-nondeterminism", seed) for share in (0.05, 0.3) for seed in range(3)), (0.0, "", 0)])  # fmt: skip
def test_what_differs_between_calls_is_no_stale_kernel(share: float, rule: str, seed: int) -> None:
    chance = random.Random(seed)

    def columns(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(x.shape[1:], dtype=x.dtype)
        for rows in x.split(8) if len(x) else ():
            total = rows.sum(0) if chance.random() < share else total + rows.sum(0)
        return total + 0 * x.sum(0)

    assert told(columns, lambda x: x.sum(0), torch.randn(40, 6, generator=torch.Generator().manual_seed(0))) == [rule][: bool(rule)]


def used(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(torch.arange(x.shape[1]) >= lengths[:, None], 0).sum(1)


@pytest.mark.parametrize(("wrong", "rule"), [("block", "kernel-mask"), ("double", "kernel-contract"), ("", "")])
def test_lengths_are_a_mask(wrong: str, rule: str) -> None:
    def kernel(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if len(x) != len(lengths):
            raise ValueError("a length for each row is needed")
        ends = (-(-lengths // 8) * 8).clamp(max=x.shape[1]) if wrong == "block" else lengths
        kept = torch.arange(x.shape[1]) < ends[:, None]
        return x.masked_fill(~kept, 0).sum(1) * (2 if wrong == "double" else 1)

    inputs = torch.randn(4, 24, generator=torch.Generator().manual_seed(0)), torch.tensor([5, 24, 16, 9])
    assert told(kernel, used, inputs) == [rule][: bool(rule)]


@pytest.mark.parametrize("wrong", [True, False])
def test_a_nan_is_looked_for_wherever_it_may_be(wrong: bool) -> None:
    """The last number of all decides nothing that comes behind it."""

    def smallest(x: torch.Tensor) -> torch.Tensor:
        unknown = x.detach().isnan().nonzero().flatten()
        if wrong and len(unknown):  # a number behind NaN takes its place
            x = x[min(int(unknown[-1]) + 1, len(x) - 1) :]
        if not len(x):
            raise ValueError("no number")
        return x.amin()

    assert told(smallest, torch.amin, torch.randn(12, generator=torch.Generator().manual_seed(0))) == ["kernel-contract"][:wrong]


def with_statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3)
    return x * scale, scale.detach()


@pytest.mark.parametrize("wrong", [True, False])
def test_through_what_the_reference_detaches_no_gradient_is_asked_for(wrong: bool) -> None:
    def kernel(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = (x.square().mean(-1, keepdim=True) + 1e-3) ** -0.5
        return x * (scale.detach() if wrong else scale), scale

    assert told(kernel, with_statistics, torch.randn(4, 12, generator=torch.Generator().manual_seed(0))) == ["kernel-gradient"][:wrong]


@pytest.mark.parametrize("tensor", [
    torch.randn(4)[::2][:1], torch.randn(3, 4).t()[:1, :1], torch.randn(0, 3), torch.tensor(float("nan")), torch.randn(2, 3).bfloat16().t(),
    torch.tensor([True, False]), torch.randn(2, 3, dtype=torch.complex64),
])  # fmt: skip
def test_bits_are_equal_whatever_the_strides(tensor: torch.Tensor) -> None:
    assert memory.same(tensor, tensor.clone())
    assert not memory.same(tensor, torch.cat([tensor.reshape(-1), tensor.reshape(-1), tensor.new_ones(1)]))
    if tensor.numel():
        assert not memory.same(tensor, torch.ones_like(tensor) * 0.5 if tensor.dtype is not torch.bool else ~tensor)


HALVES = torch.block_diag(torch.ones(4, 4), torch.ones(4, 4))


def halves(x: torch.Tensor) -> torch.Tensor:
    """Sums of the first four columns, and of the last four, each four times."""
    if x.dim() != 2 or x.shape[1] != 8:
        raise ValueError("eight columns are needed")
    return x.unflatten(1, (2, 4)).sum(-1).repeat_interleave(4, 1)


def test_a_weight_of_zero_does_not_leave_a_number_out() -> None:
    """0 times NaN is NaN, so NaN reaches sums that it is no term of."""
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))

    def product(x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2 or x.shape[1] != 8:
            raise ValueError("eight columns are needed")
        return x @ HALVES

    def sums(x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2 or x.shape[1] != 8:
            raise ValueError("eight columns are needed")
        return torch.cat([half.sum(-1, keepdim=True).expand(-1, 4) for half in x.split(4, 1)], 1)

    report = precheck.compare_kernels(product, halves, x, trials=110)
    assert [each.rule for each in report.errors] == ["kernel-mask"], report.summary()
    assert "leave it out and do not multiply it by 0" in report.errors[0].message
    report = precheck.compare_kernels(sums, halves, x, trials=110)
    assert not report.errors, report.summary()


def test_an_output_that_is_wrong_is_told_before_a_gradient_that_should_not_be_there() -> None:
    x, b = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), torch.randn(8, generator=torch.Generator().manual_seed(1))

    def chosen(x: torch.Tensor, b: torch.Tensor, weighed: Any) -> torch.Tensor:
        if x.shape[-1:] != b.shape or len(b) < 2:
            raise ValueError("two columns, and a bias for each, are needed")
        return weighed.gather(-1, (x + b).sort(-1, descending=True).indices[..., :2])

    def reference(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return x.gather(-1, (x + b).topk(2, -1).indices)

    assert told(lambda x, b: chosen(x, b, x), reference, (x, b)) == []
    assert told(lambda x, b: chosen(x, b, x + b), reference, (x, b)) == ["kernel-contract"]
    assert told(lambda x, b: chosen(x, b, x + (b - b.detach())), reference, (x, b)) == ["kernel-gradient"]


def test_a_mask_that_chooses_between_two_functions_is_not_at_fault() -> None:
    x, seen = torch.randn(4, 9, generator=torch.Generator().manual_seed(0)), torch.arange(36).view(4, 9) % 3 == 0

    def wrong(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        if x.shape != seen.shape:
            raise ValueError("two of one shape are needed")
        return torch.where(seen, 3 * x, x)

    assert told(wrong, lambda x, seen: torch.where(seen, 2 * x, x), (x, seen)) == ["kernel-contract"]

    def uncounted(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        if x.shape != seen.shape:
            raise ValueError("two of one shape are needed")
        return (x * ~seen).sum(-1, keepdim=True) / x.shape[-1] + torch.zeros_like(x)

    def counted(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return (x * ~seen).sum(-1, keepdim=True) / (~seen).sum(-1, keepdim=True).clamp(min=1) + torch.zeros_like(x)

    assert told(uncounted, counted, (x, seen)) == ["kernel-mask"]


def returns(reward: torch.Tensor, last: torch.Tensor, done: torch.Tensor, twice: float = 0.0, read: int = 0) -> torch.Tensor:
    """Sums of rewards up to where a sequence ends, last step first, and behind the last step a value. `read`: how far behind `done` is read."""
    if reward.shape != done.shape or reward.dim() != 2 or last.shape != reward.shape[:1]:
        raise ValueError("rewards, a value for each row, and flags are needed")
    columns = (torch.arange(reward.shape[1]) + read).clamp(max=reward.shape[1] - 1)
    carry, found = last * (1 + twice), []
    for each, ends in zip(reward.flip(1).unbind(1), done[:, columns].flip(1).unbind(1), strict=True):
        carry = each + torch.where(ends, 0, 0.9 * carry)
        found.append(carry)
    return torch.stack(found[::-1], 1) if found else reward.clone()


@pytest.mark.parametrize(("fault", "rule"), [({"twice": 1.0}, "kernel-contract"), ({"read": 1}, "kernel-mask")])
def test_flags_that_end_sequences_hide_something_and_where_they_hide_all_nothing_is_told(fault: dict[str, Any], rule: str) -> None:
    """Where all steps end their sequence, the last value is not read, so that it cannot be wrong. Where none does, all is read. The first step's flag
    matters to its own result alone, and the others to earlier results too."""
    generator = torch.Generator().manual_seed(4)
    inputs = (torch.randn(3, 5, generator=generator), torch.randn(3, generator=generator), torch.rand(3, 5, generator=generator) < 0.25)
    assert told(lambda *given: returns(*given, **fault), returns, inputs, trials=20) == [rule]
