"""What broken kernels of the sets are told: the class and the words that a mend was made for, and the fixed twin that passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sets import BROKEN_BY_NAME

import precheck

SAID = {
    # a mask that is a large number, and not -inf, widened the floor without bound
    "window of four: the first place is counted beside it": "a window that begins one column earlier explains it",
    # nothing is written there at all, so zeros in the memory do not make it right
    "gate: its gradient is memory that nobody wrote": "the result depends on what is in memory that it allocates",
    # nothing is added up along a dimension; larger errors were among more elements
    "adam: what keeps it from dividing by zero is corrected like the moment": "rounding explains",
    # in equal sizes the part is the whole; the sizes beside them were refused
    "rope of a part of each head: all of it is turned": "rounding explains",
    # all of a row is far below zero
    "softmax: the largest number is never taken to be below zero": "here there are numbers below -96",
    # squares overflow among large numbers, and lose terms among plain ones if the row is long
    "residual and rms norm: squares of float16 are added up in float16": "with plain numbers the error grows with the number of terms",
    # where nothing is looked up, the gradient of a table is zeros, and not nothing
    "rows of a table: without places the way back fails": "in its backward pass, where the reference gives a result",
    # a slice leaves out what is outside of it; right in some draws where one key weighs nearly all
    "one step with a window of four: the oldest key is dropped": "a window that begins one column later explains it",
    # the label that a loss ignores is a mask
    "cross entropy: another ignored label than -1 is not looked at": "no mask explains it",
    # each number is less than one spacing off, and all are towards zero
    "residual and rms norm in bfloat16: the sum is cut off, not rounded": "the tensor, cut off and not rounded, is off by",
    # six gradients are too few to see that their error varies as rounding does
    "scores that decay: equal terms of the gates' gradient are rounded, then subtracted": "rounding explains",
    # what is lost among large numbers grows among plain ones
    "variance of float16: means are kept in float16": "Inf or NaN in",
    # numbers whose exponential is as small as float32's spacing of one
    "softplus: of a number far below zero nothing is left": "numbers about -16",
    # the cache is used where no input requires a gradient
    # which of the two is seen first depends on the addresses that the allocator gives
    "swish: results are kept by the address of the input": "in memory of its own the same call is right|it is right where nothing was run before",
    # of four numbers nobody had asked for the smallest four
    "smallest four: zeros where there are no more than four": "here the size 9 became 4",
    # places that are whole numbers fall on the end of a short row
    "numbers between columns: at the last one the slope leads to zero": "in the example's sizes it is right",
    # the reference reads lengths by slices; a cache is as long as its pages
    "attention to pages: where the last page is full, the next one is read too": "it is right where nothing is masked",
    # the reference compares which sequence two rows are of
    "sums that fade, sequences in a row: the first state fades from where the chunk begins": "it is right where nothing is masked",
    # of 37 elements seven carry the error: larger sizes show how it varies
    "norm of float16: the weight's gradient passes through bfloat16": "rounding explains; an error of rounding shows where",
    # the reference compares with the middles of its codes, and rounds nothing
    "four bits: ties are rounded away from zero": "at ties it takes the other side",
    # what first changes the largest of few numbers is no sum
    "codes of float16 rows: the scale's reciprocal is kept in float16": "rounding explains",
    # another formula for the same table rounds elsewhere, but as much
    "places of pixels: computed in float16": "as large as that of tables in a lower format",
    # of a shorter row other lengths are drawn, and none of them is 0
    "logarithms of sums, heads first: of a sequence without keys it is stored where it would lie with sequences first": "where nothing is masked",
    # negative numbers that differ are no marker
    "numbers at pairs of places: those from the end count from the end of the first dimension": "no size, stride, mask",
    # nothing is finite that could be compared
    "logarithm of the sum of scores: of no keys it is Inf": "an infinity of the other sign",
}


@pytest.mark.parametrize("name", SAID)
def test_a_broken_kernel_is_told_in_these_words_and_its_twin_passes(name: str) -> None:
    case = BROKEN_BY_NAME[name]
    report = precheck.compare_kernels(case.kernel(True), case.reference, case.inputs(), trials=270)
    assert [finding.rule for finding in report.errors] == [case.rule], report.summary()
    assert any(words in report.errors[0].message for words in SAID[name].split("|")), report.errors[0].message
    tried = report.facts["trials"]
    report = precheck.compare_kernels(case.kernel(False), case.reference, case.inputs(), trials=max(tried, 20))
    assert not report.errors, report.summary()


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def _in_place(x: torch.Tensor) -> torch.Tensor:
    return x.clone().copy_(torch.from_numpy(x.numpy())).sin_()


@pytest.mark.parametrize("candidate", [lambda x: x.detach().sin(), _Forward.apply, _in_place], ids=["cut", "no backward", "not where one is asked"])
def test_a_candidate_without_a_derivative_is_told_how_it_is_judged_without(candidate: Any) -> None:
    example = torch.linspace(-1, 2, 12).reshape(3, 4)
    (error,) = precheck.compare_kernels(candidate, torch.sin, example, trials=20).errors
    assert error.remedy == "write its backward pass; or, if it is for inference only, pass gradients=False", error
    assert not precheck.compare_kernels(candidate, torch.sin, example, gradients=False, trials=4).errors


def _divides(x: torch.Tensor) -> torch.Tensor:
    return x / (1 // 0)


@pytest.mark.parametrize(
    ("candidate", "cure"),
    [
        (lambda x: None, "return what the reference returns"),
        (lambda x: x.softmax(-1).sum(-1), "return what the reference returns"),
        (_divides, "mend what raises: the reference takes these inputs"),
        (lambda x: 2 * x.softmax(-1), "compare the formula with the reference's"),
    ],
    ids=["nothing", "another shape", "an exception", "another formula"],
)
def test_a_candidate_that_breaks_its_contract_is_told_how(candidate: Any, cure: str) -> None:
    (error,) = precheck.compare_kernels(candidate, lambda x: torch.softmax(x, -1), torch.linspace(-1, 2, 12).reshape(3, 4), trials=20).errors
    assert error.rule == "kernel-contract", error
    assert error.remedy.startswith(cure)
