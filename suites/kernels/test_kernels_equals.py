"""What comes out in more than one way: a choice among equal numbers, which is free, and lanes that add to one number without a lock, which is not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import precheck


def largest(x: torch.Tensor) -> torch.Tensor:
    return F.max_pool1d(x, 3, 2)


def sorted_windows(x: torch.Tensor) -> torch.Tensor:
    """Of equals the last; windows overlap, so that an element may be the largest of one and not of the next."""
    if x.shape[-1] < 3:
        raise ValueError("three places are needed")
    return x.unfold(-1, 3, 2).sort(-1).values[..., -1]


class Shifted(torch.autograd.Function):
    """The gradient goes to the smallest of each window."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        if x.shape[-1] < 3:
            raise ValueError("three places are needed")
        ctx.save_for_backward(x)
        return largest(x)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(-largest(-x), x, gradient)


def zeros(rows: int) -> torch.Tensor:
    """Many equals in many windows, and numbers apart."""
    x = torch.randn(rows, 4, 15, generator=torch.Generator().manual_seed(0))
    x[0] = 0
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_last_of_equals_is_as_right_as_the_first(dtype: torch.dtype) -> None:
    report = precheck.compare_kernels(sorted_windows, largest, zeros(2).to(dtype), trials=40)
    assert not report.errors, report.summary()


@pytest.mark.parametrize("kernel", [Shifted.apply, lambda x: sorted_windows(x) * 2 - sorted_windows(x).detach()])
def test_another_gradient_is_wrong_among_equals_too(kernel: Callable[[torch.Tensor], torch.Tensor]) -> None:
    report = precheck.compare_kernels(kernel, largest, zeros(2), trials=10)
    assert [each.rule for each in report.errors] == ["kernel-gradient"], report.summary()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_right_by_chance_where_nothing_was_run_before_is_not_stale(seed: int) -> None:
    """Which of the other classes it is depends on the calls that happen to be wrong."""
    random.seed(seed)

    def racing(x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1) if random.random() < 0.5 else x[..., 1:].sum(-1)

    report = precheck.compare_kernels(racing, lambda x: x.sum(-1), torch.randn(6, 20), trials=10, gradients=False)
    assert report.errors, report.summary()
    assert all(each.rule != "kernel-stale" for each in report.errors), report.summary()


@pytest.mark.parametrize("wrong", [9, 48])  # a call that only goes before a compared one is not compared itself
def test_a_call_that_is_wrong_once_is_not_taken_for_memory(wrong: int) -> None:
    """Of the same calls in the same order none is wrong again, so that the kernel remembers nothing."""
    calls = itertools.count(1)

    def racing(x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1) if next(calls) != wrong else x[..., 1:].sum(-1)

    report = precheck.compare_kernels(racing, lambda x: x.sum(-1), torch.randn(6, 20), trials=80, gradients=False)
    assert [each.rule for each in report.errors] == ["kernel-nondeterminism"], report.summary()


def test_what_a_kernel_remembers_is_told_as_stale_since_it_comes_again() -> None:
    held: dict[int, torch.Tensor] = {}

    def remembering(x: torch.Tensor) -> torch.Tensor:
        return x * held.setdefault(x.shape[-1], x.detach().amax())

    report = precheck.compare_kernels(remembering, lambda x: x * x.detach().amax(), torch.randn(6, 20), trials=10, gradients=False)
    assert [each.rule for each in report.errors] == ["kernel-stale"], report.summary()
