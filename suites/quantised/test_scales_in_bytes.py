"""Scales and zero points that go through bytes, words, shifts and pages: they are known where they are read, so that a wrong one is found."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from casts_by_hand import to_int8
from float8_by_hand import E4M3, LOW, channels, normal

import precheck

Route = Callable[[torch.Tensor], torch.Tensor]
"""From scales of 64 rows and 4 groups, which are powers of two, to the same scales after they were stored and read."""
PLACES = torch.arange(0, 32, 8, dtype=torch.int32)


def exponents(scale: torch.Tensor) -> torch.Tensor:
    return (scale.view(torch.int32) >> 23).to(torch.uint8)


def power(byte: torch.Tensor) -> torch.Tensor:
    return torch.exp2(byte.float() - 127)


def bytes_of_floats(scale: torch.Tensor) -> torch.Tensor:
    return scale.view(torch.uint8).clone().view(torch.float32)


def in_words(scale: torch.Tensor) -> torch.Tensor:
    return power(exponents(scale).view(torch.int32).t().contiguous().t().contiguous().view(torch.uint8))


def joined_by_shifts(scale: torch.Tensor) -> torch.Tensor:
    word = (exponents(scale).to(torch.int32) << PLACES).sum(-1, dtype=torch.int32)
    return power(word[:, None].view(torch.uint8))


def shifted_to_their_place(scale: torch.Tensor) -> torch.Tensor:
    return ((exponents(scale).view(torch.int32) >> PLACES & 255) << 23).view(torch.float32)


def as_e8m0(scale: torch.Tensor) -> torch.Tensor:
    return torch.cat(list(exponents(scale).view(torch.float8_e8m0fnu))).view(64, 4).float()


def behind_other_bytes(scale: torch.Tensor) -> torch.Tensor:
    page = torch.full((64, 24), 7, dtype=torch.uint8)
    page[:, 8:] = scale.contiguous().view(torch.uint8)
    return page[:, 8:].contiguous().view(torch.float32)


def in_bfloat16(scale: torch.Tensor) -> torch.Tensor:
    return torch.stack([scale.to(LOW).view(torch.uint8), torch.zeros(64, 8, dtype=torch.uint8)])[0].view(LOW).float()


def in_a_page_of_odd_length(scale: torch.Tensor) -> torch.Tensor:
    page = torch.zeros(64 * 4 * 4 + 1, dtype=torch.uint8)
    page[:-1] = scale.contiguous().view(torch.uint8).flatten()
    return page[:-1].view(torch.float32).clone().view(64, 4)


ROUTES = (bytes_of_floats, in_words, joined_by_shifts, shifted_to_their_place, as_e8m0, behind_other_bytes, in_bfloat16, in_a_page_of_odd_length)


def watched(route: Route, turned: int = 0) -> precheck.Report:
    """A weight in e4m3, whose groups are read under the scales of the group `turned` before them."""
    with precheck.watch() as report:
        parts = (channels() * torch.exp2(normal(1, 64, seed=3))).view(64, 4, 16)
        scale = torch.exp2(torch.ceil(torch.log2(parts.abs().amax(-1) / 448)))
        codes = (parts / scale[..., None]).to(E4M3)
        weight = codes.float() * route(scale.roll(turned, 1))[..., None]
        torch.tanh(normal(8, 64) @ weight.view(64, 64).t() / 8).to(LOW)
    return report


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.__name__)
def test_scales_are_known_after_they_were_bytes(route: Route) -> None:
    scale = torch.exp2(torch.randint(-9, 9, (64, 4)).float())
    assert torch.equal(route(scale), scale)
    assert not watched(route).findings
    error = watched(route, turned=1).errors[0]
    assert error.rule == "wrong-scale"
    assert re.search(
        r"these scales do not cancel those of .*test_scales_in_bytes.py:\d+: without any rounding the result is off by \d", error.message
    )


def test_what_else_lies_in_a_page_is_no_scale() -> None:
    """A factor for each row that the page holds beside codes and scales may be meant."""
    with precheck.watch() as report:
        w = channels()
        page = torch.zeros(64, 72, dtype=torch.uint8)
        scale = w.abs().amax(1, keepdim=True) / 448
        page[:, :64], page[:, 64:68] = (w / scale).to(E4M3).view(torch.uint8), scale.view(torch.uint8)
        page[:, 68:] = (1 + normal(64, 1, seed=9).abs()).view(torch.uint8)
        gain = page[:, 68:].contiguous().view(torch.float32)
        dense = page[:, :64].view(E4M3).float() * page[:, 64:68].contiguous().view(torch.float32) * gain
        torch.tanh(normal(8, 64) @ dense.t() / 8).to(LOW)
    assert not report.findings


def test_bytes_that_are_sent_in_another_dtype_are_no_numbers() -> None:
    """Codes and scales travel as float32, of whatever value, and only their bytes are read again. A checksum of the page is no use of codes."""
    with precheck.watch() as report:
        w = channels()
        scale = w.abs().amax(1, keepdim=True) / 448
        sent = torch.cat([(w / scale).to(E4M3).view(torch.uint8), scale.view(torch.uint8)], 1).view(torch.float32)
        received = torch.empty_like(sent).copy_(sent)[torch.arange(64)]
        assert torch.equal(received.view(torch.int32), sent.view(torch.int32))
        assert int(received.view(torch.uint8).sum()) == int(sent.view(torch.uint8).sum())
        read = received.view(torch.uint8)
        dense = read[:, :64].view(E4M3).float() * read[:, 64:].contiguous().view(torch.float32)
        torch.tanh(normal(8, 64) @ dense.t() / 8).to(LOW)
    assert not report.findings


@pytest.mark.parametrize("offset", [128, 64])
def test_signed_bytes_that_are_made_unsigned_keep_their_codes(offset: int) -> None:
    """The highest bit is turned, which adds 128. So 128 times the sums of the other operand is to be taken off."""
    with precheck.watch() as report:
        (qx, sx), (qw, sw) = (to_int8(each, 1) for each in (normal(16, 64), channels()))
        sums = (qx.view(torch.uint8) ^ 0x80).float() @ qw.float().t() - offset * qw.float().sum(1)
        (sums * (sx * sw.t())).to(LOW)
    assert bool(report.errors) == (offset != 128)
    assert not report.findings or report.findings[0].rule == "wrong-scale"
