"""Softmaxes and results that are stored in a low format: what a correct kernel may round there, and numbers that are cut off and not rounded."""

from __future__ import annotations

import pytest
import torch
from sets import BROKEN_BY_NAME, REWRITES_BY_NAME

import precheck
from precheck import formats
from precheck.analysis.noise_floor import kernel_floor
from precheck.analysis.noise_floor.cut_off import cut_off
from precheck.kernels import dimensions, examples, noise
from precheck.kernels.bench import Bench
from precheck.kernels.running import Wishes
from precheck.kernels.trials import Trial


def test_a_softmax_of_the_best_scores_alone_is_as_good_as_one_of_all() -> None:
    """Its gradient is a difference of numbers as large as the shares, however large the scores are."""
    case = BROKEN_BY_NAME["shares of the best two that add up to one: the scale is left out"]
    report = precheck.compare_kernels(case.kernel(False), case.reference, case.inputs(), trials=60)
    assert not report.errors, report.summary()


def test_attention_that_reads_its_stored_result_on_the_way_back_passes() -> None:
    """It stores its weights in bfloat16, too. Among outliers both errors are large beside what is left of a gradient."""
    pair = REWRITES_BY_NAME["attention as flash attention has it: shares stored, recomputed backward"]
    report = precheck.compare_kernels(pair.candidate, pair.reference, pair.inputs(torch.bfloat16), trials=60)
    assert not report.errors, report.summary()


def test_the_sum_in_the_gradient_of_a_softmax_is_rounded_as_results_are_stored() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, given = (torch.randn(4, 8, generator=generator) for _ in range(2))
    right = torch.autograd.functional.vjp(lambda x: x.softmax(-1), scores.double(), given.double())[1]
    off = []
    for stored in (0.0, 2.0**-9):
        with noise.Rounded(3, noise.base_roundoff(torch.float32), None, stored):
            made = torch.autograd.functional.vjp(lambda x: x.softmax(-1), scores, given)[1]
        off.append(float((made.double() - right).abs().max()))
    assert off[0] < 1e-6
    assert 1e-5 < off[1] < 2.0**-8


def test_terms_of_a_gradient_are_as_large_as_the_weights_where_inputs_are_large() -> None:
    _, sums = kernel_floor.terms(torch.full((3, 4), 100.0), [torch.ones(3, 2)])
    assert float(sums.max()) == 2
    _, sums = kernel_floor.terms(torch.full((3, 4), 0.01), [torch.ones(3, 2)])
    assert float(sums.max()) == pytest.approx(200)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_that_reads_its_stored_result_passes_where_its_sum_nearly_cancels(dtype: torch.dtype) -> None:
    """Values about 30 nearly cancel in the product with the incoming gradient. The stored result's errors don't, and keys about 30 enlarge them. With
    the same numbers a backward pass that leaves the sum out is wrong."""
    pair = REWRITES_BY_NAME["attention as flash attention has it: shares stored, recomputed backward"]
    trials = [Trial(seed=seed, family="offset") for seed in (104, 120, 123)]

    def broken(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q.float() @ k.float().T) / q.shape[-1] ** 0.5
        return ((scores - scores.logsumexp(-1, keepdim=True).detach()).exp() @ v.float()).to(q.dtype)

    for candidate, right in ((pair.candidate, True), (broken, False)):
        example = next(iter(examples.read(pair.inputs(dtype), None, True)))
        bench = Bench(candidate, pair.reference, example, dimensions.of(example, None), Wishes())
        assert [bench.judge(trial).fault is None for trial in trials] == [right] * 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_that_are_cut_off_are_told_from_rounded_ones(dtype: torch.dtype) -> None:
    exact, fmt = torch.randn(400, generator=torch.Generator().manual_seed(2)).double(), formats.of_dtype(dtype)
    _, exponent = torch.frexp(exact)
    spacing = torch.ldexp(torch.ones_like(exact), exponent - fmt.precision)
    assert cut_off(exact, ((exact / spacing).trunc() * spacing).to(dtype), fmt)
    assert not cut_off(exact, exact.to(dtype), fmt)
    equal, below = exact[:8].repeat_interleave(50), ((exact / spacing).trunc() * spacing)[:8].repeat_interleave(50)
    assert not cut_off(equal, below.to(dtype), fmt)  # eight numbers, which may all be rounded down
    shared = 1 - fmt.unit_roundoff  # what rounding of a scale makes of all numbers
    assert not cut_off(exact, (exact * shared).to(dtype), fmt)
    assert not cut_off(exact, exact.float(), formats.of_dtype(torch.float32))


@pytest.mark.parametrize("logarithmic", [False, True])
def test_scores_whose_powers_are_zero_do_not_disturb_a_softmax(logarithmic: bool) -> None:
    scores = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    hidden = scores.masked_fill(torch.ones(4, 8).triu(1).bool(), -1e30)
    with noise.Rounded(3, noise.base_roundoff(torch.float32)):
        made = hidden.log_softmax(-1).exp() if logarithmic else hidden.softmax(-1)
    assert (made.double() - hidden.double().softmax(-1)).abs().max() < 1e-5
