"""Corners of a gradient, codes, logarithms of shares, tables and offsets: what correct kernels may do there, and what shows a wrong one."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import precheck
from precheck.analysis.noise_floor import kernel_floor as floor
from precheck.kernels import clock, contents, lower_intermediates
from precheck.kernels.noise import Rounded
from precheck.kernels.parts import Parts


def test_between_the_two_sides_of_a_corner_a_gradient_is_free_and_elsewhere_it_is_not() -> None:
    known = floor.combined(torch.tensor([0.5, 0.5, 0.5]).double(), torch.float32, [torch.full((3,), 0.5)])
    known.jumped(torch.tensor([1.0, 0.5, 0.5]).double())
    known.jumped(torch.tensor([0.0, 0.5, math.inf]).double())
    allowed = known.bound()
    assert float(allowed[0]) == pytest.approx(0.5, rel=1e-3)
    assert float(allowed[1:].max()) < 1e-6
    assert floor.distance(known, torch.tensor([1.0, 0.5, 0.5])).ratio <= 1
    assert floor.distance(known, torch.tensor([0.5, 1.0, 0.5])).ratio > 1
    assert floor.distance(known, torch.tensor([1.1, 0.5, 0.5])).ratio > 1


def _largest(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """torch gives half of a gradient to a zero that is not to count: `include_self=False` is of the result alone."""
    return torch.zeros(3, x.shape[1]).scatter_reduce(0, ids[:, None].expand(x.shape), x, "amax", include_self=False)


def _behind_masks(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    rows = [x[ids == segment] for segment in range(3)]
    return torch.stack([each.amax(0) if len(each) else torch.zeros_like(x[:1].sum(0)) for each in rows])


def _half_of_it(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    found = _behind_masks(x, ids)
    return found + 0.5 * (found.detach() - found)


X, IDS = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 1, 1, 2, 2])


def test_a_largest_element_that_ties_with_nothing_may_have_the_whole_gradient() -> None:
    report = precheck.compare_kernels(_behind_masks, _largest, (X, IDS), trials=50)
    assert not report.errors, report.summary()


def test_half_a_gradient_is_wrong_where_nothing_ties() -> None:
    report = precheck.compare_kernels(_half_of_it, _largest, (X, IDS), trials=10)
    assert [finding.rule for finding in report.errors] == ["kernel-gradient"], report.summary()


def _coded(cut: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    def kernel(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-8)
        return cut(x / scale).clamp(-128, 127).to(torch.int8), scale

    return kernel


def test_codes_are_known_after_they_are_limited() -> None:
    """A whole number that is moved by the noise of a limit would be cut to the one before."""
    report = precheck.compare_kernels(_coded(torch.floor), _coded(torch.round), torch.randn(6, 32), trials=10)
    assert [finding.rule for finding in report.errors] == ["kernel-rounding"], report.summary()
    assert "whole numbers that are rounded down explain it" in report.summary()
    right = precheck.compare_kernels(lambda x: _coded(lambda y: (y + 0.0).round())(x * 1), _coded(torch.round), torch.randn(6, 32), trials=40)
    assert not right.errors, right.summary()
    assert "untold" not in right.facts


def test_of_equals_the_first_is_chosen_in_one_run_and_the_last_in_another() -> None:
    grads = []
    for seed in (1, 2):
        x = torch.tensor([[2.0, 1.0, 2.0, 2.0]], requires_grad=True)
        with Rounded(seed, 2.0**-24):
            x.amax(-1).sum().backward()
        assert x.grad is not None
        grads.append((x.grad.abs() > 0.5).tolist())
    assert grads == [[[True, False, False, False]], [[False, False, False, True]]]


def test_logarithms_of_shares_stay_that_and_become_large() -> None:
    example = torch.randn(5, 8).log_softmax(-1)
    assert contents.shares(example)
    assert contents.shares(example.bfloat16())
    assert not contents.shares(example * 2)
    assert not contents.shares(-torch.rand(5, 8))


def test_a_logarithm_of_a_mixture_that_is_zero_is_found() -> None:
    def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        middle = torch.logaddexp(x, y) - math.log(2)
        return (x.exp() * (x - middle)).sum(-1)

    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.exp() * (x - ((x.exp() + y.exp()) / 2).log())).sum(-1)

    inputs = torch.randn(4, 9).log_softmax(-1), torch.randn(4, 9).log_softmax(-1)
    report = precheck.compare_kernels(kernel, reference, inputs, trials=20)
    assert [finding.rule for finding in report.errors] == ["kernel-rounding"], report.summary()


@pytest.mark.parametrize("repeat", [lambda x: torch.cat([x, x], -1), lambda x: x.repeat_interleave(2, -1)])
def test_a_table_that_holds_each_number_twice_keeps_doing_so(repeat: Callable[[torch.Tensor], torch.Tensor]) -> None:
    example = repeat(torch.randn(5, 3))
    drawn, free = contents.like(example, (7, 8), torch.Generator().manual_seed(1), contents.Bounds())
    assert not free
    assert torch.equal(drawn, repeat(drawn[:, :4] if torch.equal(drawn[:, :4], drawn[:, 4:]) else drawn[:, ::2]))
    assert drawn.unique().numel() == 28


def test_an_error_is_no_rounding_of_which_more_is_needed_than_rounding_makes() -> None:
    error, other = torch.randn(40).double(), torch.randn(40).double()
    assert lower_intermediates._share(error, [1.5 * error]) == pytest.approx(1)
    assert lower_intermediates._share(error, [0.01 * error]) == 0
    assert lower_intermediates._share(error, [other]) < lower_intermediates.SHARE


def test_a_gradient_that_is_nan_everywhere_is_not_judged_and_that_is_said() -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        return x + 0 * (x - x).sqrt()

    report = precheck.compare_kernels(lambda x: x * 1, reference, torch.randn(3, 5), trials=30)
    assert not report.errors, report.summary()
    said = [finding.message for finding in report.findings if finding.severity == "warning"]
    assert any("not judged: gradient of inputs:" in each for each in said), report.summary()
    healthy = precheck.compare_kernels(lambda x: x * 1, lambda x: x + 0, torch.randn(3, 5), trials=30)
    assert not healthy.findings, healthy.summary()


def _twice_used(x: torch.Tensor) -> torch.Tensor:
    """30 times itself, less 29 times itself: each gradient is stored in bfloat16 before they are added up."""
    return (30 * x.float() - 29 * x.float() * torch.ones(())).to(x.dtype)


def _many_times(x: torch.Tensor) -> torch.Tensor:
    """A chain of gradients that are added up in bfloat16."""
    return torch.stack([x.float() / 64 for _ in range(64)]).sum(0).to(x.dtype)


def test_a_few_parts_of_a_gradient_may_round_on_their_way_and_a_chain_of_them_may_not() -> None:
    few = torch.randn(4, 9, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    with Parts([out := _twice_used(few)], {"x": few}) as parts:
        (given,) = torch.autograd.grad(out.sum(), few)
    assert torch.equal(given, torch.ones_like(given))
    assert torch.equal(parts.sizes["x"], torch.full((4, 9), 59.0).double())
    many = few.detach().requires_grad_()
    with Parts([out := _many_times(many)], {"x": many}) as parts:
        torch.autograd.grad(out.sum(), many)
    assert not parts.sizes
    assert not precheck.compare_kernels(_twice_used, lambda x: x * 1, few, trials=50).errors
    report = precheck.compare_kernels(_many_times, lambda x: x * 1, few, trials=10)
    assert [finding.tensor for finding in report.errors] == ["gradient of inputs"], report.summary()


def test_a_budget_is_of_the_processor_and_half_as_much_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"wall": 0.0, "processor": 0.0, "queued": 0.0}
    monkeypatch.setattr(clock.time, "monotonic", lambda: now["wall"])
    monkeypatch.setattr(clock.time, "thread_time", lambda: now["processor"])
    monkeypatch.setattr(clock, "queued", lambda: now["queued"])
    budget = clock.Clock(10)
    now |= {"wall": 8.0, "processor": 8.0}
    assert budget.left() == 2
    now |= {"wall": 18.0, "processor": 8.0}
    assert budget.left() == 1
    now |= {"wall": 30.0, "processor": 8.5}
    assert budget.left() < 0
    now |= {"wall": 90.0, "processor": 8.5, "queued": 75.0}  # other programs had the processor
    assert budget.left() == 1.5
    assert clock.queued() == 75.0


def test_the_time_in_which_a_thread_waits_for_a_processor_only_grows() -> None:
    before = clock.queued()
    assert 0 <= before <= clock.queued()
