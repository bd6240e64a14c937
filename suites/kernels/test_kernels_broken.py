"""Kernels broken as real ones were are found, in the right class, and their fixed twins pass; others' formulations pass too.

All of them run with PRECHECK_SLOW=1, in about two hours; else a few that are quick.
"""

from __future__ import annotations

import os

import pytest
import torch
from cases import Rewrite, pairs
from sets import BROKEN, BROKEN_BY_NAME, NUMBERS, REWRITES

import precheck

SLOW = bool(os.environ.get("PRECHECK_SLOW"))
MISSED = {
    "cross entropy: the gradient of the right class is corrected in memory": "a gradient that is stored once more before its last term is added",
    "swiglu: the product rounded before the gate": "four roundings in bfloat16 where one is due err by twice as much, as correct ones may",
    "scales that are powers of two: what is not contiguous has another least scale": "of zeros alone it shows, which would make choices false ones",
    "place of the largest: NaN is passed over": "nothing says which place is right where a number is NaN",
    "sum over two axes: sums of rows are stored in bfloat16": "its error is no larger than that of storing a typical result, as of attention",
    "attention, keys in parts: the largest score begins at -50000": "a trial so far below would take at its word a reference whose mask is -65504",
    "adam: steps are counted in bfloat16, which ends at 256": "kernel-contract: only where more than 256 are counted it is wrong, as a limit is",
    "gated gelu: one plus a tanh far below zero": "its error is far below what rounding a typical result of the row makes",
    "scales of blocks in eight bits: that of a block of zeros is beyond their range": "kernel-contract: what is NaN in a format that no input has",
    "numbers in eight bits: small ones are rounded twice": "kernel-contract: no single op in bfloat16 or float16 errs so",
    "an exponential less one: its slope is the result and one": "torch's own derivative is that, too",
    "rows sent to eight experts each: on the way back they are added up in bfloat16": "eight roundings err as correct kernels may",
    "product with a scale for each four rows: the second four have the scale of the first ones too": "a size of 1 does not change",
    "softmax with a bias of -Inf: a row of those is zero, with NaN too": "on what -Inf hides no result depends, whatever finite number is there",
    "length of tensors of two formats: all are read in that of the first": "kernel-rounding: in one format for both it is right",
    "cosine of two rows: of a row of zeros it is NaN": "kernel-mask: a guard against a length of zero chooses as a mask does",
    "attention: a key that is hidden has a score of -10000": "scores below it take numbers more than 64 times the example's",
    "middle of a row by its product": "kernel-accumulation: a product leaves its range in long rows, as a sum does",
    "step of radam: how much is known of the variance is computed in float32": "kernel-contract: a number of Python is no op of the reference",
    "logarithm of a sum of powers: the largest number of all rows is taken out": "kernel-mask: a NaN of one row reaches all rows",
}
"""Kernels of the frozen sets that are not found, or in another class, and why their errors are taken for those of correct ones, or of others."""
WARNED = {
    "the middle of what is not NaN: NaN counts as zero", "mean of what is not NaN, over two axes: a mean of means",
    "scores with one bias for all rows of a stack: a bias of each row is not looked at",
    "product of two that may be transposed: both are, and neither is",
    "a picture at places: rows are scaled by the width, columns by the height",
}  # fmt: skip
"""Kernels that are wrong only where the reference leaves out a NaN, where a size is larger that is 1 in the example, where two sizes differ
that are equal there, or where a flag is turned. That is a warning."""
QUICK = {
    "cross entropy: gradients written over the logits", "relu: NaN becomes 0",
    "causal softmax: aligned to the other corner", "mean: columns read with a stride of 1",
    "embedding: the gradient's memory is not cleared", "mean: added up in float16",
    "sliding window: one token too many", "minimum: the limit that the first call was compiled for", "group norm: padding lanes read the next group",
    "rope: turned in place where the queries are contiguous",
    "softmax: a slice of nothing but -inf",
    "gate of a delta rule: rounded on its way to a float32 buffer", "scatter: a broadcast index read as if stored whole",
    "layer norm: what fills the tile counts in the variance", "sums of sequences: each goes on from the one before",
    "product: the workspace of a split sum is not cleared", "quantised rows: a row of zeros is divided by its scale",
    "repetition penalty: scores below zero are divided too",
    "rms norm that keeps its result: divided by a weight of zero",
    "step of an optimizer: what keeps it from dividing by zero is zero in float16", "heads with a scale each: a head's place is rounded to rows",
    "product of float16: sums of four are added up in float16", "place of the least: those of equal numbers are added up",
    "largest three: where many are equal, places are -1",
    "complex numbers times others: those that are conjugated when they are read are read as they lie",
    "layer norm: where the input has no gradient, the weight's is read from memory that is not written",
    "logarithms of sums so far: where all were -Inf it is NaN", "two codes of four bits to a byte, sixteen at a time: a byte is not cleared",
    "four bits with powers of two: the exponent is that of the largest in bfloat16", "attention: a query that sees no key is NaN",
}  # fmt: skip


def test_each_kernel_of_the_sets_has_a_name_of_its_own_and_a_known_class() -> None:
    assert sum(len(BROKEN[number]) for number in NUMBERS) == len(BROKEN_BY_NAME)
    assert {each.rule for each in BROKEN_BY_NAME.values()} <= set(precheck.RULES)
    assert set(MISSED) | QUICK | WARNED <= set(BROKEN_BY_NAME)
    assert all(REWRITES[number] for number in NUMBERS)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.xfail(reason=MISSED[name], strict=True) if name in MISSED else ())
    for name in BROKEN_BY_NAME if SLOW or name in QUICK
])  # fmt: skip
def test_a_broken_kernel_is_found_in_its_class(name: str) -> None:
    case = BROKEN_BY_NAME[name]
    report = precheck.compare_kernels(case.kernel(True), case.reference, case.inputs(), **({} if SLOW else {"trials": 210}))
    warned = case.rule == "kernel-fallback" or name in WARNED
    told = {finding.rule for finding in report.findings if finding.severity == ("warning" if warned else "error")}
    assert told >= {case.rule} if warned else told == {case.rule}, report.summary()


@pytest.mark.parametrize("name", [name for name in BROKEN_BY_NAME if SLOW or name in sorted(QUICK)[:3]])
def test_its_fixed_twin_passes(name: str) -> None:
    case = BROKEN_BY_NAME[name]
    report = precheck.compare_kernels(case.kernel(False), case.reference, case.inputs(), **({} if SLOW else {"trials": 60}))
    assert not report.errors, report.summary()


SOUND = [each for number in NUMBERS for each in pairs(REWRITES[number])]
if not SLOW:
    SOUND = [each for each in SOUND if "bfloat16" in each[0]][:3] + [each for each in SOUND if "segment, behind" in each[0]][:1]


@pytest.mark.parametrize(("name", "pair", "dtype"), SOUND)
def test_another_formulation_passes(name: str, pair: Rewrite, dtype: torch.dtype) -> None:
    limits = {"budget": 20} if SLOW else {"trials": 60}
    report = precheck.compare_kernels(pair.candidate, pair.reference, pair.inputs(dtype), gradients=pair.gradients, **limits)
    assert not report.errors, report.summary()
