"""NaN must reach what depends on it, and no more than kernels that work in chunks let it reach."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sets import BROKEN_BY_NAME, REWRITES_BY_NAME

import precheck
from precheck.kernels import dimensions, examples, running
from precheck.kernels.bench import Bench
from precheck.kernels.dependence import Dependence
from precheck.kernels.trials import Trial

CHUNKED = "linear attention, chunks of four with a state between them"
SKIPPING = "causal attention, four queries and four keys at a time, tiles behind the mask left out"


def test_a_kernel_in_chunks_may_lose_results_of_the_same_sequence_and_that_is_said() -> None:
    """Place after place, NaN reaches nothing before it. A chunk multiplies its values by a triangle of zeros."""
    pair = REWRITES_BY_NAME[CHUNKED]
    report = precheck.compare_kernels(pair.candidate, pair.reference, pair.inputs(torch.float32), trials=126)
    assert not report.errors, report.summary()
    said = "other results of the same numbers are lost in the reference too"
    assert any(each.rule == "kernel-mask" and said in each.message for each in report.findings)


def test_tiles_behind_the_mask_may_be_left_out_where_the_reference_is_nan() -> None:
    """The reference multiplies what is masked by 0, so it is NaN in all rows. That tells nothing of the rows before."""
    pair = REWRITES_BY_NAME[SKIPPING]
    report = precheck.compare_kernels(pair.candidate, pair.reference, pair.inputs(torch.float32), trials=126)
    assert not [each for each in report.findings if "not finite" in each.message], report.summary()


def test_a_nan_that_matters_must_not_be_dropped() -> None:
    pair = REWRITES_BY_NAME[SKIPPING]

    def dropping(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = pair.candidate(q, k, v.nan_to_num() if bool(v.isnan().any()) else v)
        return made

    report = precheck.compare_kernels(dropping, pair.reference, pair.inputs(torch.float32), trials=180)
    assert [each.rule for each in report.errors] == ["kernel-contract"], report.summary()
    assert "computed from NaN" in report.errors[0].message


@pytest.mark.parametrize("name", [
    "attention to a cache: values behind its end are multiplied by zero", "packed sequences: values of the others are multiplied by zero",
])  # fmt: skip
def test_numbers_that_nobody_uses_and_those_of_another_sequence_must_be_left_out(name: str) -> None:
    case = BROKEN_BY_NAME[name]
    report = precheck.compare_kernels(case.kernel(True), case.reference, case.inputs(), trials=190)
    assert [each.rule for each in report.errors] == ["kernel-mask"], report.summary()
    assert "leave it out and do not multiply it by 0" in report.errors[0].message
    report = precheck.compare_kernels(case.kernel(False), case.reference, case.inputs(), trials=100)
    assert not [each for each in report.findings if "not finite" in each.message], report.summary()


@pytest.mark.parametrize(("reference", "depends", "connected"), [
    (lambda x: x.cumsum(0), [0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]),
    (lambda x: x[:-1] + x[1:], [0, 1, 1, 0, 0], [1, 1, 1, 1, 1]),  # through others
    (lambda x: x.view(2, 3).sum(1), [1, 0], [1, 0]),
    (lambda x: x[3:] * 2, [0, 0, 0], [0, 0, 0]),
    (lambda x: x.detach().view(2, 3).cumsum(1).view(6), [0, 0, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0]),  # no gradient flows
    (lambda x: torch.cat([x[2:3].softmax(0), x[:1]]), [0, 0], [1, 0]),  # a share of one alone is 1, and NaN of NaN
    (lambda x: x.round(), [0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0]),  # a derivative of 0
    (lambda x: torch.zeros(6, dtype=x.dtype).scatter(0, x.topk(2).indices, x.topk(2).values), [0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]),
], ids=["scan", "window", "two parts", "unused", "no gradient", "alone", "steps", "largest two"])  # fmt: skip
def test_what_depends_on_a_number_and_what_belongs_to_it(reference: Callable[..., torch.Tensor], depends: list[int], connected: list[int]) -> None:
    example = examples.read((torch.tensor([0.3, 1.2, 0.8, -0.7, 2.0, 0.1]),), None, True)[0]
    bench = Bench(reference, reference, example, dimensions.of(example, None), running.Wishes())
    trials = (Trial(given=True, family="NaN", leaf=0, seed=seed) for seed in range(99))
    found = Dependence(bench, next(each for each in trials if bool(bench.make(each).values[0][2].isnan())))
    assert found.of("output").int().tolist() == depends
    assert found.connected()["output"].int().tolist() == connected


def test_a_query_that_sees_one_key_is_lost_with_its_nan_though_fused_attention_hides_it() -> None:
    """The weight of the only key is 1, whatever its score. torch's fused attention on a CPU gives 0 where that is NaN, and its separate ops NaN."""
    k, v = torch.randn(2, 1, 1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def reference(q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), is_causal=True)

    example = examples.read((torch.randn(1, 1, 3, 4, generator=torch.Generator().manual_seed(2)),), None, True)[0]
    bench = Bench(reference, reference, example, dimensions.of(example, None), running.Wishes())
    trials = (Trial(given=True, family="NaN", leaf=0, seed=seed) for seed in range(99))
    found = Dependence(bench, next(each for each in trials if bool(bench.make(each).values[0][0, 0, 0].isnan().any())))
    assert not bool(found.of("output")[0, 0, 0].any())
    assert found.connected()["output"][0, 0].all(1).tolist() == [True, False, False]
