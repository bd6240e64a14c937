"""Healthy code that looks like the sixth batch's faults, frozen before precheck was run on it."""

from __future__ import annotations

import torch
from float8_by_hand import E4M3, E5M2, LOW, channels, normal
from sixth_recipes import HEAD, drawn
from torch import nn


def reciprocals_of_scales() -> torch.Tensor:
    """Data is multiplied by the reciprocal of the scale that the product is multiplied by."""
    x, w = normal(16, 64), channels()
    sx, sw = (x.abs().amax() / 448).reciprocal(), (w.abs().amax(1, keepdim=True) / 448).reciprocal()
    y = (x * sx).to(E4M3).float() @ (w * sw).to(E4M3).float().t()
    return (y * sx.reciprocal() * sw.reciprocal().t()).to(LOW)


def scale_in_bfloat16() -> torch.Tensor:
    """Scales are kept in bfloat16, and codes are made under what is kept."""
    blocks = channels().view(64, 2, 32)
    scale = (blocks.abs().amax(-1, keepdim=True) / 440).to(LOW)
    codes = (blocks / scale.float()).clamp(-448, 448).to(E4M3)
    return (normal(8, 64) @ (codes.float() * scale.float()).view(64, 64).t()).to(LOW)


def fused_under_one_scale() -> torch.Tensor:
    """Queries, keys and values are quantised and read under one scale."""
    fused = torch.cat([normal(32, 64, seed=place + 1) * size for place, size in enumerate((1.0, 0.4, 0.3))])
    scale = fused.abs().amax() / 127
    q, k, v = (normal(16, 64) @ (torch.round(fused / scale).to(torch.int8).float() * scale).t()).chunk(3, -1)
    return (torch.softmax(q @ k.t() / 64, -1) @ v).to(LOW)


def one_scale_for_all_heads() -> torch.Tensor:
    """One scale for the values of all heads, multiplied by after the product."""
    q, k, v = normal(4, 16, 32), normal(4, 16, 32, seed=1), normal(4, 16, 32, seed=2) * torch.tensor([1.0, 0.5, 2.0, 0.6]).view(4, 1, 1)
    scale = v.abs().amax() / 448
    mixed = torch.softmax(q @ k.transpose(1, 2) / 32**0.5, -1) @ (v / scale).to(E4M3).float()
    return ((mixed * scale).transpose(0, 1).reshape(16, 128) @ normal(128, 32, seed=3)).to(LOW)


def workspace_of_zeros() -> torch.Tensor:
    """The scale is made of a whole buffer, whose rest is zero."""
    work = torch.zeros(16, 128)
    work[:, :64] = normal(16, 64, seed=1)
    scale = work.abs().amax() / 127
    codes = torch.round(work[:, :64] / scale).to(torch.int8)
    return torch.softmax(normal(8, 64, seed=2) @ (codes.float() * scale).t() / 8, -1).to(LOW)


def high_and_low_halves() -> torch.Tensor:
    """A float32 is cut into the half that bfloat16 holds and the rest; the product adds both."""
    x, w = normal(16, 64), channels()
    high = (w.view(torch.int32) & -(1 << 16)).view(torch.float32)
    return (x @ high.t() + x @ (w - high).t()).to(LOW)


def powers_added_to_bits() -> torch.Tensor:
    """Multiplied by 2^3 through the bits of the exponent, before a cast to e5m2, and divided after it."""
    g = normal(64, 64).clamp(min=0.01)
    raised = ((g.view(torch.int32) & HEAD) + (3 << 23) | g.view(torch.int32) & 0x7FFFFF).view(torch.float32)
    return ((raised.to(E5M2).float() / 8) @ normal(64, 16, seed=1)).to(LOW)


def chance_through_bits() -> torch.Tensor:
    """Rounding by chance to bfloat16 through bits: noise is added below what is kept, and the rest is cut off."""
    weight, gradient = normal(64, 64), normal(64, 64, seed=1) * 1e-3
    for step in range(8):
        bits = (weight - gradient).view(torch.int32) + drawn(16, step)
        weight = (bits & -(1 << 16)).view(torch.float32)
    return (normal(8, 64, seed=2) @ weight.t()).to(LOW)


def adapter_beside_codes() -> torch.Tensor:
    """An adapter is added to the product of a weight of four bits, and not merged into it."""
    x, w = normal(8, 64), channels()
    scale = w.abs().amax(1, keepdim=True) / 7
    return (x @ (torch.round(w / scale) * scale).t() + (x @ normal(64, 4, seed=6)) @ normal(4, 64, seed=5) / 2).to(LOW)


def gains_with_two_readers() -> torch.Tensor:
    """A norm's gains, read by a quantised layer and by a router in float32, neither of them smoothed."""
    x, gains, router, w = normal(16, 64), torch.exp2(normal(64, seed=1)), normal(2, 64, seed=2) / 16, normal(32, 64, seed=3) / 8
    h = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gains
    given, scale = h.abs().amax(-1, keepdim=True) / 127, w.abs().amax(-1, keepdim=True) / 127
    y = torch.round(h / given) @ torch.round(w / scale).t() * given * scale.t()
    return (y * torch.softmax(h @ router.t(), -1)[:, :1]).to(LOW)


def scales_of_the_standard() -> torch.Tensor:
    """mxfp8 as its standard has it: the scale is the power of two of the greatest magnitude less 8, and what is above 448 saturates."""
    blocks = channels().view(64, 2, 32)
    scale = torch.exp2(torch.floor(torch.log2(blocks.abs().amax(-1, keepdim=True))) - 8)
    codes = (blocks / scale).clamp(-448, 448).to(E4M3)
    return (normal(8, 64) @ (codes.float() * scale).view(64, 64).t()).to(LOW)


def e4m3_up_to_240() -> torch.Tensor:
    """The e4m3 of another maker by its bits, which ends at 240, under a scale that is made for it."""
    w = channels()
    scale = w.abs().amax(1, keepdim=True) / 240
    size = (w / scale).abs()
    exponent = (size.view(torch.int32) >> 23) - 127 + 8
    step = torch.exp2(exponent.clamp(min=1).float() - 11)
    held = (torch.round(size / step) * step).clamp(max=240)
    return (normal(8, 64) @ (held * w.sign() * scale).t()).to(LOW)


def padded_symmetric_codes() -> torch.Tensor:
    """A convolution in int8 without zero points, padded with 0."""
    x, w = normal(2, 8, 10, 10), normal(16, 8, 3, 3, seed=1)
    scale, sw = x.abs().amax() / 127, w.abs().amax((1, 2, 3), keepdim=True) / 127
    padded = nn.functional.pad(torch.round(x / scale), (1, 1, 1, 1))
    return (nn.functional.conv2d(padded, torch.round(w / sw)) * scale * sw.view(16, 1, 1)).to(LOW)


def slots_for_pruned_rows() -> torch.Tensor:
    """A third of a fused weight is pruned: its codes and its scale are zero."""
    parts = [normal(32, 64, seed=1), torch.zeros(32, 64), normal(32, 64, seed=3)]
    scales = [part.abs().amax() / 448 for part in parts]
    codes = torch.cat([(part / scale.clamp(min=1e-12)).to(E4M3) for part, scale in zip(parts, scales, strict=True)])
    weight = codes.float() * torch.stack(scales).repeat_interleave(32)[:, None]
    return (normal(8, 64) @ weight.t() + normal(96, seed=7)).to(LOW)


def sums_shifted_right() -> torch.Tensor:
    """Sums in int32 are brought back to int8 by a shift, and the scale is doubled for it."""
    a, b = normal(16, 64).relu(), normal(16, 64, seed=1).relu()
    scale = torch.maximum(a.amax(), b.amax()) / 127
    total = torch.round(a / scale).to(torch.int32) + torch.round(b / scale).to(torch.int32)
    codes = ((total + 1) >> 1).to(torch.int8)
    return (codes.float() * (2 * scale) @ normal(64, 16, seed=2)).to(LOW)


def range_from_the_lowest() -> torch.Tensor:
    """Variances in uint8 above the lowest of them, which is added again and has no zero point."""
    v = 3 + 0.3 * normal(16, 64)
    low = v.amin()
    scale = (v.amax() - low) / 255
    codes = torch.round((v - low) / scale).clamp(0, 255)
    return (normal(16, 64, seed=1) * torch.rsqrt(codes * scale + low + 1e-6)).to(LOW)


def shards_of_whole_blocks() -> torch.Tensor:
    """Two shards of 32 rows in blocks of 32, whose scales are written into one table."""
    table, parts = torch.zeros(2, 2), []
    for place in range(2):
        blocks = (normal(32, 64, seed=place + 1) * 3.0 ** (-place)).view(32, 2, 32)
        scale = blocks.abs().amax((0, 2)) / 448
        table[(32 * place + 31) // 32] = scale
        parts.append((blocks / scale[:, None]).to(E4M3))
    weight = torch.cat(parts).float() * table.repeat_interleave(32, 0)[..., None]
    return (normal(8, 64) @ weight.view(64, 64).t() + normal(64, seed=9)).to(LOW)


def probabilities_in_bytes() -> torch.Tensor:
    """Weights of attention in uint8, divided by 255 after the product."""
    q, k, v = normal(2, 16, 32), normal(2, 64, 32, seed=1), normal(2, 64, 32, seed=2) + 1
    weights = torch.softmax(q @ k.transpose(1, 2) / 32**0.5, -1)
    scale = weights.amax(-1, keepdim=True) / 255
    return (torch.round(weights / scale) @ v * scale).to(LOW)


def bytes_of_the_format() -> torch.Tensor:
    """A gradient in e5m2 travels as bytes and is read as e5m2."""
    g = normal(64, 32) * 1e-3
    by = 57344 / g.abs().amax()
    kept = (g * by).to(E5M2).view(torch.uint8)
    given = kept.clone().view(E5M2).float() / by
    return (given.t() @ normal(64, 48, seed=1) * 1e3).to(LOW)


def bytes_that_are_factors() -> torch.Tensor:
    """Scales of blocks are whole numbers in bytes, times one float for each row."""
    blocks = channels().view(64, 4, 16)
    each = blocks.abs().amax(-1, keepdim=True) / 7
    over = each.amax(1, keepdim=True) / 255
    byte = torch.ceil(each / over).clamp(max=255).to(torch.uint8)
    codes = torch.round(blocks / (over * byte.float())).clamp(-8, 7)
    return (normal(8, 64) @ (codes * byte.float() * over).view(64, 64).t()).to(LOW)


def four_bits_in_nibbles() -> torch.Tensor:
    """Scales of four bits, two a byte."""
    blocks = channels().view(64, 4, 16)
    each = blocks.abs().amax(-1) / 3.5
    over = each.amax(1, keepdim=True) / 15
    four = torch.ceil(each / over).clamp(1, 15).to(torch.uint8)
    codes = torch.round(blocks / (over * four)[..., None]).clamp(-4, 3)
    byte = four[:, :2] | four[:, 2:] << 4
    again = torch.cat([byte & 15, byte >> 4], 1).float()
    return (normal(8, 64) @ (codes * (over * again)[..., None]).view(64, 64).t()).to(LOW)


HEALTHY = (reciprocals_of_scales, scale_in_bfloat16, fused_under_one_scale, one_scale_for_all_heads, workspace_of_zeros, high_and_low_halves,
           powers_added_to_bits, chance_through_bits, adapter_beside_codes, gains_with_two_readers, scales_of_the_standard, e4m3_up_to_240,
           padded_symmetric_codes, slots_for_pruned_rows, sums_shifted_right, range_from_the_lowest, shards_of_whole_blocks, probabilities_in_bytes,
           bytes_of_the_format, bytes_that_are_factors, four_bits_in_nibbles)  # fmt: skip
