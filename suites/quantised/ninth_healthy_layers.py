"""Healthy code that looks like the faults of `ninth_layers`, frozen before precheck was run on it."""

from __future__ import annotations

import torch
from blocks_by_hand import CODEBOOK, hadamard
from casts_by_hand import to_float8, to_fp4, to_int8
from float8_by_hand import E4M3, LOW, channels, normal
from ninth_layers import signs
from torch import nn


def both_turned_with_the_same_signs() -> torch.Tensor:
    """NVFP4's gradient of a weight: both operands are turned by the same signs and matrix."""
    x, g, turn, flip = normal(64, 32), normal(64, 48, seed=1) * 1e-3, hadamard(16), signs(16, 3)

    def operand(t: torch.Tensor) -> torch.Tensor:
        parts = (t.t().reshape(-1, 4, 16) * flip @ turn).reshape(t.shape[1], 64)
        over = 6 * 448 / parts.abs().amax()
        codes, scale = to_fp4(parts, over)
        return (codes * scale.float() / over).view(t.shape[1], 64)

    return (operand(g) @ operand(x).t()).to(LOW)


def chance_over_the_gap() -> torch.Tensor:
    """Rounding to e2m1 by chance, between the numbers below and above."""
    g = normal(64, 64) * 1e-3
    scale = g.view(64, 4, 16).abs().amax(-1, keepdim=True) / 6
    scaled = (g.view(64, 4, 16) / scale).abs()
    place = torch.bucketize(scaled, CODEBOOK, right=True).clamp(1, 7) - 1
    low, high = CODEBOOK[place], CODEBOOK[place + 1]
    draw = torch.rand(scaled.shape, generator=torch.Generator().manual_seed(7))
    codes = torch.where(draw < (scaled - low) / (high - low), high, low) * g.view(64, 4, 16).sign()
    return ((codes * scale).view(64, 64).t() @ (1 + normal(64, 32, seed=3))).to(LOW)


def zero_points_fitted() -> torch.Tensor:
    """HQQ: zero points are fitted by shrinking the error, and are kept in eight bits from their smallest number on."""
    w = (channels() + 0.4 * normal(64, 1, seed=8)).view(-1, 32)
    low, high = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
    scale = 15 / (high - low)
    zero = -low * scale
    for _ in range(4):
        codes = torch.round(w * scale + zero).clamp(0, 15)
        error = w - (codes - zero) / scale
        error = error.sign() * nn.functional.relu(error.abs() - 0.1 * error.abs().pow(-0.3))
        zero = (codes - (w - error) * scale).mean(1, keepdim=True)
    codes = torch.round(w * scale + zero).clamp(0, 15).to(torch.uint8)
    first = zero.min()
    step = (zero.max() - first) / 255
    held = torch.round((zero - first) / step).to(torch.uint8)
    dense = (codes.float() - (held.float() * step + first)) / scale
    return (normal(8, 64) @ dense.view(64, 64).t()).to(LOW)


def factors_searched() -> torch.Tensor:
    """AWQ: the power of the factors is searched for by the error of the product, and the norm is divided by what was found."""
    x, w = normal(32, 64) * torch.exp2(normal(64, seed=4)), normal(48, 64, seed=1)
    given = nn.functional.rms_norm(x, (64,))
    top, best, found = given.abs().mean(0), float("inf"), torch.ones(64)
    for power in (0.0, 0.25, 0.5, 0.75):
        factor = top.pow(power).clamp(min=1e-4)
        factor = factor / (factor.max() * factor.min()).sqrt()
        codes, scale = to_int8(w * factor, 1)
        error = float((given @ w.t() - given @ (codes.float() * scale / factor).t()).square().mean())
        if error < best:
            best, found = error, factor
    codes, scale = to_int8(w * found, 1)
    return nn.functional.silu(nn.functional.rms_norm(x, (64,)) * (1 / found) @ (codes.float() * scale).t()).to(LOW)


def two_projections_smoothed() -> torch.Tensor:
    x, top = normal(32, 64) * torch.exp2(normal(64, seed=4)), torch.zeros(64)
    weights = [normal(48, 64, seed=seed + 1) * torch.exp2(normal(64, seed=seed + 5)) for seed in range(2)]
    top = x.abs().amax(0).sqrt() / torch.cat(weights).abs().amax(0).sqrt()
    codes, scale = to_int8(x / top, 1)
    held, each = to_int8(torch.cat(weights) * top, 1)
    gate, up = (codes.float() @ held.float().t() * scale * each.t()).chunk(2, 1)
    return (nn.functional.silu(gate) * up).to(LOW)


def keys_in_chunks() -> torch.Tensor:
    """KIVI: 16 tokens share the scales of their channels, and the latest tokens are kept in full."""
    q, chunks = normal(4, 32, seed=9), [normal(16, 32, seed=each) * torch.exp2(normal(32, seed=each + 5)) for each in range(3)]
    held = [to_int8(each, 0) for each in chunks]
    codes, scales = torch.stack([each for each, _ in held]).float(), torch.stack([scale for _, scale in held])
    keys = torch.cat([(codes * scales).flatten(0, 1), normal(5, 32, seed=40)])
    return torch.softmax(q @ keys.t() / 32**0.5, -1).to(LOW)


def six_bits_of_scales() -> torch.Tensor:
    """Q4_K: six bits of scales and minima of eight blocks in twelve bytes."""
    w = normal(6, 8, 32, seed=1) * torch.exp2(normal(6, 8, 1, seed=2)) + 0.5
    low = -w.amin(-1).clamp(max=0)
    step = (w.amax(-1) + low) / 15
    d, dmin = (step.amax(1, keepdim=True) / 63).half().float(), (low.amax(1, keepdim=True) / 63).half().float()
    sc, m = torch.round(step / d).clamp(max=63).to(torch.uint8), torch.round(low / dmin).clamp(max=63).to(torch.uint8)
    codes = torch.round((w + (dmin * m)[..., None]) / (d * sc)[..., None]).clamp(0, 15).to(torch.uint8)
    packed = codes[..., :16] | codes[..., 16:] << 4
    a, b, c = sc[:, :4] | sc[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, sc[:, 4:] & 15 | (m[:, 4:] & 15) << 4
    scales, minima = torch.cat([a & 63, c & 15 | a >> 6 << 4], 1), torch.cat([b & 63, c >> 4 | b >> 6 << 4], 1)
    read = torch.cat([packed & 15, packed >> 4], -1).float()
    dense = read * (d * scales)[..., None] - (dmin * minima)[..., None]
    return (normal(8, 256) @ dense.view(6, 256).t()).to(LOW)


def six_bits_in_two_parts() -> torch.Tensor:
    """Q6_K: four bits and two bits of a code are kept apart and joined, and then 32 is subtracted."""
    w = normal(6, 16, 16, seed=1) * torch.exp2(normal(6, 16, 1, seed=2))
    step = w.abs().amax(-1) / 31
    d = (step.amax(1, keepdim=True) / 127).half().float()
    sc = torch.round(step / d).to(torch.int8)
    codes = (torch.round(w / (d * sc)[..., None]).clamp(-32, 31) + 32).to(torch.uint8).view(6, 2, 4, 32)
    low = codes[:, :, :2] & 15 | (codes[:, :, 2:] & 15) << 4
    high = codes[:, :, 0] >> 4 | codes[:, :, 1] >> 4 << 2 | codes[:, :, 2] >> 4 << 4 | codes[:, :, 3] >> 4 << 6
    parts = [low[:, :, 0] & 15, low[:, :, 1] & 15, low[:, :, 0] >> 4, low[:, :, 1] >> 4]
    read = torch.stack([part | (high >> 2 * each & 3) << 4 for each, part in enumerate(parts)], 2)
    dense = (read.to(torch.int8) - 32).float().view(6, 16, 16) * (d * sc)[..., None]
    return (normal(8, 256) @ dense.view(6, 256).t()).to(LOW)


def outliers_in_full() -> torch.Tensor:
    """LLM.int8(): columns with outliers are zero among the codes, and are multiplied in full."""
    x, w = normal(32, 64) * torch.where(torch.arange(64) % 32 == 5, 12.0, 1.0), normal(48, 64, seed=1)
    far = x.abs().amax(0) > 8
    (qx, sx), (qw, sw) = to_int8(x.masked_fill(far, 0), 1), to_int8(w, 1)
    dequantised = qw[:, far].float() * sw
    return (qx.float() @ qw.float().t() * sx * sw.t() + x[:, far] @ dequantised.t()).to(LOW)


def probabilities_times_448() -> torch.Tensor:
    """Attention in float8 by tiles: exponentials are raised to 448 before the cast, and their sum is too."""
    q, k, v = normal(4, 8, 16), normal(4, 32, 16, seed=1), normal(4, 32, 16, seed=2)
    codes, scale = to_float8(v, (1, 2))
    top, total, out = torch.full((4, 8, 1), -torch.inf), torch.zeros(4, 8, 1), torch.zeros(4, 8, 16)
    for tile in range(2):
        part = slice(16 * tile, 16 * tile + 16)
        scores = q @ k[:, part].mT / 4
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        p = torch.exp(scores - new) * 448
        keep = torch.exp(top - new)
        total = total * keep + p.sum(-1, keepdim=True)
        out = out * keep + p.to(E4M3).float() @ codes[:, part].float()
        top = new
    return (out / total * scale).transpose(0, 1).reshape(8, 64).to(LOW)


def product_then_its_greatest() -> torch.Tensor:
    """SwiGLU and its cast are fused, and the scale is the product's."""
    gate, up, w = normal(32, 64), 3 * normal(32, 64, seed=1), normal(24, 64, seed=2)
    codes, top = to_float8((nn.functional.silu(gate) * up).view(32, 4, 16), -1)
    return ((codes.float() * top).view(32, 64) @ w.t()).to(LOW)


def merged_and_rounded_again() -> torch.Tensor:
    """bitsandbytes: a weight in int8 under the greatest of each row is dequantised, an adapter is added, and the sum is rounded again."""
    w, delta = channels(), normal(64, 4, seed=3) @ normal(4, 64, seed=4) / 8
    top = w.abs().amax(1, keepdim=True)
    merged = torch.round(w * (127 / top)).to(torch.int8).float() * top / 127 + delta
    top = merged.abs().amax(1, keepdim=True)
    codes = torch.round(merged * (127 / top)).to(torch.int8)
    return (normal(8, 64) @ codes.float().t() * (top / 127).t()).to(LOW)


def tokens_sent_with_scales() -> torch.Tensor:
    """Tokens in float8 and their scales, stored column by column, go to experts and come back, weighted by a router."""
    x = normal(12, 4, 32) * torch.exp2(normal(12, 4, 1, seed=2))
    codes, scale = to_float8(x, -1)
    stored = scale.squeeze(-1).t().contiguous()
    chances, chosen = torch.softmax(normal(12, 4, seed=7), -1).topk(2)
    out = torch.zeros(12, 16)
    for expert in range(4):
        token, slot = torch.where(chosen == expert)
        dense = codes.view(torch.uint8)[token].view(E4M3).float() * stored[:, token].t()[..., None]
        out.index_add_(0, token, dense.view(-1, 128) @ normal(128, 16, seed=expert) * chances[token, slot, None])
    return out.to(LOW)


def queries_and_keys_turned_after_places() -> torch.Tensor:
    """QuaRot: queries and keys are turned after their places were put in, and keys are kept in four bits with a zero point for each token."""
    angles = torch.arange(20)[:, None] * torch.exp2(-torch.arange(8.0))
    cos, sin = torch.cat([angles.cos()] * 2, 1), torch.cat([angles.sin()] * 2, 1)

    def placed(t: torch.Tensor) -> torch.Tensor:
        return (t * cos + torch.cat([-t[..., 8:], t[..., :8]], -1) * sin) @ hadamard(16)

    q, k = placed(normal(2, 20, 16)), placed(normal(2, 20, 16, seed=1) * torch.where(torch.arange(16) == 3, 8.0, 1.0))
    low = k.amin(-1, keepdim=True)
    step = (k.amax(-1, keepdim=True) - low) / 15
    held = torch.round((k - low) / step).to(torch.uint8).float() * step + low
    return torch.softmax(q @ held.mT / 4, -1).to(LOW)


HEALTHY = (both_turned_with_the_same_signs, chance_over_the_gap, zero_points_fitted, factors_searched, two_projections_smoothed, keys_in_chunks,
           six_bits_of_scales, six_bits_in_two_parts, outliers_in_full, probabilities_times_448, product_then_its_greatest,
           merged_and_rounded_again, tokens_sent_with_scales, queries_and_keys_turned_after_places)  # fmt: skip
