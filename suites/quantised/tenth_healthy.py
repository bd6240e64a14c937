"""Healthy code that looks like the tenth batch's faults, frozen before precheck was run on it."""

from __future__ import annotations

import torch
from float8_by_hand import E4M3, LOW, channels, normal
from tenth_recipes import NF4, cholesky_of_inverse
from torch import nn


def scales_found_at_each_group() -> torch.Tensor:
    """GPTQ that looks for a group's scale when it comes to its first column, in what is left of the weight by then."""
    x = normal(256, 128) @ (torch.eye(128) + 0.1 * normal(128, 128, seed=6))
    w, inverse = normal(48, 128, seed=1) * torch.exp2(normal(1, 4, seed=2).repeat_interleave(32, 1)), cholesky_of_inverse(x)
    codes, scales = torch.zeros(48, 128, dtype=torch.int8), torch.zeros(48, 4)
    for start in range(0, 128, 16):
        block, errors = w[:, start : start + 16].clone(), torch.zeros(48, 16)
        for i in range(16):
            column = start + i
            if column % 32 == 0:
                scales[:, column // 32] = w[:, column : column + 32].abs().amax(1) / 7
            scale = scales[:, column // 32]
            q = torch.round(block[:, i] / scale).clamp(-8, 7)
            codes[:, column] = q.to(torch.int8)
            error = (block[:, i] - q * scale) / inverse[column, column]
            block[:, i:] -= error[:, None] * inverse[column, column : start + 16]
            errors[:, i] = error
        w[:, start + 16 :] -= errors @ inverse[start : start + 16, start + 16 :]
    group = torch.arange(128) // 32
    return (x[:16] @ (codes.float() * scales[:, group]).t()).to(LOW)


def zero_points_of_64_bits() -> torch.Tensor:
    """Zero points are stored as int64 bytes and read as such; the correction is a sum over the input."""
    w, x = channels() + 0.3, normal(8, 64)
    low, high = w.amin(1), w.amax(1)
    scale = (high - low) / 255
    stored = torch.round(-low / scale).to(torch.int64).view(torch.uint8)
    codes = torch.round(w / scale[:, None] + stored.view(torch.int64)[:, None]).clamp(0, 255).to(torch.uint8)
    zero = stored.view(torch.int64).float()
    return ((x @ codes.float().t() - x.sum(1, keepdim=True) * zero) * scale).to(LOW)


def bytes_within_words() -> torch.Tensor:
    """Words of int32 hold four codes as signed bytes, which a view takes apart."""
    w = channels()
    scale = w.abs().amax(1, keepdim=True) / 127
    words = torch.round(w / scale).to(torch.int8).contiguous().view(torch.int32)
    dense = words.view(torch.int8).float() * scale
    return (normal(8, 64) @ dense.t()).to(LOW)


def exponents_below_zero() -> torch.Tensor:
    """Scales are kept as signed exponents without a bias, and applied by `ldexp`."""
    x = normal(32, 4, 32) * torch.exp2(7 + 2 * normal(32, 4, 1, seed=1))
    exponent = torch.ceil(torch.log2(x.abs().amax(-1, keepdim=True) / 448)).to(torch.int8)
    codes = torch.ldexp(x, -exponent.to(torch.int32)).to(E4M3)
    dense = torch.ldexp(codes.float(), exponent.to(torch.int32))
    return (dense.view(32, 128) @ normal(128, 16, seed=3)).to(LOW)


def parts_that_share_a_block() -> torch.Tensor:
    """Blocks of 16 x 16 over queries, keys and values of 40, 24 and 24 rows: scales are spread over rows first, and cut then."""
    w, x = (normal(96, 64) * torch.exp2(normal(6, 1, seed=2)).repeat_interleave(16, 0)).view(6, 16, 4, 16), normal(8, 64, seed=5)
    scale = w.abs().amax((1, 3)) / 448
    weight = (w / scale[:, None, :, None]).to(E4M3).view(96, 64)
    each = scale.repeat_interleave(16, 0).repeat_interleave(16, 1)
    parts = zip(weight.view(torch.uint8).split([40, 24, 32]), each.split([40, 24, 32]), strict=True)
    q, k, v = ((x @ (codes.view(E4M3).float() * s).t()).to(LOW) for codes, s in parts)
    return torch.cat([v, q, k], 1)


def greatest_while_reading() -> torch.Tensor:
    """A block's greatest magnitude is kept up while its parts are read, and the whole block is rounded after that."""
    w = channels().view(-1, 64)
    absmax = torch.zeros(len(w))
    for part in w.split(16, 1):
        absmax = torch.maximum(absmax, part.abs().amax(1))
    codes = torch.stack([(row / top - NF4[:, None]).abs().argmin(0) for row, top in zip(w, absmax, strict=True)]).to(torch.uint8)
    dense = NF4[codes.int()] * absmax[:, None]
    return (normal(8, 64) @ dense.view(64, 64).t()).to(LOW)


def scales_padded_to_groups() -> torch.Tensor:
    """QLoRA of 60 rows: 240 scales are padded to 256 for groups of 64, dequantised by groups, and cut to 240 again."""
    w = channels()[:60].reshape(240, 16)
    absmax = w.abs().amax(1)
    offset = absmax.mean()
    grouped = nn.functional.pad(absmax - offset, (0, 16)).view(4, 64)
    double = grouped.abs().amax(1, keepdim=True) / 127
    held = torch.round(grouped / double).to(torch.int8)
    read = (held.float() * double).flatten()[:240] + offset
    levels = (w[..., None] / absmax[:, None, None] - NF4).abs().argmin(-1)
    dense = (NF4[levels] * read[:, None]).view(60, 64)
    return (normal(8, 64) @ dense.t()).to(LOW)


def halves_of_signed_bytes() -> torch.Tensor:
    """Two signed codes an int8: both are cut to four bits when packed, and shifts bring their signs back."""
    w = channels().view(64, 4, 16)
    scale = (w.abs().amax(-1, keepdim=True) / 7).to(LOW)
    q = torch.round(w / scale.float()).to(torch.int8).view(64, 2, 32)
    packed = (q[:, 0] & 15) | (q[:, 1] & 15) << 4
    both = torch.cat([packed << 4 >> 4, packed >> 4], 1).view(64, 4, 16)
    return normal(8, 64).to(LOW) @ (both.to(LOW) * scale).view(64, 64).t()


def blocks_promoted_in_pairs() -> torch.Tensor:
    """Blocks along the inner dimension of which two share their scales; sums of two are multiplied by them."""
    x, w = normal(16, 8, 16) * torch.exp2(normal(16, 8, 1, seed=3)), normal(64, 8, 16, seed=1)
    sx = x.view(16, 4, 32).abs().amax(-1) / 448
    sw = w.view(2, 32, 4, 32).abs().amax((1, 3)).repeat_interleave(32, 0) / 448
    qx = (x / sx.repeat_interleave(2, 1)[..., None]).to(E4M3).float()
    qw = (w / sw.repeat_interleave(2, 1)[..., None]).to(E4M3).float()
    total = torch.zeros(16, 64)
    for k in range(0, 8, 2):
        part = qx[:, k] @ qw[:, k].t() + qx[:, k + 1] @ qw[:, k + 1].t()
        total.addcmul_(part, sx[:, k // 2, None] * sw[:, k // 2])
    return nn.functional.silu(total).to(LOW)


class PerToken(nn.Module):
    """int8 by int8 with a scale for each token and channel. The factors of channels are made once."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.factor = (weight.abs().amax(1) / 127).to(LOW)
        self.codes = torch.round(weight / self.factor.float()[:, None]).clamp(-127, 127).to(torch.int8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        q = torch.round(x.float() / scale).to(torch.int8)
        sums = q.int().flatten(0, -2) @ self.codes.int().t()
        return (sums.float() * scale.flatten(0, -2) * self.factor).view(*x.shape[:-1], -1).to(x.dtype)


def factors_of_channels_made_once() -> torch.Tensor:
    first, second, x = PerToken(channels()), PerToken(normal(32, 64, seed=5)), normal(2, 8, 64).to(LOW)
    made = [second(nn.functional.gelu(first(x * (1 + step) / 8))) for step in range(3)]
    return torch.cat(made, 1)


def history_over_microbatches() -> torch.Tensor:
    """Delayed scales of inputs whose greatest magnitude is kept up over the batches of a step."""
    w, history, scale = channels(), torch.full((4,), 10.0), torch.tensor(44.8)
    weight_scale = w.abs().amax() / 448
    held, made = (w / weight_scale).to(E4M3).float(), []
    for step in range(8):
        amax = torch.zeros(())
        for part in range(3):
            x = normal(16, 64, seed=3 * step + part) * (2.5 if part == step % 3 else 1.2)
            made.append((x * scale).clamp(-448, 448).to(E4M3).float() @ held.t() * (weight_scale / scale))
            amax = torch.maximum(amax, x.abs().amax())
        history = torch.roll(history, 1)
        history[0] = amax
        scale = 448 / history.amax() / 1.1
    return torch.cat(made).to(LOW)


def probabilities_times_a_constant() -> torch.Tensor:
    """Attention in float8: exponentials without their sum are at most 1, and are multiplied by 256 before the cast. The sum is divided out after."""
    q, k, v = (normal(2, 4, 32, 16, seed=seed) for seed in range(3))
    v_scale = v.abs().amax((-2, -1), keepdim=True) / 448
    scores = q @ k.mT / 4
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    sums = e.sum(-1, keepdim=True)
    out = (e * 256).to(E4M3).float() @ (v / v_scale).to(E4M3).float()
    return (out * (v_scale / (256 * sums))).transpose(1, 2).reshape(2, 32, 64).to(LOW)


def scales_within_pages() -> torch.Tensor:
    """Pages of eight tokens, padded to 192 bytes: the codes of all tokens, then their scales in float32."""
    k, v, q = normal(24, 16, seed=1) * torch.exp2(normal(24, 1, seed=2)), normal(24, 16, seed=3), normal(8, 16)
    read = []
    for t in (k, v):
        scale = t.abs().amax(1, keepdim=True) / 127
        pages = torch.zeros(3, 192, dtype=torch.int8)
        pages[:, :128] = torch.round(t / scale).to(torch.int8).view(3, 128)
        pages[:, 128:160] = scale.view(torch.int8).view(3, 32)
        codes = pages.as_strided((3, 8, 16), (192, 16, 1))
        scales = pages[:, 128:160].contiguous().view(torch.float32)
        read.append((codes.float() * scales[..., None]).view(24, 16))
    return (torch.softmax(q @ read[0].t() / 4, -1) @ read[1]).to(LOW)


HEALTHY = (scales_found_at_each_group, zero_points_of_64_bits, bytes_within_words, exponents_below_zero, parts_that_share_a_block,
           greatest_while_reading, scales_padded_to_groups, halves_of_signed_bytes, blocks_promoted_in_pairs, factors_of_channels_made_once,
           history_over_microbatches, probabilities_times_a_constant, scales_within_pages)  # fmt: skip
