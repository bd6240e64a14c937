"""A tensor that is written in parts: what was known of one part is known still when another is written."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precheck
from precheck.findings import Report
from precheck.observe.shadow.probes import partial_writes

LOW, HALF = torch.bfloat16, torch.float16


def seen(code: Callable[[], Any]) -> Report:
    with precheck.watch() as report:
        result = code()
    del result
    return report


def channels(rows: bool, *, written_over: bool = False, kept: bool = False) -> torch.Tensor:
    """Three channels, the first of which overflows; as rows of a buffer, or as its columns."""
    large, buffer = torch.full((4,), 60_000.0, dtype=HALF), torch.zeros(3, 4, dtype=HALF)
    view = buffer if rows else torch.zeros(4, 3, dtype=HALF).T
    view[0] = large * 2
    view[1] = 1
    view[2] = 2
    if written_over:
        view[0] = 3
    return view.float().sum(1) if kept is False else view


@pytest.mark.parametrize("kept", [False, True], ids=["read", "kept"])
@pytest.mark.parametrize("rows", [True, False], ids=["rows", "columns"])
def test_inf_in_one_part_is_not_forgotten_when_others_are_written(rows: bool, kept: bool) -> None:
    finding = seen(lambda: channels(rows, kept=kept)).errors[0]
    assert finding.rule == "overflow"
    assert finding.op == "aten.mul.Tensor"
    assert "120000 in the reference is beyond the largest float16, 65504" in finding.message
    assert not seen(lambda: channels(rows, kept=kept, written_over=True)).findings, "nobody has seen it"


def rows_of(dtype: torch.dtype) -> torch.Tensor:
    """The first row holds what a subtraction has left of near-equals, the others are of the same size and right."""
    x, buffer = (1 + 1e-3 * torch.arange(64.0).sin()).to(dtype), torch.zeros(3, 64, dtype=dtype)
    buffer[0] = (x * 1.001 - 1.0) * 1000
    for row in (1, 2):
        buffer[row] = torch.arange(64.0).cos().to(LOW).to(dtype)
    return buffer.float().neg().exp()


def test_an_error_in_one_part_is_what_a_reader_of_all_has_been_given() -> None:
    report = seen(lambda: rows_of(LOW))
    assert report.errors[0].rule == "cancellation"
    assert report.errors[0].op == "aten.sub.Tensor"
    (read,) = [row for row in report.ops if row.op == "aten.neg.default"]
    assert read.drift > 0.5
    assert read.added == pytest.approx(0), "the last row, which was written last, is right"
    assert not seen(lambda: rows_of(torch.float32)).errors


def log_probs(width: torch.dtype, chunk: int, lowest: float = -9.0) -> torch.Tensor:
    """Log-probabilities put into a tensor of that format, a chunk at a time."""
    held = torch.zeros(64, dtype=width)
    for start in range(0, 64, chunk):
        held[start : start + chunk] = torch.linspace(lowest, -5.0, 64)[start : start + chunk] + 0.01 * torch.arange(chunk).cos()
    return held


def ratio_of(width: torch.dtype, chunk: int) -> torch.Tensor:
    """Both have roundings of their own."""
    new, old = log_probs(width, chunk), log_probs(width, chunk, -9.1)
    return torch.exp(new * 1.0005 - old)


@pytest.mark.parametrize("chunk", [16, 32, 64])
def test_what_a_store_in_parts_has_rounded_is_blamed_on_the_store(chunk: int) -> None:
    """The difference of near-equals is exact, in bfloat16 too: another function has stored its terms, which it had in float32."""
    finding = seen(lambda: ratio_of(LOW, chunk)).errors[0]
    assert finding.rule == "amplified-rounding"
    assert finding.op == "aten.copy_.default"
    assert Path(__file__).read_text(encoding="utf8").splitlines()[int(finding.source.rpartition(":")[2]) - 1].strip().startswith("held[start")
    assert "a difference of nearly equal numbers" in finding.message
    assert not seen(lambda: ratio_of(torch.float32, chunk)).errors


def one_function() -> torch.Tensor:
    """Stores its terms low, and takes one from the other. The difference rounds nothing, and is right without the casts."""
    told = torch.linspace(-9.0, -5.0, 64)
    new, old = (told + 0.01 * torch.arange(64).cos()).to(LOW), told.to(LOW)
    return torch.exp(new - old).float()


def test_a_difference_in_the_function_that_casts_its_terms_is_blamed_on_the_casts() -> None:
    assert [finding.op for finding in seen(one_function).errors] == ["aten._to_copy.default"]


def drawn_beside() -> torch.Tensor:
    buffer = torch.zeros(2, 64)
    buffer[0] = 1.001
    low = buffer.to(LOW)
    low[1].uniform_(generator=torch.Generator().manual_seed(0))
    return 1 - low[0] * 1.0


def test_a_draw_into_one_part_leaves_the_shadow_of_the_rest() -> None:
    """The whole storage used to start again from what the run has."""
    with precheck.watch() as report:
        result = drawn_beside()
    assert float(result.abs().max()) == 0
    assert max(row.drift for row in report.ops if row.op == "aten.rsub.Scalar") == pytest.approx(1)


VIEWS = [
    lambda base: base[0], lambda base: base[1], lambda base: base[:, 1], lambda base: base[:, 2], lambda base: base[:, :, 0],
    lambda base: base[:, :, 3],
    lambda base: base[..., :2], lambda base: base[..., 2:], lambda base: base[:, 1:3], lambda base: base[1:, ::2], lambda base: base[::2, 1::2, 1],
    lambda base: base[1, 2], lambda base: base[:, :, 1:3].transpose(0, 2), lambda base: base, lambda base: base[2, 2, 2:2],
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), list(itertools.product(VIEWS, VIEWS)))
def test_what_is_apart_is_apart(one: Callable[[torch.Tensor], torch.Tensor], other: Callable[[torch.Tensor], torch.Tensor]) -> None:
    base = torch.arange(3 * 4 * 5).reshape(3, 4, 5)
    first, second = one(base), other(base)
    common = set(first.flatten().tolist()) & set(second.flatten().tolist())
    if partial_writes.apart(partial_writes.region(first), partial_writes.region(second)):
        assert not common
    if partial_writes.covers(partial_writes.region(first), partial_writes.region(second)):
        assert set(second.flatten().tolist()) <= set(first.flatten().tolist())


def test_columns_and_halves_of_rows_are_told_apart() -> None:
    base = torch.zeros(4, 6)
    for one, other in ((base[:, 0], base[:, 5]), (base[:, :3], base[:, 3:]), (base[0], base[1]), (base[:, 1:3], base[:, 4])):
        assert partial_writes.apart(partial_writes.region(one), partial_writes.region(other))
        assert partial_writes.apart(partial_writes.region(other), partial_writes.region(one))
    assert not partial_writes.apart(partial_writes.region(base[:, :3]), partial_writes.region(base[:, 2:]))
    assert not partial_writes.apart(partial_writes.region(base[:, 1]), partial_writes.region(base[2]))


def powered(exponent: float, x: float = 300.0) -> torch.Tensor:
    return torch.tensor([1e-9, 1.0, x]).half() ** exponent


def test_a_square_has_no_pole_at_the_zero_beside_what_overflows() -> None:
    finding = seen(lambda: powered(2)).errors[0]
    assert (finding.rule, finding.op) == ("overflow", "aten.pow.Tensor_Scalar")
    assert "90000 in the reference is beyond the largest float16" in finding.message
    finding = seen(lambda: powered(-1)).errors[0]
    assert (finding.rule, finding.op) == ("underflow", "aten._to_copy.default")
    assert "aten.pow.Tensor_Scalar" in finding.message
    assert not seen(lambda: powered(2, x=200.0)).errors


def bytes_of(picture: torch.Tensor, *, clamped: bool = False) -> torch.Tensor:
    levels = picture * 255.999
    return (levels.clamp(0, 255) if clamped else levels).to(torch.uint8)


def test_white_that_becomes_black() -> None:
    """255.999 is 256 in float16, one past the last byte."""
    picture = torch.tensor([0.0, 0.25, 0.5, 1.0])
    assert bytes_of(picture.half()).tolist()[-1] == 0
    finding = seen(lambda: bytes_of(picture.half())).errors[0]
    assert (finding.rule, finding.op) == ("integer-rounding", "aten.mul.Tensor")
    assert "255.999 in the reference is 256 in float16, beyond the range of uint8, which ends at 255" in finding.message
    assert "stores 0" in finding.message
    assert not seen(lambda: bytes_of(picture.half(), clamped=True)).findings
    assert not seen(lambda: bytes_of(picture.half().float())).findings
