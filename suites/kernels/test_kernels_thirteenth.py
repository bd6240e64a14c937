"""What the thirteenth frozen set mended: the class of a fault and its words, and the fixed twin that passes."""

from __future__ import annotations

import pytest
import thirteenth_broken  # noqa: F401
import thirteenth_broken_last  # noqa: F401
import thirteenth_broken_more  # noqa: F401
import twelfth_broken_last  # noqa: F401
from broken_cases import THIRTEENTH, TWELFTH

import precheck

SAID = {
    # of four numbers nobody had asked for the smallest four
    "smallest four: zeros where there are no more than four": "here the size 9 became 4",
    # places that are whole numbers fall on the end of a short row
    "numbers between columns: at the last one the slope leads to zero": "in the example's sizes it is right",
    # the reference reads lengths by slices; a cache is as long as its pages
    "attention to pages: where the last page is full, the next one is read too": "it is right where nothing is masked",
    # the reference compares which sequence two rows are of
    "sums that fade, sequences in a row: the first state fades from where the chunk begins": "it is right where nothing is masked",
    # of 37 elements seven carry the error: larger sizes show how it varies
    "norm of float16: the weight's gradient passes through bfloat16": "rounding explains; an error of rounding shows with",
}


@pytest.mark.parametrize("name", SAID)
def test_a_broken_kernel_is_told_in_these_words_and_its_twin_passes(name: str) -> None:
    case = THIRTEENTH.get(name) or TWELFTH[name]
    report = precheck.compare_kernels(case.kernel(True), case.reference, case.inputs(), budget=5)
    assert [finding.rule for finding in report.errors] == [case.rule], report.summary()
    assert SAID[name] in report.errors[0].message
    report = precheck.compare_kernels(case.kernel(False), case.reference, case.inputs(), budget=1.5)
    assert not report.errors, report.summary()
