"""Healthy code that looks like the fourth batch's faults, frozen before precheck was run on it."""

from __future__ import annotations

import torch
from blocks_by_hand import affine, fp4
from float8_by_hand import E4M3, LOW, channels, normal, rows
from fourth_recipes import butterfly
from torch import nn


def zero_points_less_one() -> torch.Tensor:
    """GPTQ: zero points are kept less one, and one is added again. None of them is 0."""
    codes, scale, zero = affine(channels() - 0.1)
    kept = (zero.clamp(min=1) - 1).to(torch.uint8)
    zero = kept.float() + 1
    codes = (torch.round(channels().view(64, 4, 16) / scale) + zero).clamp(0, 15)
    return (normal(8, 64) @ ((codes - zero) * scale).view(64, 64).t()).to(LOW)


def requantised_under_one_scale() -> torch.Tensor:
    """vLLM: shards of a fused weight are dequantised and quantised again, under the greatest of their scales."""
    shards = [normal(32, 64, seed=place) * (1 + place) for place in range(2)]
    scales = [each.abs().amax() / 448 for each in shards]
    codes = [(each / scale).to(E4M3) for each, scale in zip(shards, scales, strict=True)]
    most = torch.stack(scales).amax()
    again = [(each.float() * scale / most).to(E4M3) for each, scale in zip(codes, scales, strict=True)]
    return (normal(8, 64, seed=5) @ (torch.cat(again).float() * most).t()).to(LOW)


def kept_as_a_divisor() -> torch.Tensor:
    """compressed-tensors: the second scale is kept as a divisor. Those of input and weight are inverted together, as alpha."""
    x, w = normal(16, 64), channels()
    made, divisors = [], []
    for each in (x, w):
        divisor = 448 * 6 / each.abs().amax()
        blocks = each.view(-1, 4, 16)
        scale = (blocks.abs().amax(-1, keepdim=True) / 6 * divisor).to(E4M3).float().clamp(min=2.0**-9)
        made.append((fp4(blocks * divisor / scale) * scale).view(-1, 64))
        divisors.append(divisor)
    alpha = 1 / (divisors[0] * divisors[1])
    return torch.softmax((made[0] @ made[1].t()) * alpha / 8, -1).to(LOW)


def cached_with_its_scale() -> torch.Tensor:
    """A weight is quantised once; its codes and its scale are read for all microbatches, while another scale is made for the next step."""
    weight, outs = normal(32, 64, seed=1) / 8, []
    codes, scale = rows(weight)
    for place in range(3):
        _, following = rows(weight * (1 + place))
        outs.append((normal(16, 64, seed=place + 5) @ (codes.float() * scale).t()) + 0 * following.mean())
    return torch.cat(outs).to(LOW)


def padded_rows() -> torch.Tensor:
    """Rows of zeros, as padding leaves them, under a scale of 1."""
    x = normal(16, 64) * (torch.arange(16)[:, None] < 12)
    greatest = x.abs().amax(1, keepdim=True)
    scale = torch.where(greatest > 0, greatest / 448, 1.0)
    return ((x / scale).to(E4M3).float() * scale @ normal(64, 8, seed=1)).to(LOW)


def scales_by_a_table() -> torch.Tensor:
    """bitsandbytes: scales of blocks are kept as places in a table, under a scale and an offset of their own."""
    blocks = channels().view(64, 4, 16)
    scale = blocks.abs().amax(-1, keepdim=True) / 6
    table, offset = torch.linspace(-1, 1, 255), scale.mean()
    over = (scale - offset).abs().amax()
    place = torch.bucketize(((scale - offset) / over).contiguous(), (table[1:] + table[:-1]) / 2)
    again = table[place] * over + offset
    codes = fp4(blocks / again)
    return (normal(8, 64) @ (codes * again).view(64, 64).t()).to(LOW)


def values_turned_by_heads() -> torch.Tensor:
    """SpinQuant: values are turned in each head, and the output projection takes it out again, for values that are cached in four bits."""
    scores, v, w = torch.softmax(normal(4, 12, 12), -1), normal(4, 12, 16, seed=1), channels()
    turned = butterfly(v)
    scale = turned.abs().amax(-1, keepdim=True) / 7
    heads = scores @ (torch.round(turned / scale) * scale)
    weight = butterfly(w.view(64, 4, 16)).reshape(64, 64)
    return (heads.transpose(0, 1).reshape(12, 64) @ weight.t()).to(LOW)


def mixed_by_a_fast_transform() -> torch.Tensor:
    """A model that mixes its channels by a fast Walsh transform, before a layer in float8 and a residual sum."""
    x, w = normal(16, 64), channels()
    (qx, sx), (qw, sw) = rows(butterfly(x)), rows(w)
    return (x + nn.functional.gelu((qx.float() @ qw.float().t()) * sx * sw.t() / 8)).to(LOW)


def turned_there_and_back() -> torch.Tensor:
    """A cache of keys that are turned before they are quantised, and turned back when they are read."""
    keys = normal(24, 64) * torch.where(torch.arange(64) == 7, 30.0, 1.0)
    scale = butterfly(keys).abs().amax(-1, keepdim=True) / 7
    codes = torch.round(butterfly(keys) / scale)
    return torch.softmax(normal(8, 64, seed=2) @ butterfly(codes * scale).t() / 64, -1).to(LOW)


def wavelets() -> torch.Tensor:
    """A Haar wavelet's coefficients are quantised, the details more coarsely, as pictures are."""
    x = normal(8, 64).cumsum(-1)
    mean, detail = (x[:, ::2] + x[:, 1::2]) / 2, (x[:, ::2] - x[:, 1::2]) / 2
    made = []
    for part, levels in ((mean, 127), (detail, 15)):
        step = part.abs().amax() / levels
        made.append(torch.round(part / step) * step)
    return torch.stack([made[0] + made[1], made[0] - made[1]], -1).reshape(8, 64).to(LOW)


def zero_point_in_the_bias() -> torch.Tensor:
    """The zero point's correction is made once, in float, and is added with the bias after the scales."""
    x, w, bias = nn.functional.gelu(normal(16, 64)) + 0.3, channels(), normal(64, seed=4)
    scale, sw = (x.amax() - x.amin()) / 255, w.abs().amax(1, keepdim=True) / 127
    zero = torch.round(-x.amin() / scale) - 128
    qx, qw = (torch.round(x / scale) + zero).clamp(-128, 127), torch.round(w / sw)
    folded = bias - zero * qw.sum(1) * scale * sw.view(-1)
    return torch.relu((qx @ qw.t()) * scale * sw.t() + folded).to(LOW)


def signed_levels() -> torch.Tensor:
    """compressed-tensors: zero points and codes of 0 to 15 are both kept less 8."""
    parts = (channels() + 0.3).view(64, 4, 16)
    codes, scale, zero = affine(parts.view(64, 64))
    signed, shifted = codes.float() - 8, zero - 8
    return (normal(8, 64) @ ((signed - shifted) * scale).view(64, 64).t()).to(LOW)


HEALTHY = (zero_points_less_one, requantised_under_one_scale, kept_as_a_divisor, cached_with_its_scale, padded_rows, scales_by_a_table,
           values_turned_by_heads, mixed_by_a_fast_transform, turned_there_and_back, wavelets, zero_point_in_the_bias, signed_levels)  # fmt: skip
