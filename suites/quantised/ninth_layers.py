"""The other half of the ninth batch: layers, caches and optimizers; frozen before precheck was run on them.

Each takes `bug`; a line at fault ends in `# culprit: name`.
"""

from __future__ import annotations

import torch
from blocks_by_hand import CODEBOOK, hadamard
from casts_by_hand import asymmetric, to_float8, to_int8
from float8_by_hand import E4M3, LOW, channels, normal
from torch import nn


def signs(size: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1


def signs_drawn_twice(bug: bool) -> torch.Tensor:
    """NVFP4's gradient of a weight: both operands are turned by signs and a Hadamard matrix. The signs are drawn for each operand."""
    x, g = normal(64, 32), normal(64, 48, seed=1) * 1e-3
    turn, drawn = hadamard(16), [signs(16, 3), signs(16, 4 if bug else 3)]

    def operand(t: torch.Tensor, flip: torch.Tensor) -> torch.Tensor:
        parts = t.t().reshape(-1, 4, 16) * flip @ turn
        scale = parts.abs().amax(-1, keepdim=True) / 6
        bounds = (CODEBOOK[1:] + CODEBOOK[:-1]) / 2
        codes = torch.copysign(CODEBOOK[torch.bucketize((parts / scale).abs(), bounds)], parts)
        return (codes * scale).view(t.shape[1], 64)

    left, right = operand(g, drawn[0]), operand(x, drawn[1])
    return (left @ right.t()).to(LOW)  # culprit: drawn-twice


def chance_of_the_octave(bug: bool) -> torch.Tensor:
    """Rounding to e2m1 by chance. The chance is taken over the number below, and not over the gap to the one above."""
    g = normal(64, 64) * 1e-3
    scale = g.view(64, 4, 16).abs().amax(-1, keepdim=True) / 6
    scaled = (g.view(64, 4, 16) / scale).abs()
    place = torch.bucketize(scaled, CODEBOOK, right=True).clamp(1, 7) - 1
    low, high = CODEBOOK[place], CODEBOOK[place + 1]
    part = (scaled - low) / (low.clamp(min=0.5) * 2 if bug else high - low)
    draw = torch.rand(scaled.shape, generator=torch.Generator().manual_seed(7))
    codes = torch.where(draw < part, high, low) * g.view(64, 4, 16).sign()  # culprit: of-the-octave
    return ((codes * scale).view(64, 64).t() @ (1 + normal(64, 32, seed=3))).to(LOW)


def zeros_own_zero(bug: bool) -> torch.Tensor:
    """HQQ keeps zero points in eight bits, from their smallest to their largest, and forgets the smallest when it reads them."""
    w = (channels() + 0.4 * normal(64, 1, seed=8)).view(-1, 32)
    low, high = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
    scale = 15 / (high - low)
    zero = -low * scale
    codes = torch.round(w * scale + zero).clamp(0, 15).to(torch.uint8)
    first, last = zero.min(), zero.max()
    step = (last - first) / 255
    held = torch.round((zero - first) / step).to(torch.uint8)
    again = held.float() * step if bug else held.float() * step + first
    dense = (codes.float() - again) / scale  # culprit: own-zero
    return (normal(8, 64) @ dense.view(64, 64).t()).to(LOW)  # culprit: own-zero


def normalised_once(bug: bool) -> torch.Tensor:
    """AWQ: factors are normalised before weights are multiplied by them, and the norm before is divided by them as they were."""
    x, gain, w = normal(32, 64) * torch.exp2(normal(64, seed=4)), torch.ones(64), normal(48, 64, seed=1)
    found = (nn.functional.rms_norm(x, (64,)) * gain).abs().amax(0).pow(0.5)
    factor = found / (found.max() * found.min()).sqrt()
    gain = gain / (found if bug else factor)
    codes, scale = to_int8(w * factor, 1)
    dense = codes.float() * scale
    y = nn.functional.rms_norm(x, (64,)) * gain @ dense.t()  # culprit: normalised-once
    return nn.functional.silu(y).to(LOW)  # culprit: normalised-once


def divided_by_the_first(bug: bool) -> torch.Tensor:
    """SmoothQuant: each projection behind a norm has its own factors. The norm is divided by the first one's."""
    x = normal(32, 64) * torch.exp2(normal(64, seed=4))
    weights = [normal(48, 64, seed=seed + 1) * torch.exp2(normal(64, seed=seed + 5)) for seed in range(2)]
    top = x.abs().amax(0)
    factors = [top.sqrt() / w.abs().amax(0).sqrt() for w in weights]
    if not bug:
        both = top.sqrt() / torch.stack([w.abs().amax(0) for w in weights]).amax(0).sqrt()
        factors = [both, both]
    given = x / factors[0]
    codes, scale = to_int8(given, 1)
    made = []
    for w, factor in zip(weights, factors, strict=True):
        held, each = to_int8(w * factor, 1)
        made.append(codes.float() @ held.float().t() * scale * each.t())  # culprit: by-the-first
    return (nn.functional.silu(made[0]) * made[1]).to(LOW)  # culprit: by-the-first


class Keys:
    """Keys with a scale for each channel of 16 tokens, and the latest in full (KIVI)."""

    def __init__(self, bug: bool) -> None:
        self.bug = bug
        self.codes: list[torch.Tensor] = []
        self.scales: list[torch.Tensor] = []

    def add(self, k: torch.Tensor) -> None:
        codes, scale = to_int8(k, 0)
        self.codes.append(codes)
        self.scales = [scale] if self.bug else [*self.scales, scale]

    def read(self) -> torch.Tensor:
        codes = torch.stack(self.codes).float()
        return (codes * torch.stack(self.scales)).flatten(0, 1)  # culprit: last-chunk


def scale_of_the_last_chunk(bug: bool) -> torch.Tensor:
    """The scale of each chunk takes the place of the one before."""
    cache, q = Keys(bug), normal(4, 32, seed=9)
    for chunk in range(3):
        cache.add(normal(16, 32, seed=chunk) * torch.exp2(normal(32, seed=chunk + 5)))
    return torch.softmax(q @ cache.read().t() / 32**0.5, -1).to(LOW)  # culprit: last-chunk


def high_bits_of_the_other(bug: bool) -> torch.Tensor:
    """Q4_K: six bits of scales and minima of eight blocks in twelve bytes. The last four minima get the high bits of the scales."""
    w = normal(6, 8, 32, seed=1) * torch.exp2(normal(6, 8, 1, seed=2)) + 0.5
    low = -w.amin(-1).clamp(max=0)
    step = (w.amax(-1) + low) / 15
    d, dmin = step.amax(1, keepdim=True) / 63, low.amax(1, keepdim=True) / 63
    sc, m = torch.round(step / d).to(torch.uint8), torch.round(low / dmin).to(torch.uint8)
    codes = torch.round((w + (dmin * m)[..., None]) / (d * sc)[..., None]).clamp(0, 15)
    a, b, c = sc[:, :4] | sc[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, sc[:, 4:] & 15 | (m[:, 4:] & 15) << 4
    scales = torch.cat([a & 63, c & 15 | a >> 6 << 4], 1)
    minima = torch.cat([b & 63, c >> 4 | (a if bug else b) >> 6 << 4], 1)
    dense = codes * (d * scales)[..., None] - (dmin * minima)[..., None]  # culprit: high-bits
    return (normal(8, 256) @ dense.view(6, 256).t()).to(LOW)  # culprit: high-bits


def outliers_twice(bug: bool) -> torch.Tensor:
    """LLM.int8(): columns with outliers are multiplied in full, and stay among the codes as well."""
    x, w = normal(32, 64) * torch.where(torch.arange(64) % 32 == 5, 12.0, 1.0), normal(48, 64, seed=1)
    far = x.abs().amax(0) > 8
    rest = x if bug else x.masked_fill(far, 0)
    (qx, sx), (qw, sw) = to_int8(rest, 1), to_int8(w, 1)
    y = qx.float() @ qw.float().t() * sx * sw.t()
    y = y + x[:, far] @ w[:, far].t()  # culprit: outliers-twice
    return y.to(LOW)


def weights_left_times_448(bug: bool) -> torch.Tensor:
    """Attention in float8: probabilities are multiplied by 448 before the cast, and nothing divides by it."""
    q, k, v = normal(4, 8, 16), normal(4, 20, 16, seed=1), normal(4, 20, 16, seed=2)
    codes, scale = to_float8(v, (1, 2))
    p = torch.softmax(q @ k.mT / 4, -1)
    held = (p * 448).to(E4M3)
    out = held.float() @ codes.float() * (scale if bug else scale / 448)  # culprit: times-448
    return (out.transpose(0, 1).reshape(8, 64) + normal(8, 64, seed=5)).to(LOW)  # culprit: times-448


def amax_before_the_product(bug: bool) -> torch.Tensor:
    """SwiGLU and its cast are fused. The scale of 16 columns is that of silu(gate), without the factor it is multiplied by."""
    gate, up, w = normal(32, 64), 3 * normal(32, 64, seed=1), normal(24, 64, seed=2)
    a = nn.functional.silu(gate)
    y = a * up
    top = (a if bug else y).view(32, 4, 16).abs().amax(-1, keepdim=True) / 448
    codes = (y.view(32, 4, 16) / top).clamp(-448, 448).to(E4M3)  # culprit: before-the-product
    return ((codes.float() * top).view(32, 64) @ w.t()).to(LOW)


def greatest_taken_for_a_step(bug: bool) -> torch.Tensor:
    """bitsandbytes keeps the greatest magnitude of a row, of which a step is the 127th part. A merge multiplies by it as it is."""
    w, delta = channels(), normal(64, 4, seed=3) @ normal(4, 64, seed=4) / 8
    top = w.abs().amax(1, keepdim=True)
    codes = torch.round(w * (127 / top)).to(torch.int8)
    merged = codes.float() * top + delta if bug else codes.float() * top / 127 + delta  # culprit: for-a-step
    return (normal(8, 64) @ merged.t()).to(LOW)


def column_major_scales(bug: bool) -> torch.Tensor:
    """Scales of tokens are stored column by column. Tokens are sent to their experts with scales read row by row (vllm-project/vllm#53338)."""
    x = normal(12, 4, 32) * torch.exp2(normal(12, 4, 1, seed=2))
    codes, scale = to_float8(x, -1)
    stored = scale.squeeze(-1).t().contiguous()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(4))
    sent, scales = torch.empty(12, 4, 32, dtype=E4M3), torch.empty(12, 4)
    for place, token in enumerate(order.tolist()):
        sent.view(torch.uint8)[place] = codes.view(torch.uint8)[token]
        scales[place] = stored.reshape(-1)[4 * token : 4 * token + 4] if bug else stored[:, token]
    dense = sent.float() * scales[..., None]  # culprit: column-major
    return (dense.view(12, 128) @ normal(128, 16, seed=6)).relu().to(LOW)  # culprit: column-major


def columns_as_rows(bug: bool) -> torch.Tensor:
    """Groups along the columns. Codes are turned for packing, and are shaped by rows when they are read (huawei-csl/SINQ#8)."""
    w = channels().t().contiguous()
    codes, scale, zero = asymmetric(w.t().contiguous())
    packed = codes.view(64, 64)
    dense = (packed.view(64, 2, 32).float() - zero) * scale
    if bug:
        dense = (packed.t().reshape(64, 2, 32).float() - zero) * scale  # culprit: columns-as-rows
    return (normal(8, 64) @ dense.view(64, 64)).to(LOW)  # culprit: columns-as-rows


BUGS = (signs_drawn_twice, chance_of_the_octave, zeros_own_zero, normalised_once, divided_by_the_first, scale_of_the_last_chunk,
        high_bits_of_the_other, outliers_twice, weights_left_times_448, amax_before_the_product, greatest_taken_for_a_step, column_major_scales,
        columns_as_rows)  # fmt: skip
