"""Guards behind what a kernel allocates: what is written beyond its end is told, and tensors that grow are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import precheck
from precheck.kernels.allocations import Allocated

X = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))


def _rounded_up(make: Callable[[torch.Tensor], torch.Tensor], lanes: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A kernel that stores so many numbers at a time. In more than the tensor has room for, it stores zeros behind its end."""

    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = make(x)
        count = -(-x.numel() // lanes) * lanes
        if x.numel():
            whole = out.as_strided((count,), (1,))
            whole[: x.numel()] = (2 * x).flatten()
            whole[x.numel() :] = 0
        return out

    return kernel


@pytest.mark.parametrize("make", [
    lambda x: torch.empty(x.shape), lambda x: torch.zeros(x.shape), lambda x: torch.full(x.shape, 1.0), lambda x: x.new_empty(x.shape),
], ids=["empty", "zeros", "full", "new"])  # fmt: skip
def test_what_is_stored_behind_the_end_of_an_output_is_told_as_an_edge(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    report = precheck.compare_kernels(_rounded_up(make, 4), lambda x: 2 * x, (X,), trials=10, gradients=False)
    assert [each.rule for each in report.errors] == ["kernel-edge"]
    assert "behind the end of a tensor of" in report.errors[0].message


def test_a_kernel_that_stays_inside_is_not_accused() -> None:
    report = precheck.compare_kernels(_rounded_up(lambda x: torch.empty(x.shape), 1), lambda x: 2 * x, (X,), trials=60, gradients=False)
    assert not report.errors


def test_a_scratch_buffer_that_is_no_result_is_guarded_too() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        sums = torch.empty(len(x) // 2)
        if len(x) % 2 and len(x) > 1:
            sums.as_strided((len(sums) + 1,), (1,))[-1] = 0
        return x * 2

    report = precheck.compare_kernels(kernel, lambda x: 2 * x, (X,), trials=10, gradients=False)
    assert [each.rule for each in report.errors] == ["kernel-edge"]


def _grown_by_hand() -> None:
    torch.empty(2).resize_(5).fill_(1)


def _grown_by_an_op() -> None:
    torch.add(torch.ones(6), 1, out=torch.empty(0))


@pytest.mark.parametrize("grow", [_grown_by_hand, _grown_by_an_op])
def test_a_tensor_that_grows_may_use_what_was_its_guard(grow: Callable[[], None]) -> None:
    with Allocated("NaN") as mode:
        grow()
    assert mode.beyond() == ""


def test_a_guarded_tensor_looks_like_any_other() -> None:
    like = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    with Allocated("NaN"):
        made, ones, weights = torch.empty_like(like), torch.ones(3, 4), torch.zeros(3, requires_grad=True)
        (2 * weights).sum().backward()
    assert made.stride() == like.stride()
    assert made.isnan().all()
    assert torch.equal(ones, torch.ones(3, 4))
    assert ones.storage_offset() == 0
    assert not ones._is_view()
    assert torch.equal(weights.grad, torch.full((3,), 2.0))
