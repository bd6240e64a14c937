"""The helper of scenarios says what it wanted, at which line, and what was found instead."""

from __future__ import annotations

import pytest
import torch
from scenario import finds, passes


def positions() -> torch.Tensor:
    return torch.arange(300).bfloat16().sin()  # fault


def healthy() -> torch.Tensor:
    return torch.ones(4).bfloat16() * 2  # fault


def test_what_was_found_is_handed_on() -> None:
    assert finds(positions, "integer-rounding", says="whole numbers up to 299").op == "aten._to_copy.default"
    passes(healthy)


def test_a_failure_says_what_was_wanted_and_what_was_found() -> None:
    with pytest.raises(AssertionError, match=r"positions: expected error overflow at line 11, return torch.*\sinteger-rounding: cast to bfloat16"):
        finds(positions, "overflow")
    with pytest.raises(AssertionError, match=r"positions: expected no finding; found was:\sinteger-rounding"):
        passes(positions)
    with pytest.raises(AssertionError, match=r"healthy: expected error overflow at line 15, .*; nothing was found"):
        finds(healthy, "overflow")
    with pytest.raises(AssertionError, match="positions: expected the words 'up to 9'"):
        finds(positions, "integer-rounding", says="up to 9")


def test_a_program_has_to_end_as_it_is_said_to() -> None:
    with pytest.raises(AssertionError, match="healthy: expected <class 'ValueError'>, and it returned tensor"):
        passes(healthy, raises=ValueError)
