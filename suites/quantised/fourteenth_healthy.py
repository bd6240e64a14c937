"""Healthy code that looks like the faults of the fourteenth batch, frozen before precheck was run on it."""

from __future__ import annotations

from typing import Any

import torch
from casts_by_hand import asymmetric, to_float8, to_fp4, to_int8
from float8_by_hand import E4M3, E5M2, LOW, channels, normal
from fourteenth_recipes import super_blocks
from thirteenth_recipes import mxfp4
from torch import nn
from twelfth_layers import four_bits, uneven


def exact_scale_beside_the_power() -> torch.Tensor:
    """Numbers are rounded under a power of two. The exact scale is kept for a report of how much room is left."""
    k, q = uneven(24, 2, 32, seed=4), normal(8, 64)
    exact = k.abs().amax(-1, keepdim=True) / 448
    power = torch.exp2(torch.ceil(torch.log2(exact)))
    room = torch.log2(power / exact)
    keys = ((k / power).to(E4M3).float() * power).view(24, 64)
    return torch.cat([torch.softmax(q @ keys.t() / 8, -1).flatten(), room.flatten()]).to(LOW)


def scales_of_scales_by_addcmul() -> torch.Tensor:
    codes, scale = four_bits(uneven(48, 4, 32))
    low = scale.mean()
    step = (scale - low).abs().amax() / 127
    held = torch.round((scale - low) / step).to(torch.int8)
    dense = codes.float() * torch.addcmul(low, held.float(), step)
    return nn.functional.gelu(normal(8, 128) @ dense.view(48, 128).t()).to(LOW)


def offset_through_bytes() -> torch.Tensor:
    """The mean of the scales goes through the bytes of a page, and is read as what it is."""
    codes, scale = four_bits(uneven(48, 4, 32))
    page = torch.zeros(8, dtype=torch.uint8)
    page[4:] = scale.mean().reshape(1).view(torch.uint8)
    low = page.view(torch.float32)[1]
    step = (scale - low).abs().amax() / 127
    held = torch.round((scale - low) / step).to(torch.int8)
    return (normal(8, 128) @ (codes.float() * (held.float() * step + low)).view(48, 128).t()).to(LOW)


def memory_order_and_back() -> torch.Tensor:
    """A transposed weight is quantised as it lies in memory, and its dequantised blocks are read through the same strides."""
    w = (normal(64, 64, seed=1) * torch.exp2(2 * normal(64, 1, seed=2))).t()
    codes, scale = four_bits(w.t().reshape(-1, 32))
    dense = (codes.float() * scale).view(64, 64).t()
    return (normal(8, 64) @ dense.t()).to(LOW)


def input_in_the_order_of_the_codes() -> torch.Tensor:
    """Codes are read in another order within their groups, and so is the input."""
    codes, byte = mxfp4(uneven(48, 4, 32), 127)
    order = torch.arange(32).view(2, 16).t().reshape(-1)
    dense = codes[..., order] * torch.exp2(byte.float() - 127)
    x = normal(8, 4, 32)[..., order].reshape(8, 128)
    return (x @ dense.view(48, 128).t()).to(LOW)


def scales_in_padded_rows() -> torch.Tensor:
    codes, byte = mxfp4(uneven(48, 3, 32), 127)
    held = torch.full((48 * 4,), 127, dtype=torch.uint8)
    held.as_strided((48, 3), (4, 1)).copy_(byte[..., 0])
    dense = codes * torch.exp2(held.view(48, 4)[:, :3, None].float() - 127)
    return (normal(8, 96) @ dense.view(48, 96).t()).to(LOW)


def blocks_that_experts_share() -> torch.Tensor:
    """Blocks of rows go on from one expert to the next, and are dequantised before the experts are told apart."""
    w, x = normal(2, 24, 32, seed=1) * torch.exp2(2 * normal(2, 24, 1, seed=2)), normal(2, 8, 32)
    flat = w.view(3, 16, 32)
    scale = flat.abs().amax((1, 2), keepdim=True) / 448
    dense = ((flat / scale).to(E4M3).float() * scale).view(2, 24, 32)
    return torch.einsum("ebi,eoi->ebo", x, dense).to(LOW)


def exponents_added_in_bits() -> torch.Tensor:
    """Scales are added to exponents in bits, and zeros are put right by a product with a mask."""
    codes, byte = mxfp4(uneven(48, 4, 32), 127)
    bits = codes.float().view(torch.int32) + (byte.to(torch.int32) - 127 << 23)
    dense = torch.where(codes == 0, 0.0, bits.view(torch.float32))
    return (normal(8, 128) @ dense.view(48, 128).t()).to(LOW)


def inverse_in_half() -> torch.Tensor:
    """The inverse of a power of two is exact in float16, as long as it is in range."""
    groups = uneven(48, 4, 32)
    scale = torch.exp2(torch.ceil(torch.log2(groups.abs().amax(-1, keepdim=True) / 448))).clamp(min=2.0**-14)
    codes = (groups * (1 / scale).half().float()).clamp(-448, 448).to(E4M3)
    return (normal(8, 128) @ (codes.float() * scale).view(48, 128).t()).to(LOW)


def two_sets_of_scales_in_one_page() -> torch.Tensor:
    """Scales of two layers lie in one page in bfloat16, and each layer takes its own."""
    layers = [four_bits(uneven(48, 4, 32, seed=each)) for each in (1, 2)]
    page = torch.stack([scale[..., 0].to(torch.bfloat16) for _, scale in layers]).view(torch.uint8)
    x = normal(8, 128)
    for place, (codes, _) in enumerate(layers):
        read = page[place].view(torch.bfloat16).float()
        x = torch.tanh(x @ (codes.float() * read[..., None]).view(48, 128).t()).repeat(1, 3)[:, :128]
    return x.to(LOW)


def q4_k_with_minima() -> torch.Tensor:
    """Scales and minima in six bits, under two factors for eight groups."""
    groups = uneven(24, 8, 32)
    low = -groups.amin(-1, keepdim=True)
    own = (groups.amax(-1, keepdim=True) + low) / 15
    top, bottom = own.amax(-2, keepdim=True) / 63, low.amax(-2, keepdim=True) / 63
    six, least = torch.round(own / top).clamp(1, 63), torch.round(low / bottom).clamp(0, 63)
    codes = torch.round((groups + least * bottom) / (six * top)).clamp(0, 15)
    dense = codes * (six * top) - least * bottom
    return (normal(8, 256) @ dense.view(24, 256).t()).to(LOW)


def six_bits_in_twelve_bytes() -> torch.Tensor:
    codes, six, top, _ = super_blocks(uneven(24, 8, 32).abs())
    six = six.view(24, 8)
    packed = torch.cat([six[:, :4] | (six[:, 4:] >> 4) << 6, six[:, 4:] & 15], 1)
    read = torch.cat([packed[:, :4] & 63, packed[:, 4:] | packed[:, :4] >> 6 << 4], 1)
    dense = codes * (read.float()[..., None] * top)
    return (normal(8, 256) @ dense.view(24, 256).t()).to(LOW)


def rows_beyond_the_weight_stay_zero() -> torch.Tensor:
    """A kernel wants 64 rows. The 16 behind the weight's are zero."""
    groups = uneven(48, 4, 32)
    codes, scale = four_bits(groups)
    dense = torch.zeros(64, 4, 32)
    for part in range(4):
        dense[:48, part] = codes[:, part].float() * scale[:, part]
    return (normal(8, 128) @ dense.view(64, 128).t()).to(LOW)[:, :48]


def adapter_beside_the_groups() -> torch.Tensor:
    """An update for each group is multiplied by the sums of the input over its columns."""
    x, (codes, scale, zero) = normal(16, 128), asymmetric(uneven(48, 4, 32).view(48, 128))
    update = normal(48, 4, seed=5)
    dense = (codes.float() - zero) * scale
    return (x @ dense.view(48, 128).t() + x.view(16, 4, 32).sum(-1) @ update.t()).to(LOW)


def sums_of_data_for_the_zero_point() -> torch.Tensor:
    """The zero point of 8 is taken out by sums of the input itself."""
    x, groups = normal(16, 4, 32) + 0.5, uneven(48, 4, 32)
    codes, scale = four_bits(groups)
    each = torch.einsum("bgi,ogi->bog", x, codes.float() + 8) - 8 * x.sum(-1)[:, None]
    return (each * scale[..., 0]).sum(-1).to(LOW)


def gate_and_up_under_the_larger() -> torch.Tensor:
    """Gate and up are quantised again, under the larger one of their scales."""
    x, gate, up = normal(16, 64), channels() / 8, 20 * normal(64, 64, seed=6) / 8
    (qg, sg), (qu, su) = to_float8(gate, (0, 1)), to_float8(up, (0, 1))
    top = torch.maximum(sg, su)
    codes = torch.cat([(q.float() * s / top).to(E4M3) for q, s in ((qg, sg), (qu, su))])
    both = x @ codes.float().t() * top
    return (nn.functional.silu(both[:, :64]) * both[:, 64:]).to(LOW)


def calibrated_scale_for_both() -> torch.Tensor:
    calibration, x, w = 4 * normal(64, 64, seed=8), normal(16, 64), channels() / 8
    kept = 6 * 448 / calibration.abs().amax()
    codes, scale = to_fp4(x, kept)
    qw, sw = to_float8(w, 1)
    return nn.functional.gelu((codes * scale.float()).view(16, 64) @ (qw.float() * sw).t() * (1 / kept)).to(LOW)


def keys_without_a_scale() -> torch.Tensor:
    """A cache in float8 whose scale is 1: keys are cast as they are."""
    k, q = 4 * normal(24, 32, seed=4), normal(8, 32)
    one = torch.ones(())
    scores = q @ (k / one).to(E4M3).float().t() * one / 32
    return torch.softmax(scores, -1).to(LOW)


def probabilities_above_and_below() -> torch.Tensor:
    """What probabilities are multiplied by is in their sum too, and cancels."""
    q, k, v, x = normal(16, 32), normal(24, 32, seed=1), channels()[:24, :32], normal(16, 32, seed=5)
    scores = q @ k.t() / 6
    p = torch.exp(scores - scores.amax(-1, keepdim=True)) * 256
    qv, sv = to_float8(v, (0, 1))
    return (x + p.to(E4M3).float() @ qv.float() * sv / p.sum(-1, keepdim=True)).to(LOW)


def correction_of_each_block() -> torch.Tensor:
    q, k = normal(4, 8, 32) + 2 * normal(4, 1, 32, seed=2), normal(24, 32, seed=3)
    mean = q.mean(1)
    (qq, sq), (qk, sk) = to_int8(q - mean[:, None], (1, 2)), to_int8(k, 1)
    less = (mean @ k.t()).repeat_interleave(8, 0).view(4, 8, 24)
    return torch.softmax(((qq.float() @ qk.float().t()) * sq * sk.t() + less) / 6, -1).to(LOW)


def mean_of_the_keys_never_added() -> torch.Tensor:
    """The mean of all keys adds one number to each row of scores, which a softmax does not see."""
    q, k, v = normal(16, 32), normal(48, 32, seed=1) + normal(1, 32, seed=6), normal(48, 32, seed=4)
    codes, scale = to_int8(k - k.mean(0, keepdim=True), 1)
    return (torch.softmax(q @ codes.float().t() * scale.t() / 6, -1) @ v).to(LOW)


def factors_of_groups_of_heads() -> torch.Tensor:
    x, wv, wo = normal(16, 32), normal(16, 32, seed=1) / 6, normal(32, 32, seed=2) / 6
    few = torch.exp2(1.5 * normal(32, seed=3)).view(2, 2, 8).mean(1)
    (qv, sv), (qo, so) = to_int8(wv / few.view(16, 1), 1), to_int8(wo * few[:, None].expand(2, 2, 8).reshape(32), 1)
    v = (x @ (qv.float() * sv).t()).view(16, 2, 8).repeat_interleave(2, 1).reshape(16, 32)
    return (v @ (qo.float() * so).t()).to(LOW)


def shift_after_the_layer() -> torch.Tensor:
    """A shift that comes after the layer needs no factors."""
    x, t, w = normal(16, 32), normal(16, 32, seed=5), normal(48, 32, seed=1) / 6
    scale, shift = (t @ (normal(80, 32, seed=2) / 6).t()).split([32, 48], 1)
    gain, factors = 1 + 0.3 * normal(32, seed=4), torch.exp2(1.5 * normal(32, seed=3))
    h = nn.functional.rms_norm(x, (32,), gain / factors) * (1 + scale)
    codes, step = to_int8(w * factors, 1)
    return (h @ (codes.float() * step).t() + shift).to(LOW)


def reader_that_divides_by_itself() -> torch.Tensor:
    """Two layers read a norm. One has the factors in its weight, the other gets an input that is multiplied by them."""
    x, w, small = normal(16, 32), normal(48, 32, seed=1) / 6, normal(48, 32, seed=2) / 3
    gain, factors = 1 + 0.3 * normal(32, seed=4), torch.exp2(1.5 * normal(32, seed=3))
    h = nn.functional.rms_norm(x, (32,), gain / factors)
    codes, step = to_int8(w * factors, 1)
    return (torch.sigmoid((h * factors) @ small.t()) * (h @ (codes.float() * step).t())).to(LOW)


class Turned(torch.autograd.Function):
    """A product whose backward pass rounds the weight again, by columns."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(w)
        codes, scale = to_float8(w, 1)
        return x @ (codes.float() * scale).t()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        codes, scale = to_float8(ctx.saved_tensors[0], 0)
        return (g @ codes.float()) * scale, None


def columns_in_the_backward_pass() -> torch.Tensor:
    x = normal(16, 64).requires_grad_()
    loss = (Turned.apply(x, channels()) * normal(16, 64, seed=3)).sum()  # type: ignore[no-untyped-call]
    return torch.autograd.grad(loss, x)[0].to(LOW)


def transposed_convolution_by_inputs() -> torch.Tensor:
    """Scales of a transposed convolution's inputs are multiplied into the input."""
    x, w = normal(4, 8, 16), normal(8, 8, 3, seed=1) * torch.exp2(1.5 * normal(8, 1, 1, seed=2))
    codes, scale = to_int8(w, (1, 2))
    return nn.functional.conv_transpose1d(x * scale.view(1, 8, 1), codes.float()).to(LOW)


def ranks_under_their_own_scales() -> torch.Tensor:
    grads = [normal(64, 32, seed=1), 4 * normal(64, 32, seed=2)]
    scales = [each.abs().amax() / 224 for each in grads]
    codes = [(each / own).to(E5M2) for each, own in zip(grads, scales, strict=True)]
    return ((codes[0].float() * scales[0] + codes[1].float() * scales[1]) / 2).to(LOW)


def positions_rounded_within_a_layer() -> torch.Tensor:
    """Places of a table are rounded, through which no gradient is meant to flow. The table has one."""
    table, x = normal(32, 16, seed=1).requires_grad_(), normal(64, seed=2).requires_grad_()
    place = (x / x.detach().abs().amax() * 15 + 16).round().clamp(0, 31).long()
    return torch.autograd.grad((table[place] * normal(64, 16, seed=3) * x[:, None]).sum(), table)[0].to(LOW)


def cache_rolled_with_its_scales() -> torch.Tensor:
    codes, scale = to_int8(uneven(32, 32, seed=4), 1)
    codes, scale = torch.roll(codes, -8, 0), torch.roll(scale, -8, 0)
    keys = codes[:24].float() * scale[:24]
    return torch.softmax(normal(8, 32) @ keys.t() / 6, -1).to(LOW)


def hooks_that_round_and_clip() -> torch.Tensor:
    """One hook rounds a gradient to float8 and back, another limits it."""

    def cast(g: torch.Tensor) -> torch.Tensor:
        codes, scale = to_float8(g, 1)
        return codes.float() * scale

    x, w, v = normal(16, 64).requires_grad_(), channels(), normal(32, 64, seed=6)
    h = x @ w.t()
    h.register_hook(cast)
    x.register_hook(lambda g: g.clamp(-200, 200))
    return torch.autograd.grad(((h @ v.t()) * normal(16, 32, seed=3)).sum(), x)[0].to(LOW)


HEALTHY = (exact_scale_beside_the_power, scales_of_scales_by_addcmul, offset_through_bytes, memory_order_and_back, input_in_the_order_of_the_codes,
           scales_in_padded_rows, blocks_that_experts_share, exponents_added_in_bits, inverse_in_half, two_sets_of_scales_in_one_page,
           q4_k_with_minima, six_bits_in_twelve_bytes, rows_beyond_the_weight_stay_zero, adapter_beside_the_groups,
           sums_of_data_for_the_zero_point, gate_and_up_under_the_larger, calibrated_scale_for_both, keys_without_a_scale,
           probabilities_above_and_below, correction_of_each_block, mean_of_the_keys_never_added, factors_of_groups_of_heads,
           shift_after_the_layer, reader_that_divides_by_itself, columns_in_the_backward_pass, transposed_convolution_by_inputs,
           ranks_under_their_own_scales, positions_rounded_within_a_layer, cache_rolled_with_its_scales, hooks_that_round_and_clip)  # fmt: skip
