"""The fifth batch: recipes after faults that were reported in public, frozen before precheck was run on them, and healthy code that looks like them."""

from __future__ import annotations

from collections.abc import Callable

import fifth_recipes
import pytest
import torch
from fifth_healthy import HEALTHY
from frozen import Program, assert_found, assert_harmful_and_unchanged, watched

import precheck

RULES: dict[str, str] = {}
MISSED: dict[str, str] = {}
programs = pytest.mark.parametrize("program", fifth_recipes.BUGS, ids=lambda program: program.__name__)


@programs
def test_a_fault_is_found_on_its_line(program: Program) -> None:
    assert_found(program, fifth_recipes, RULES, MISSED)


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
