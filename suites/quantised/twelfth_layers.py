"""The other part of the twelfth batch: integers, four bits, layouts of scales and calibration; frozen before precheck was run on them.

Each takes `bug`; a line at fault ends in `# culprit: name`. `EXACT` has what each means, in float64 and without any rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from blocks_by_hand import CODEBOOK
from casts_by_hand import to_float8, to_fp4
from float8_by_hand import E4M3, LOW, channels, normal
from torch import nn
from twelfth_recipes import wide


def uneven(*shape: int, seed: int = 1) -> torch.Tensor:
    """Groups along the last axis whose sizes differ."""
    return normal(*shape, seed=seed) * torch.exp2(2 * normal(*shape[:-1], 1, seed=seed + 7))


def four_bits(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = groups.abs().amax(-1, keepdim=True) / 7
    return torch.round(groups / scale).clamp(-8, 7).to(torch.int8), scale


def group_size_of_all_ranks(bug: bool) -> torch.Tensor:
    """Each rank has half of the columns and all scales. Its group size is its width over the number of scales (vllm-project/vllm#41511)."""
    x, (codes, scale) = normal(16, 128), four_bits(uneven(48, 4, 32))
    flat, parts = codes.view(48, 128), []
    for rank in range(2):
        local = flat[:, 64 * rank : 64 * rank + 64]
        own = scale if bug else scale[:, 2 * rank : 2 * rank + 2]
        dense = local.reshape(48, own.shape[1], -1).float() * own  # culprit: all-ranks
        parts.append(x[:, 64 * rank : 64 * rank + 64] @ dense.view(48, 64).t())
    return (parts[0] + parts[1]).to(LOW)


def exponent_not_rebiased(bug: bool) -> torch.Tensor:
    """nvfp4 in bfloat16: e4m3 scales become bfloat16 by a shift, and the exponent keeps its bias of 7 (vllm-project/vllm#47315)."""
    w, over = channels(), torch.tensor(64.0)
    codes, scale = to_fp4(w, over)
    bits = scale.view(torch.uint8).to(torch.int16) << 4
    read = (bits + (0 if bug else 120 << 7)).view(torch.bfloat16)
    dense = (codes * read.float() / over).view(64, 64)  # culprit: not-rebiased
    return nn.functional.gelu(normal(8, 64) @ dense.t()).to(LOW)  # culprit: not-rebiased


def negative_scales_unsigned(bug: bool) -> torch.Tensor:
    """Scales of groups become int16 for a product in integers. Some are negative, and are read without a sign (vllm-project/vllm#48905)."""
    groups = uneven(48, 4, 32)
    far = torch.gather(groups, -1, groups.abs().argmax(-1, keepdim=True))
    scale = -far / 8
    codes = torch.round(groups / scale).clamp(-8, 7).to(torch.int8)
    unit = scale.abs().amax() / 4096
    kept = torch.round(scale / unit).to(torch.int16)
    read = kept.int() & 0xFFFF if bug else kept.int()
    dense = codes.int() * read  # culprit: unsigned
    return (normal(8, 128) @ (dense.float() * unit).view(48, 128).t()).to(LOW)  # culprit: unsigned


def input_factor_dropped(bug: bool) -> torch.Tensor:
    """nvfp4: the fallback kernel is not given the factor that the input was divided by (vllm-project/vllm#37135)."""
    x, w = normal(16, 64), normal(48, 64, seed=1) / 16
    (qx, sx), (qw, sw) = (to_fp4(each, over) for each, over in ((x, torch.tensor(400.0)), (w, torch.tensor(900.0))))
    left, right = (qx * sx.float()).view(16, 64), (qw * sw.float()).view(48, 64)
    sums = left @ right.t() / 900.0
    out = sums if bug else sums / 400.0
    return torch.sigmoid(out).to(LOW)  # culprit: factor-dropped


def sums_in_half_before_the_factor(bug: bool) -> torch.Tensor:
    """nvfp4: sums are cast to float16 before the factor of the whole tensor is multiplied by (vllm-project/vllm#37135)."""
    x, w, over = 4 * normal(16, 64), normal(48, 64, seed=1), torch.tensor(600.0)
    codes, scale = to_fp4(w, over)
    sums = x @ (codes * scale.float()).view(48, 64).t()
    return (sums.half() / over if bug else (sums / over).half()).to(LOW)  # culprit: before-the-factor


def rows_of_scales_by_the_valid_width(bug: bool) -> torch.Tensor:
    """mxfp4: scales are written into a buffer by the width that is needed, and read by its own, padded one (ROCm/aiter#2900)."""
    w, buffer = uneven(48, 3, 32), torch.full((48, 4), 127, dtype=torch.uint8)
    byte = (torch.ceil(torch.log2(w.abs().amax(-1) / 6)) + 127).to(torch.uint8)
    scaled = w / torch.exp2(byte.float() - 127)[..., None]
    codes = torch.copysign(CODEBOOK[torch.bucketize(scaled.abs(), (CODEBOOK[1:] + CODEBOOK[:-1]) / 2)], scaled)
    if bug:
        buffer.view(-1)[: byte.numel()] = byte.flatten()
    else:
        buffer[:, :3] = byte
    dense = codes * torch.exp2(buffer[:, :3].float() - 127)[..., None]  # culprit: valid-width
    return (normal(8, 96) @ dense.view(48, 96).t()).to(LOW)


def strides_from_the_shape(bug: bool) -> torch.Tensor:
    """A cache's pages have room at their end. Scales are looked for by strides that follow from the shape (vllm-project/vllm#49716)."""
    pages = torch.zeros(6, 8, 24)
    k, q = uneven(6, 8, 16), normal(4, 16, seed=5)
    scale = k.abs().amax(-1, keepdim=True) / 127
    pages[:, :, :16], pages[:, :, 16:17] = torch.round(k / scale), scale
    shape, start = (6, 8), 16
    read = pages.as_strided(shape, (8 * 20, 20), start) if bug else pages.as_strided(shape, (8 * 24, 24), start)
    keys = pages[:, :, :16] * read[..., None]  # culprit: from-the-shape
    return torch.sigmoid(keys.view(48, 16) @ q.t() / 4).to(LOW)


def range_of_an_operand(bug: bool) -> torch.Tensor:
    """The product of gate and up takes the range of one of its operands (alibaba/MNN#4765)."""
    gate, up = nn.functional.silu(4 * normal(16, 64)), 4 * normal(16, 64, seed=1)
    out = gate * up
    scale = (up if bug else out).abs().amax() / 127
    codes = torch.round(out / scale).clamp(-127, 127).to(torch.int8)  # culprit: of-an-operand
    return (codes.float() * scale @ normal(64, 32, seed=2)).to(LOW)


def minimum_for_maximum(bug: bool) -> torch.Tensor:
    """The scale is made of the calibrated minimum twice, and not of minimum and maximum (apache/mxnet#20735)."""
    x, w = torch.exp(normal(16, 64)) - 1, normal(64, 32, seed=1)
    low, high = x.amin(), x.amax()
    scale = torch.maximum(low.abs(), (low if bug else high).abs()) / 127
    codes = torch.round(x / scale).clamp(-127, 127).to(torch.int8)  # culprit: for-maximum
    return (codes.float() * scale @ w).to(LOW)


def constants_become_zero(bug: bool) -> torch.Tensor:
    """Channels whose numbers are all the same get a scale of 1 and a zero point of 0 (harvard-edge/cs249r_book#1444)."""
    w = torch.cat([torch.full((24, 1), 0.3).expand(24, 64) * (1 + torch.arange(24) / 24)[:, None], normal(24, 64, seed=1) / 8])
    low, high = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
    if not bug:
        low, high = low.clamp(max=0), high.clamp(min=0)
    same = high == low
    scale = torch.where(same, 1.0, (high - low) / 255)
    zero = torch.where(same, 0.0, torch.round(-low / scale))
    codes = (torch.round(w / scale) + zero).clamp(0, 255).to(torch.uint8)  # culprit: become-zero
    return (normal(8, 64, seed=2).abs() @ ((codes.float() - zero) * scale).t()).to(LOW)


def smaller_neighbour(bug: bool) -> torch.Tensor:
    """Scales are kept in a table. The place is that of the next smaller number, not of the nearest (bitsandbytes-foundation/bitsandbytes#1582)."""
    w, table = uneven(16, 64, 16).abs(), torch.exp2(torch.linspace(-14, 0, 43))
    scale = w.amax(-1) / 127
    top = scale.amax()
    bounds = table[1:] if bug else (table[1:] + table[:-1]) / 2
    place = torch.bucketize(scale / top, bounds, right=bug).to(torch.uint8)  # culprit: smaller
    kept = table[place.long()] * top
    codes = torch.round(w / scale[..., None]).to(torch.int8)
    dense = codes.float() * kept[..., None]  # culprit: smaller
    return (normal(8, 1024).abs() @ dense.view(16, 1024).t()).to(LOW)


def magnitude_of_the_codes(bug: bool) -> torch.Tensor:
    """BitNet: what the result is multiplied by is taken of the input after it was quantised (kyegomez/BitNet#33)."""
    x, w = normal(16, 64) / 4, normal(48, 64, seed=1) / 8
    top = x.abs().amax(1, keepdim=True)
    codes = torch.round(x * 127 / top).clamp(-127, 127)
    beta = w.abs().mean()
    signs = torch.round(w / beta).clamp(-1, 1)
    gamma = codes.abs().amax(1, keepdim=True) if bug else top
    return torch.sigmoid(codes @ signs.t() * (gamma * beta / 127)).to(LOW)  # culprit: of-the-codes


def zero_point_of_one(bug: bool) -> torch.Tensor:
    """The zero point of a symmetric range is -(low + high) // 2 in integers, one beside zero, and readers take it for zero (pytorch/FBGEMM#584)."""
    w, low, high = channels(), -8, 7
    scale = w.abs().amax(1, keepdim=True) / 7
    zero = -((low + high) // 2) if bug else 0
    codes = (torch.round(w / scale) + zero).clamp(low, high).to(torch.int8)
    dense = codes.float() * scale  # culprit: of-one
    return (normal(8, 64) @ dense.t()).to(LOW)  # culprit: of-one


def groups_of_one_sign(bug: bool) -> torch.Tensor:
    """Groups of an orthogonal matrix whose numbers have one sign. The range is theirs, and the zero point is clamped (unslothai/unsloth#10841)."""
    w = torch.where(torch.arange(4)[:, None] % 2 == 0, 1.0, -1.0) * (2 + normal(64, 4, 16, seed=1) / 2)
    low, high = w.amin(-1, keepdim=True), w.amax(-1, keepdim=True)
    if not bug:
        low, high = low.clamp(max=0), high.clamp(min=0)
    scale = ((high - low) / 15).clamp(min=1e-5)
    zeros = (-torch.round(low / scale)).clamp(0, 15)
    codes = (torch.round(w / scale) + zeros).clamp(0, 15).to(torch.uint8)  # culprit: one-sign
    return (normal(8, 64) @ ((codes.float() - zeros) * scale).view(64, 64).t()).to(LOW)


def zero_points_in_bfloat16(bug: bool) -> torch.Tensor:
    """Keys in uint8: zero points are kept in bfloat16, and the kernel reads the bytes as float32 (InfiniTensor/InfiniLM#553)."""
    k, q = uneven(32, 16) + 1, normal(4, 16, seed=5)
    low, high = k.amin(1).clamp(max=0), k.amax(1).clamp(min=0)
    scale = (high - low) / 255
    zero = torch.round(-low / scale)
    codes = (torch.round(k / scale[:, None]) + zero[:, None]).clamp(0, 255).to(torch.uint8)
    read = torch.cat([zero.to(torch.bfloat16), zero.to(torch.bfloat16)]).view(torch.float32) if bug else zero.to(torch.bfloat16).float()
    keys = (codes.float() - read[:, None]) * scale[:, None]  # culprit: in-bfloat16
    return torch.tanh(keys @ q.t() / 4).to(LOW)  # culprit: in-bfloat16


def gathered_under_the_first_group(bug: bool) -> torch.Tensor:
    """Ranks of another group share the greatest magnitude, so that those that gather each other's codes do not (NVIDIA/Megatron-LM#442)."""
    shards, w = [normal(8, 64, seed=rank) * 2.0**rank for rank in range(4)], normal(32, 64, seed=9) / 8
    tops = torch.stack([shard.abs().amax() for shard in shards])
    shared = tops if bug else tops.amax().expand(4)
    codes = torch.cat([(shard / (top / 448)).to(E4M3).view(torch.uint8) for shard, top in zip(shards, shared, strict=True)]).view(E4M3)
    qw, sw = to_float8(w, (0, 1))
    out = codes.float() @ qw.float().t() * (shared[0] / 448 * sw)  # culprit: first-group
    return nn.functional.silu(out).to(LOW)  # culprit: first-group


BUGS = (group_size_of_all_ranks, exponent_not_rebiased, negative_scales_unsigned, input_factor_dropped, sums_in_half_before_the_factor,
        rows_of_scales_by_the_valid_width, strides_from_the_shape, range_of_an_operand, minimum_for_maximum, constants_become_zero,
        smaller_neighbour, magnitude_of_the_codes, zero_point_of_one, groups_of_one_sign, zero_points_in_bfloat16,
        gathered_under_the_first_group)  # fmt: skip


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return wide(x) @ wide(w.reshape(-1, x.shape[1])).t()


def by_signs() -> torch.Tensor:
    w = wide(normal(48, 64, seed=1) / 8)
    return torch.sigmoid(wide(normal(16, 64) / 4) @ (torch.round(w / w.abs().mean()).clamp(-1, 1) * w.abs().mean()).t())


EXACT: dict[str, Callable[[], torch.Tensor]] = {
    "group_size_of_all_ranks": lambda: product(normal(16, 128), uneven(48, 4, 32)),
    "exponent_not_rebiased": lambda: nn.functional.gelu(product(normal(8, 64), channels())),
    "negative_scales_unsigned": lambda: product(normal(8, 128), uneven(48, 4, 32)),
    "input_factor_dropped": lambda: torch.sigmoid(product(normal(16, 64), normal(48, 64, seed=1) / 16)),
    "sums_in_half_before_the_factor": lambda: product(4 * normal(16, 64), normal(48, 64, seed=1)),
    "rows_of_scales_by_the_valid_width": lambda: product(normal(8, 96), uneven(48, 3, 32)),
    "strides_from_the_shape": lambda: torch.sigmoid(product(uneven(6, 8, 16).view(48, 16), normal(4, 16, seed=5)) / 4),
    "range_of_an_operand": lambda: (nn.functional.silu(wide(4 * normal(16, 64))) * wide(4 * normal(16, 64, seed=1))) @ wide(normal(64, 32, seed=2)),
    "minimum_for_maximum": lambda: (torch.exp(wide(normal(16, 64))) - 1) @ wide(normal(64, 32, seed=1)),
    "constants_become_zero": lambda: product(normal(8, 64, seed=2).abs(), torch.cat(
        [torch.full((24, 64), 0.3) * (1 + torch.arange(24) / 24)[:, None], normal(24, 64, seed=1) / 8])),
    "smaller_neighbour": lambda: product(normal(8, 1024).abs(), uneven(16, 64, 16).abs()),
    "magnitude_of_the_codes": by_signs,
    "zero_point_of_one": lambda: product(normal(8, 64), channels()),
    "groups_of_one_sign": lambda: product(
        normal(8, 64), torch.where(torch.arange(4)[:, None] % 2 == 0, 1.0, -1.0) * (2 + normal(64, 4, 16, seed=1) / 2)),
    "zero_points_in_bfloat16": lambda: torch.tanh(product(uneven(32, 16) + 1, normal(4, 16, seed=5)) / 4),
    "gathered_under_the_first_group": lambda: nn.functional.silu(
        product(torch.cat([normal(8, 64, seed=rank) * 2.0**rank for rank in range(4)]), normal(32, 64, seed=9) / 8)),
}  # fmt: skip
