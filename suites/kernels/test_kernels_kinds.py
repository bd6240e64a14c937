"""Kinds of inputs and of calls: constants of the reference, parts of wider tensors, boxes, shares of 0, what is kept from other calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sets import BROKEN_BY_NAME

import precheck
from precheck.kernels import constants, contents, dimensions, examples, memory, plan, running
from precheck.kernels.bench import Bench
from precheck.kernels.trials import Trial

F = torch.nn.functional
X = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
TOLD = {
    "rows of pages times a scale: what is compiled is kept without its format": "kernel-stale",
    "three tensors behind one another: which are the same is kept from the first call": "kernel-stale",
    "root mean square norm of float16: squares are added up in float16": "kernel-accumulation",
    "norm of channels: on the way back behind 768 rows sums stop": "kernel-edge",
    "what a mask lets be looked at: where it lets nothing it is divided by zero": "kernel-mask",
    "logarithms of shares of tokens: incoming gradients are read as if packed": "kernel-stride",
}


def _bench(reference: Callable[..., Any], *inputs: torch.Tensor) -> Bench:
    example = examples.read(inputs, None, True)[0]
    return Bench(reference, reference, example, dimensions.of(example), running.Wishes())


def _rules(candidate: Callable[..., Any], reference: Callable[..., Any], *inputs: torch.Tensor, trials: int = 80) -> tuple[list[str], list[str]]:
    report = precheck.compare_kernels(candidate, reference, inputs, trials=trials)
    return [each.rule for each in report.errors], [each.rule for each in report.findings if each.severity == "warning"]


@pytest.mark.parametrize("name", TOLD)
def test_kernels_of_the_twenty_second_set_are_told_in_their_class(name: str) -> None:
    case = BROKEN_BY_NAME[name]
    report = precheck.compare_kernels(case.kernel(True), case.reference, case.inputs(), trials=330)
    assert [each.rule for each in report.errors] == [TOLD[name]], report.summary()


@pytest.mark.parametrize(("reference", "factors"), [
    (lambda x: F.normalize(x, dim=1, eps=1e-12), 1),
    (lambda x: F.layer_norm(x, (6,), eps=1e-5), 1),
    (F.softplus, 1),
    (lambda x: x.clamp(max=1e4).exp(), 1),
    (lambda x: 30 * torch.tanh(x / 30), 0),  # in a product nothing is lost beside the other
    (lambda x: x.softmax(1), 0),
], ids=["a least length", "an eps", "a cutoff", "a cap", "factors", "none"])  # fmt: skip
def test_inputs_are_scaled_to_where_a_constant_matters(reference: Callable[..., Any], factors: int) -> None:
    assert len(constants.trials(_bench(reference, X))) == factors


def test_a_constant_in_another_place_is_another_function_and_in_another_form_is_none() -> None:
    def least(eps: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: F.normalize(x, dim=1, eps=eps)

    def added(eps: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x / (x.norm(dim=1, keepdim=True) + eps)

    def largest(x: torch.Tensor) -> torch.Tensor:
        return x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp(min=1e-2)

    assert len(_rules(added(1e-2), least(1e-2), X)[0]) == 1
    assert _rules(largest, least(1e-2), X) == ([], [])
    assert _rules(added(1e-12), least(1e-12), X) == ([], ["kernel-contract"])  # so small numbers are like none of the example's


def test_part_of_a_wider_tensor_has_neighbours_and_a_kernel_that_forgets_the_distance_of_rows_is_told() -> None:
    wide, other = (memory.laid(X, layout).tensor for layout in ("columns of a wider tensor", "every other row"))
    assert wide.stride() == other.stride() == (12, 1)
    assert torch.equal(wide, X)
    assert torch.equal(other, X)
    assert memory.laid(torch.randn(2, 3, 4), "every other row").tensor.stride() == (24, 4, 1)

    def forgets(x: torch.Tensor) -> torch.Tensor:
        x = x if x.stride(-1) == 1 else x.contiguous()
        held = x.untyped_storage().nbytes() // 4
        return 2 * (x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset()) if held >= x.storage_offset() + x.numel() else x)

    assert _rules(forgets, lambda x: 2 * x, X)[0] == ["kernel-stride"]


def test_a_second_pass_through_one_graph_is_a_warning_where_it_gives_something_else() -> None:
    name = "negative logarithm of shares, gradients at once: a second way back scales them again"
    case = BROKEN_BY_NAME[name]
    assert _rules(case.kernel(True), case.reference, *case.inputs()) == ([], ["kernel-mutation"])
    assert _rules(case.kernel(False), case.reference, *case.inputs(), trials=60) == ([], [])


def test_boxes_stay_boxes_and_shares_of_zero_still_sum_to_one() -> None:
    boxes = torch.cat([X[:, :2], X[:, :2] + X[:, 2:4].abs() + 0.1], 1)
    drawn = _bench(lambda x: x * 1, boxes).make(Trial(seed=3)).values[0]
    assert contents.boxes(drawn)
    assert not contents.boxes(torch.randn(8, 4))
    ends = _bench(lambda x: x * 1, X.softmax(1)).make(Trial(seed=3, family="ends")).values[0]
    assert bool((ends == 0).any())
    assert bool((ends == 1).any())
    assert torch.allclose(ends.sum(1), torch.ones(5))


def test_a_share_of_zero_that_becomes_nan_is_a_warning() -> None:
    def entropy(p: torch.Tensor) -> torch.Tensor:
        return -(p * p.log()).sum(1)

    shares = X.repeat(1, 2).softmax(1).requires_grad_(False)
    report = precheck.compare_kernels(entropy, lambda p: torch.special.entr(p).sum(1), (shares,), trials=60, gradients=False)
    assert not report.errors
    assert [each.rule for each in report.findings] == ["kernel-contract"]
    assert "exactly 0 or 1" in report.findings[0].message


@pytest.mark.parametrize(("example", "alike"), [
    (torch.tensor([3, 1, 1, 4]), True),
    (torch.tensor([0, 1, 3, 5]), False),  # in order
    (torch.tensor([3, 0, 2, 1]), False),  # each once
    (torch.tensor([True, False, True]), True),
    (torch.ones(3, 3, dtype=torch.bool).tril(), False),
], ids=["repeated", "sorted", "a permutation", "flags", "a triangle"])  # fmt: skip
def test_whole_numbers_are_all_the_same_only_where_they_are_of_no_other_kind(example: torch.Tensor, alike: bool) -> None:
    found = contents.alike(example, example.clone())
    assert (len(found.unique()) == 1) == alike


def test_a_noise_run_gives_an_exact_zero_no_sign() -> None:
    def shares(x: torch.Tensor) -> torch.Tensor:
        total = (x.exp() * 0).sum(1, keepdim=True)
        return x / torch.where(total > 0, total, 1)

    bench = _bench(shares, X)
    for seed in range(1, 7):
        outcome, _ = running.noise(shares, bench.example, [X], {}, bench.wishes, seed, 2.0**-24, 2.0**-24)
        found = outcome.values["output"]
        assert found is not None
        assert bool(found.isfinite().all())


def test_rows_come_twice() -> None:
    bench = _bench(lambda x, y: x @ y, X, torch.randn(6))
    first, second = bench.make(Trial(seed=3, family="rows twice")).values
    assert torch.equal(first[3:], first[:2])
    assert torch.equal(second[3:], second[:3])


def test_on_a_device_sizes_of_zero_come_last() -> None:
    bench = _bench(lambda x: x * 1, X)
    here = [each for each in plan.sized(bench) if any(size == 0 for _, size in each.sizes)]
    assert len(here) == 2
    assert not list(plan.empty(bench))
    leaves = tuple(dataclasses.replace(each, tensor=each.tensor.to("meta")) for each in bench.example.leaves)
    bench.example = dataclasses.replace(bench.example, leaves=leaves)
    assert len(list(plan.empty(bench))) == 2
