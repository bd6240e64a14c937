"""What the ninth frozen set mended: the class of a fault and its words, and the fixed twin that passes."""

from __future__ import annotations

import ninth_broken  # noqa: F401
import ninth_broken_last  # noqa: F401
import ninth_broken_more  # noqa: F401
import pytest
import torch
from broken_cases import NINTH

import precheck
from precheck.kernels import noise

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
}


@pytest.mark.parametrize("name", SAID)
def test_a_broken_kernel_is_told_in_these_words_and_its_twin_passes(name: str) -> None:
    case = NINTH[name]
    report = precheck.compare_kernels(case.kernel(True), case.reference, case.inputs(), budget=5)
    assert [finding.rule for finding in report.errors] == [case.rule], report.summary()
    assert SAID[name] in report.errors[0].message
    report = precheck.compare_kernels(case.kernel(False), case.reference, case.inputs(), budget=1.5)
    assert not report.errors, report.summary()


@pytest.mark.parametrize("logarithmic", [False, True])
def test_scores_whose_powers_are_zero_do_not_disturb_a_softmax(logarithmic: bool) -> None:
    scores = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    hidden = scores.masked_fill(torch.ones(4, 8).triu(1).bool(), -1e30)
    with noise.Rounded(3, noise.base_roundoff(torch.float32)):
        made = hidden.log_softmax(-1).exp() if logarithmic else hidden.softmax(-1)
    assert (made.double() - hidden.double().softmax(-1)).abs().max() < 1e-5
