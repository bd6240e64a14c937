"""Codes that are packed into bytes and words, and taken out again: in another order, without their sign, or in the same bits."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from float8_by_hand import LOW, channels, normal

import precheck

SHIFTS = torch.arange(0, 32, 4)
AWQ = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
Layout = Callable[[torch.Tensor], torch.Tensor]
"""From signed codes of four bits, of 64 rows and 64 columns, to the same codes after they were packed and taken out again."""


def pairs(codes: torch.Tensor) -> torch.Tensor:
    byte = (codes[:, ::2] & 15) | ((codes[:, 1::2] & 15) << 4)
    again = torch.stack([byte & 15, byte >> 4 & 15], -1).view(64, 64)
    return torch.where(again > 7, again - 16, again)


def halves(codes: torch.Tensor) -> torch.Tensor:
    byte = (codes[:, :32] & 15) | (codes[:, 32:] << 4)
    return torch.cat([byte << 4 >> 4, byte >> 4], 1)  # shifts of int8 extend the sign


def words(codes: torch.Tensor) -> torch.Tensor:
    word, again = torch.zeros(64, 8, dtype=torch.int32), torch.empty(64, 64, dtype=torch.int32)
    for place in range(8):
        word |= (codes[:, place::8].to(torch.int32) & 15) << 4 * place
    for place in range(8):
        again[:, place::8] = ((word >> 4 * place & 15) ^ 8) - 8
    return again


def ordered(codes: torch.Tensor) -> torch.Tensor:
    slots = codes.view(64, 8, 8)[..., AWQ].to(torch.int32)
    word = slots[..., 0] & 15
    for place in range(1, 8):
        word = word | (slots[..., place] & 15) << 4 * place
    again = torch.stack([word >> 4 * place & 15 for place in range(8)], -1)
    return (again[..., torch.argsort(AWQ)].view(64, 64) ^ 8) - 8


def kept_in_a_buffer(codes: torch.Tensor) -> torch.Tensor:
    held = torch.zeros(64, 32, dtype=torch.uint8)
    for column in range(32):
        held[:, column] = ((codes[:, 2 * column] + 8) | ((codes[:, 2 * column + 1] + 8) << 4)).to(torch.uint8)
    moved = held.t().contiguous().clone().t()
    return torch.stack([moved & 15, moved >> 4], -1).view(64, 64).to(torch.int8) - 8


def swapped(codes: torch.Tensor) -> torch.Tensor:
    byte = ((codes[:, ::2] + 8) | ((codes[:, 1::2] + 8) << 4)).to(torch.uint8)
    return torch.cat([byte & 15, byte >> 4], 1).to(torch.int8) - 8


def without_signs(codes: torch.Tensor) -> torch.Tensor:
    byte = ((codes[:, ::2] & 15) | (codes[:, 1::2] & 15) << 4).to(torch.int16) & 255
    return torch.stack([byte & 15, byte >> 4], -1).view(64, 64)


def three_bits(codes: torch.Tensor) -> torch.Tensor:
    byte = ((codes[:, ::2] + 8) | ((codes[:, 1::2] + 8) << 4)).to(torch.uint8)
    return torch.stack([byte & 7, byte >> 4], -1).view(64, 64).to(torch.int8) - 8


def by_three(codes: torch.Tensor) -> torch.Tensor:
    byte = ((codes[:, ::2] + 8) | ((codes[:, 1::2] + 8) << 3)).to(torch.uint8)
    return torch.stack([byte & 15, byte >> 3], -1).view(64, 64).to(torch.int8) - 8


def shifted_by_a_tensor(codes: torch.Tensor) -> torch.Tensor:
    word = ((codes + 8).to(torch.int64).view(64, 8, 8) << SHIFTS).sum(-1)
    return (word[..., None] >> SHIFTS & 15).view(64, 64) - 8


def bytes_of_words(codes: torch.Tensor) -> torch.Tensor:
    word = ((codes + 8).to(torch.int32).view(64, 8, 8) << SHIFTS).sum(-1, dtype=torch.int32)
    byte = word.view(torch.uint8)
    return torch.stack([byte % 16, byte // 16], -1).view(64, 64).to(torch.int8) - 8


def high_and_low_bits(codes: torch.Tensor) -> torch.Tensor:
    codes = codes + 8
    low, high = codes & 3, codes >> 2
    held = low | high[:, torch.arange(63, -1, -1)] << 2
    return ((held & 3) | (held >> 2).flip(1) << 2) - 8


def a_bit_too_few(codes: torch.Tensor) -> torch.Tensor:
    word = ((codes + 8).to(torch.int64).view(64, 8, 8) << SHIFTS).sum(-1)
    return (word[..., None] >> SHIFTS & 7).view(64, 64) - 8


def watched(layout: Layout, turned: int = 0) -> precheck.Report:
    """A weight in four bits, by groups of 16 columns, which is packed so. Each group is read under the scale of the one `turned` before it."""
    with precheck.watch() as report:
        parts = (channels() * torch.exp2(normal(1, 64, seed=3))).view(64, 4, 16)
        scale = parts.abs().amax(-1, keepdim=True) / 7
        codes = torch.round(parts / scale).to(torch.int8).view(64, 64)
        weight = layout(codes).float().view(64, 4, 16) * scale.roll(turned, 1)
        (normal(8, 64) @ weight.view(64, 64).t()).to(LOW)
    return report


GIVEN_BACK = (pairs, halves, words, ordered, kept_in_a_buffer, shifted_by_a_tensor, bytes_of_words, high_and_low_bits)


@pytest.mark.parametrize("layout", GIVEN_BACK, ids=lambda layout: layout.__name__)
def test_a_layout_that_gives_the_codes_back_is_left_in_peace(layout: Layout) -> None:
    codes = torch.randint(-7, 8, (64, 64), dtype=torch.int8)
    assert torch.equal(layout(codes).to(torch.int8), codes)
    assert not watched(layout).findings
    assert watched(layout, turned=1).errors[0].rule == "wrong-scale"  # so the codes were followed


@pytest.mark.parametrize("layout", [swapped, without_signs, three_bits, a_bit_too_few], ids=lambda layout: layout.__name__)
def test_a_layout_that_does_not_is_found_where_the_scales_do_not_cancel(layout: Layout) -> None:
    codes = torch.randint(-7, 8, (64, 64), dtype=torch.int8)
    assert not torch.equal(layout(codes).to(torch.int8), codes)
    error = watched(layout).errors[0]
    assert error.rule == "wrong-scale"
    assert re.search(r"these scales do not cancel those of .*test_packed_codes.py:\d+: without any rounding the result is off by \d", error.message)


def test_an_inverted_bit_of_a_large_weight_is_taken_for_no_other_code() -> None:
    """Of a quarter of a million codes some have numbers that are also a number if all digits are inverted."""

    def decoded(turned: int) -> precheck.Report:
        with precheck.watch() as report:
            parts = normal(496, 32, 16)
            scale = parts.abs().amax(-1, keepdim=True) / 7
            codes = torch.round(parts / scale).to(torch.int8).view(496, 512)
            word, again = torch.zeros(496, 64, dtype=torch.int32), torch.empty(496, 512)
            for place in range(8):
                word |= (codes[:, place::8].to(torch.int32) & 15) << 4 * place
            for place in range(8):
                again[:, place::8] = ((word >> 4 * place & 15) ^ 8) - 8
            weight = again.view(496, 32, 16) * scale.roll(turned, 1)
            (normal(8, 512) @ weight.view(496, 512).t()).to(LOW)
        return report

    assert not decoded(0).findings
    assert decoded(1).errors[0].rule == "wrong-scale"  # so the codes were followed


def test_two_codes_in_the_same_bits_are_found_where_what_is_left_of_them_is_decoded() -> None:
    error = watched(by_three).errors[0]
    assert error.rule == "wrong-scale"
    assert "is not the data that was rounded there, in any order" in error.message


def test_integers_with_bits_of_two_codes_are_found_where_others_are_codes() -> None:
    def mixed(codes: torch.Tensor) -> torch.Tensor:
        codes = codes + 8
        low, high = codes & 3, codes >> 2
        high[:, :16] = high[:, :16].flip(1)
        return (low | high << 2) - 8

    error = watched(mixed).errors[0]
    assert error.rule == "wrong-scale"
    assert "25% of these integers have bits of two different codes of" in error.message


def test_codes_that_are_put_in_another_order_leave_the_programs_numbers_as_they_are() -> None:
    """The copies of an op that writes into a tensor are made on copies of that tensor."""
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))

    def decoded() -> torch.Tensor:
        scale = channels().abs().amax(1, keepdim=True) / 7
        dense = torch.empty(64, 64)
        dense[:, order] = torch.round(channels() / scale)
        return dense * scale

    unwatched = decoded()
    with precheck.watch() as report:
        assert torch.equal(decoded(), unwatched)
    assert not report.findings
