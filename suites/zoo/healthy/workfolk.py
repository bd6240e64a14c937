"""Beside the granaries and mills: means without a sum in half, lengths by their largest part, blocks of rows, floors, wide codes."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW = torch.float16, torch.bfloat16


def mean_of_what_would_not_fit_as_a_sum() -> torch.Tensor:
    """torch's own mean of half adds up in float32; only the mean is half, and it fits."""
    rows = (260 + 20 * normal(300, 24, seed=951)).to(HALF)
    return (rows[:12].float() - rows.mean(0).float()) / 20


def length_by_the_largest_part() -> torch.Tensor:
    """Squares of half would not fit; those of parts of the largest do."""
    gradient = (300 * normal(4, 40, seed=952)).to(HALF)
    largest = gradient.abs().amax(-1, keepdim=True)
    length = largest.float() * (gradient / largest).float().square().sum(-1, keepdim=True).sqrt()
    return gradient.float() / length


def rows_in_small_blocks() -> torch.Tensor:
    """Eight rows at a time are added in bfloat16, and the blocks in float32."""
    rows = normal(96, 16, seed=953).to(LOW)
    total = torch.zeros(16)
    for block in rows.split(8):
        part = block[0]
        for row in block[1:]:
            part = part + row
        total = total + part.float()
    return total


def pictures_in_parts_of_white() -> torch.Tensor:
    """Pixels from 0 to 1 in half; the squares of what they differ by are added up in half and fit easily."""
    pictures = uniform(3, 6, 64, seed=954).to(HALF)
    gap = pictures - pictures.mean(-1, keepdim=True)
    variance = (gap * gap).sum(-1, keepdim=True) / 64
    return (gap * torch.rsqrt(variance + 1e-3)).float()


def words_whose_mean_is_small() -> torch.Tensor:
    """A layer norm out of single ops in bfloat16, of numbers that lie about nought."""
    words = normal(40, 64, seed=955).to(LOW)
    variance, middle = torch.var_mean(words, -1, correction=0, keepdim=True)
    return ((words - middle) * torch.rsqrt(variance + 1e-5)).float()


def logarithm_above_a_floor() -> torch.Tensor:
    """Sizes of boxes in half have a floor that half holds before their logarithm is taken."""
    low = 0.1 + 0.4 * uniform(12, 2, seed=956)
    sizes = (0.1 + 0.3 * uniform(12, 2, seed=957)).to(HALF)
    sizes[9:] = 0
    return torch.log(sizes.clamp_min(1e-3) / (low + 0.3).to(HALF)).float()


class Turned(nn.Module):
    """Attention whose queries and keys are turned in float32 and come back as what they were."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(958)
        self.pairs = nn.Linear(32, 96)
        angles = torch.outer(torch.arange(30).float(), 100.0 ** (-torch.arange(0, 32, 2) / 32))
        self.turns = torch.polar(torch.ones_like(angles), angles)

    def turn(self, values: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(values.float().unflatten(-1, (16, 2)))
        return torch.view_as_real(pairs * self.turns).flatten(-2).to(values.dtype)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        query, key, value = self.pairs(patches).chunk(3, -1)
        return functional.scaled_dot_product_attention(self.turn(query), self.turn(key), value)


def turned_in_float32_and_back() -> torch.Tensor:
    """A vision model in bfloat16 turns queries and keys in float32, on purpose."""
    with torch.no_grad():
        return Turned().to(LOW)(normal(1, 30, 32, seed=959).to(LOW)).float()


def layers_that_stay_within_half() -> torch.Tensor:
    """What the wide layers add reaches twenty thousand, which half holds; a norm takes it down again."""
    torch.manual_seed(960)
    up, down = nn.Linear(48, 192, bias=False).to(HALF), nn.Linear(192, 48, bias=False).to(HALF)
    words = normal(16, 48, seed=961).to(HALF)
    with torch.no_grad():
        up.weight.mul_(100)
        down.weight.mul_(200)
        words = words + down(functional.relu(up(words)))
    return functional.layer_norm(words.float(), (48,))


def windows_of_a_large_picture_in_bfloat16() -> torch.Tensor:
    """Numbers of a hundred thousand become bfloat16, whose range is that of float32."""
    windows = functional.unfold(100_000 * normal(1, 4, 8, 8, seed=962), 3, padding=1).to(LOW)
    weight = (normal(4, 36, seed=963) / 64).to(LOW)
    return functional.layer_norm((weight @ windows).float(), (64,))


def codes_that_are_added_as_whole_numbers() -> torch.Tensor:
    """Codes of eight bits are multiplied as whole numbers of 32 bits, and scaled in float32 after that."""
    words, weights = normal(10, 64, seed=964).to(HALF), (0.05 * normal(24, 64, seed=965)).to(HALF)
    scales = [each.abs().amax(-1, keepdim=True).float() / 127 for each in (words, weights)]
    first, second = ((each.float() / scale).round().clamp(-127, 127).to(torch.int8) for each, scale in zip((words, weights), scales, strict=True))
    return (first.int() @ second.int().T).float() * scales[0] * scales[1].T


IDIOMS = (
    mean_of_what_would_not_fit_as_a_sum, length_by_the_largest_part, rows_in_small_blocks, pictures_in_parts_of_white, words_whose_mean_is_small,
    logarithm_above_a_floor, turned_in_float32_and_back, layers_that_stay_within_half, windows_of_a_large_picture_in_bfloat16,
    codes_that_are_added_as_whole_numbers,
)  # fmt: skip
