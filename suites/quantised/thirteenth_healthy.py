"""Healthy code that looks like the faults of the thirteenth batch, frozen before precheck was run on it."""

from __future__ import annotations

from typing import Any

import torch
from casts_by_hand import asymmetric, to_float8, to_int8
from float8_by_hand import E4M3, E5M2, LOW, channels, normal
from thirteenth_recipes import SHIFTS, gridded, mxfp4, mxfp8
from torch import nn
from twelfth_layers import four_bits, uneven
from twelfth_recipes import UPSTREAM


def exponents_in_their_own_dtype() -> torch.Tensor:
    """Bytes of exponents are viewed as e8m0, copied about, and cast to float32."""
    codes, byte = mxfp8(uneven(48, 4, 32))
    held = torch.empty(byte.shape, dtype=torch.float8_e8m0fnu)
    held.copy_(byte.view(torch.float8_e8m0fnu))
    dense = codes.float() * held.contiguous().float()
    return torch.tanh(normal(8, 128) @ dense.view(48, 128).t()).to(LOW)


def a_bias_of_the_own_format() -> torch.Tensor:
    """A checkpoint with a bias of 125, which the loader turns into that of the standard."""
    codes, byte = mxfp4(uneven(48, 4, 32) / 64, 125)
    corrected = (byte.to(torch.int32) + 2).clamp(0, 255).to(torch.uint8)
    dense = codes * torch.exp2(corrected.float() - 127)
    return torch.tanh(normal(8, 128) @ dense.view(48, 128).t()).to(LOW)


def exponents_by_shifts() -> torch.Tensor:
    """A float32 is made of an exponent's byte by a shift to its place."""
    codes, byte = mxfp8(uneven(48, 4, 32))
    scale = (byte.to(torch.int32) << 23).view(torch.float32)
    return (normal(8, 128) @ (codes.float() * scale).view(48, 128).t()).to(LOW)


def exponents_in_words() -> torch.Tensor:
    """Four exponents in a word, turned on their way as a kernel wants them, and turned back."""
    groups = uneven(48, 4, 32)
    codes, byte = mxfp8(groups)
    word = byte.view(48, 4).view(torch.int32).t().contiguous()
    read = word.t().contiguous().view(torch.uint8)
    dense = codes.float() * torch.exp2(read.float() - 127)[..., None]
    return nn.functional.silu(normal(8, 128) @ dense.view(48, 128).t()).to(LOW)


def exponents_swizzled() -> torch.Tensor:
    """Scales are interleaved by tiles of 32 rows and 4 columns, and put in order again."""
    groups = uneven(64, 4, 32)
    codes, byte = mxfp8(groups)
    tiles = byte.view(2, 32, 4).transpose(1, 2).contiguous().view(-1)
    read = tiles.view(2, 4, 32).transpose(1, 2).reshape(64, 4)
    dense = codes.float() * torch.exp2(read.float() - 127)[..., None]
    return (normal(8, 128) @ dense.view(64, 128).t()).to(LOW)


def exponents_rounded_to_even() -> torch.Tensor:
    """The exponent of a float32 is rounded up if its fraction is above one half, in bits."""
    groups = uneven(48, 4, 32)
    bits = (groups.abs().amax(-1) / 448 * 1.9).view(torch.int32)
    byte = ((bits + 0x400000) >> 23 & 255).to(torch.uint8)
    scale = torch.exp2(byte.float() - 127)[..., None]
    codes = (groups / scale).clamp(-448, 448).to(E4M3)
    return (normal(8, 128) @ (codes.float() * scale).view(48, 128).t()).to(LOW)


def scales_behind_each_row() -> torch.Tensor:
    """A cache with the scale of each row in float32 behind its bytes."""
    k, q = uneven(24, 32, seed=4), normal(8, 32)
    cache = torch.zeros(24, 36, dtype=torch.uint8)
    scale = k.abs().amax(1, keepdim=True) / 448
    cache[:, :32], cache[:, 32:] = (k / scale).to(E4M3).view(torch.uint8), scale.view(torch.uint8)
    held = cache[torch.tensor([5, 3, 0, 7] * 6)]
    keys = held[:, :32].view(E4M3).float() * held[:, 32:].contiguous().view(torch.float32)
    return torch.softmax(q @ keys.t() / 6, -1).to(LOW)


def planes_of_their_own() -> torch.Tensor:
    """Two layers in one buffer, whose scales are views of it."""
    ks, q = [uneven(24, 32, seed=4), uneven(24, 32, seed=5)], normal(8, 32)
    buffer, outs = torch.zeros(2, 24, 36, dtype=torch.uint8), []
    planes = [each[:, 32:] for each in buffer]
    for layer, k in enumerate(ks):
        scale = k.abs().amax(1, keepdim=True) / 127
        buffer[layer, :, :32] = torch.round(k / scale).to(torch.int8).view(torch.uint8)
        planes[layer].copy_(scale.view(torch.uint8))
    for layer in range(2):
        keys = buffer[layer, :, :32].view(torch.int8).float() * planes[layer].contiguous().view(torch.float32)
        outs.append(torch.softmax(q @ keys.t() / 6, -1))
    return torch.cat(outs).to(LOW)


def blocks_of_eighteen_bytes() -> torch.Tensor:
    """Q4_0: a scale in float16, with the sign of the farthest number, and sixteen bytes."""
    groups = uneven(48, 4, 32)
    far = torch.gather(groups, -1, groups.abs().argmax(-1, keepdim=True))
    scale = (far / -8).half()
    codes = (torch.round(groups / scale.float()) + 8).clamp(0, 15).to(torch.uint8)
    block = torch.cat([scale.view(torch.uint8), codes[..., :16] | codes[..., 16:] << 4], -1)
    again = torch.cat([block[..., 2:] & 15, block[..., 2:] >> 4], -1).to(torch.int8) - 8
    dense = again.float() * block[..., :2].contiguous().view(torch.half).float()
    return (normal(8, 128) @ dense.view(48, 128).t()).to(LOW)


def zero_points_in_halves_of_bytes() -> torch.Tensor:
    codes, scale, zero = asymmetric(uneven(48, 4, 32).view(48, 128) + 0.5)
    packed = zero[:, ::2].to(torch.uint8) | zero[:, 1::2].to(torch.uint8) << 4
    read = torch.stack([packed & 15, packed >> 4], 2).view(48, 4, 1).half()
    return (normal(8, 128) @ ((codes.half() - read).float() * scale).view(48, 128).t()).to(LOW)


def zero_points_one_less() -> torch.Tensor:
    """GPTQ: zero points are stored less one, in words, and one is added where they are read."""
    codes, scale, zero = asymmetric(uneven(48, 8, 16).view(48, 128) + 0.5, 16)
    word = (((zero.to(torch.int32) - 1) & 15).view(48, 8) << SHIFTS).sum(1, dtype=torch.int32)
    read = ((word[:, None] >> SHIFTS & 15) + 1 & 15).view(48, 8, 1)
    return (normal(8, 128) @ ((codes - read).float() * scale).view(48, 128).t()).to(LOW)


def scales_and_zeros_in_pairs() -> torch.Tensor:
    """Scales and lowest numbers side by side in bfloat16, turned for a kernel."""
    groups = uneven(48, 4, 32) + 0.5
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = ((high - low) / 15).to(LOW)
    codes = torch.round((groups - low.to(LOW).float()) / scale.float()).clamp(0, 15).to(torch.uint8)
    pairs = torch.cat([scale, low.to(LOW)], -1).transpose(0, 1).contiguous()
    read = pairs.transpose(0, 1).float()
    dense = codes.float() * read[..., :1] + read[..., 1:]
    return (normal(8, 128) @ dense.view(48, 128).t()).to(LOW)


def two_bits_in_a_row() -> torch.Tensor:
    groups = gridded((48, 2, 64), 1)
    scale = groups.abs().amax(-1, keepdim=True)
    codes = (torch.round(groups / scale) + 1).to(torch.uint8).view(48, 2, 16, 4)
    byte = codes[..., 0] | codes[..., 1] << 2 | codes[..., 2] << 4 | codes[..., 3] << 6
    again = torch.stack([byte >> 2 * each & 3 for each in range(4)], -1).view(48, 2, 64)
    return torch.sigmoid(normal(8, 128) @ ((again.float() - 1) * scale).view(48, 128).t()).to(LOW)


def five_bits_with_a_mask() -> torch.Tensor:
    """Q5_0: four bits in halves of bytes, and the fifth ones of 32 codes in a word."""
    groups = uneven(48, 4, 32)
    scale = groups.abs().amax(-1, keepdim=True) / 15
    codes = (torch.round(groups / scale) + 16).to(torch.int32)
    mask = (codes.long() >> 4 << torch.arange(32)).sum(-1, keepdim=True)
    low = (codes[..., :16] & 15 | (codes[..., 16:] & 15) << 4).to(torch.uint8)
    again = torch.cat([low & 15, low >> 4], -1) | ((mask >> torch.arange(32) & 1) << 4).to(torch.uint8)
    return (normal(8, 128) @ ((again.float() - 16) * scale).view(48, 128).t()).to(LOW)


def scales_divided_in_bits() -> torch.Tensor:
    """Scales are divided by 16 by their exponents, all of which are large enough, and what they make is multiplied by 16."""
    codes, scale = four_bits(uneven(48, 4, 32))
    lowered = (scale.view(torch.int32) - (4 << 23)).view(torch.float32)
    return (normal(8, 128) @ (codes.float() * lowered * 16).view(48, 128).t()).to(LOW)


def scales_of_scales_in_six_bits() -> torch.Tensor:
    """Q6_K in small: scales of groups are integers under one scale in float16 for the block, and all travel as bytes."""
    groups = uneven(16, 8, 16)
    scale = groups.abs().amax(-1, keepdim=True) / 31
    over = (scale.amax(1, keepdim=True) / 127).half()
    small = torch.round(scale / over.float()).clamp(1, 127).to(torch.int8)
    unit = small.float() * over.float()
    codes = torch.round(groups / unit).clamp(-32, 31).to(torch.int8)
    page = torch.cat([codes.view(16, 128).view(torch.uint8), small.view(16, 8).view(torch.uint8), over.view(16, 1).view(torch.uint8)], 1)
    read = page[:, 128:136].view(torch.int8).float() * page[:, 136:].contiguous().view(torch.half).float()
    dense = page[:, :128].view(torch.int8).float().view(16, 8, 16) * read[..., None]
    return (normal(8, 128) @ dense.view(16, 128).t()).to(LOW)


def bytes_with_signs_flipped() -> torch.Tensor:
    """int8 is made unsigned by its highest bit, for an instruction that wants one operand so, and 128 times the sums is taken off."""
    x, (codes, scale) = normal(16, 64), to_int8(channels(), 1)
    qx, sx = to_int8(x, 1)
    unsigned = qx.view(torch.uint8) ^ 0x80
    sums = unsigned.float() @ codes.float().t() - 128 * codes.float().sum(1)
    return (sums * (sx * scale.t())).to(LOW)


def offsets_subtracted() -> torch.Tensor:
    x, w = normal(16, 64) + 0.7, channels() + 0.1
    (qx, sx, zx), (qw, sw, zw) = asymmetric(x, 64), asymmetric(w, 64)
    qx, qw, sx, sw, zx, zw = (each.view(len(each), -1).float() for each in (qx, qw, sx, sw, zx, zw))
    sums = qx @ qw.t() - zx * qw.sum(1) - qx.sum(1, keepdim=True) * zw.t() + 64 * zx * zw.t()
    return (sums * (sx * sw.t())).to(LOW)


def factors_with_their_bias() -> torch.Tensor:
    """AWQ: rows of values and their part of the bias are divided."""
    x, joint, out, bias = normal(16, 32), normal(96, 32, seed=1) / 6, normal(32, 32, seed=2) / 6, 2 * normal(96, seed=3)
    factors = torch.exp2(1.2 * normal(32, seed=4))
    joint, bias = joint.clone(), bias.clone()
    joint[64:] /= factors[:, None]
    bias[64:] /= factors
    (qj, sj), (qo, so) = to_int8(joint, 1), to_int8(out * factors, 1)
    q, k, v = (x @ (qj.float() * sj).t() + bias).split(32, 1)
    return (torch.softmax(q @ k.t() / 32**0.5, -1) @ v @ (qo.float() * so).t()).to(LOW)


def norm_with_three_readers() -> torch.Tensor:
    """Factors are folded into a norm whose output goes to three projections, all of which have them."""
    x, ws, gain = normal(16, 32), [normal(32, 32, seed=each) / 6 for each in (1, 2, 3)], 1 + 0.3 * normal(32, seed=4)
    factors = torch.exp2(1.5 * normal(32, seed=5))
    h = nn.functional.layer_norm(x, (32,), gain / factors)
    q, k, v = (h @ (codes.float() * scale).t() for codes, scale in (to_int8(w * factors, 1) for w in ws))
    return (torch.softmax(q @ k.t() / 6, -1) @ v).to(LOW)


def rounded_gradients_by_a_hook() -> torch.Tensor:
    """A hook rounds a gradient to int8 under its own scale, and multiplies by it."""
    w, x = channels().requires_grad_(), normal(32, 64)

    def hook(g: torch.Tensor) -> torch.Tensor:
        codes, scale = to_int8(g, 1)
        return codes.float() * scale

    w.register_hook(hook)
    (x @ w.t() * UPSTREAM).sum().backward()
    assert w.grad is not None
    return w.grad.to(LOW)


class Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        codes, scale = to_float8(x, 1)
        return codes.float() * scale

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        codes, scale = to_float8(g, 1)
        page = torch.cat([codes.view(torch.uint8), scale.view(torch.uint8)], 1)  # what is sent
        read: torch.Tensor = page[:, -4:].contiguous().view(torch.float32)
        return page[:, :-4].view(E4M3).float() * read


def gradients_with_inline_scales() -> torch.Tensor:
    x = (normal(32, 64) * torch.exp2(normal(32, 1, seed=4))).requires_grad_()
    (Sent.apply(x) @ channels().t() * UPSTREAM).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return x.grad.to(LOW)


def unscaled_after_it_is_rounded() -> torch.Tensor:
    w = normal(48, 64, seed=1).requires_grad_()
    (normal(16, 64) @ w.t() * normal(16, 48, seed=2) * 2.0**10).sum().backward()
    assert w.grad is not None
    return (w.grad.to(E5M2).float() / 2.0**10).to(LOW)


def mixture_by_lerp() -> torch.Tensor:
    """Two dequantised products are mixed before a softmax."""
    x, (left, sl), (right, sr) = normal(16, 64), to_float8(channels(), 1), to_float8(channels().t().contiguous(), 1)
    a, b = x @ left.float().t() * sl.t(), x @ right.float().t() * sr.t()
    return torch.softmax(torch.lerp(a, b, 0.25), -1).to(LOW)


def experts_added_by_index() -> torch.Tensor:
    """The products of an expert are added at its tokens, times its scale."""
    x, out = normal(16, 64), torch.zeros(16, 48)
    for expert in range(2):
        codes, scale = to_float8(normal(48, 64, seed=expert), (0, 1))
        tokens = torch.arange(expert, 16, 2)
        out.index_add_(0, tokens, x[tokens] @ codes.float().t(), alpha=float(scale))
    return nn.functional.silu(out).to(LOW)


def parts_stacked_and_summed() -> torch.Tensor:
    """Parts of a product under scales of blocks are stacked, and their sum goes into a SiLU."""
    x, parts = normal(16, 128), []
    for block in range(4):
        codes, scale = to_float8(normal(48, 32, seed=block), 1)
        parts.append(x[:, 32 * block : 32 * block + 32] @ codes.float().t() * scale.t())
    return nn.functional.silu(torch.stack(parts).sum(0)).to(LOW)


HEALTHY = (exponents_in_their_own_dtype, a_bias_of_the_own_format, exponents_by_shifts, exponents_in_words, exponents_swizzled,
           exponents_rounded_to_even, scales_behind_each_row, planes_of_their_own, blocks_of_eighteen_bytes, zero_points_in_halves_of_bytes,
           zero_points_one_less, scales_and_zeros_in_pairs, two_bits_in_a_row, five_bits_with_a_mask, scales_divided_in_bits,
           scales_of_scales_in_six_bits, bytes_with_signs_flipped, offsets_subtracted, factors_with_their_bias, norm_with_three_readers,
           rounded_gradients_by_a_hook, gradients_with_inline_scales, unscaled_after_it_is_rounded, mixture_by_lerp, experts_added_by_index,
           parts_stacked_and_summed)  # fmt: skip
