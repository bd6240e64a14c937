"""Whole numbers that a cast to integers makes others of: how sure it is that they number something."""

from __future__ import annotations

import pytest
import torch

from precheck.observe.shadow.op_notes import Renumbered
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.probes.integer_casts import note_renumbered

HALF, LOW = 2.0**-11, 2.0**-8


def seen(wide: list[float], dtype: torch.dtype = torch.float16, to: torch.dtype = torch.int64) -> Renumbered | None:
    operation = Operation(1, "_to_copy.default", "forward", "", "model.py:1", 1)
    shadow = torch.tensor(wide)
    note_renumbered(operation, HALF if dtype is torch.float16 else LOW, torch.iinfo(to), shadow.to(dtype), shadow)
    return operation.renumbered


def test_the_figures() -> None:
    """0.5 and 1999 are below float16's reach; 2051 goes to 2052, 3077 to 3076."""
    assert seen([0.5, 1999.0, 2048.0, 2051.0, 3077.0, 3077.0]) == Renumbered(2, 3077.0, 2051.0, 2052.0, 2048.0)


@pytest.mark.parametrize(("numbers", "dtype"), [
    ([2050.0, 4096.0], torch.float16),  # which the format holds
    ([255.0, 200.0], torch.bfloat16),
    ([2051.0, 2777.3], torch.float16),  # of which one is no number of anything
    ([300.7], torch.bfloat16),
    ([70001.0], torch.float16),  # Inf, which is for others to say
    ([], torch.float16),
])  # fmt: skip
def test_what_is_let_pass(numbers: list[float], dtype: torch.dtype) -> None:
    assert seen(numbers, dtype) is None


@pytest.mark.parametrize(("size", "told"), [(2.0**12 + 1, True), (2.0**13 - 1, True), (2.0**13 + 1, False)])
def test_a_lone_large_number_may_be_whole_by_chance(size: float, told: bool) -> None:
    """Of size 2^13 one real float32 in 2^10 is whole, and that is the limit; several numbers add up."""
    assert (seen([size], torch.bfloat16) is not None) is told
    assert seen([size, size - 2], torch.bfloat16) is not None


def test_a_quotient_that_was_multiplied_again_counts_for_less() -> None:
    """Off by some spacings of float32: 2^4 times as many real numbers are so near to a whole one."""
    off = float(torch.nextafter(torch.tensor(301.0), torch.tensor(302.0)))
    assert seen([off], torch.bfloat16) == Renumbered(1, 301.0, off, 302.0, 256.0)
    off = float(torch.nextafter(torch.tensor(4097.0), torch.tensor(5000.0)))
    assert seen([off], torch.bfloat16) is None
    assert seen([4097.0], torch.bfloat16) is not None


def test_beyond_the_integers_range_nothing_is_said() -> None:
    assert seen([40001.0], torch.bfloat16, torch.int16) is None
