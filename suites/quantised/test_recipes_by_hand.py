"""Recipes written by hand with torch's ops: planted faults are found on their lines, and the same code without them is left in peace."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import blocks_by_hand
import float8_by_hand
import pytest
import torch
from healthy_quantisers import HEALTHY

import precheck
from precheck.findings import Report

Recipe = Callable[[bool], torch.Tensor]
MARK = re.compile(r"# culprit: ([\w-]+)$")
RULES = {
    "wrong_axis": "wrong-scale", "transposed_scales": "wrong-scale", "one_scale_forgotten": "wrong-scale", "multiplied_instead": "wrong-scale",
    "dequantised_twice": "wrong-scale", "amax_never_updated": "clipping", "lagging_history": "clipping", "stale_scale": "wrong-scale",
    "gradient_unscaled": "underflow", "weight_gradient_scale": "wrong-scale", "narrow_accumulation": "accumulated-drift",
    "inverse_in_low": "overflow", "rounded_down": "clipping", "blocks_across": "wrong-scale", "biased": "biased-rounding",
    "cut_off": "biased-rounding", "tensor_scale_forgotten": "wrong-scale", "scales_of_the_neighbour": "wrong-scale",
    "wrong_zero_point": "wrong-scale", "group_order": "wrong-scale", "newest_scale": "wrong-scale",
    "signs_differ": "wrong-scale", "packed_layout": "wrong-scale", "smoothed_once": "wrong-scale",
}  # fmt: skip
MISSED = {
    "exponent_bias": "all that is off is one factor for the whole tensor, which a program may mean: a warning",
    "missing_inverse": "the weight alone is turned in a forward pass; the input may have been turned before",
}
PROGRAMS: tuple[Recipe, ...] = (*float8_by_hand.BUGS, *blocks_by_hand.BUGS)


def culprits() -> dict[str, str]:
    """The name of the fault on each line that is marked: "float8_by_hand.py:32"."""
    found = {}
    for module in (float8_by_hand, blocks_by_hand):
        path = Path(inspect.getfile(module))
        for number, line in enumerate(path.read_text(encoding="utf8").splitlines(), 1):
            mark = MARK.search(line)
            if mark:
                found[f"{path.name}:{number}"] = mark.group(1)
    return found


def watched(program: Recipe, bug: bool) -> Report:
    with precheck.watch() as report:
        program(bug)
    return report


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_planted_fault_is_found_on_its_line(program: Recipe) -> None:
    report = watched(program, True)
    if program.__name__ in MISSED:
        assert not report.errors, f"{program.__name__} is found now: {report.errors[0].message}"
        return
    first = report.errors[0]
    assert first.rule == RULES[program.__name__]
    assert first.source.rpartition("/")[2] in culprits()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_same_code_without_the_fault_is_left_in_peace(program: Recipe) -> None:
    assert not watched(program, False).errors


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_planted_fault_does_harm_and_watching_changes_no_bit(program: Recipe) -> None:
    bug, twin = program(True).detach(), program(False).detach()
    off = float((bug.float() - twin.float()).norm() / twin.float().norm())
    assert not off < 0.01  # NaN is harm
    with precheck.watch():
        again = program(True).detach()
    assert torch.equal(bug.nan_to_num(123.0), again.nan_to_num(123.0))


def test_messages_say_what_is_off_and_where_it_was_rounded() -> None:
    said = watched(float8_by_hand.wrong_axis, True).errors[0].message
    assert re.search(r"these scales do not cancel those of .*float8_by_hand.py:\d+: without any rounding the result is off by \d+%", said)
    said = watched(blocks_by_hand.rounded_down, True).errors[0].message
    assert re.search(r"[\d.]+% of the elements are clipped, the greatest from [12][\d.]* times the format's largest number", said)
    said = watched(blocks_by_hand.cut_off, True).errors[0].message
    assert said.endswith("mean of 0.49 steps towards zero, where rounding to nearest has none: numbers are truncated here, not rounded")
    said = watched(blocks_by_hand.biased, True).errors[0].message
    assert "mean of 0.49 steps up, where rounding to nearest has none: noise was added, and the sum is rounded, not truncated" in said


def test_a_scale_that_lags_behind_data_that_grows_is_a_warning() -> None:
    report = watched(float8_by_hand.amax_never_updated, False)
    (finding,) = report.findings
    assert (finding.rule, finding.severity) == ("clipping", "warning")
    assert finding.message.endswith("the scale lags behind in 1 of 4 casts")


@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__)
def test_healthy_code_that_quantises_in_ways_of_its_own_is_left_in_peace(program: Callable[[], torch.Tensor]) -> None:
    with precheck.watch() as report:
        program()
    assert not report.findings
