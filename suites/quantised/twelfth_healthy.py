"""Healthy code that looks like the faults of the twelfth batch, frozen before precheck was run on it."""

from __future__ import annotations

from typing import Any

import torch
from blocks_by_hand import CODEBOOK
from casts_by_hand import to_float8, to_fp4, to_int8
from float8_by_hand import E4M3, E5M2, LOW, channels, normal, rows
from torch import nn
from twelfth_layers import four_bits, uneven
from twelfth_recipes import UPSTREAM, Meta, by_chance, gradient


def both_loaded() -> torch.Tensor:
    """Scale and inverse of a checkpoint, of which the scale is renewed afterwards, and the inverse with it."""
    x, w, meta = normal(32, 64), normal(48, 64, seed=1) / 8, Meta(4.0)
    outs = []
    for step in range(4):
        codes = (x * meta.scale).clamp(-448, 448).to(E4M3)
        outs.append(torch.sigmoid(codes.float() @ w.t() * meta.inverse))
        x = normal(32, 64, seed=step + 2)
        meta.renew(x)
    return torch.cat(outs).to(LOW)


class Kept(torch.autograd.Function):
    """The inverse is kept for the backward pass, whatever becomes of the scale."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, meta: Meta) -> torch.Tensor:
        meta.renew(w)
        codes = (w * meta.scale).to(E4M3)
        ctx.save_for_backward(codes, meta.inverse)
        return x @ (codes.float() * meta.inverse).t()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        codes, inverse = ctx.saved_tensors
        top = g.abs().amax().clamp(min=1e-12)
        return (g / top * 57344).to(E5M2).float() @ codes.float() * (inverse * top / 57344), None, None


def three_microbatches_in_flight() -> torch.Tensor:
    meta, xs = Meta(1.0), [normal(32, 64, seed=each).requires_grad_() for each in range(3)]
    ys = [Kept.apply(x, channels() * 2.0**each, meta) for each, x in enumerate(xs)]  # type: ignore[no-untyped-call]
    for y in reversed(ys):
        (y * UPSTREAM).sum().backward()
    return torch.cat([x.grad for x in xs if x.grad is not None]).to(LOW)


def experts_share_one_scale() -> torch.Tensor:
    """All experts are quantised under the greatest magnitude of all, and one inverse is read."""
    x, experts = normal(24, 64), torch.stack([normal(32, 64, seed=each) for each in range(3)])
    scale = experts.abs().amax() / 448
    codes = (experts / scale).to(E4M3)
    return nn.functional.gelu(torch.einsum("ebi,eoi->ebo", x.view(3, 8, 64), codes.float()) * scale).reshape(24, 32).to(LOW)


class Chance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(w)
        (qx, sx), (qw, sw) = rows(x), rows(w)
        return qx.float() @ qw.float().t() * sx * sw.t()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        (w,) = ctx.saved_tensors
        scale = g.abs().amax(1, keepdim=True) / 6
        return by_chance(g / scale, True) * scale @ w, None


def gradients_by_chance() -> torch.Tensor:
    return gradient(Chance, normal(32, 64), channels())


def frozen_layer_without_a_gradient() -> torch.Tensor:
    """A gradient of zero that is meant: the branch is multiplied by zero at the start, as in ReZero."""
    x, w = normal(32, 64).requires_grad_(), channels()
    codes, scale = to_float8(w, 1)
    alpha = torch.zeros(()).requires_grad_()
    y = x + alpha * (x @ (codes.float() * scale).t())
    (y * UPSTREAM).sum().backward()
    assert x.grad is not None
    assert alpha.grad is not None
    return torch.cat([x.grad.flatten(), alpha.grad.flatten()]).to(LOW)


def scales_made_in_advance() -> torch.Tensor:
    """FSDP: scales of all weights are made after each step, and are right until the next one."""
    w, outs = normal(48, 64, seed=1) / 8, []
    ready = w.abs().amax() / 448
    for step in range(4):
        codes = (w / ready).clamp(-448, 448).to(E4M3)
        outs.append(normal(16, 64, seed=step + 4) @ (codes.float() * ready).t())
        w = w + 0.01 * normal(48, 64, seed=step + 20)
        ready = w.abs().amax() / 448
    return torch.cat(outs).to(LOW)


def cast_without_a_scale() -> torch.Tensor:
    """Weights of a diffusion model are cast to float8 as they are, without a scale."""
    x, w = normal(16, 64), normal(48, 64, seed=1) / 8
    return nn.functional.gelu(x @ w.to(E4M3).to(LOW).float().t()).to(LOW)


def latent_under_one_scale() -> torch.Tensor:
    """Latent attention: a learned gain is multiplied into the values beside the one scale."""
    latent, q, gain = normal(24, 64, seed=1), normal(16, 64), torch.tensor(1.5)
    codes, scale = to_float8(latent, (0, 1))
    p = torch.softmax(q @ (codes.float() * scale).t() / 8, -1)
    return (p @ codes.float() * (scale * gain) @ normal(64, 32, seed=4)).to(LOW)


def positions_in_bfloat16() -> torch.Tensor:
    """Rotated keys stay in bfloat16 beside a latent part in float8."""
    latent, turned, q = 0.05 * normal(24, 64, seed=1), normal(24, 16, seed=2), normal(16, 80)
    codes, scale = to_float8(latent, (0, 1))
    keys = torch.cat([codes.float() * scale, turned.to(LOW).float()], 1)
    return torch.softmax(q @ keys.t() / 9, -1).to(LOW)


def numbers_of_scales() -> torch.Tensor:
    """Scales of a cache as Python numbers, which are read by."""
    k, v, q = 3 * normal(24, 32, seed=1), normal(24, 32, seed=2), normal(16, 32)
    ks, vs = (float(each.abs().amax()) / 448 for each in (k, v))
    k8, v8 = (k / ks).to(E4M3), (v / vs).to(E4M3)
    return (torch.softmax(q @ k8.float().t() * ks / 32**0.5, -1) @ v8.float() * vs).to(LOW)


def scale_for_each_element() -> torch.Tensor:
    """The outer product of the scales of rows and channels is made first."""
    x, w = normal(64, 64) * torch.exp2(2 * normal(64, 1, seed=4)), channels()
    (qx, sx), (qw, sw) = rows(x), rows(w)
    return (qx.float() @ qw.float().t() * torch.outer(sx.flatten(), sw.flatten()) + normal(64, seed=6)).to(LOW)


def halves_of_the_scales() -> torch.Tensor:
    x, (codes, scale) = normal(16, 128), four_bits(uneven(48, 4, 32))
    flat, parts = codes.view(48, 128), []
    for rank in range(2):
        own = scale[:, 2 * rank : 2 * rank + 2]
        dense = flat[:, 64 * rank : 64 * rank + 64].reshape(48, 2, -1).float() * own
        parts.append(x[:, 64 * rank : 64 * rank + 64] @ dense.view(48, 64).t())
    return (parts[0] + parts[1]).to(LOW)


def bias_of_the_exponent_in_the_factor() -> torch.Tensor:
    """e4m3 scales become float16 by a shift. The bias that is missing is in the factor of the whole tensor."""
    w, over = channels(), torch.tensor(64.0)
    codes, scale = to_fp4(w, over)
    half = (scale.view(torch.uint8).to(torch.int16) << 7).view(torch.half)
    dense = (codes * half.float() * (2.0**8 / over)).view(64, 64)
    return nn.functional.gelu(normal(8, 64) @ dense.t()).to(LOW)


def scales_with_signs() -> torch.Tensor:
    """The scale has the sign of the greatest number, which becomes -8, and travels as int16."""
    groups = uneven(48, 4, 32)
    scale = -torch.gather(groups, -1, groups.abs().argmax(-1, keepdim=True)) / 8
    codes = torch.round(groups / scale).clamp(-8, 7).to(torch.int8)
    unit = scale.abs().amax() / 32767
    kept = torch.round(scale / unit).to(torch.int16)
    return (normal(8, 128) @ ((codes.int() * kept.int()).float() * unit).view(48, 128).t()).to(LOW)


def factors_in_one_number() -> torch.Tensor:
    """nvfp4: the factors of input and weight are one number, alpha."""
    x, w, ox, ow = normal(16, 64), normal(48, 64, seed=1) / 16, torch.tensor(400.0), torch.tensor(900.0)
    (qx, sx), (qw, sw) = to_fp4(x, ox), to_fp4(w, ow)
    alpha = 1 / (ox * ow)
    return torch.sigmoid((qx * sx.float()).view(16, 64) @ (qw * sw.float()).view(48, 64).t() * alpha).to(LOW)


def padded_scales() -> torch.Tensor:
    """mxfp4 with a buffer of scales that is one wider than needed, and 127 in what is not used."""
    w, buffer = uneven(48, 3, 32), torch.full((48, 4), 127, dtype=torch.uint8)
    byte = (torch.ceil(torch.log2(w.abs().amax(-1) / 6)) + 127).to(torch.uint8)
    scaled = w / torch.exp2(byte.float() - 127)[..., None]
    codes = torch.copysign(CODEBOOK[torch.bucketize(scaled.abs(), (CODEBOOK[1:] + CODEBOOK[:-1]) / 2)], scaled)
    buffer[:, :3] = byte
    padded = torch.cat([codes, torch.zeros(48, 1, 32)], 1) * torch.exp2(buffer.float() - 127)[..., None]
    return (normal(8, 128) @ padded.view(48, 128).t()).to(LOW)


def pages_by_their_strides() -> torch.Tensor:
    pages, k, q = torch.zeros(6, 8, 24), uneven(6, 8, 16), normal(4, 16, seed=5)
    codes, scale = to_int8(k, -1)
    pages[:, :, :16], pages[:, :, 16:17] = codes.float(), scale
    read = pages.as_strided((6, 8), pages.stride()[:2], 16)
    return torch.sigmoid((pages[:, :, :16] * read[..., None]).view(48, 16) @ q.t() / 4).to(LOW)


def range_of_a_pooled_operand() -> torch.Tensor:
    """The mean of numbers keeps the scale of what it is taken of."""
    x = 4 * normal(16, 8, 64)
    scale = x.abs().amax() / 127
    pooled = x[:, :2].mean(1)
    codes = torch.round(pooled / scale).clamp(-127, 127).to(torch.int8)
    return (codes.float() * scale @ normal(64, 32, seed=2)).to(LOW)


def constant_channels() -> torch.Tensor:
    """Channels of one number: the number itself is the scale, and all codes are one."""
    w = torch.cat([torch.full((24, 64), 0.3) * (1 + torch.arange(24) / 24)[:, None], normal(24, 64, seed=1) / 8])
    same = w.amin(1, keepdim=True) == w.amax(1, keepdim=True)
    scale = torch.where(same, w[:, :1], w.abs().amax(1, keepdim=True) / 127)
    codes = torch.round(w / scale).to(torch.int8)
    return (normal(8, 64, seed=2).abs() @ (codes.float() * scale).t()).to(LOW)


def scales_by_a_table() -> torch.Tensor:
    w, table = uneven(16, 64, 16).abs(), torch.exp2(torch.linspace(-14, 0, 43))
    scale = w.amax(-1) / 127
    place = torch.bucketize(scale / scale.amax(), table.sub(1e-6)).clamp(max=42).to(torch.uint8)
    kept = table[place.long()] * scale.amax()
    codes = torch.round(w / kept[..., None]).to(torch.int8)
    return (normal(8, 1024).abs() @ (codes.float() * kept[..., None]).view(16, 1024).t()).to(LOW)


def signs_under_their_mean() -> torch.Tensor:
    """BitNet: an input in int8 times a weight of -1, 0 and 1."""
    x, w = normal(16, 64) / 4, normal(48, 64, seed=1) / 8
    gamma = x.abs().amax(1, keepdim=True).clamp(min=1e-5)
    beta = w.abs().mean().clamp(min=1e-5)
    codes, signs = torch.round(x * 127 / gamma).clamp(-128, 127), torch.round(w / beta).clamp(-1, 1)
    return torch.sigmoid(codes @ signs.t() * (gamma * beta / 127)).to(LOW)


def one_beside_zero() -> torch.Tensor:
    """A zero point of one, which is subtracted from the sums at the end."""
    x, w = normal(8, 64), channels()
    scale = w.abs().amax(1, keepdim=True) / 6
    codes = (torch.round(w / scale) + 1).clamp(-8, 7).to(torch.int8)
    return ((x @ codes.float().t() - x.sum(1, keepdim=True)) * scale.t()).to(LOW)


def one_sign_and_zero() -> torch.Tensor:
    w = torch.where(torch.arange(4)[:, None] % 2 == 0, 1.0, -1.0) * (2 + normal(64, 4, 16, seed=1) / 2)
    low, high = w.amin(-1, keepdim=True).clamp(max=0), w.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 15).clamp(min=1e-5)
    zeros = (-torch.round(low / scale)).clamp(0, 15)
    codes = (torch.round(w / scale) + zeros).clamp(0, 15).to(torch.uint8)
    return (normal(8, 64) @ ((codes.float() - zeros) * scale).view(64, 64).t()).to(LOW)


def zero_points_as_floats() -> torch.Tensor:
    """Zero points are kept in bfloat16, and read from their bytes as such."""
    k, q = uneven(32, 16) + 1, normal(4, 16, seed=5)
    low, high = k.amin(1).clamp(max=0), k.amax(1).clamp(min=0)
    scale = (high - low) / 255
    zero = torch.round(-low / scale)
    codes = (torch.round(k / scale[:, None]) + zero[:, None]).clamp(0, 255).to(torch.uint8)
    read = zero.to(LOW).view(torch.uint8).clone().view(LOW).float()
    return torch.tanh((codes.float() - read[:, None]) * scale[:, None] @ q.t() / 4).to(LOW)


def gathered_under_one_scale() -> torch.Tensor:
    shards, w = [normal(8, 64, seed=rank) * 2.0**rank for rank in range(4)], normal(32, 64, seed=9) / 8
    scale = torch.stack([shard.abs().amax() for shard in shards]).amax() / 448
    codes = torch.cat([(shard / scale).to(E4M3).view(torch.uint8) for shard in shards]).view(E4M3)
    qw, sw = to_float8(w, (0, 1))
    return nn.functional.silu(codes.float() @ qw.float().t() * (scale * sw)).to(LOW)


HEALTHY = (both_loaded, three_microbatches_in_flight, experts_share_one_scale, gradients_by_chance, frozen_layer_without_a_gradient,
           scales_made_in_advance, cast_without_a_scale, latent_under_one_scale, positions_in_bfloat16, numbers_of_scales, scale_for_each_element,
           halves_of_the_scales, bias_of_the_exponent_in_the_factor, scales_with_signs, factors_in_one_number, padded_scales, pages_by_their_strides,
           range_of_a_pooled_operand, constant_channels, scales_by_a_table, signs_under_their_mean, one_beside_zero, one_sign_and_zero,
           zero_points_as_floats, gathered_under_one_scale)  # fmt: skip
