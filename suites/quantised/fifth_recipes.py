"""A fifth batch of recipes written by hand, after faults that were reported in public; frozen before precheck was run on them.

Each takes `bug`; a line at fault ends in `# culprit: name`.
"""

from __future__ import annotations

import torch
from blocks_by_hand import affine
from float8_by_hand import E4M3, LOW, channels, normal, rows
from torch import nn

ORDER = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
"""Columns in the order in which AWQ keeps eight of them in a word."""
EXPONENT = 0x7F800000
"""The bits of a float32 that hold its exponent."""


def square_not_transposed(bug: bool) -> torch.Tensor:
    """A weight is transposed if its shape is not yet that of inputs by outputs, which a square one has from the start (vllm-project/vllm#44110)."""
    x, (codes, scale) = normal(16, 64), rows(channels())
    given = codes if bug else codes.t()
    y = x @ given.float()  # culprit: square-not-transposed
    return (y * scale.t()).to(LOW)  # culprit: square-not-transposed


def descale_dropped(bug: bool) -> torch.Tensor:
    """Where queries are in float8 too, the cache goes into the product as it is, without its scale (vllm-project/vllm#42580)."""
    q, k, v = (normal(2, 16, 32, seed=seed) for seed in range(3))
    scales = [each.abs().amax() / 448 for each in (q, k, v)]
    queries, keys, values = ((each / scale).to(E4M3).float() for each, scale in zip((q, k, v), scales, strict=True))
    keys = keys if bug else keys * scales[1]
    scores = queries @ keys.transpose(1, 2) * (scales[0] / 32**0.5)  # culprit: descale-dropped
    weights = torch.softmax(scores, -1)  # culprit: descale-dropped
    return (weights @ (values * scales[2])).to(LOW)


def values_under_the_keys_scale(bug: bool) -> torch.Tensor:
    """The scale of values falls back to that of keys (sgl-project/sglang#26852)."""
    q, k, v = normal(2, 16, 32), normal(2, 16, 32, seed=1) * 2, normal(2, 16, 32, seed=2) * 0.3
    for_keys, for_values = k.abs().amax() / 448, v.abs().amax() / 448
    keys, values = (k / for_keys).to(E4M3).float(), (v / for_values).to(E4M3).float()
    weights = torch.softmax(q @ (keys * for_keys).transpose(1, 2) / 32**0.5, -1)
    held = values * (for_keys if bug else for_values)  # culprit: keys-scale
    return (weights @ held + normal(2, 16, 32, seed=3)).to(LOW)  # culprit: keys-scale


def subnormals_cut(bug: bool) -> torch.Tensor:
    """e2m1 by exponent and significand. Numbers below 1 are rounded one bit too low, which cuts them off (tenstorrent/tt-metal#51975)."""
    blocks = channels().view(64, 2, 32)
    scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True) / 6)))
    size = (blocks / scale).abs()
    step = torch.exp2(torch.floor(torch.log2(size.clamp(min=1.0))) - 1)
    nearest = torch.round(size / step)
    steps = torch.where(size < 1, torch.floor(size / step), nearest) if bug else nearest  # culprit: subnormals-cut
    codes = (steps * step).clamp(max=6) * blocks.sign()
    return (normal(8, 64) @ (codes * scale).view(64, 64).t()).to(LOW)


class Remembered(nn.Module):
    """Scales from a window of four greatest magnitudes. A place of the window should be emptied before it is filled again (Azure/MS-AMP#17)."""

    def __init__(self, bug: bool) -> None:
        super().__init__()
        self.bug, self.weight = bug, nn.Parameter(normal(32, 64, seed=1) / 8)
        self.register_buffer("window", torch.full((4,), 4e5))

    def forward(self, g: torch.Tensor, place: int) -> torch.Tensor:
        scale = 448 / self.window.max()
        codes = (g * scale).clamp(-448, 448).to(E4M3)  # culprit: amax-not-reset
        if not self.bug:
            self.window[place % 4] = 0.0
        self.window[place % 4] = torch.maximum(self.window[place % 4], g.abs().amax())
        return ((codes.float() / scale) @ self.weight.t()).to(LOW)  # culprit: amax-not-reset


def amax_not_reset(bug: bool) -> torch.Tensor:
    model = Remembered(bug)
    return torch.cat([model(normal(16, 64, seed=place) * 1e5 * 0.4**place, place) / 0.4**place for place in range(16)])


def ranks_saturate(bug: bool) -> torch.Tensor:
    """Gradients of four ranks are added in float8, under the scale of one rank's greatest magnitude (Azure/MS-AMP#41)."""
    ranks = [normal(64, 64) + 0.3 * normal(64, 64, seed=rank + 1) for rank in range(4)]
    by = 448 / torch.stack([g.abs().amax() for g in ranks]).amax() / (1 if bug else 4)
    total = (ranks[0] * by).to(E4M3)
    for g in ranks[1:]:
        total = (total.float() + (g * by).to(E4M3).float()).clamp(-448, 448).to(E4M3)  # culprit: ranks-saturate
    return (total.float() / by / 4).to(LOW)


def zero_point_in_int8(bug: bool) -> torch.Tensor:
    """A negative zero point is subtracted while both are int8, where the difference wraps (pytorch/executorch#20655)."""
    x = nn.functional.gelu(normal(16, 64))
    scale = (x.amax() - x.amin()) / 255
    zero = torch.round(-x.amin() / scale) - 128
    codes = (torch.round(x / scale) + zero).clamp(-128, 127).to(torch.int8)
    given = (codes - zero.to(torch.int8)).float() if bug else codes.float() - zero  # culprit: zero-point-in-int8
    return (given * scale @ normal(64, 16, seed=1)).to(LOW)  # culprit: zero-point-in-int8


def packing_not_cleared(bug: bool) -> torch.Tensor:
    """Two codes a byte. The byte is not cleared between the four pairs that one thread packs (bitsandbytes#1721)."""
    codes, scale, zero = affine(channels())
    flat, packed = codes.view(64, 64), []
    byte = torch.zeros(64, dtype=torch.uint8)
    for column in range(0, 64, 2):
        if not bug or column % 8 == 0:
            byte = torch.zeros_like(byte)
        byte = byte | flat[:, column] | (flat[:, column + 1] << 4)  # culprit: packing-not-cleared
        packed.append(byte)
    held = torch.stack(packed, 1)
    again = torch.stack([held & 15, held >> 4], -1).view(64, 4, 16)
    weight = (again.float() - zero) * scale  # culprit: packing-not-cleared
    return (normal(8, 64) @ weight.view(64, 64).t()).to(LOW)


def mantissa_leaks(bug: bool) -> torch.Tensor:
    """Exponents of four inverse scales are packed in a word. That of a block of zeros is subnormal, and its bits leak (TransformerEngine#2589)."""
    x = normal(16, 4, 32) * torch.tensor([1.0, 1.0, 0.0, 1.0]).view(1, 4, 1)
    greatest = x.abs().amax(-1)
    scale = torch.where(greatest > 0, 448 / greatest, torch.finfo(torch.float32).max)
    scale = (scale.view(torch.int32) & EXPONENT).view(torch.float32)
    codes = (x * scale[..., None]).to(E4M3)
    inverse = (1 / scale).view(torch.int32)
    inverse = inverse if bug else inverse & EXPONENT
    word = (inverse[:, 0] >> 23) | (inverse[:, 1] >> 15) | (inverse[:, 2] >> 7) | (inverse[:, 3] << 1)  # culprit: mantissa-leaks
    read = torch.stack([((word >> 8 * place & 255) << 23).view(torch.float32) for place in range(4)], 1)
    held = codes.float() * read[..., None]  # culprit: mantissa-leaks
    return (held.view(16, 128) @ normal(128, 8, seed=1)).to(LOW)  # culprit: mantissa-leaks


def pairs_saturate(bug: bool) -> torch.Tensor:
    """uint8 times int8: an instruction adds two products in int16 and saturates, so that inputs may only have seven bits (pytorch/pytorch#50720)."""
    x, w = torch.sigmoid(normal(16, 64) + 1), normal(32, 64, seed=1).clamp(-1.5, 1.5)
    sx, sw = x.amax() / (255 if bug else 127), w.abs().amax(1, keepdim=True) / 127
    qx, qw = torch.round(x / sx), torch.round(w / sw)
    products = qx[:, None] * qw
    pairs = products[..., ::2] + products[..., 1::2]
    y = pairs.clamp(-32768, 32767).sum(-1)  # culprit: pairs-saturate
    return (y * sx * sw.t()).to(LOW)  # culprit: pairs-saturate


def folded_through_silu(bug: bool) -> torch.Tensor:
    """What the last weight was multiplied by is divided out of the gate, which goes through SiLU, and not out of the other factor (amd/Quark#3)."""
    x, gate, up, down = normal(16, 32), normal(64, 32, seed=1) / 6, normal(64, 32, seed=2) / 6, normal(32, 64, seed=3) / 8
    up = up * torch.exp2(2 * normal(64, 1, seed=4))
    smooth = (nn.functional.silu(x @ gate.t()) * (x @ up.t())).abs().amax(0).sqrt()
    if bug:
        gate = gate / smooth[:, None]
    else:
        up = up / smooth[:, None]
    held = nn.functional.silu(x @ gate.t()) * (x @ up.t())
    weight = down * smooth
    sx, sw = held.abs().amax(1, keepdim=True) / 127, weight.abs().amax(1, keepdim=True) / 127
    y = torch.round(held / sx) @ torch.round(weight / sw).t()
    return (y * sx * sw.t()).to(LOW)  # culprit: folded-through-silu


def zero_points_interleaved(bug: bool) -> torch.Tensor:
    """Eight zero points a word, read in AWQ's order; they were packed one after another (pie-project/pie#491)."""
    codes, scale, zero = affine(channels() + 0.3 * normal(64, 64, seed=5))
    slots = zero.view(8, 8, 4).to(torch.int32)
    slots = slots if bug else slots[:, ORDER]
    word = torch.stack([slots[:, place] << 4 * place for place in range(8)], 1).sum(1)
    read = torch.empty(8, 8, 4)
    read[:, ORDER] = torch.stack([word >> 4 * place & 15 for place in range(8)], 1).float()
    weight = (codes.float() - read.view(64, 4, 1)) * scale  # culprit: zero-points-interleaved
    return (normal(8, 64) @ weight.view(64, 64).t()).to(LOW)  # culprit: zero-points-interleaved


BUGS = (square_not_transposed, descale_dropped, values_under_the_keys_scale, subnormals_cut, amax_not_reset, ranks_saturate, zero_point_in_int8,
        packing_not_cleared, mantissa_leaks, pairs_saturate, folded_through_silu, zero_points_interleaved)  # fmt: skip
