"""The third batch: recipes that were frozen before precheck was run on them, and healthy code that looks like them.

As found: 5 of 10 on their line, none of the 10 twins and of the 10 look-alikes accused. Since Hadamard matrices, added terms and scales that
become zero are followed: 9 of 10, none and none.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import third_recipes
import torch
from frozen import Program, assert_found, assert_harmful_and_unchanged, watched
from third_healthy import HEALTHY

import precheck

RULES = {
    "turned_on": "wrong-scale", "sizes_differ": "wrong-scale", "largest_of_the_other": "clipping", "first_microbatch": "wrong-scale",
    "centred_then_cut": "biased-rounding", "sums_in_half": "overflow", "tail_block": "wrong-scale", "bias_before_scale": "wrong-scale",
    "scales_flushed": "clipping",
}  # fmt: skip
MISSED = {
    "weight_not_turned": "the input alone is turned in a forward pass; the weight may have been turned before, and a model may mix channels so",
}
programs = pytest.mark.parametrize("program", third_recipes.BUGS, ids=lambda program: program.__name__)


@programs
def test_a_fault_is_found_on_its_line(program: Program) -> None:
    assert_found(program, third_recipes, RULES, MISSED)


@programs
def test_the_same_code_without_the_fault_is_left_in_peace(program: Program) -> None:
    assert not watched(program, False).findings


@programs
def test_a_fault_does_harm_and_watching_changes_no_bit(program: Program) -> None:
    assert_harmful_and_unchanged(program)


@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__)
def test_healthy_look_alikes_are_left_in_peace(program: Callable[[], torch.Tensor]) -> None:
    with precheck.watch() as report:
        program()
    assert not report.findings
