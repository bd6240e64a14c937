"""Healthy code that looks like the seventh batch's faults, frozen before precheck was run on it."""

from __future__ import annotations

import math

import torch
from blocks_by_hand import CODEBOOK
from float8_by_hand import E4M3, LOW, channels, normal
from seventh_recipes import FNUZ, NIBBLES, Page, copy_by_chance
from torch import nn


def tokens_of_zeros() -> torch.Tensor:
    """Tokens that are zero have a scale of 1 in a cache of int8."""
    keys = normal(24, 32) * (torch.arange(24)[:, None] % 3 > 0)
    peak = keys.abs().amax(-1, keepdim=True) / 127
    scale = torch.where(peak > 0, peak, 1.0)
    codes = torch.round(keys / scale).to(torch.int8)
    return torch.softmax(normal(4, 32, seed=1) @ (codes.float() * scale).t() / 32**0.5, -1).to(LOW)


def page_in_order() -> torch.Tensor:
    """Scales of a page are filled with 1 before the first token is written, and some tokens are never written."""
    page = Page(24, 64)
    page.scales.fill_(1.0)
    page.write(slice(0, 10), normal(10, 64))
    page.write(slice(10, 16), normal(6, 64, seed=1))
    scores = normal(4, 64, seed=2) @ page.read().t() / 8
    scores[:, 16:] = -torch.inf
    return (torch.softmax(scores, -1) @ normal(24, 32, seed=3)).to(LOW)


def symmetric_with_zeros_of_seven() -> torch.Tensor:
    """GPTQ of the first version: all zero points are 8 and kept as 7."""
    groups = channels().t().reshape(2, 32, 64)
    scales = groups.abs().amax(1) / 7
    codes = (torch.round(groups / scales[:, None]) + 8).clamp(0, 15).to(torch.int32).reshape(8, 8, 64)
    words = (codes << NIBBLES.view(1, 8, 1)).sum(1, dtype=torch.int32)
    zeros = torch.full((2, 64), 7, dtype=torch.int32) + 1
    weight = (words[:, None, :] >> NIBBLES.view(1, 8, 1) & 15).reshape(64, 64)
    group = torch.arange(64) // 32
    return (normal(8, 64) @ (scales[group] * (weight - zeros[group]))).to(LOW)


def zeros_times_scales() -> torch.Tensor:
    """AWQ as its kernels read it: codes times scales, plus zero points that were multiplied by the scales before."""
    parts = (channels() + 0.3).view(64, 4, 16)
    low, high = parts.amin(-1, keepdim=True), parts.amax(-1, keepdim=True)
    scale = (high - low).clamp(min=1e-5) / 15
    zero = -torch.round(low / scale)
    codes = (torch.round(parts / scale) + zero).clamp(0, 15).to(torch.uint8)
    dense = torch.addcmul(-zero * scale, codes.float(), scale)
    return (normal(8, 64) @ dense.view(64, 64).t()).to(LOW)


def ternary_straight_through() -> torch.Tensor:
    """BitNet's linear layer as it is trained: weights and inputs are rounded, and gradients pass."""
    x, w = normal(16, 64).requires_grad_(), channels().requires_grad_()
    mean = w.abs().mean().clamp(min=1e-5)
    weight = w + ((w / mean).round().clamp(-1, 1) * mean - w).detach()
    by = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
    given = x + ((x * by).round().clamp(-128, 127) / by - x).detach()
    y = nn.functional.linear(given, weight)
    y.square().mean().backward()
    return w.grad.to(LOW)


def rows_summed_under_their_scales() -> torch.Tensor:
    """An embedding in float8 with a scale for each row; the rows of a bag are dequantised and added."""
    table = normal(100, 32) * torch.exp2(normal(100, 1, seed=1))
    scale = table.abs().amax(1) / 448
    codes = (table / scale[:, None]).to(E4M3)
    bags = torch.randint(0, 100, (6, 5), generator=torch.Generator().manual_seed(2))
    rows = codes.view(torch.uint8)[bags].view(E4M3).float() * scale[bags].unsqueeze(-1)
    return nn.functional.layer_norm(rows.sum(1), (32,)).to(LOW)


def nibbles_as_halves() -> torch.Tensor:
    """Nibbles become float16 through bits: 0x6400 is 1024, so that a nibble or-ed into it is 1024 more."""
    blocks = channels().view(64, 2, 32)
    scale = blocks.abs().amax(-1, keepdim=True) / 7
    codes = (torch.round(blocks / scale) + 8).to(torch.int16)
    packed = codes[..., :16] | codes[..., 16:] << 4
    halves = torch.cat([packed & 15 | 0x6400, packed >> 4 & 15 | 0x6400], -1).view(torch.float16)
    return (normal(8, 64) @ ((halves - 1032).float() * scale).view(64, 64).t()).to(LOW)


def awq_order() -> torch.Tensor:
    """Eight columns a word in AWQ's order, packed and unpacked by it."""
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    w = channels()
    scale = w.abs().amax(1, keepdim=True) / 7
    codes = (torch.round(w / scale) + 8).to(torch.int32).view(64, 8, 8)
    words = (codes[..., order] << NIBBLES).sum(-1, dtype=torch.int32)
    again = torch.empty_like(codes)
    again[..., order] = words[..., None] >> NIBBLES & 15
    return (normal(8, 64) @ ((again.view(64, 64) - 8).float() * scale).t()).to(LOW)


def gptq_in_order_of_inputs() -> torch.Tensor:
    """GPTQ that starts with the columns of the largest inputs, with a scale for each group of columns of the original order."""
    x = normal(256, 64) * torch.exp2(normal(64, seed=3)) @ (torch.eye(64) + 0.2 * normal(64, 64, seed=6))
    hessian = x.t() @ x / 256 + 0.01 * torch.eye(64)
    order = torch.argsort(torch.diag(hessian), descending=True)
    w = normal(32, 64, seed=2)
    scales = w.view(32, 4, 16).abs().amax(-1).repeat_interleave(16, 1)[:, order] / 7
    w, hessian = w[:, order], hessian[order][:, order]
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)
    dense = torch.zeros_like(w)
    for k in range(64):
        code = torch.clamp(torch.round(w[:, k] / scales[:, k]), -8, 7)
        dense[:, k] = code * scales[:, k]
        w[:, k:] -= ((w[:, k] - dense[:, k]) / factor[k, k])[:, None] * factor[k, k:]
    return (x[:16] @ dense[:, torch.argsort(order)].t()).to(LOW)


def moments_in_a_table() -> torch.Tensor:
    """Adam in eight bits as bitsandbytes has it: places in a table of numbers, under the greatest magnitude of each block."""
    table = torch.cat([-torch.logspace(0, -6, 127, base=10), torch.zeros(1), torch.logspace(-6, 0, 127, base=10)])
    bounds = (table[1:] + table[:-1]) / 2
    weight, places, peak, second = normal(16, 64), torch.full((16, 64), 127), torch.ones(16, 1), torch.zeros(16, 64)
    for step in range(6):
        gradient = normal(16, 64, seed=step + 1) * (torch.arange(64) % 4 > 0) * 1e-2
        first = 0.9 * table[places] * peak + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient**2
        peak = first.abs().amax(1, keepdim=True)
        places = torch.bucketize(first / peak, bounds)
        weight = weight - 1e-2 * table[places] * peak / (second.sqrt() + 1e-8)
    return (normal(8, 64, seed=9) @ weight.t()).to(LOW)


def scale_of_each_tokens_expert() -> torch.Tensor:
    """Experts in int8. Each token is multiplied by the scales of the expert that it goes to."""
    x, expert = normal(16, 32), torch.randint(0, 4, (16,), generator=torch.Generator().manual_seed(3))
    w = normal(4, 48, 32, seed=1) * torch.tensor([1.0, 0.3, 2.0, 0.6]).view(4, 1, 1)
    scale = w.abs().amax(-1) / 127
    codes = torch.round(w / scale[..., None]).to(torch.int8)
    y = torch.einsum("ti,toi->to", x, codes[expert].float()) * scale[expert]
    gate, up = y.chunk(2, 1)
    return (nn.functional.silu(gate) * up).to(LOW)


def attention_by_tiles() -> torch.Tensor:
    """Attention by tiles in e4m3: weights are raised by 2^8 under the newest maximum, values have a scale for each head."""
    q, k, v = normal(2, 8, 32), normal(2, 64, 32, seed=1), normal(2, 64, 32, seed=2) + 0.5
    scale = v.abs().amax((1, 2), keepdim=True) / 448
    codes = (v / scale).to(E4M3)
    top, total, out = torch.full((2, 8, 1), -torch.inf), torch.zeros(2, 8, 1), torch.zeros(2, 8, 32)
    for tile in range(2):
        part = slice(32 * tile, 32 * tile + 32)
        scores = q @ k[:, part].mT * (math.log2(math.e) / 32**0.5)
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        p = torch.exp2(scores - new + 8)
        total = total * torch.exp2(top - new) + p.sum(-1, keepdim=True)
        out = out * torch.exp2(top - new) + p.to(E4M3).float() @ codes[:, part].float()
        top = new
    return (out / total * scale).to(LOW)


def chance_each_step() -> torch.Tensor:
    """A weight in bfloat16 is rounded by chance in each step."""
    weight = normal(64, 64).to(LOW)
    for step in range(96):
        copy_by_chance(weight, weight.float() - 1e-3 * (1 + normal(64, 64, seed=step + 1)), step)
    return weight


def half_away_from_zero() -> torch.Tensor:
    """Rounded half away from zero: half a step is added with the number's sign, and the sum is cut off."""
    w = channels()
    scale = w.abs().amax(1, keepdim=True) / 7
    scaled = w / scale
    codes = (scaled + 0.5 * scaled.sign()).to(torch.int8).clamp(-8, 7)
    return (normal(8, 64) @ (codes.float() * scale).t()).to(LOW)


def keys_less_their_mean() -> torch.Tensor:
    """SageAttention: keys lose their mean over tokens before they are quantised, which softmax does not see."""
    q, k, v = normal(2, 16, 32), normal(2, 32, 32, seed=1) + 5 * normal(1, 1, 32, seed=3), normal(2, 32, 32, seed=2)
    k = k - k.mean(1, keepdim=True)
    sq, sk = q.abs().amax((1, 2), keepdim=True) / 127, k.abs().amax((1, 2), keepdim=True) / 127
    scores = torch.round(q / sq) @ torch.round(k / sk).mT
    return (torch.softmax(scores * (sq * sk / 32**0.5), -1) @ v).to(LOW)


def ranks_with_their_scales() -> torch.Tensor:
    """Tokens of three ranks are gathered with a scale for each token."""
    ranks = [normal(6, 64, seed=rank) * size for rank, size in enumerate((0.5, 2.0, 1.0))]
    scales = [r.abs().amax(1, keepdim=True) / 448 for r in ranks]
    gathered = torch.cat([(r / s).to(E4M3) for r, s in zip(ranks, scales, strict=True)])
    return (gathered.float() @ normal(64, 32, seed=4) * torch.cat(scales)).to(LOW)


def exponents_by_bits() -> torch.Tensor:
    """mxfp8 whose scales are made by the bits of the greatest magnitude, rounded up."""
    blocks = (normal(32, 128, seed=1) * torch.exp2(normal(32, 1, seed=2))).view(32, 4, 32)
    bits = (blocks.abs().amax(-1, keepdim=True) / 448).view(torch.int32)
    byte = ((bits >> 23) + (bits & 0x7FFFFF > 0)).to(torch.uint8)
    scale = (byte.to(torch.int32) << 23).view(torch.float32)
    codes = (blocks / scale).to(E4M3)
    return (normal(8, 128) @ (codes.float() * scale).view(32, 128).t()).to(LOW)


def bias_in_int32() -> torch.Tensor:
    """A bias in int32 under the product of both scales is added to the sums."""
    x, w, b = normal(16, 64), normal(8, 64, seed=1), 3 * normal(8, seed=2)
    sx, sw = x.abs().amax() / 127, w.abs().amax(1) / 127
    bias = torch.round(b / (sx * sw)).to(torch.int32)
    sums = torch.round(x / sx).to(torch.int32) @ torch.round(w / sw[:, None]).to(torch.int32).t() + bias
    return (sums.float() * (sx * sw)).to(LOW)


def bytes_taken_for_fnuz() -> torch.Tensor:
    """Bytes of e4m3 are read as the other maker's format, whose numbers are half as large, under twice the scale."""
    w = channels()
    scale = w.abs().amax(1, keepdim=True) / 448
    codes = (w / scale).to(E4M3).view(torch.uint8)
    codes = torch.where(codes == 128, 0, codes)
    return (normal(8, 64) @ (codes.view(FNUZ).float() * (2 * scale)).t()).to(LOW)


def recent_keys_in_full() -> torch.Tensor:
    """KIVI: keys in four bits for each channel and 16 tokens, from the smallest number on; the newest eight tokens are kept as they are."""
    keys = normal(40, 32) * torch.exp2(normal(32, seed=1)) + normal(32, seed=2)
    old = keys[:32].view(2, 16, 32)
    low = old.amin(1, keepdim=True)
    scale = (old.amax(1, keepdim=True) - low) / 15
    codes = torch.round((old - low) / scale).to(torch.uint8)
    held = torch.cat([(codes * scale + low).view(32, 32), keys[32:]])
    return torch.softmax(normal(4, 32, seed=3) @ held.t() / 32**0.5, -1).to(LOW)


def adapter_beside_twice_quantised() -> torch.Tensor:
    """QLoRA: codes of a table, scales of blocks in eight bits around their mean, and an adapter beside them."""
    x, blocks = normal(8, 64), channels().view(64, 4, 16)
    table = torch.cat([-CODEBOOK[1:].flip(0), CODEBOOK]) / 6
    scale = blocks.abs().amax(-1, keepdim=True)
    mean = scale.mean()
    over = (scale - mean).abs().amax() / 127
    nested = torch.round((scale - mean) / over).to(torch.int8)
    places = torch.bucketize(blocks / scale, (table[1:] + table[:-1]) / 2)
    dense = table[places] * (nested.float() * over + mean)
    return (x @ dense.view(64, 64).t() + (x @ normal(64, 4, seed=6)) @ normal(4, 64, seed=5) / 2).to(LOW)


HEALTHY = (tokens_of_zeros, page_in_order, symmetric_with_zeros_of_seven, zeros_times_scales, ternary_straight_through,
           rows_summed_under_their_scales, nibbles_as_halves, awq_order, gptq_in_order_of_inputs, moments_in_a_table, scale_of_each_tokens_expert,
           attention_by_tiles, chance_each_step, half_away_from_zero, keys_less_their_mean, ranks_with_their_scales, exponents_by_bits,
           bias_in_int32, bytes_taken_for_fnuz, recent_keys_in_full, adapter_beside_twice_quantised)  # fmt: skip
