"""A fourth batch of recipes written by hand, after faults that were reported in public; frozen before precheck was run on them.

Each takes `bug`; a line at fault ends in `# culprit: name`.
"""

from __future__ import annotations

import torch
from blocks_by_hand import affine, fp4
from float8_by_hand import E4M3, LOW, channels, normal, rows
from torch import nn


def butterfly(x: torch.Tensor) -> torch.Tensor:
    """A Walsh-Hadamard transform of the last dimension, by sums and differences."""
    size, step, y = x.shape[-1], 1, x
    while step < size:
        pairs = y.reshape(*x.shape[:-1], size // (2 * step), 2, step)
        first, second = pairs.unbind(-2)
        y = torch.stack([first + second, first - second], -2)
        step *= 2
    return y.reshape(x.shape) / size**0.5


def zero_point_wraps(bug: bool) -> torch.Tensor:
    """Zero points are kept less one in four bits, where -1 becomes 15 (ModelCloud/GPTQModel#2350)."""
    parts = normal(64, 64, seed=1) + torch.where(torch.arange(64)[:, None] % 2 > 0, 2.0, 0.0)
    codes, scale, zero = affine(parts)
    kept = (zero - 1) % 16 + 1 if bug else zero
    weight = (codes.float() - kept) * scale  # culprit: zero-point-wraps
    return (normal(8, 64) @ weight.view(64, 64).t()).to(LOW)  # culprit: zero-point-wraps


def rows_regrouped(bug: bool) -> torch.Tensor:
    """Blocks of 16 x 16. Rows are regrouped from heads to queries, keys and values, and their scales are not (sgl-project/sglang#35703)."""
    w = normal(96, 32, seed=1) * torch.exp2(normal(6, 1, seed=2)).repeat_interleave(16, 0)
    blocks = w.view(6, 16, 2, 16)
    scale = blocks.abs().amax((1, 3)) / 448
    codes = (blocks / scale[:, None, :, None]).to(E4M3).view(2, 3, 16, 32).transpose(0, 1).reshape(6, 16, 2, 16)
    each = scale if bug else scale.view(2, 3, 2).transpose(0, 1).reshape(6, 2)
    weight = codes.float() * each[:, None, :, None]  # culprit: rows-regrouped
    return (normal(8, 32) @ weight.reshape(96, 32).t()).to(LOW)


def divisor_not_inverted(bug: bool) -> torch.Tensor:
    """NVFP4's second scale is kept as what the weight was multiplied by, and is multiplied by again (modular/modular#6600)."""
    w, x = channels(), normal(8, 64)
    divisor = 448 * 6 / w.abs().amax()
    blocks = w.view(64, 4, 16)
    scale = (blocks.abs().amax(-1, keepdim=True) / 6 * divisor).to(E4M3)
    codes = fp4(blocks / (scale.float() / divisor))
    weight = codes * scale.float()
    y = x @ weight.view(64, 64).t()
    return (y * divisor if bug else y / divisor).to(LOW)  # culprit: divisor-not-inverted


def gate_and_up_share(bug: bool) -> torch.Tensor:
    """Gate and up of an expert are fused under the first one's second scale (NVIDIA/TensorRT-LLM#14199)."""
    x, parts, overs, scales = normal(8, 64), [], [], []
    for place in range(2):
        blocks = (normal(32, 64, seed=place + 1) * (0.2 if place else 1.0)).view(32, 4, 16)
        over = blocks.abs().amax() / (448 * 6)
        scale = (blocks.abs().amax(-1, keepdim=True) / 6 / over).to(E4M3)
        parts.append(fp4(blocks / (scale.float() * over)))
        scales.append(scale.float())
        overs.append(over)
    each = overs[0] if bug else torch.stack(overs).repeat_interleave(32)[:, None, None]
    weight = torch.cat(parts) * torch.cat(scales) * each  # culprit: gate-and-up-share
    gate, up = (x @ weight.view(64, 64).t()).chunk(2, -1)
    return (nn.functional.silu(gate) * up).to(LOW)


class Cached(nn.Module):
    """The weight is quantised in the first microbatch. Its scale is renewed after it, and the codes are not (NVIDIA/TransformerEngine#1047)."""

    def __init__(self, bug: bool) -> None:
        super().__init__()
        self.bug, self.weight = bug, nn.Parameter(normal(32, 64, seed=1) / 8)
        self.register_buffer("scale", torch.tensor(100.0))
        self.register_buffer("codes", torch.zeros(32, 64, dtype=E4M3))

    def forward(self, x: torch.Tensor, first: bool) -> torch.Tensor:
        with torch.no_grad():
            if first or not self.bug:
                self.codes.copy_((self.weight * self.scale).clamp(-448, 448).to(E4M3))
            held = self.codes.float() / self.scale  # culprit: cached-weight
            self.scale.copy_(448 / self.weight.abs().amax())
        return (x @ held.t()).to(LOW)  # culprit: cached-weight


def cached_weight(bug: bool) -> torch.Tensor:
    model = Cached(bug)
    return torch.cat([model(normal(16, 64, seed=place + 5), place == 0) for place in range(3)])


def amax_of_the_old_weight(bug: bool) -> torch.Tensor:
    """A checkpoint is copied over random weights; the scale is still theirs (NVIDIA/TransformerEngine#567)."""
    weight = normal(32, 64, seed=1) / 64
    history = weight.abs().amax()
    weight.copy_(normal(32, 64, seed=2))
    if not bug:
        history = weight.abs().amax()
    codes = (weight * (448 / history)).clamp(-448, 448).to(E4M3)  # culprit: old-amax
    return (normal(8, 64) @ (codes.float() / (448 / history)).t()).to(LOW)


def block_of_zeros(bug: bool) -> torch.Tensor:
    """The scale of a row of zeros is 0, and 0 / 0 is NaN (pytorch/ao#4713, huggingface/kernels-community#680)."""
    x = normal(16, 64) * torch.where(torch.arange(16)[:, None] == 3, 0.0, 1.0)
    scale = x.abs().amax(1, keepdim=True) / 448
    codes = (x / (scale if bug else scale.clamp(min=1e-12))).to(E4M3)  # culprit: block-of-zeros
    return (codes.float() * scale @ normal(64, 8, seed=1)).to(LOW)


def nested_scale_as_it_is(bug: bool) -> torch.Tensor:
    """Scales of blocks are kept in eight bits; the codes of these are taken for the scales (bitsandbytes#1549)."""
    blocks = channels().view(64, 4, 16)
    scale = blocks.abs().amax(-1, keepdim=True) / 7
    mean = scale.mean()
    over = (scale - mean).abs().amax() / 127
    kept = torch.round((scale - mean) / over)
    again = kept * over + mean
    codes = torch.round(blocks / again).clamp(-8, 7)
    weight = codes * (kept if bug else again)  # culprit: nested-scale
    return (normal(8, 64) @ weight.view(64, 64).t()).to(LOW)


def heads_alone_turned(bug: bool) -> torch.Tensor:
    """The output projection is turned over all its columns, its input over the heads alone (spcl/QuaRot#10)."""
    x, w = normal(16, 4, 16), channels()
    turned = butterfly(x.transpose(1, 2)).transpose(1, 2)
    turned = turned if bug else butterfly(turned)
    (qx, sx), (qw, sw) = rows(turned.reshape(16, 64)), rows(butterfly(w))
    y = qx.float() @ qw.float().t()  # culprit: heads-alone
    return (y * sx * sw.t()).to(LOW)  # culprit: heads-alone


def zero_point_not_multiplied(bug: bool) -> torch.Tensor:
    """int8 under one scale and zero point: the weight's sums are subtracted without the zero point (vllm-project/vllm#10292)."""
    x, w = nn.functional.gelu(normal(16, 64)) + 0.3, channels()
    scale, sw = (x.amax() - x.amin()) / 255, w.abs().amax(1, keepdim=True) / 127
    zero = torch.round(-x.amin() / scale) - 128
    qx, qw = (torch.round(x / scale) + zero).clamp(-128, 127).to(torch.int8), torch.round(w / sw).to(torch.int8)
    adjustment = qw.sum(1).float() if bug else zero * qw.sum(1).float()
    y = (qx.float() @ qw.float().t() - adjustment) * scale * sw.t()  # culprit: zero-point-once
    return torch.relu(y).to(LOW)  # culprit: zero-point-once


def unsigned_in_signed(bug: bool) -> torch.Tensor:
    """Zero points of 0 to 15 beside codes of -8 to 7: the upper half of each group is clamped (intel/auto-round#2273)."""
    parts = (channels() + 0.3).view(64, 4, 16)
    low, high = parts.amin(-1, keepdim=True).clamp(max=0), parts.amax(-1, keepdim=True).clamp(min=0)
    scale = (high - low) / 15
    zero = torch.round(-low / scale) - (0 if bug else 8)
    codes = (torch.round(parts / scale) + zero).clamp(-8, 7)  # culprit: unsigned-in-signed
    return (normal(8, 64) @ ((codes - zero) * scale).view(64, 64).t()).to(LOW)


def turned_when_packed(bug: bool) -> torch.Tensor:
    """The weight is turned when it is packed, and the input is not turned online (ModelCloud/GPTQModel#2980)."""
    x, w = normal(16, 64), channels()
    codes, scale = rows(butterfly(w))
    given, each = rows(x if bug else butterfly(x))
    y = given.float() @ codes.float().t()  # culprit: turned-when-packed
    return (y * each * scale.t()).to(LOW)  # culprit: turned-when-packed


BUGS = (zero_point_wraps, rows_regrouped, divisor_not_inverted, gate_and_up_share, cached_weight, amax_of_the_old_weight, block_of_zeros,
        nested_scale_as_it_is, heads_alone_turned, zero_point_not_multiplied, unsigned_in_signed, turned_when_packed)  # fmt: skip
