"""A seventh batch of recipes written by hand, after faults that were reported in public; frozen before precheck was run on them.

Each takes `bug`; a line at fault ends in `# culprit: name`.
"""

from __future__ import annotations

import math

import torch
from float8_by_hand import E4M3, LOW, channels, normal
from sixth_recipes import drawn
from torch import nn

FNUZ = torch.float8_e4m3fnuz
NIBBLES = torch.arange(0, 32, 4, dtype=torch.int32)


def scale_floored_at_one(bug: bool) -> torch.Tensor:
    """int8 keys and values of a cache, with a scale for each token that is never below 1 (lablup/mlxcel#717)."""
    q, keys, values = normal(2, 8, 32, seed=2), normal(2, 24, 32) * 0.6, normal(2, 24, 32, seed=1) * 0.6

    def quantise(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        peak = t.abs().max(dim=-1, keepdim=True).values / 127.0
        scale = torch.maximum(peak, torch.ones_like(peak)) if bug else torch.where(peak == 0, torch.ones_like(peak), peak)
        return torch.round(t / scale).clamp(-128, 127).to(torch.int8), scale  # culprit: floored-at-one

    (k, ks), (v, vs) = quantise(keys), quantise(values)
    weights = torch.softmax(q @ (k.to(torch.float32) * ks).mT / 32**0.5, -1)
    return (weights @ (v.to(torch.float32) * vs)).to(LOW)


class Page:
    """A page of a cache: int8 codes of each token, followed by its scale in four bytes."""

    def __init__(self, tokens: int, width: int) -> None:
        self.bytes = torch.zeros(tokens, width + 4, dtype=torch.int8)
        self.codes, self.scales = self.bytes[:, :width], self.bytes[:, width:].view(torch.float32)

    def write(self, at: slice, rows: torch.Tensor) -> None:
        scale = rows.abs().amax(-1, keepdim=True) / 127
        self.codes[at] = torch.round(rows / scale).to(torch.int8)
        self.scales[at] = scale

    def read(self) -> torch.Tensor:
        return self.codes.float() * self.scales  # culprit: filled-again


def scales_filled_again(bug: bool) -> torch.Tensor:
    """A layer that shares a cache fills all its scales with 1 at its first call, after tokens have been written (vllm-project/vllm#51091)."""
    page = Page(24, 64)
    page.write(slice(0, 16), normal(16, 64))
    if bug:
        page.scales.fill_(1.0)  # culprit: filled-again
    page.write(slice(16, 24), normal(8, 64, seed=1))
    keys = page.read()  # culprit: filled-again
    return (torch.softmax(normal(4, 64, seed=2) @ keys.t() / 8, -1) @ normal(24, 32, seed=3)).to(LOW)


def zeros_of_the_other_version(bug: bool) -> torch.Tensor:
    """GPTQ's words of eight codes. Zero points are read as one more than what is kept, and have been kept as they are (vllm-project/vllm#38966)."""
    groups = (channels().t() + 0.2).reshape(2, 32, 64)
    low, high = groups.amin(1, keepdim=True).clamp(max=0), groups.amax(1, keepdim=True).clamp(min=0)
    scales = (high - low) / 15
    zeros = torch.round(-low / scales)
    codes = torch.clamp(torch.round(groups / scales) + zeros, 0, 15).to(torch.int32).reshape(8, 8, 64)
    kept = zeros.squeeze(1).to(torch.int32).reshape(2, 8, 8) - (0 if bug else 1)
    qweight, qzeros = (codes << NIBBLES.view(1, 8, 1)).sum(1, dtype=torch.int32), (kept << NIBBLES).sum(2, dtype=torch.int32)
    weight = (qweight[:, None, :] >> NIBBLES.view(1, 8, 1) & 15).reshape(64, 64)
    zero = (qzeros[:, :, None] >> NIBBLES & 15).reshape(2, 64) + 1
    group = torch.arange(64) // 32
    dense = scales.squeeze(1)[group] * (weight - zero[group])  # culprit: other-version
    return torch.matmul(normal(8, 64), dense).to(LOW)  # culprit: other-version


def ternary_divided(bug: bool) -> torch.Tensor:
    """Weights of -1, 0 and 1 under the mean magnitude of their row. The converter divides by it (microsoft/BitNet#616)."""
    w = channels()
    mean = w.abs().mean(1, keepdim=True).clamp(min=1e-5)
    ternary = (w / mean).round().clamp(-1, 1).to(torch.int8)
    dense = ternary.float() / mean if bug else ternary.float() * mean  # culprit: ternary-divided
    return nn.functional.silu(nn.functional.linear(normal(16, 64), dense)).to(LOW)  # culprit: ternary-divided


class Tokens(nn.Module):
    """An embedding in float8 under one scale, and places in float32."""

    def __init__(self, bug: bool) -> None:
        super().__init__()
        self.bug, table = bug, normal(100, 32, seed=4)
        self.register_buffer("weight_scale", table.abs().max() / torch.finfo(E4M3).max)
        self.register_buffer("weight", (table / self.weight_scale).to(E4M3))
        self.register_buffer("places", normal(12, 32, seed=5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = self.weight.view(torch.uint8)[tokens].view(E4M3).to(torch.float32)
        if not self.bug:
            rows = rows * self.weight_scale
        return nn.functional.layer_norm(rows + self.places, (32,)).to(LOW)  # culprit: gathered-raw


def rows_gathered_raw(bug: bool) -> torch.Tensor:
    """Rows of a float8 embedding are looked up and not multiplied by the scale (huggingface/transformers#48350)."""
    return Tokens(bug)(torch.randint(0, 100, (3, 12), generator=torch.Generator().manual_seed(1)))


def sign_extended(bug: bool) -> torch.Tensor:
    """Codes from 0 to 15 with a smallest number are taken for codes from -8 to 7 (1bit-MONSTER/1bit-MONSTER#1268)."""
    blocks = channels().view(64, 2, 32)
    least = blocks.min(-1, keepdim=True)[0]
    step = (blocks.max(-1, keepdim=True)[0] - least) / 15
    codes = torch.round((blocks - least) / step).to(torch.uint8)
    packed = codes[..., :16] | codes[..., 16:] << 4
    nibbles = torch.cat([packed & 0xF, packed >> 4], -1).to(torch.int16)
    if bug:
        nibbles = torch.where(nibbles >= 8, nibbles - 16, nibbles)  # culprit: sign-extended
    dense = torch.addcmul(least, nibbles.float(), step)  # culprit: sign-extended
    return (normal(8, 64) @ dense.view(64, 64).t()).to(LOW)


def column_within_the_group(bug: bool) -> torch.Tensor:
    """The nibble of a column is looked for by its place in the group, so that all groups read the first one's (1bit-MONSTER/1bit-MONSTER#153)."""
    w = normal(48, 128, seed=3)
    scale = w.view(48, 4, 32).abs().amax(2) / 7
    codes = (torch.round(w / scale.repeat_interleave(32, 1)) + 8).to(torch.uint8)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    dense = torch.empty(48, 128)
    for group in range(4):
        for column in range(32):
            index = column if bug else 32 * group + column
            nibble = packed[:, index // 2] >> 4 * (index % 2) & 15
            dense[:, 32 * group + column] = (nibble.float() - 8) * scale[:, group]  # culprit: within-the-group
    return (normal(8, 128) @ dense.t()).to(LOW)  # culprit: within-the-group


def errors_of_a_block_lost(bug: bool) -> torch.Tensor:
    """GPTQ by blocks of columns. Errors are kept at the column's place in the matrix, past the end of the block's buffer (ml-explore/mlx-lm#1878)."""
    x = normal(256, 64) @ (torch.eye(64) + 0.3 * normal(64, 64, seed=6))
    hessian = x.t() @ x / 256
    hessian.diagonal().add_(0.01 * hessian.diagonal().mean())
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)
    w = normal(32, 64, seed=2)
    scale, codes = w.abs().amax(1, keepdim=True) / 3, torch.zeros(32, 64)
    for start in range(0, 64, 16):
        end, errors = start + 16, torch.zeros(32, 16)
        for k in range(start, end):
            codes[:, k : k + 1] = torch.round(w[:, k : k + 1] / scale).clamp(-4, 3)
            e = (w[:, k : k + 1] - codes[:, k : k + 1] * scale) / factor[k, k]
            w[:, k:end] -= e @ factor[k : k + 1, k:end]
            place = k if bug else k - start
            errors[:, place : place + 1] = e  # culprit: errors-lost
        w[:, end:] -= errors @ factor[start:end, end:]  # culprit: errors-lost
    return (x[:16] @ (codes * scale).t()).to(LOW)


class Adam8:
    """Adam whose first moment is kept in bytes, from the smallest number of a row to the largest."""

    def __init__(self, weight: torch.Tensor, bug: bool) -> None:
        self.weight, self.bug = weight, bug
        self.codes, self.step_size, self.low = torch.zeros(weight.shape, dtype=torch.uint8), torch.zeros(len(weight), 1), torch.zeros(len(weight), 1)
        self.second = torch.zeros_like(weight)

    def step(self, gradient: torch.Tensor) -> None:
        first = (self.codes.float() * self.step_size + self.low).lerp_(gradient, 0.1)
        self.second.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        self.low, high = first.amin(1, keepdim=True), first.amax(1, keepdim=True)
        self.step_size = (high - self.low) / 255
        if not self.bug:
            self.low = torch.round(self.low / self.step_size) * self.step_size
        self.codes = torch.round((first - self.low) / self.step_size).clamp(0, 255).to(torch.uint8)  # culprit: no-zero
        first = self.codes.float() * self.step_size + self.low  # culprit: no-zero
        self.weight.addcdiv_(first, self.second.sqrt() + 1e-8, value=-1e-2)  # culprit: no-zero


def moments_without_a_zero(bug: bool) -> torch.Tensor:
    """No code stands for zero, and a weight without gradients divides what is left by eps (unslothai/unsloth-zoo#962)."""
    weight = normal(16, 64)
    optimizer = Adam8(weight, bug)
    for step in range(6):
        optimizer.step(normal(16, 64, seed=step + 1) * (torch.arange(64) % 4 > 0) * 1e-2)
    return (normal(8, 64, seed=9) @ weight.t()).to(LOW)


def first_experts_scale(bug: bool) -> torch.Tensor:
    """The list of scales for a grouped product is made of the first expert's alone (vllm-project/vllm-ascend#16806)."""
    x, sizes = normal(16, 32), [5, 3, 6, 2]
    weights, scales = [], []
    for place, size in enumerate((1.0, 0.3, 2.0, 0.6)):
        w = normal(48, 32, seed=place + 1) * size
        scales.append(w.abs().amax() / 127)
        weights.append(torch.round(w / scales[-1]).to(torch.int8))
    scales = [scales[0]] * 4 if bug else scales
    parts = []
    for rows, codes, scale in zip(x.split(sizes), weights, scales, strict=True):
        each = rows.abs().amax(1, keepdim=True) / 127
        y = torch.round(rows / each) @ codes.float().t()
        parts.append(y * each * scale)  # culprit: first-experts
    gate, up = torch.cat(parts).chunk(2, 1)
    return (nn.functional.silu(gate) * up).to(LOW)  # culprit: first-experts


def rescaled_too_late(bug: bool) -> torch.Tensor:
    """Attention by tiles. The maximum may lag by 2^4 and weights are raised by 2^8, beyond what e4m3 holds (Dao-AILab/flash-attention#2577)."""
    q, k, v = normal(2, 8, 32), normal(2, 64, 32, seed=1), normal(2, 64, 32, seed=2) + 0.5
    k[:, 32:] *= 1.6
    top, total, out = torch.full((2, 8, 1), -torch.inf), torch.zeros(2, 8, 1), torch.zeros(2, 8, 32)
    for tile in range(2):
        scores = q @ k[:, 32 * tile : 32 * tile + 32].mT * (math.log2(math.e) / 32**0.5)
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        new = torch.where(new - top <= (4.0 if bug else 0.0), top, new)
        p = torch.exp2(scores - new + 8)
        held = p.clamp(max=448.0).to(E4M3)  # culprit: rescaled-too-late
        keep = torch.exp2(top - new)
        total = total * keep + p.sum(-1, keepdim=True)
        out = out * keep + held.float() @ v[:, 32 * tile : 32 * tile + 32]
        top = new
    return (out / total).to(LOW)


def copy_by_chance(target: torch.Tensor, source: torch.Tensor, step: int) -> None:
    bits = source.view(torch.int32) + drawn(16, step)
    target.copy_(bits.bitwise_and_(-65536).view(torch.float32))


def chance_overwritten(bug: bool) -> torch.Tensor:
    """A weight is rounded by chance, and then written again, rounded to nearest (Nerogar/OneTrainer#994)."""
    weight = normal(64, 64).to(LOW)
    for step in range(96):
        new = weight.float() - 1e-3 * (1 + normal(64, 64, seed=step + 1))
        copy_by_chance(weight, new, step)
        if bug:
            weight.copy_(new)  # culprit: chance-overwritten
    return weight


def truncated_to_int(bug: bool) -> torch.Tensor:
    """Scaled weights are cast to integers, which cuts them off (sgl-project/sglang-jax#1598)."""
    w, ends = channels(), torch.iinfo(torch.int8)
    scale = w.abs().amax(1, keepdim=True) / (ends.max // 16)
    scaled = w / scale
    scaled = scaled if bug else scaled.round()
    codes = scaled.clamp(ends.min // 16, ends.max // 16).to(torch.int8)  # culprit: truncated
    return (torch.einsum("bi,oi->bo", normal(8, 64), codes.float()) * scale.t()).to(LOW)


def lowest_negated(bug: bool) -> torch.Tensor:
    """Inputs from -128 to 127 are given the signs of the weights in int8, where -(-128) is -128 (ggml-org/ggml#1393)."""
    x, w = normal(16, 64), channels()[:24]
    peak = x.gather(1, x.abs().argmax(1, keepdim=True))
    d = peak / -128
    q8 = torch.round(x / d).clamp(-128, 127).to(torch.int8)
    each = w.abs().amax(1, keepdim=True) / 7
    grid, sign = torch.round(w.abs() / each).to(torch.int8), torch.where(w < 0, -1, 1).to(torch.int8)
    given = q8[:, None] * sign if bug else q8[:, None].short() * sign.short()  # culprit: lowest-negated
    y = (given.float() * grid.float()).sum(-1)  # culprit: lowest-negated
    return (y * d * each.t()).to(LOW)  # culprit: lowest-negated


def gathered_under_one_scale(bug: bool) -> torch.Tensor:
    """Each rank quantises its tokens under a scale of its own. After gathering them one scale is read (vllm-project/vllm#54683)."""
    ranks = [normal(6, 64, seed=rank) * size for rank, size in enumerate((0.5, 2.0, 1.0))]
    scales = torch.stack([r.abs().amax() / 448 for r in ranks])
    gathered = torch.cat([(r / s).to(E4M3) for r, s in zip(ranks, scales, strict=True)])
    w = channels()
    sw = w.abs().amax(1) / 448
    y = gathered.float() @ (w / sw[:, None]).to(E4M3).float().t()
    y = y * (scales[0] if bug else scales.repeat_interleave(6)[:, None]) * sw  # culprit: one-scale
    return (y + normal(64, seed=8)).relu().to(LOW)  # culprit: one-scale


def scales_not_interleaved(bug: bool) -> torch.Tensor:
    """mxfp8: 128 rows of scales are read as 32 x 4 tiles, and the loader does not interleave them (flashinfer-ai/flashinfer#4087)."""
    w = normal(128, 128, seed=1) * torch.exp2(2 * normal(128, 4, seed=2)).repeat_interleave(32, 1)
    blocks = w.view(128, 4, 32)
    exponent = torch.ceil(torch.log2(blocks.abs().amax(-1) / 448)) + 127
    codes = (blocks * torch.exp2(127 - exponent)[..., None]).to(E4M3)
    stored = exponent.to(torch.uint8)
    stored = stored.reshape(-1) if bug else stored.view(4, 32, 4).permute(1, 0, 2).reshape(-1)
    read = stored.view(32, 4, 4).permute(1, 0, 2).reshape(128, 4)
    dense = codes.float() * torch.pow(2.0, read.float() - 127).unsqueeze(-1)  # culprit: not-interleaved
    return (normal(8, 128) @ dense.view(128, 128).t()).to(LOW)


def bias_saturates(bug: bool) -> torch.Tensor:
    """A bias in int32 under the product of both scales, which is too small for it (microsoft/onnxruntime#22020)."""
    x, w, b = normal(16, 64), normal(8, 64, seed=1) * 1e-9, 3 * normal(8, seed=2)
    sx, sw = x.abs().amax() / 127, w.abs().amax(1) / 127
    if not bug:
        sw = torch.maximum(sw, b.abs() / (sx * 2.0**30))
    bias = torch.round(b / (sx * sw)).clamp(-(2.0**31), 2.0**31 - 128).to(torch.int32)  # culprit: bias-saturates
    products = torch.round(x / sx).to(torch.int64) @ torch.round(w / sw[:, None]).to(torch.int64).t() + bias
    return (products.float() * (sx * sw)).to(LOW)


def smoothing_tiled(bug: bool) -> torch.Tensor:
    """Two heads of values serve four heads. What values are divided by is repeated in another order than the heads (llm-compressor#2808)."""
    x, wv, wo = normal(16, 64), normal(32, 64, seed=1) / 8, normal(64, 64, seed=2) / 8
    wv = wv * torch.exp2(1.5 * normal(32, 1, seed=3))
    smooth = (x @ wv.t()).abs().amax(0).sqrt()
    values = (x @ (wv / smooth[:, None]).t()).view(16, 2, 16).repeat_interleave(2, 1)
    mixed = torch.einsum("hst,thd->shd", torch.softmax(normal(4, 16, 16, seed=4), -1), values).reshape(16, 64)
    each = smooth.repeat(2) if bug else smooth.view(2, 16).repeat_interleave(2, 0).reshape(64)
    wo = wo * each
    so, si = wo.abs().amax(1, keepdim=True) / 127, mixed.abs().amax(1, keepdim=True) / 127
    y = torch.round(mixed / si) @ torch.round(wo / so).t()
    return (y * si * so.t()).to(LOW)  # culprit: smoothing-tiled


def too_large_for_fnuz(bug: bool) -> torch.Tensor:
    """Weights for a format that ends at 240 are scaled to 448, when a layer is made (ROCm/TransformerEngine#485)."""
    w = channels()
    by = (448.0 if bug else 240.0) / w.abs().amax(1, keepdim=True)
    codes = (w * by).clamp(-240, 240).to(FNUZ)  # culprit: too-large-for-fnuz
    return (normal(8, 64) @ (codes.float() / by).t()).to(LOW)


def range_with_dead_lanes(bug: bool) -> torch.Tensor:
    """Keys in four bits from their smallest to their largest number. Lanes past the end of the head count as zeros (InternLM/lmdeploy#4849)."""
    q, keys, values = normal(8, 48, seed=1), 6 + 0.4 * normal(32, 48), normal(32, 16, seed=2)
    lanes = nn.functional.pad(keys, (0, 16)) if bug else keys
    low, high = lanes.amin(-1, keepdim=True), lanes.amax(-1, keepdim=True)
    scale = (high - low) / 15
    codes = torch.round((keys - low) / scale).clamp(0, 15).to(torch.uint8)  # culprit: dead-lanes
    held = codes.float() * scale + low  # culprit: dead-lanes
    return (torch.softmax(q @ held.t(), -1) @ values).to(LOW)


BUGS = (scale_floored_at_one, scales_filled_again, zeros_of_the_other_version, ternary_divided, rows_gathered_raw, sign_extended,
        column_within_the_group, errors_of_a_block_lost, moments_without_a_zero, first_experts_scale, rescaled_too_late, chance_overwritten,
        truncated_to_int, lowest_negated, gathered_under_one_scale, scales_not_interleaved, bias_saturates, smoothing_tiled, too_large_for_fnuz,
        range_with_dead_lanes)  # fmt: skip
