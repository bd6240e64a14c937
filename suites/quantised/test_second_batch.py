"""The second batch: recipes and quantised layers that were frozen before precheck was run on them, and healthy code that looks like them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import second_recipes
import torch
from float8_by_hand import normal
from frozen import Program, assert_found, watched
from layers_by_hand import model
from second_healthy import HEALTHY
from second_layers import FAULTS, KINDS, Mixed
from torch import nn

import precheck

RULES = {
    "signed_amax": "clipping", "overflow_not_saturated": "overflow", "zero_point_sum": "wrong-scale", "scale_in_half": "wrong-scale",
    "turned_after_amax": "clipping", "window_emptied": "underflow", "scale_of_the_first_shard": "wrong-scale", "heads_repeated": "wrong-scale",
    "seed_reused": "biased-rounding",
}  # fmt: skip
MISSED = {
    "turn_not_orthonormal": "the turns cancel but for one factor for the whole product, which may be meant",
    "order ignored": "the scales of groups are those of other columns, without a pattern in rows, columns or groups of neighbours",
}
SAID = {
    "sign extension": "its scales are wrong", "group size": "its scales are wrong: .* groups of 32 columns",
    "bias in eight bits": "the bias that it adds is off by 100%", "outliers twice": "the kernel, or the scales of its inputs",
}  # fmt: skip
programs = pytest.mark.parametrize("program", second_recipes.BUGS, ids=lambda program: program.__name__)


@programs
def test_a_fault_is_found_on_its_line(program: Program) -> None:
    assert_found(program, second_recipes, RULES, MISSED)


def test_rounding_by_chance_with_the_same_numbers_says_how_many_calls_and_what_it_costs() -> None:
    said = watched(second_recipes.seed_reused, True).errors[0].message
    assert re.search(r"64 calls round by chance with the same random numbers: the sum of their errors is 7\.\d times as large as that of inde", said)


@programs
def test_the_same_code_without_the_fault_is_left_in_peace(program: Program) -> None:
    assert not watched(program, False).errors


@programs
def test_a_fault_does_harm(program: Program) -> None:
    bug, twin = program(True).detach().float(), program(False).detach().float()
    assert not float((bug - twin).norm() / twin.norm()) < 0.05


@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__)
def test_healthy_look_alikes_are_left_in_peace(program: Callable[[], torch.Tensor]) -> None:
    with precheck.watch() as report:
        program()
    assert not report.findings


def quantised(fault: str, made: str) -> precheck.Report:
    """Of a model whose first layer has that fault, or is of the same kind without one."""
    kind, whole = KINDS[fault], model()
    outliers = torch.where(torch.arange(128) % 61 == 5, 20.0, 1.0) if kind is Mixed else 1.0
    return precheck.quantised(model(), nn.Sequential(kind(whole[0], made), whole[1], kind(whole[2])), normal(64, 128, seed=3) * outliers)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_layers_fault_is_found_and_its_twin_is_not_accused(fault: str) -> None:
    assert not quantised(fault, "").findings
    errors = quantised(fault, fault).errors
    if fault in MISSED:
        assert not errors
        return
    assert {error.module for error in errors} == {"0"}
    assert any(re.search(SAID[fault], error.message) for error in errors)
