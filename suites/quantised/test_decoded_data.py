"""What is made of codes and their scales alone is the data, in whatever way the codes were packed: faults, the same code without them, and decoding
that only looks wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from float8_by_hand import LOW, channels, normal
from frozen import watched

import precheck


def quantised(bits: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    w = channels()
    scale = w.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return torch.round(w / scale), scale


def by_products(bug: bool) -> torch.Tensor:
    """Two codes a byte, put together and taken apart by products and quotients."""
    codes, scale = quantised()
    above = (codes + 8).to(torch.int32)
    packed = above[:, ::2] * 16 + above[:, 1::2]
    apart = torch.stack([packed // 16, packed % (8 if bug else 16)], -1).view(64, 64)
    return (normal(8, 64) @ ((apart - 8).float() * scale).t()).to(LOW)  # the line at fault


def by_a_table(bug: bool) -> torch.Tensor:
    """Each byte has both of its numbers in a table."""
    codes, scale = quantised()
    above = (codes + 8).to(torch.int64)
    packed = above[:, ::2] << 4 | above[:, 1::2]
    every = torch.arange(256)
    table = torch.stack([every >> 4, every & 15], -1).float() - (7 if bug else 8)
    return (normal(8, 64) @ (table[packed].view(64, 64) * scale).t()).to(LOW)  # the line at fault


PROGRAMS: tuple[Callable[[bool], torch.Tensor], ...] = (by_products, by_a_table)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_wrongly_decoded_weight_is_found_where_it_meets_its_scale(program: Callable[[bool], torch.Tensor]) -> None:
    with precheck.watch() as report:
        program(True)
    (error,) = report.errors
    assert error.rule == "wrong-scale"
    source, line = error.source.rsplit(":", 1)
    assert source.endswith("test_decoded_data.py")
    assert "# the line at fault" in Path(__file__).read_text(encoding="utf8").splitlines()[int(line) - 1]
    assert "not the data that was rounded there, in any order" in error.message


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_weight_decoded_rightly_is_left_in_peace(program: Callable[[bool], torch.Tensor]) -> None:
    with precheck.watch() as report:
        program(False)
    assert not report.findings


def halves_of_the_bits() -> torch.Tensor:
    """Eight bits are multiplied as two halves, whose products are added."""
    codes, scale = quantised(8)
    above, x = (codes + 128).to(torch.int32), normal(8, 64)
    low, high = above % 16, above // 16
    return (x @ ((high * 16 - 128).float() * scale).t() + x @ (low.float() * scale).t()).to(LOW)


def subtracted() -> torch.Tensor:
    """What is decoded is subtracted: it has the opposite sign."""
    codes, scale = quantised()
    packed = (codes + 8).to(torch.int32)[:, ::2] * 16 + (codes + 8).to(torch.int32)[:, 1::2]
    apart = torch.stack([packed // 16, packed % 16], -1).view(64, 64)
    return (normal(8, 64) @ ((8 - apart).float() * scale).t()).to(LOW)


def shuffled_for_a_kernel() -> torch.Tensor:
    """The rows are stored in another order, and so are those of the scales and of the result."""
    codes, scale = quantised()
    order = torch.randperm(64, generator=torch.Generator().manual_seed(3))
    packed = ((codes + 8).to(torch.int32)[:, ::2] * 16 + (codes + 8).to(torch.int32)[:, 1::2])[order]
    apart = torch.stack([packed // 16, packed % 16], -1).view(64, 64) - 8
    y = normal(8, 64) @ (apart.float() * scale[order]).t()
    return y[:, torch.argsort(order)].to(LOW)


def scales_of_rows_at_the_end() -> torch.Tensor:
    """Scales of blocks are multiplied by before the product, those of rows after it."""
    blocks = channels().view(64, 4, 16)
    row = blocks.abs().amax((1, 2), keepdim=True)
    block = blocks.abs().amax(-1, keepdim=True) / row / 7
    codes = (torch.round(blocks / (block * row)) + 8).to(torch.int32)
    packed = codes[..., ::2] * 16 + codes[..., 1::2]
    apart = torch.stack([packed // 16, packed % 16], -1).view(64, 4, 16) - 8
    return ((normal(8, 64) @ (apart.float() * block).view(64, 64).t()) * row.view(64)).to(LOW)


@pytest.mark.parametrize("program", [halves_of_the_bits, subtracted, shuffled_for_a_kernel, scales_of_rows_at_the_end])
def test_decoding_that_only_looks_wrong_is_left_in_peace(program: Callable[[], torch.Tensor]) -> None:
    with precheck.watch() as report:
        program()
    assert not report.findings


def test_codes_that_are_places_in_a_table_do_not_end_the_search() -> None:
    """The codes were replayed as real numbers, which are no places. The exception ended the search for the rest of the run."""

    def program(bug: bool) -> torch.Tensor:
        codes, scale = quantised()
        levels = torch.linspace(-8, 7, 16) * (1 + 0.5 * bug * (torch.arange(16) > 11))
        return (normal(8, 64) @ (levels[(codes + 8).to(torch.int64)] * scale).t()).to(LOW)

    assert watched(program, True).errors[0].rule == "wrong-scale"
    assert not watched(program, False).findings
