"""Layers that are quantised and run in a block of `watch`: their codes are packed, unpacked and multiplied by their scales there."""

from __future__ import annotations

import pytest
from float8_by_hand import normal
from layers_by_hand import Int4, Int8, converted
from second_layers import Mixed, Ordered
from torch import nn

import precheck

CANCEL = "these scales do not cancel those of "
FOUND = [
    (Int4, "zero point"), (Int4, "groups transposed"), (Int4, "halves"), (Int4, "scale axis"), (Int4, "scale of neighbour"), (Int4, "double"),
    (Int8, "scale stale"), (Ordered, "sign extension"), (Ordered, "order ignored"), (Ordered, "group size"),
]  # fmt: skip


def watched(kind: type[nn.Module], fault: str) -> precheck.Report:
    with precheck.watch() as report:
        converted(kind, fault)(normal(64, 128, seed=3).bfloat16())
    return report


@pytest.mark.parametrize("kind", [Int4, Int8, Ordered, Mixed])
def test_a_layer_that_is_quantised_well_is_left_in_peace(kind: type[nn.Module]) -> None:
    assert not watched(kind, "").findings


@pytest.mark.parametrize(("kind", "fault"), FOUND)
def test_codes_that_are_read_under_other_scales_are_found(kind: type[nn.Module], fault: str) -> None:
    """A bias that is added after the scales is no term that they multiply, and the message does not say so."""
    error = next(each for each in watched(kind, fault).errors if each.rule == "wrong-scale")
    assert CANCEL in error.message


def test_codes_that_are_made_under_a_quarter_of_their_scale_are_found_where_they_are_cut_off() -> None:
    error = watched(Int8, "tokens").errors[0]
    assert error.rule == "clipping"
    assert "the scale does not fit this tensor" in error.message
