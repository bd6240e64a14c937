"""The other part of the eleventh batch: groups, ranks, layouts of scales, calibration and optimizers; frozen before precheck was run on them.

Each takes `bug`; a line at fault ends in `# culprit: name`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from float8_by_hand import E4M3, LOW, channels, normal
from torch import nn


def lowest_is_zero(bug: bool) -> torch.Tensor:
    """q4_K: groups whose numbers are all above zero have zero as their lowest number (ggml-org/llama.cpp#3846)."""
    w = (4 + normal(64, 8, 32) * 0.3) * torch.exp2(normal(64, 1, 1, seed=2))
    low = w.amin(-1, keepdim=True)
    low = low.clamp(max=0) if bug else low
    scale = (w.amax(-1, keepdim=True) - low) / 15
    codes = torch.round((w - low) / scale).clamp(0, 15).to(torch.uint8)  # culprit: lowest-is-zero
    dense = codes.float() * scale + low
    x = normal(8, 256, seed=3)
    return ((x - x.mean(1, keepdim=True)) @ dense.view(64, 256).t()).to(LOW)


def zero_point_not_added(bug: bool) -> torch.Tensor:
    """In-place form of asymmetric quantisation: the zero point is not added before codes are cut off (intel/neural-compressor#1611)."""
    w = channels()
    low, high = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
    scale = (high - low) / 15
    zero = torch.round(-low / scale)
    codes = w.clone()
    codes.div_(scale).round_()
    if not bug:
        codes.add_(zero)
    codes.clamp_(0, 15)  # culprit: not-added
    dense = (codes - zero) * scale  # culprit: not-added
    return (normal(8, 64) @ dense.t()).to(LOW)


def scales_of_the_first_rank(bug: bool) -> torch.Tensor:
    """A row-parallel weight in mxfp8 is cut along its inputs. Its scales are not, and each rank takes the first (vllm-project/vllm-omni#5761)."""
    x, w = normal(16, 128), normal(48, 4, 32, seed=1) * torch.exp2(2 * normal(48, 4, 1, seed=2))
    scale = torch.exp2(torch.ceil(torch.log2(w.abs().amax(-1) / 448)))
    codes = (w / scale[..., None]).to(E4M3).view(48, 128)
    parts = []
    for rank in range(2):
        start = 0 if bug else 2 * rank
        local = codes[:, 64 * rank : 64 * rank + 64].float().view(48, 2, 32) * scale[:, start : start + 2, None]  # culprit: first-rank
        parts.append(x[:, 64 * rank : 64 * rank + 64] @ local.view(48, 64).t())
    return (parts[0] + parts[1]).to(LOW)


def swizzled(scale: torch.Tensor) -> torch.Tensor:
    """Scales of 128 rows and 4 blocks in the order in which tensor cores read them."""
    return scale.view(4, 32, -1, 4).permute(2, 1, 0, 3).contiguous()


def scales_not_interleaved(bug: bool) -> torch.Tensor:
    """Scales of a weight in mxfp8 are stored row by row, and read as if they were interleaved (flashinfer-ai/flashinfer#4087)."""
    w = normal(128, 8, 32) * torch.exp2(2 * normal(128, 8, 1, seed=2))
    byte = (torch.ceil(torch.log2(w.abs().amax(-1) / 448)) + 127).to(torch.uint8)
    codes = (w / torch.exp2(byte.float() - 127)[..., None]).to(E4M3)
    stored = byte.reshape(2, 32, 4, 4) if bug else swizzled(byte)
    read = stored.permute(2, 1, 0, 3).reshape(128, 8)
    dense = codes.float() * torch.exp2(read.float() - 127)[..., None]  # culprit: not-interleaved
    return (normal(8, 256, seed=4) @ dense.view(128, 256).t()).to(LOW)


def moments_reset_to_byte_zero(bug: bool) -> torch.Tensor:
    """Adam's first moment in uint8, in which 128 stands for zero. Rows that are pruned and grown again get byte 0 (MrNeRF/LichtFeld-Studio#1229)."""
    w, codes, scale = normal(32, 16), torch.full((32, 16), 128, dtype=torch.uint8), torch.ones(32, 1)
    for step in range(6):
        m = 0.9 * (codes.float() - 128) * scale + 0.1 * normal(32, 16, seed=step + 1)
        scale = m.abs().amax(1, keepdim=True) / 127
        codes = (torch.round(m / scale) + 128).to(torch.uint8)
        if step == 3:
            codes[::2] = 0 if bug else 128
        w = w - 0.1 * (codes.float() - 128) * scale  # culprit: byte-zero
    return w.to(LOW)


def greatest_of_all_experts_afterwards(bug: bool) -> torch.Tensor:
    """Experts share the greatest magnitude of their weights. It is shared after they were quantised under their own (intel/auto-round#2053)."""
    experts = [normal(32, 64, seed=each) * 2.0**each for each in range(3)]
    tops = [w.abs().amax() for w in experts]
    shared = torch.stack(tops).amax()
    codes = [(w / ((top if bug else shared) / 448)).to(E4M3) for w, top in zip(experts, tops, strict=True)]
    x, chosen, made = normal(24, 64, seed=7), torch.arange(24) % 3, torch.zeros(24, 32)
    for each, q in enumerate(codes):
        rows = chosen == each
        made[rows] = x[rows] @ (q.float() * (shared / 448)).t()  # culprit: afterwards
    return nn.functional.gelu(made).to(LOW)  # culprit: afterwards


def range_of_the_whole_buffer(bug: bool) -> torch.Tensor:
    """A layer with small heads writes the front of a buffer for the largest ones. The whole buffer is calibrated, old numbers too (kekzl/imp#91)."""
    buffer, q = 900 * normal(24, 128, seed=5), normal(16, 64)
    k = buffer[:, :64]
    k.copy_(normal(24, 64, seed=1))
    scale = (buffer if bug else k).abs().amax() / 127
    codes = torch.round(k / scale).clamp(-127, 127).to(torch.int8)  # culprit: whole-buffer
    return torch.softmax(q @ (codes.float() * scale).t() / 8, -1).to(LOW)


def written_by_multiplying(bug: bool) -> torch.Tensor:
    """A latent cache in float8: what is written is multiplied by its scale, as what is read is (vllm-project/vllm-xpu-kernels#475)."""
    latent, q = 30 * normal(24, 64, seed=1), normal(16, 64, seed=2) / 30
    scale = (30 * normal(512, 64, seed=3)).abs().amax() / 448
    scaled = latent * scale if bug else latent / scale
    codes = scaled.clamp(-448, 448).to(E4M3)
    keys = codes.float() * scale  # culprit: by-multiplying
    return torch.softmax(q @ keys.t() / 8, -1).to(LOW)  # culprit: by-multiplying


BUGS = (lowest_is_zero, zero_point_not_added, scales_of_the_first_rank, scales_not_interleaved, moments_reset_to_byte_zero,
        greatest_of_all_experts_afterwards, range_of_the_whole_buffer, written_by_multiplying)  # fmt: skip
HEALTHY: tuple[Callable[[], torch.Tensor], ...] = ()
"""The look-alikes of both parts are in `eleventh_healthy`."""
