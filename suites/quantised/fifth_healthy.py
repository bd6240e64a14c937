"""Healthy code that looks like the fifth batch's faults, frozen before precheck was run on it."""

from __future__ import annotations

import torch
from blocks_by_hand import affine
from fifth_recipes import EXPONENT, ORDER
from float8_by_hand import E4M3, LOW, channels, normal, rows
from torch import nn


def kept_as_inputs_by_outputs() -> torch.Tensor:
    """GPT-2 keeps its weights as inputs by outputs. A square one is not transposed, and its scales are those of columns."""
    codes, scale = rows(channels().t().contiguous(), 0)
    return ((normal(16, 64) @ codes.float()) * scale).to(LOW)


def descale_of_values_at_the_end() -> torch.Tensor:
    """The scales of queries and keys are multiplied by with the temperature, and the scale of values after the product."""
    q, k, v = (normal(2, 16, 32, seed=seed) for seed in range(3))
    scales = [each.abs().amax() / 448 for each in (q, k, v)]
    queries, keys, values = ((each / scale).to(E4M3).float() for each, scale in zip((q, k, v), scales, strict=True))
    weights = torch.softmax(queries @ keys.transpose(1, 2) * (scales[0] * scales[1] / 32**0.5), -1)
    return ((weights @ values) * scales[2] @ normal(32, 8, seed=4)).to(LOW)


def one_scale_for_keys_and_values() -> torch.Tensor:
    """Keys and values of a cache are kept together, under one scale."""
    q, both = normal(16, 32), torch.stack([normal(16, 32, seed=1) * 2, normal(16, 32, seed=2) * 0.3])
    scale = both.abs().amax() / 448
    keys, values = ((both / scale).to(E4M3).float() * scale).unbind(0)
    return (torch.softmax(q @ keys.t() / 32**0.5, -1) @ values + normal(16, 32, seed=3)).to(LOW)


def temperature_that_is_learned() -> torch.Tensor:
    """Scores times a number that is learned, beside scales that cancel."""
    q, k, temperature = normal(16, 32), normal(16, 32, seed=1), nn.Parameter(torch.tensor(0.37))
    sq, sk = q.abs().amax() / 127, k.abs().amax() / 127
    scores = torch.round(q / sq) @ torch.round(k / sk).t() * (sq * sk) * temperature
    return torch.softmax(scores, -1).to(LOW).detach()


def e3m2_by_hand() -> torch.Tensor:
    """e3m2 by exponent and significand, subnormal numbers too."""
    blocks = channels().view(64, 2, 32)
    scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True) / 28)))
    size = (blocks / scale).abs()
    step = torch.exp2(torch.floor(torch.log2(size.clamp(min=0.25))) - 2)
    codes = (torch.round(size / step) * step).clamp(max=28) * blocks.sign()
    return (normal(8, 64) @ (codes * scale).view(64, 64).t()).to(LOW)


def greatest_of_calibration() -> torch.Tensor:
    """A static scale: the greatest magnitude of all batches so far, which nothing resets."""
    greatest, outs = torch.zeros(()), []
    for place in range(8):
        greatest = torch.maximum(greatest, normal(16, 64, seed=place).abs().amax())
    for place in range(8, 12):
        codes = (normal(16, 64, seed=place) * (448 / greatest)).clamp(-448, 448).to(E4M3)
        outs.append((codes.float() / (448 / greatest)) @ normal(64, 8, seed=1))
    return torch.cat(outs).to(LOW)


def ranks_added_wide() -> torch.Tensor:
    """Gradients of four ranks travel in float8, each under its scale; they are added in float32 and rounded once."""
    total = torch.zeros(64, 64)
    for rank in range(4):
        g = normal(64, 64) + 0.3 * normal(64, 64, seed=rank + 1)
        by = 448 / g.abs().amax()
        total = total + (g * by).to(E4M3).float() / by
    by = 448 / total.abs().amax()
    return ((total * by).to(E4M3).float() / by / 4).to(LOW)


def zero_point_in_int16() -> torch.Tensor:
    """A zero point is subtracted in int16, where nothing wraps."""
    x = nn.functional.gelu(normal(16, 64))
    scale = (x.amax() - x.amin()) / 255
    zero = (torch.round(-x.amin() / scale) - 128).to(torch.int8)
    codes = (torch.round(x / scale) + zero).clamp(-128, 127).to(torch.int8)
    return ((codes.to(torch.int16) - zero).float() * scale @ normal(64, 16, seed=1)).to(LOW)


def packed_in_words() -> torch.Tensor:
    """Eight signed codes a word, packed and unpacked by shifts."""
    w = channels()
    scale = w.abs().amax(1, keepdim=True) / 7
    codes = torch.round(w / scale).to(torch.int32)
    word = torch.zeros(64, 8, dtype=torch.int32)
    for place in range(8):
        word |= (codes[:, place::8] & 15) << 4 * place
    again = torch.empty(64, 64)
    for place in range(8):
        again[:, place::8] = ((word >> 4 * place & 15 ^ 8) - 8).float()
    return (normal(8, 64) @ (again * scale).t()).to(LOW)


def exponents_in_bytes() -> torch.Tensor:
    """Powers of two are kept as the bytes of their exponents, a block of zeros has the smallest."""
    x = normal(16, 4, 32) * torch.tensor([1.0, 1.0, 0.0, 1.0]).view(1, 4, 1)
    scale = torch.exp2(torch.ceil(torch.log2(x.abs().amax(-1).clamp(min=2.0**-100) / 448)))
    codes = (x / scale[..., None]).to(E4M3)
    byte = ((scale.view(torch.int32) & EXPONENT) >> 23).to(torch.uint8)
    read = (byte.to(torch.int32) << 23).view(torch.float32)
    return ((codes.float() * read[..., None]).view(16, 128) @ normal(128, 8, seed=1)).to(LOW)


def saturated_at_the_end() -> torch.Tensor:
    """int8 products are added in int32; the output is rounded to uint8 under a scale of calibration, and ends at 255 as a ReLU6 would."""
    x, w = normal(16, 64).relu(), normal(32, 64, seed=1) / 8
    sx, sw, out = x.amax() / 127, w.abs().amax() / 127, torch.tensor(4.0 / 255)
    sums = torch.round(x / sx) @ torch.round(w / sw).t()
    y = torch.round(sums * (sx * sw / out)).clamp(0, 255)
    return (y * out @ normal(32, 8, seed=2)).to(LOW)


def folded_through_relu() -> torch.Tensor:
    """What the last weight was multiplied by is divided out of the layer before ReLU, which positive factors pass."""
    x, up, down = normal(16, 32), normal(64, 32, seed=1) / 6, normal(32, 64, seed=3) / 8
    smooth = (x @ up.t()).relu().abs().amax(0).sqrt()
    held, weight = (x @ (up / smooth[:, None]).t()).relu(), down * smooth
    sx, sw = held.abs().amax(1, keepdim=True) / 127, weight.abs().amax(1, keepdim=True) / 127
    return (torch.round(held / sx) @ torch.round(weight / sw).t() * sx * sw.t()).to(LOW)


def ordered_on_both_sides() -> torch.Tensor:
    """AWQ: codes and zero points are packed in the same order, eight a word, and read in it."""
    codes, scale, zero = affine(channels() + 0.3 * normal(64, 64, seed=5))
    read = []
    for each in (codes.view(8, 8, 64), zero.view(8, 8, 4)):
        slots = each.to(torch.int32)[:, ORDER]
        word = torch.stack([slots[:, place] << 4 * place for place in range(8)], 1).sum(1)
        back = torch.empty(slots.shape)
        back[:, ORDER] = torch.stack([word >> 4 * place & 15 for place in range(8)], 1).float()
        read.append(back)
    weight = (read[0].view(64, 4, 16) - read[1].view(64, 4, 1)) * scale
    return (normal(8, 64) @ weight.view(64, 64).t()).to(LOW)


HEALTHY = (kept_as_inputs_by_outputs, descale_of_values_at_the_end, one_scale_for_keys_and_values, temperature_that_is_learned, e3m2_by_hand,
           greatest_of_calibration, ranks_added_wide, zero_point_in_int16, packed_in_words, exponents_in_bytes, saturated_at_the_end,
           folded_through_relu, ordered_on_both_sides)  # fmt: skip
