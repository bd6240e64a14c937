"""Integer quantisers put together at random: data, bits, groups, zero points, formats of scales, packing and ways to dequantise. All are healthy.

As found, 46 of 300 were accused: 45 that subtract zero points times scales after codes times scales, and one of two bits,
in which rounding to nearest itself takes more from numbers than it adds.
"""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from float8_by_hand import LOW

import precheck

ROWS = COLUMNS = 64
PROGRAMS = 60
FEWEST_BITS = 4
"""Of fewer bits two steps are half of the range, and rounding costs so much that they may be missed."""
SHIFTS = torch.arange(0, 32, 4, dtype=torch.int32)


@dataclasses.dataclass(frozen=True)
class Quantiser:
    """One such program. `zero`: what is added to the zero points by mistake."""

    seed: int
    data: str
    bits: int
    group: int
    symmetric: bool
    scales: torch.dtype
    by_chance: bool
    clip: float
    packing: str
    form: str
    zero: int = 0

    def drawn(self, generator: torch.Generator) -> torch.Tensor:
        w = torch.randn(ROWS, COLUMNS, generator=generator)
        if self.data == "uneven rows":
            return w * torch.exp2(torch.randn(ROWS, 1, generator=generator))
        if self.data == "uneven columns":
            return w * torch.exp2(torch.randn(1, COLUMNS, generator=generator))
        if self.data == "long tails":
            return w * torch.randn(ROWS, COLUMNS, generator=generator).square()
        if self.data == "half zero":
            return w * (torch.rand(ROWS, COLUMNS, generator=generator) > 0.5)
        return w + 1.5 if self.data == "shifted" else w

    def run(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        blocks = self.drawn(generator).view(ROWS, COLUMNS // self.group, self.group)
        x, numbers = torch.randn(8, COLUMNS, generator=generator), 2**self.bits
        if self.symmetric:
            scale = blocks.abs().amax(-1, keepdim=True) * self.clip / max(numbers // 2 - 1, 1)
        else:
            low, high = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
            scale = (high - low) * self.clip / (numbers - 1)
        scale = scale.clamp(min=1e-6).to(self.scales).float()
        zero = torch.full_like(scale, numbers // 2) if self.symmetric else torch.round(-low / scale)
        scaled = blocks / scale
        whole = torch.floor(scaled + torch.rand(scaled.shape, generator=generator)) if self.by_chance else torch.round(scaled)
        codes = (whole + zero).clamp(0, numbers - 1).to(torch.int32).view(ROWS, COLUMNS)
        zero = zero + self.zero
        if self.packing == "rows in another order":
            order = torch.randperm(ROWS, generator=generator)
            return (x @ self.dense(codes[order], scale[order], zero[order]).t())[:, torch.argsort(order)].to(LOW)
        dense = self.dense(self.packed(codes), scale, zero)
        if self.form == "halves":
            return (x[:, :32] @ dense[:, :32].t() + x[:, 32:] @ dense[:, 32:].t()).to(LOW)
        return (x @ dense.t()).to(LOW)

    def packed(self, codes: torch.Tensor) -> torch.Tensor:
        """The codes, packed and taken out again."""
        if self.bits > 4:
            return codes
        if self.packing == "nibbles":
            byte = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)
            return torch.stack([byte & 15, byte >> 4], -1).view(ROWS, COLUMNS)
        if self.packing == "words":
            words = (codes.view(ROWS, 8, 8) << SHIFTS).sum(-1, dtype=torch.int32)
            return (words[..., None] >> SHIFTS & 15).reshape(ROWS, COLUMNS)
        if self.packing == "products":
            byte = codes[:, ::2] * 16 + codes[:, 1::2]
            return torch.stack([byte // 16, byte % 16], -1).view(ROWS, COLUMNS)
        return codes

    def dense(self, codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        each = codes.float().view(ROWS, COLUMNS // self.group, self.group)
        if self.form == "fused":
            made = torch.addcmul(-zero * scale, each, scale)
        elif self.form == "difference":
            made = each * scale - zero * scale
        else:
            made = (each - zero) * scale
        return made.reshape(ROWS, COLUMNS)


def quantiser(number: int) -> Quantiser:
    choose = random.Random(number)
    return Quantiser(
        number,
        choose.choice(["normal", "uneven rows", "uneven columns", "long tails", "half zero", "shifted"]),
        choose.choice([2, 3, 4, 4, 4, 8, 8]),
        choose.choice([8, 16, 32, 64]),
        choose.random() < 0.5,
        choose.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16]),
        choose.random() < 0.2,
        choose.choice([1.0, 1.0, 1.0, 0.9, 0.8]),
        choose.choice(["none", "nibbles", "words", "products", "rows in another order"]),
        choose.choice(["plain", "fused", "difference", "halves"]),
    )


@pytest.mark.parametrize("number", range(PROGRAMS))
def test_a_quantiser_that_gives_the_data_back_is_left_in_peace(number: int) -> None:
    with precheck.watch() as report:
        quantiser(number).run()
    assert not report.findings


@pytest.mark.parametrize("number", [number for number in range(PROGRAMS) if quantiser(number).bits >= FEWEST_BITS])
def test_zero_points_that_are_off_by_two_are_found_in_whatever_way_codes_are_packed(number: int) -> None:
    with precheck.watch() as report:
        dataclasses.replace(quantiser(number), zero=2).run()
    assert report.errors[0].rule == "wrong-scale"
