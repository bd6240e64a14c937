"""Which line is named where several have rounded: what cancels, what an earlier op has made larger, states that two lines carry on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import precheck
from precheck.findings import Finding, Report

LINES = Path(__file__).read_text(encoding="utf8").splitlines()


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def on(finding: Finding, mark: str) -> bool:
    """Whether it is on a line that ends in that mark."""
    return LINES[int(finding.source.rpartition(":")[2]) - 1].endswith(f"# {mark}")


def turned(dtype: torch.dtype, turns: int) -> Report:
    """A point that is turned about the origin; its two coordinates are made on two lines, each of both."""
    c, s = torch.tensor(0.5).cos(), torch.tensor(0.5).sin()
    with precheck.watch() as report:
        x, y = seeded(64).to(dtype), seeded(64, seed=1).to(dtype)
        for _ in range(turns):
            new = (c * x - s * y).to(dtype)  # a coordinate
            y = (s * x + c * y).to(dtype)  # a coordinate
            x = new
        report.facts["result"] = float(x.float().norm() + y.float().norm())
    return report


def test_a_state_that_two_lines_carry_on_is_told_of() -> None:
    finding = next(iter(turned(torch.bfloat16, 120).errors))
    assert (finding.rule, on(finding, "a coordinate")) == ("accumulated-drift", True)
    assert "a loop carries this state on" in finding.message
    assert "stores it in bfloat16 each time" in finding.message


@pytest.mark.parametrize(("dtype", "turns"), [(torch.float32, 120), (torch.bfloat16, 4)])
def test_in_float32_it_is_not_nor_after_four_turns(dtype: torch.dtype, turns: int) -> None:
    assert not turned(dtype, turns).errors


def moved_by(dtype: torch.dtype) -> Report:
    """How far steps have moved a weight that was stored in the format before: its own rounding is in both terms of the difference."""
    with precheck.watch() as report:
        start = seeded(32, 4).to(dtype)  # the weight
        weight = start.clone()
        for turn in range(12):
            weight = weight - (1e-3 * seeded(32, 4, seed=turn % 2).abs()).to(dtype)  # a step
        report.facts["result"] = float((weight - start).float().norm())
    return report


def test_a_rounding_that_both_terms_of_a_difference_have_is_not_named() -> None:
    finding = next(iter(moved_by(torch.bfloat16).errors))
    assert (finding.rule, on(finding, "a step")) == ("absorption", True)
    assert "its rounding error grows at aten.sub.Tensor" in finding.message
    assert not moved_by(torch.float32).errors


def apart(*, haversine: bool) -> Report:
    """Distances within a city: degrees in float32 hold them, cosines next to one do not."""
    with precheck.watch(precision="32-true") as report:
        begin = torch.tensor([[-1.34], [0.68]]) + 3e-4 * seeded(2, 64)  # the data
        end = begin + 3e-4 * seeded(2, 64, seed=1)  # the data
        (lon, lat), (other_lon, other_lat) = begin, end
        if haversine:
            half = ((other_lat - lat) / 2).sin() ** 2 + lat.cos() * other_lat.cos() * ((other_lon - lon) / 2).sin() ** 2
            angle = 2 * half.sqrt().asin()
        else:
            inner = lat.sin() * other_lat.sin() + lat.cos() * other_lat.cos() * (other_lon - lon).cos()  # the formula
            angle = inner.clamp(-1, 1).acos()
        report.facts["result"] = float(angle.norm())
    return report


def test_of_roundings_in_a_row_those_nearest_to_the_amplifier_are_named() -> None:
    (finding,) = apart(haversine=False).errors
    assert (finding.rule, on(finding, "the formula")) == ("amplified-rounding", True)
    assert "times by aten.acos.default" in finding.message
    assert not apart(haversine=True).errors


def chances(logits: torch.Tensor, wide: bool) -> torch.Tensor:
    """The logarithms of a softmax, of scores that are low already."""
    return (logits.float() if wide else logits).log_softmax(-1)  # the chances


def gained(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """By how much one is likelier than the other."""
    return (ours - theirs).float()  # the difference


def preferred(wide: bool) -> Report:
    logits = 0.05 * seeded(32, 300)
    with precheck.watch() as report:
        ours, theirs = ((logits + 0.002 * seeded(32, 300, seed=seed)).to(torch.bfloat16) for seed in (1, 2))
        report.facts["result"] = float(gained(chances(ours, wide), chances(theirs, wide)).norm())
    return report


def test_what_another_function_computed_low_is_named_and_not_the_exact_difference_of_it() -> None:
    first = preferred(wide=False).errors[0]
    assert (first.rule, on(first, "the chances")) == ("amplified-rounding", True)
    assert "a difference of nearly equal numbers" in first.message
    assert not preferred(wide=True).errors
