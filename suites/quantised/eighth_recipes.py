"""An eighth batch of recipes written by hand, after faults that were reported in public; frozen before precheck was run on them.

Each takes `bug`; a line at fault ends in `# culprit: name`.
"""

from __future__ import annotations

import torch
from casts_by_hand import Codes, asymmetric, power_above, to_float8, to_fp4, to_int8
from float8_by_hand import E4M3, LOW, channels, normal
from torch import nn


def rounded_up_afterwards(bug: bool) -> torch.Tensor:
    """Scales are rounded up to powers of two after they have been quantised with (sgl-project/sglang#28418)."""
    x, w = normal(16, 4, 32), normal(24, 4, 32, seed=1)

    def quantise(t: torch.Tensor) -> Codes:
        scale = t.abs().amax(-1, keepdim=True) / 448
        if bug:
            return (t / scale).to(E4M3), power_above(scale)
        scale = power_above(scale)
        return (t / scale).to(E4M3), scale

    (qx, sx), (qw, sw) = quantise(x), quantise(w)
    sums = torch.einsum("rbk,obk->rob", qx.float(), qw.float())
    return (sums * sx.squeeze(-1)[:, None] * sw.squeeze(-1)).sum(-1).to(LOW)  # culprit: rounded-up-afterwards


def size_from_shapes(bug: bool) -> torch.Tensor:
    """A block's side is the number of rows over that of scales, and the last block is a partial one (NVIDIA/TensorRT-Model-Connect#1115)."""
    w = normal(100, 64) * torch.exp2(normal(100, 1, seed=2))
    scales = torch.stack([part.abs().amax() / 448 for part in w.split(16)])
    codes = torch.cat([(part / scale).to(E4M3) for part, scale in zip(w.split(16), scales, strict=True)])
    size = -(-len(w) // len(scales)) if bug else 16
    dense = torch.empty(100, 64)
    for block, scale in enumerate(scales):
        part = slice(size * block, min(size * (block + 1), 100))
        dense[part] = codes[part].float() * scale  # culprit: size-from-shapes
    return (normal(8, 64) @ dense.t()).to(LOW)  # culprit: size-from-shapes


def delta_onto_codes(bug: bool) -> torch.Tensor:
    """An adapter is added to float8 weights when a checkpoint is merged, and their scales are not multiplied by (axolotl-ai-cloud/axolotl#3771)."""
    w, down, up = normal(32, 64), normal(4, 64, seed=1) / 8, normal(32, 4, seed=2) / 4
    codes, scale = to_float8(w, (0, 1))
    delta = up @ down
    if bug:
        merged = (codes.float() + delta).to(E4M3)  # culprit: delta-onto-codes
    else:
        merged, scale = to_float8(codes.float() * scale + delta, (0, 1))
    return (normal(8, 64, seed=3) @ (merged.float() * scale).t()).to(LOW)


def divisor_taken_for_a_factor(bug: bool) -> torch.Tensor:
    """NVFP4: the factor of the whole tensor is kept as what scales are divided by, and is multiplied by (modular/modular#6600)."""
    x, w = normal(8, 64), channels()
    over = 6 * 448 / w.abs().amax()
    codes, scale = to_fp4(w, over)
    dense = codes * scale.float() * (over if bug else 1 / over)  # culprit: divisor
    return nn.functional.gelu(x @ dense.view(64, 64).t()).to(LOW)  # culprit: divisor


def largest_of_the_two(bug: bool) -> torch.Tensor:
    """Two projections in NVFP4 are fused, and the greater factor is taken for both (vllm-project/vllm#41769)."""
    x, gate, up = normal(8, 64), normal(32, 64, seed=1), normal(32, 64, seed=2) * 0.3
    overs = [6 * 448 / each.abs().amax() for each in (gate, up)]
    parts = [to_fp4(each, over) for each, over in zip((gate, up), overs, strict=True)]
    factors = torch.stack([1 / over for over in overs])
    codes, scales = torch.cat([each for each, _ in parts]), torch.cat([scale for _, scale in parts]).float()
    factor = factors.max() if bug else factors.repeat_interleave(32).view(64, 1, 1)
    dense = (codes * (scales * factor)).view(64, 64)  # culprit: largest-of-the-two
    a, b = (x @ dense.t()).chunk(2, 1)  # culprit: largest-of-the-two
    return (nn.functional.silu(a) * b).to(LOW)


def projections_of_one_scale(bug: bool) -> torch.Tensor:
    """Queries, keys and values are quantised under one scale and dequantised each by its own (1bit-MONSTER/1bit-MONSTER#33)."""
    x = normal(12, 64)
    parts = [normal(32, 64, seed=1), normal(16, 64, seed=2) * 0.5, normal(16, 64, seed=3) * 0.25]
    fused = torch.cat(parts)
    codes, scale = to_int8(fused, (0, 1))
    scales = [each.abs().amax() / 127 for each in parts] if bug else [scale] * 3
    rows = x.abs().amax(1, keepdim=True) / 127
    sums = torch.round(x / rows) @ codes.float().t()
    q, k, v = (y * (rows * s) for y, s in zip(sums.split([32, 16, 16], 1), scales, strict=True))  # culprit: one-scale
    scores = torch.einsum("thd,sd->hts", q.view(12, 2, 16), k) / 4  # culprit: one-scale
    return (torch.softmax(scores, -1) @ v).to(LOW)  # culprit: one-scale


def first_heads_scale(bug: bool) -> torch.Tensor:
    """Values in float8 have a scale for each head, and the first one is read for all (sgl-project/sgl-kernel-xpu#252)."""
    q, k = normal(4, 8, 16), normal(4, 20, 16, seed=1)
    v = normal(4, 20, 16, seed=2) * torch.tensor([1.0, 0.2, 3.0, 0.6]).view(4, 1, 1)
    (kq, ks), (vq, vs) = to_float8(k, (1, 2)), to_float8(v, (1, 2))
    weights = torch.softmax(q @ kq.float().mT * ks / 4, -1)
    out = weights @ vq.float() * (vs[0] if bug else vs)  # culprit: first-heads
    return nn.functional.rms_norm(out.transpose(0, 1).reshape(8, 64), (64,)).to(LOW)  # culprit: first-heads


def fixed_range(bug: bool) -> torch.Tensor:
    """Inputs in int8 under a scale that is written down for numbers up to 5, and go up to 16 (1bit-MONSTER/1bit-MONSTER#672)."""
    x = normal(16, 64) * torch.where(torch.arange(64) % 16 == 3, 5.0, 1.0)
    codes, scale = to_int8(normal(24, 64, seed=1), 1)
    by = 127.0 / 5.0 if bug else 127.0 / float(x.abs().max())
    given = torch.clamp(torch.round(x * by), -127, 127)  # culprit: fixed-range
    return (given @ codes.float().t() / by * scale.t()).to(LOW)


def added_zero_points(bug: bool) -> torch.Tensor:
    """Zero points are added to codes times scales, and are in the unit of codes (1bit-MONSTER/1bit-MONSTER#2629)."""
    codes, scale, zero = asymmetric(channels() + 0.2)
    dense = codes.float() * scale + zero if bug else (codes.float() - zero) * scale  # culprit: added-zero-points
    return (normal(8, 64) @ dense.view(64, 64).t()).to(LOW)  # culprit: added-zero-points


def scales_row_by_row(bug: bool) -> torch.Tensor:
    """Scales are stored group by group and read row by row, in one flat buffer with the codes (1bit-MONSTER/1bit-MONSTER#2316)."""
    w = normal(32, 256, seed=1) * torch.exp2(normal(32, 8, seed=2)).repeat_interleave(32, 1)
    codes, scale, zero = asymmetric(w)
    stored = torch.cat([scale.view(32, 8).t().reshape(-1), codes.reshape(-1).float()])
    dense = torch.empty(32, 256)
    for row in range(32):
        for group in range(8):
            place = 8 * row + group if bug else 32 * group + row
            part = stored[256 + 256 * row + 32 * group :][:32]
            dense[row, 32 * group : 32 * group + 32] = (part - zero[row, group]) * stored[place]  # culprit: row-by-row
    return (normal(8, 256) @ dense.t()).to(LOW)  # culprit: row-by-row


def residuals_of_codes(bug: bool) -> torch.Tensor:
    """What rounding leaves is kept in a low rank. It is taken from the codes and not from what they stand for (opengear-project/GEAR#5)."""
    keys, q = normal(48, 32) + 2 * normal(48, 2, seed=1) @ normal(2, 32, seed=2), normal(6, 32, seed=3)
    low, high = keys.amin(-1, keepdim=True), keys.amax(-1, keepdim=True)
    step = (high - low) / 3
    codes = torch.round((keys - low) / step)
    dense = codes * step + low
    error = keys - (codes if bug else dense)  # culprit: residuals-of-codes
    u, s, v = torch.linalg.svd(error, full_matrices=False)
    held = dense + u[:, :4] * s[:4] @ v[:4]
    return torch.softmax(q @ held.t() / 32**0.5, -1).to(LOW)


def tokens_under_heads(bug: bool) -> torch.Tensor:
    """A flat cache is filled by chunks of tokens, each head by head, and read as if it were filled at once (Pushkinist/rMLX#103)."""
    flat, scales, chunks = torch.zeros(24 * 2 * 16, dtype=torch.int8), torch.zeros(24 * 2), (16, 8)
    done = 0
    for size in chunks:
        codes, scale = to_int8(normal(2, size, 16, seed=size) * torch.exp2(normal(2, size, 1, seed=size + 1)), -1)
        if not bug:
            codes, scale = codes.transpose(0, 1), scale.transpose(0, 1)
        flat[32 * done : 32 * (done + size)] = codes.reshape(-1)
        scales[2 * done : 2 * (done + size)] = scale.reshape(-1)
        done += size
    if bug:
        keys = flat.view(2, 24, 16).float() * scales.view(2, 24, 1)  # culprit: tokens-under-heads
    else:
        keys = (flat.view(24, 2, 16).float() * scales.view(24, 2, 1)).transpose(0, 1)
    return torch.softmax(normal(2, 4, 16, seed=9) @ keys.mT / 4, -1).to(LOW)  # culprit: tokens-under-heads


def groups_of_a_shard(bug: bool) -> torch.Tensor:
    """GPTQ in the order of the inputs' size. Each rank looks for its columns' groups in its own part of the scales (vllm-project/vllm#7374)."""
    order = torch.randperm(64, generator=torch.Generator().manual_seed(5))
    w, group = channels().t() * torch.exp2(normal(64, 1, seed=6)), torch.empty(64, dtype=torch.long)
    group[order] = torch.arange(64) // 16
    scales = torch.stack([w[group == each].abs().amax(0) / 7 for each in range(4)])
    codes, x = torch.round(w / scales[group]).to(torch.int8), normal(8, 64)
    total = torch.zeros(8, 64)
    for rank in range(2):
        part = slice(32 * rank, 32 * rank + 32)
        held = scales[2 * rank : 2 * rank + 2] if bug else scales
        dense = codes[part].float() * held[group[part] % 2 if bug else group[part]]  # culprit: groups-of-a-shard
        total += x[:, part] @ dense  # culprit: groups-of-a-shard
    return total.to(LOW)


def zeros_cut_off(bug: bool) -> torch.Tensor:
    """Zero points are cast to integers without rounding, after codes were made (SonySemiconductorSolutions/mct-quantization-layers#124)."""
    w = (channels() - 0.3).view(64, 4, 16)
    low, high = w.amin(-1, keepdim=True), w.amax(-1, keepdim=True)
    scale = (high - low) / 7
    exact = -low / scale
    codes = torch.round(w / scale + exact).clamp(0, 7).to(torch.uint8)
    zero = exact.int() if bug else exact
    dense = (codes.float() - zero) * scale  # culprit: zeros-cut-off
    return (normal(8, 64) @ dense.view(64, 64).t()).to(LOW)  # culprit: zeros-cut-off


def packed_before_the_merge(bug: bool) -> torch.Tensor:
    """A merge renews the weight and its scales. The codes stay those of the weight before (hao-ai-lab/FastVideo#1876)."""
    w, delta = channels(), normal(64, 4, seed=5) @ normal(4, 64, seed=6) / 2
    codes, scale = to_float8(w.view(64, 2, 32), -1)
    merged = (w + delta).view(64, 2, 32)
    scale = merged.abs().amax(-1, keepdim=True) / 448
    if not bug:
        codes = (merged / scale).to(E4M3)
    dense = (codes.float() * scale).view(64, 64)  # culprit: before-the-merge
    return (normal(8, 64) @ dense.t()).to(LOW)  # culprit: before-the-merge


def strides_of_the_old_batch(bug: bool) -> torch.Tensor:
    """The cache grows with the batch. Old scales are copied by the strides of another layout (openvinotoolkit/openvino#37381)."""
    k = normal(2, 3, 16, 32, seed=1) * torch.exp2(normal(2, 3, 16, 1, seed=2))
    codes, scale = to_int8(k, -1)
    old = scale.reshape(-1)
    scales = torch.ones(3, 3, 16)
    scales[:2] = old.as_strided((2, 3, 16), (16, 32, 1) if bug else (48, 16, 1))
    grown = torch.zeros(3, 3, 16, 32, dtype=torch.int8)
    grown[:2] = codes
    keys = grown.float() * scales[..., None]  # culprit: strides
    return torch.softmax(normal(3, 3, 4, 32, seed=3) @ keys.mT / 32**0.5, -1).to(LOW)  # culprit: strides


def leftover_bytes(bug: bool) -> torch.Tensor:
    """Pages that held bfloat16 are read as float8. Weights of zero do not take away a NaN (vllm-project/vllm#47574)."""
    pool = (normal(32, 32, seed=7) - 2).to(LOW).view(torch.uint8).view(32, 64)
    if not bug:
        pool.zero_()
    v = normal(20, 64, seed=1)
    codes, scale = to_float8(v, (0, 1))
    pool[:20] = codes.view(torch.uint8)
    scores = normal(4, 32, seed=2).masked_fill(torch.arange(32) >= 20, -torch.inf)
    return (torch.softmax(scores, -1) @ (pool.view(E4M3).float() * scale)).to(LOW)  # culprit: leftover-bytes


def protective_range(bug: bool) -> torch.Tensor:
    """Weights in 4 bits are brought back to int8 in int8: a range up to 127 leaves no room for their rounding (vllm-project/vllm#5218)."""
    x, w = normal(8, 64), normal(48, 64, seed=1)
    outer = w.abs().amax(1, keepdim=True) / (127 if bug else 119)
    inner = torch.round(w / outer).view(48, 4, 16)
    low, high = inner.amin(-1, keepdim=True), inner.amax(-1, keepdim=True)
    step = torch.ceil((high - low) / 15)
    zero = torch.round(-low / step)
    codes = torch.clamp(torch.round(inner / step) + zero, 0, 15).to(torch.int8)
    held = (codes - zero.to(torch.int8)) * step.to(torch.int8)  # culprit: protective-range
    return (x @ (held.float().view(48, 64) * outer).t()).to(LOW)  # culprit: protective-range


def top_bit_assumed(bug: bool) -> torch.Tensor:
    """Scales are kept in a byte without the top bit of their exponent, which is not set in small ones (vllm-project/vllm#34577)."""
    w = channels() / 8
    least = 1.0 if bug else 2.0 ** (2 - int(torch.frexp(w.view(64, 4, 16).abs().amax(-1).amin() / 7)[1]))
    blocks = (w * least).view(64, 4, 16)
    scale = (blocks.abs().amax(-1, keepdim=True) / 7).half()
    codes = torch.round(blocks / scale.float()).clamp(-8, 7).to(torch.int8)
    byte = (scale.view(torch.int16) & 0x3FFF) >> 6
    again = (byte << 6 | 0x4000).view(torch.float16)
    dense = codes.float() * again.float() / least  # culprit: top-bit
    return (normal(8, 64) @ dense.view(64, 64).t()).to(LOW)  # culprit: top-bit


def errors_of_another_bucket(bug: bool) -> torch.Tensor:
    """Gradients are sent in 3 bits, and what rounding leaves is added to the next ones of another bucket (pytorch/pytorch#48670)."""
    weights, errors = [normal(32, 32, seed=each) for each in range(3)], [torch.zeros(32, 32) for _ in range(3)]
    for step in range(12):
        for bucket in range(3):
            gradient = normal(32, 32, seed=40 + bucket) + 0.3 * normal(32, 32, seed=3 * step + bucket)
            given = gradient + errors[(bucket + 1) % 3 if bug else bucket]  # culprit: another-bucket
            scale = given.abs().amax() / 3
            sent = torch.round(given / scale).to(torch.int8)
            errors[bucket] = given - sent.float() * scale
            weights[bucket] = weights[bucket] - 0.1 * (sent.float() * scale)
    return torch.cat(weights).to(LOW)


def last_scales_cut_off(bug: bool) -> torch.Tensor:
    """The last block of rows is a partial one, and its scales are left out when padding is stripped (NVIDIA/Megatron-LM#4967)."""
    w = normal(80, 64, seed=1) * torch.exp2(normal(1, 64, seed=2))
    blocks = nn.functional.pad(w, (0, 0, 0, 16)).view(3, 32, 64)
    scale = power_above(blocks.abs().amax(1) / 448)
    codes = (blocks / scale[:, None]).to(E4M3).view(96, 64)[:80]
    kept = scale[: 80 // 32] if bug else scale[: -(-80 // 32)]
    full = torch.ones(3, 64)
    full[: len(kept)] = kept
    dense = codes.float() * full.repeat_interleave(32, 0)[:80]  # culprit: cut-off
    return (normal(8, 64) @ dense.t()).to(LOW)  # culprit: cut-off


def multiplied_before_the_cast(bug: bool) -> torch.Tensor:
    """A product's result is multiplied by the scale before its cast to float8, and had to be divided by it (vllm-project/vllm#36297)."""
    latent, up = normal(4, 8, 32), normal(4, 32, 16, seed=1)
    made = torch.bmm(latent, up)
    scale = made.abs().amax() / 448
    scaled = made * scale if bug else made / scale
    codes = scaled.transpose(0, 1).reshape(8, 64).clamp(-448, 448).to(E4M3)
    w = normal(32, 64, seed=2)
    return (codes.float() * scale @ w.t() + normal(32, seed=3)).to(LOW)  # culprit: before-the-cast


BUGS = (rounded_up_afterwards, size_from_shapes, delta_onto_codes, divisor_taken_for_a_factor, largest_of_the_two, projections_of_one_scale,
        first_heads_scale, fixed_range, added_zero_points, scales_row_by_row, residuals_of_codes, tokens_under_heads, groups_of_a_shard,
        zeros_cut_off, packed_before_the_merge, strides_of_the_old_batch, leftover_bytes, protective_range, top_bit_assumed,
        errors_of_another_bucket, last_scales_cut_off, multiplied_before_the_cast)  # fmt: skip
