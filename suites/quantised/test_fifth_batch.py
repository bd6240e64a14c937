"""The fifth batch: recipes after faults that were reported in public, frozen before precheck was run on them, and healthy code that looks like them.

As found: 3 of 12 on their line and one more as a warning, none of the 12 twins and of the 13 look-alikes accused. Since: 11 of 12, none and none.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import fifth_recipes
import float8_by_hand
import pytest
import torch
from fifth_healthy import HEALTHY
from float8_by_hand import normal
from frozen import Program, assert_found, assert_harmful_and_unchanged, watched

import precheck

RULES = {
    "square_not_transposed": "wrong-scale", "descale_dropped": "wrong-scale", "values_under_the_keys_scale": "wrong-scale",
    "amax_not_reset": "underflow", "ranks_saturate": "clipping", "zero_point_in_int8": "wrong-scale", "packing_not_cleared": "wrong-scale",
    "mantissa_leaks": "wrong-scale", "pairs_saturate": "clipping", "zero_points_interleaved": "wrong-scale", "subnormals_cut": "biased-rounding",
}  # fmt: skip
MISSED = {
    "folded_through_silu": "the factor is divided out of an earlier layer, before ops between which nothing is quantised",
}
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


SAID = {
    "descale_dropped": r"a scale is missing here, that of the codes of .*fifth_recipes.py:\d+ or of the tensor that they are multiplied with: "
    r"the exponential of the result reads numbers 20\.\d+ times as large as they should be",
    "values_under_the_keys_scale": r"are multiplied by another tensor's scale: the whole result is 7\.7\d+ times what it should be, which is "
    "one scale over the other",
    "ranks_saturate": r"2\d% of the elements are clipped, the greatest from 1\.7\d times the format's largest number: "
    r"this loses [12]\d% of the tensor, and rounding loses 2\.\d%; the scale does not fit this tensor",
    "zero_point_in_int8": r"[\d.]+% of the codes of .*fifth_recipes.py:\d+ have wrapped round in int8: compute in a wider integer, or in float32",
    "mantissa_leaks": "times these scales make Inf or NaN without any rounding, where the numbers that were quantised make none",
}


@pytest.mark.parametrize("name", SAID)
def test_a_message_says_what_the_fault_is(name: str) -> None:
    assert re.search(SAID[name], watched(getattr(fifth_recipes, name), True).errors[0].message)


def test_a_zero_point_that_is_cast_to_an_integer_does_not_end_the_search() -> None:
    """Its cast was taken for one to a narrower float. The exception ended the search for the rest of the run."""

    def program(bug: bool) -> torch.Tensor:
        zero = torch.round(normal(64).amin() * 8).to(torch.int8)
        return (float8_by_hand.wrong_axis(bug) + 0 * zero).to(torch.bfloat16)

    assert watched(program, True).errors[0].rule == "wrong-scale"
    assert not watched(program, False).findings


def test_bytes_of_a_picture_may_saturate() -> None:
    """Nothing is dequantised by the scale that the bytes were made with: they are what the program means."""
    with precheck.watch() as report:
        sound = normal(64, 64).abs()
        picture = torch.round(sound / (sound.amax() / 255))
        brighter = (picture + picture.flip(0) + picture.flip(1)).clamp(0, 255)
        ((brighter - 127.5) / 60.0 @ normal(64, 8, seed=1)).to(torch.bfloat16)
    assert float((brighter == 255).float().mean()) > 0.01
    assert not report.findings
