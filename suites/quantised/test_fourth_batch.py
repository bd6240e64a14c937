"""The fourth batch: recipes after faults that were reported in public, frozen before precheck was run on them, and healthy code that looks like them.

As found: 8 of 12 on their line, none of the 12 twins and 1 of the 12 look-alikes accused (`zero_point_in_the_bias`).
Since: 11 of 12, none and none.
"""

from __future__ import annotations

from collections.abc import Callable

import fourth_recipes
import pytest
import torch
from fourth_healthy import HEALTHY
from frozen import Program, assert_found, assert_harmful_and_unchanged, watched

import precheck

RULES = {
    "zero_point_wraps": "wrong-scale", "rows_regrouped": "wrong-scale", "divisor_not_inverted": "wrong-scale", "gate_and_up_share": "wrong-scale",
    "cached_weight": "wrong-scale", "amax_of_the_old_weight": "clipping", "block_of_zeros": "wrong-scale", "nested_scale_as_it_is": "wrong-scale",
    "heads_alone_turned": "wrong-scale", "zero_point_not_multiplied": "wrong-scale", "unsigned_in_signed": "clipping",
}  # fmt: skip
MISSED = {"turned_when_packed": "the weight alone is turned in a forward pass: the input may have been turned before, or be meant so"}
programs = pytest.mark.parametrize("program", fourth_recipes.BUGS, ids=lambda program: program.__name__)


@programs
def test_a_fault_is_found_on_its_line(program: Program) -> None:
    assert_found(program, fourth_recipes, RULES, MISSED)


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
