"""A fourteenth batch of recipes written by hand, after faults that were reported in public; frozen before precheck was run on them.

Weights: scales of scales, blocks, packed codes, zero points. Each takes `bug`; a line at fault ends in `# culprit: name`. `EXACT` has what each
means, in float64 and without any rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from casts_by_hand import asymmetric
from float8_by_hand import E4M3, LOW, normal
from thirteenth_recipes import mxfp4
from torch import nn
from twelfth_layers import four_bits, product, uneven


def rounded_under_the_exact_scale(bug: bool) -> torch.Tensor:
    """Cache in MX: numbers are rounded under the exact scale, and what is stored is the power of two beside it (kekzl/imp#250)."""
    k, q = uneven(24, 2, 32, seed=4), normal(8, 64)
    exact = k.abs().amax(-1, keepdim=True) / 448
    byte = (torch.ceil(torch.log2(exact)) + 127).to(torch.uint8)
    read = torch.exp2(byte.float() - 127)
    codes = (k / (exact if bug else read)).to(E4M3)
    keys = (codes.float() * read).view(24, 64)  # culprit: under-the-exact
    return torch.softmax(q @ keys.t() / 8, -1).to(LOW)  # culprit: under-the-exact


def scales_of_scales_ignored(bug: bool) -> torch.Tensor:
    """nf4 with scales in int8: the kernel multiplies by their codes, and not by what they stand for (bitsandbytes-foundation/bitsandbytes#1549)."""
    codes, scale = four_bits(uneven(48, 4, 32))
    low = scale.mean()
    step = (scale - low).abs().amax() / 127
    held = torch.round((scale - low) / step).to(torch.int8)
    used = held.float() if bug else held.float() * step + low
    dense = codes.float() * used  # culprit: scales-ignored
    return nn.functional.gelu(normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: scales-ignored


def offset_of_the_other_width(bug: bool) -> torch.Tensor:
    """Scales of nf4 are kept less their mean. The mean is bfloat16, and a kernel reads float32 there (bitsandbytes-foundation/bitsandbytes#1971)."""
    codes, scale = four_bits(uneven(48, 4, 32))
    low = torch.zeros(2, dtype=torch.bfloat16)
    low[0] = scale.mean()
    step = (scale - low[0].float()).abs().amax() / 127
    held = torch.round((scale - low[0].float()) / step).to(torch.int8)
    used = held.float() * step + (low.view(torch.float32)[0] if bug else low[0].float())
    dense = codes.float() * used  # culprit: other-width
    return (normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: other-width


def blocks_in_the_order_of_memory(bug: bool) -> torch.Tensor:
    """nf4: blocks of a transposed weight are taken as they lie in memory, and given back as rows (bitsandbytes-foundation/bitsandbytes#1342)."""
    w = (normal(64, 64, seed=1) * torch.exp2(2 * normal(64, 1, seed=2))).t()
    taken = w.t() if bug else w.contiguous()
    codes, scale = four_bits(taken.reshape(-1, 32))
    dense = (codes.float() * scale).view(64, 64)  # culprit: order-of-memory
    return (normal(8, 64) @ dense.t()).to(LOW)  # culprit: order-of-memory


def halves_read_as_pairs(bug: bool) -> torch.Tensor:
    """mxfp4: a byte holds the codes at j and j + 16, and is read as those at 2 j and 2 j + 1 (kekzl/imp#567)."""
    codes, byte = mxfp4(uneven(48, 4, 32), 127)
    place = (2 * codes + 12).to(torch.uint8)
    packed = torch.stack([place[..., :16], place[..., 16:]], -2)
    again = packed.transpose(-1, -2).reshape(48, 4, 32) if bug else packed.reshape(48, 4, 32)
    dense = (again.float() - 12) / 2 * torch.exp2(byte.float() - 127)  # culprit: as-pairs
    return (normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: as-pairs


def padded_rows_of_scales(bug: bool) -> torch.Tensor:
    """mxfp4: rows of scales are padded to four. They are written where they would lie without the padding (meta-pytorch/MSLK#339)."""
    codes, byte = mxfp4(uneven(48, 3, 32), 127)
    held = torch.full((48, 4), 127, dtype=torch.uint8)
    if bug:
        held.view(-1)[: 48 * 3] = byte.view(-1)
    else:
        held[:, :3] = byte[..., 0]
    dense = codes * torch.exp2(held[:, :3, None].float() - 127)  # culprit: padded-rows
    return (normal(8, 96) @ dense.view(48, 96).t()).to(LOW)  # culprit: padded-rows


def blocks_across_experts(bug: bool) -> torch.Tensor:
    """Blocks of 16 rows go on from expert to expert, and are looked for from each expert's first row (sgl-project/sglang#29727)."""
    w, x = normal(2, 24, 32, seed=1) * torch.exp2(2 * normal(2, 24, 1, seed=2)), normal(2, 8, 32)
    flat = w.view(48, 32)
    scale = flat.view(3, 16, 32).abs().amax((1, 2)) / 448
    codes = (flat / scale.repeat_interleave(16)[:, None]).to(E4M3).view(2, 24, 32)
    rows = torch.arange(24) // 16 + torch.arange(2)[:, None] if bug else torch.arange(48).view(2, 24) // 16
    dense = codes.float() * scale[rows][..., None]  # culprit: across-experts
    return torch.bmm(x, dense.transpose(1, 2)).to(LOW)  # culprit: across-experts


def zeros_get_an_exponent(bug: bool) -> torch.Tensor:
    """mxfp4 in bfloat16: scales are added to the exponents in bits, also to those of codes that are zero (vllm-project/vllm#46676)."""
    codes, byte = mxfp4(uneven(48, 4, 32), 127)
    bits = codes.to(torch.bfloat16).view(torch.int16)
    moved = bits + (byte.to(torch.int16) - 127 << 7)
    kept = moved if bug else torch.where(bits & 0x7FFF == 0, bits, moved)
    dense = kept.view(torch.bfloat16).float()  # culprit: get-an-exponent
    return torch.sigmoid(normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: get-an-exponent


def multiplier_overflows(bug: bool) -> torch.Tensor:
    """A kernel multiplies by the inverse of the scale, in float16, where the inverse of a small power of two is Inf (sgl-project/sglang#33533)."""
    groups = uneven(48, 4, 32) * torch.exp2(-8 * normal(48, 4, 1, seed=9).abs())
    scale = torch.exp2(torch.ceil(torch.log2(groups.abs().amax(-1, keepdim=True) / 448)))
    inverse = (1 / scale).half().float() if bug else 1 / scale  # culprit: multiplier-overflows
    codes = (groups * inverse).clamp(-448, 448).to(E4M3)  # culprit: multiplier-overflows
    dense = codes.float() * scale  # culprit: multiplier-overflows
    return (normal(48, 4, 32, seed=3) * dense / groups.abs().amax(-1, keepdim=True)).sum(-1).to(LOW)


def halves_by_a_pointer_of_floats(bug: bool) -> torch.Tensor:
    """int4: a kernel takes the bfloat16 scales of experts for float32 (vllm-project/vllm#16801)."""
    codes, scale = four_bits(uneven(48, 4, 32))
    held = torch.zeros(2, 48, 4, dtype=torch.bfloat16)
    held[0] = scale[..., 0]
    read = held.view(-1).view(torch.float32).view(48, 4) if bug else held[0].float()
    dense = codes.float() * read[..., None]  # culprit: pointer-of-floats
    return torch.tanh(normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: pointer-of-floats


def super_blocks(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Q4_K: codes, scales in six bits, and the two factors of a super-block of 8 groups, for numbers that are not negative."""
    own = groups.amax(-1, keepdim=True) / 15
    top = own.amax(-2, keepdim=True) / 63
    six = torch.round(own / top).clamp(1, 63)
    return torch.round(groups / (six * top)).clamp(0, 15), six.to(torch.uint8), top, own


def scales_of_sub_blocks_dropped(bug: bool) -> torch.Tensor:
    """Q4_K: the factor of the super-block is multiplied by, and the twelve bytes of six-bit scales are skipped (cisco-ai-defense/defenseclaw#679)."""
    codes, six, top, _ = super_blocks(uneven(24, 8, 32).abs())
    dense = codes * top if bug else codes * (six.float() * top)  # culprit: dropped
    return torch.tanh(normal(8, 256) @ dense.view(24, 256).t() / 4).to(LOW)  # culprit: dropped


def six_bits_by_the_wrong_bytes(bug: bool) -> torch.Tensor:
    """Q4_K: the upper bits of the last four scales lie in the first bytes. They are looked for in the bytes beside them (paiml/aprender#2141)."""
    codes, six, top, _ = super_blocks(uneven(24, 8, 32).abs())
    six = six.view(24, 8)
    first = six[:, :4] | (six[:, 4:] >> 4) << 6
    last = six[:, 4:] & 15
    upper = (last if bug else first) >> 6
    read = torch.cat([first & 63, last | upper << 4], 1)
    dense = codes * (read.float()[..., None] * top)  # culprit: wrong-bytes
    return (normal(8, 256) @ dense.view(24, 256).t()).to(LOW)  # culprit: wrong-bytes


def quarter_of_a_block_written(bug: bool) -> torch.Tensor:
    """Q6_K: only the first 32 numbers of each 128 are written, and the others stay zero (1bit-MONSTER/1bit-MONSTER#734)."""
    groups = uneven(48, 4, 32)
    scale = groups.abs().amax(-1, keepdim=True) / 31
    codes = torch.round(groups / scale).to(torch.int8)
    dense = torch.zeros(48, 4, 32)
    for part in range(1 if bug else 4):
        dense[:, part] = codes[:, part].float() * scale[:, part]  # culprit: quarter-written
    return (normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: quarter-written


def adapter_in_the_zero_points(bug: bool) -> torch.Tensor:
    """QA-LoRA: a low-rank update of group means goes into the zero points, and is not divided by their scales (yuhuixu1993/qa-lora#42)."""
    x, (codes, scale, zero) = normal(16, 128), asymmetric(uneven(48, 4, 32).view(48, 128))
    update = 4 * normal(48, 4, seed=5)[..., None] * scale.mean()
    moved = zero - (update if bug else update / scale)
    dense = (codes.float() - moved) * scale  # culprit: in-the-zero-points
    return (x @ dense.view(48, 128).t()).to(LOW)  # culprit: in-the-zero-points


def sums_of_codes_for_sums_of_data(bug: bool) -> torch.Tensor:
    """Q4_0 times Q8_1: the sum that takes out the zero point of 8 is one of codes, and lacks the input's scale (kekzl/imp#722)."""
    x, groups = normal(16, 4, 32) + 0.5, uneven(48, 4, 32)
    codes, scale = four_bits(groups)
    nibbles = codes.float() + 8
    given = x.abs().amax(-1, keepdim=True) / 127
    bytes_ = torch.round(x / given)
    products, sums = torch.einsum("bgi,ogi->bog", bytes_, nibbles), bytes_.sum(-1)[:, None]
    factor = given[:, None, :, 0]
    each = products * factor - 8 * sums * (1 if bug else factor)
    return (each * scale[..., 0]).sum(-1).to(LOW)  # culprit: sums-of-codes


BUGS = (rounded_under_the_exact_scale, scales_of_scales_ignored, offset_of_the_other_width, blocks_in_the_order_of_memory, halves_read_as_pairs,
        padded_rows_of_scales, blocks_across_experts, zeros_get_an_exponent, multiplier_overflows, halves_by_a_pointer_of_floats,
        scales_of_sub_blocks_dropped, six_bits_by_the_wrong_bytes, quarter_of_a_block_written, adapter_in_the_zero_points,
        sums_of_codes_for_sums_of_data)  # fmt: skip


def by_rows(w: torch.Tensor) -> torch.Tensor:
    return product(normal(8, w[0].numel()), w)


def shrinking() -> torch.Tensor:
    groups = (uneven(48, 4, 32) * torch.exp2(-8 * normal(48, 4, 1, seed=9).abs())).double()
    return (normal(48, 4, 32, seed=3) * groups / groups.abs().amax(-1, keepdim=True)).sum(-1)


def adapted() -> torch.Tensor:
    w = uneven(48, 4, 32).view(48, 128)
    update = 4 * normal(48, 4, seed=5)[..., None] * asymmetric(w)[1].mean()
    return product(normal(16, 128), w.view(48, 4, 32) + update)


def transposed() -> torch.Tensor:
    return product(normal(8, 64), (normal(64, 64, seed=1) * torch.exp2(2 * normal(64, 1, seed=2))).t().contiguous())


EXACT: dict[str, Callable[[], torch.Tensor]] = {
    "rounded_under_the_exact_scale": lambda: torch.softmax(product(normal(8, 64), uneven(24, 2, 32, seed=4)) / 8, -1),
    "scales_of_scales_ignored": lambda: nn.functional.gelu(by_rows(uneven(48, 4, 32))),
    "offset_of_the_other_width": lambda: by_rows(uneven(48, 4, 32)),
    "blocks_in_the_order_of_memory": transposed,
    "halves_read_as_pairs": lambda: by_rows(uneven(48, 4, 32)),
    "padded_rows_of_scales": lambda: by_rows(uneven(48, 3, 32)),
    "blocks_across_experts": lambda: torch.bmm(
        normal(2, 8, 32).double(), (normal(2, 24, 32, seed=1) * torch.exp2(2 * normal(2, 24, 1, seed=2))).double().transpose(1, 2)
    ),
    "zeros_get_an_exponent": lambda: torch.sigmoid(by_rows(uneven(48, 4, 32))),
    "multiplier_overflows": shrinking,
    "halves_by_a_pointer_of_floats": lambda: torch.tanh(by_rows(uneven(48, 4, 32))),
    "scales_of_sub_blocks_dropped": lambda: torch.tanh(by_rows(uneven(24, 8, 32).abs()) / 4),
    "six_bits_by_the_wrong_bytes": lambda: by_rows(uneven(24, 8, 32).abs()),
    "quarter_of_a_block_written": lambda: by_rows(uneven(48, 4, 32)),
    "adapter_in_the_zero_points": adapted,
    "sums_of_codes_for_sums_of_data": lambda: product(normal(16, 4, 32).view(16, 128) + 0.5, uneven(48, 4, 32)),
}
