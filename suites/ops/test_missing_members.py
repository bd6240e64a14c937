"""What followed from ops that stood in one table of names and not in another: bugs unseen or misnamed, healthy code accused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import precheck
from precheck.observe.decisions.natures import nature

aten = torch.ops.aten


def findings(program: Callable[[], Any]) -> list[precheck.Finding]:
    with precheck.watch() as report:
        kept = program()
    del kept
    return report.findings


def merged(dtype: torch.dtype) -> torch.Tensor:
    """Sixty small products added to a matrix of fours, in place."""
    total = torch.full((16, 16), 4.0, dtype=dtype)
    one, other = torch.full((16, 4), 0.03, dtype=torch.bfloat16), torch.full((4, 16), 0.03, dtype=torch.bfloat16)
    for _ in range(60):
        total.addmm_(one.to(dtype), other.to(dtype))
    return total


def test_products_added_in_place_that_stand_still_are_told() -> None:
    (found,) = findings(lambda: merged(torch.bfloat16))
    assert found.rule == "absorption", found
    assert "aten.addmm_" in found.message
    assert "updates in a row should add arrived" in found.message
    assert not findings(lambda: merged(torch.float32))


def gradients() -> torch.Tensor:
    """Eight elements that float16 makes zero, and 56 whose norm it cannot hold."""
    return torch.cat([torch.full((8,), 1e-9), torch.full((56,), 30000.0)])


def test_a_norm_that_overflows_is_not_blamed_on_an_element_that_became_zero() -> None:
    (found,) = findings(lambda: float(gradients().half().norm()))
    assert found.rule == "overflow", found
    assert "linalg_vector_norm" in found.message
    assert not findings(lambda: float(gradients().half().float().norm()))


MASKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "triu": lambda mask: mask.triu(1),
    "repeat": lambda mask: mask.repeat(2, 1),
    "cat": lambda mask: torch.cat([mask, mask]),
    "roll": lambda mask: mask.roll(1),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_is_moved_and_not_read_harms_nobody(name: str) -> None:
    assert not findings(lambda: MASKS[name](torch.full((4, 4), -1e9).half()))


@pytest.mark.parametrize("name", MASKS)
def test_data_that_overflow_and_are_moved_are_told(name: str) -> None:
    rules = {found.rule for found in findings(lambda: MASKS[name]((torch.arange(1.0, 17.0).view(4, 4) * 1e6).half()))}
    assert rules == {"overflow"}


def test_what_moves_numbers_in_place_rounds_none() -> None:
    for packet in (aten.relu_, aten.masked_fill_, aten.clamp_, aten.neg_):
        assert nature(packet.default if "default" in packet.overloads() else packet.Scalar).moves, packet
    assert not nature(aten.add_.Tensor).moves
    assert not nature(aten._to_copy.default).moves, "a cast is there to round"
