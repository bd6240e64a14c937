"""What an example does not show: a batch of one may be larger, inputs may be turned in place, a mask may be numbers. And what rows of it show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sets import BROKEN_BY_NAME

import precheck
from precheck.kernels import contents, dimensions, examples, running
from precheck.kernels.bench import Bench
from precheck.kernels.errors import adds
from precheck.kernels.trials import Trial

QUICK = {
    "twice as many columns, of one picture: on the way back the others have no gradient",
    "product with a scale for each part: the caller's scales are turned in place",
    "loss of sequences by their lengths: the mask counts and hides nothing",
    "magnitudes with the signs of others: a zero has no sign",
    "causal, heads in groups: a row's limit is its number divided by the heads of a group",
}


@pytest.mark.parametrize("name", sorted(QUICK))
def test_what_the_twentieth_set_showed_is_told(name: str) -> None:
    case = BROKEN_BY_NAME[name]
    report = precheck.compare_kernels(case.kernel(True), case.reference, case.inputs(), trials=110)
    assert [each.rule for each in report.errors] == [case.rule], report.summary()


def _added(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1) + bias


def _one_for_all(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A kernel for one bias."""
    return x.softmax(-1) + bias[0]


def _first_alone(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A kernel that has forgotten all but the first of a batch."""
    return (x[:1].softmax(-1) + bias[:1]).expand(x.shape)


@pytest.mark.parametrize(("candidate", "rules"), [(_one_for_all, []), (_first_alone, ["kernel-edge"])])
def test_a_size_of_one_may_be_a_batch_or_one_for_all(candidate: Callable[..., torch.Tensor], rules: list[str]) -> None:
    """A fault in larger batches counts if no reading of the sizes makes it right."""
    inputs = (torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0)), torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(1)))
    report = precheck.compare_kernels(candidate, _added, inputs, trials=170)
    assert [each.rule for each in report.errors] == rules, report.summary()


def test_sizes_of_one_have_a_name_each_and_do_not_vary_with_others() -> None:
    known = dimensions.of(examples.read((torch.randn(1, 3, 5), torch.randn(1, 5), torch.randn(1), torch.randn(3, 1)), None, True)[0])
    assert known.ones == ("=1 of inputs[0]", "=1 of inputs[1]")
    assert list(known.sizes.values()) == [3, 5]
    assert known.shape(0, {"=1 of inputs[0]": 4}) == (4, 3, 5)
    assert known.shape(1, {"=1 of inputs[0]": 4}) == (1, 5)


def test_an_input_that_is_turned_back_is_as_it_was() -> None:
    def candidate(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x.t_().t_()
        return x * 2

    report = precheck.compare_kernels(candidate, lambda x: x + x, torch.randn(3, 5), trials=40, gradients=False)
    assert not report.errors, report.summary()


def test_a_wrong_number_beside_a_nan_that_the_reference_leaves_out_is_a_warning() -> None:
    """NaN must reach what depends on it, and more is not asked."""
    case = BROKEN_BY_NAME["the middle of what is not NaN: NaN counts as zero"]
    report = precheck.compare_kernels(case.kernel(True), case.reference, case.inputs(), trials=130)
    assert not report.errors, report.summary()
    assert any("which the reference leaves out" in each.message for each in report.findings if each.rule == "kernel-contract")


def test_a_place_beyond_a_limit_says_nothing_of_a_sum() -> None:
    """Numbers are read at places, of which the first one is behind the end, wherever it is moved."""

    def read(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return x[:, places.detach().clamp(0, 3).long()] * places.clamp(0, 3)

    example = examples.read((torch.randn(2, 4), torch.tensor([9.0, 1.5, 8.0, 2.5, 1.0])), None, True)[0]
    bench = Bench(read, read, example, dimensions.of(example), running.Wishes())
    assert not adds(bench, Trial(given=True, sizes=(("=5", 5),)), "=5", "output")


def test_a_large_tensor_shows_its_kind_in_rows() -> None:
    shares = torch.randn(4096, 128).softmax(-1)
    some = contents.sampled(shares)
    assert some.shape == (2048, 128)
    drawn, _ = contents.like(some, (3, 7), torch.Generator().manual_seed(0), contents.Bounds())
    assert torch.allclose(drawn.sum(-1), torch.ones(3, dtype=torch.float64))
    masked = torch.zeros(2048, 512).masked_fill(torch.ones(2048, 512).triu(1).bool(), float("-inf"))
    assert contents.sampled(masked) is masked
    assert contents.sampled(torch.zeros(8, 512, 512)).shape == (1, 512, 512)


def test_rows_of_a_report_have_a_format() -> None:
    report = precheck.compare_kernels(lambda x: x * 2, lambda x: x + x, torch.randn(3, 5).bfloat16(), trials=40)
    assert {row.dtype for row in report.boundaries} == {"bfloat16"}
