"""MX, NVFP4 and integer recipes as people write them with torch's ops: each takes `bug`, and a line at fault ends in `# culprit: name`."""

from __future__ import annotations

import torch
from float8_by_hand import E4M3, LOW, channels, normal
from torch import nn

CODEBOOK = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def fp4(x: torch.Tensor) -> torch.Tensor:
    """To the nearest of e2m1's numbers, by its boundaries."""
    bounds = (CODEBOOK[1:] + CODEBOOK[:-1]) / 2
    return CODEBOOK[torch.bucketize(x.abs().contiguous(), bounds)] * x.sign()


def rounded_down(bug: bool) -> torch.Tensor:
    """e8m0 by floor of log2(amax / 448): up to half of each block's range is clipped."""
    blocks = normal(64, 4, 32) * torch.exp2(normal(64, 4, 1, seed=1))
    exponent = torch.log2(blocks.abs().amax(-1, keepdim=True) / 448)
    scale = torch.exp2(torch.floor(exponent) if bug else torch.ceil(exponent))
    codes = (blocks / scale).clamp(-448, 448).to(E4M3)  # culprit: rounded-down
    return ((codes.float() * scale).reshape(64, 128) @ normal(128, 8, seed=2)).to(LOW)


def blocks_across(bug: bool) -> torch.Tensor:
    """Scales of blocks along the rows, spread over blocks along the columns."""
    w = channels() * torch.exp2(normal(1, 64, seed=3))
    scale = torch.exp2(torch.ceil(torch.log2(w.view(64, 2, 32).abs().amax(-1) / 448)))
    codes = (w.view(64, 2, 32) / scale[..., None]).to(E4M3).view(64, 64)
    each = scale.reshape(2, 64).repeat_interleave(32, 0) if bug else scale.repeat_interleave(32, 1)
    weight = codes.float() * each  # culprit: blocks-across
    return (normal(8, 64) @ weight.t()).to(LOW)


def exponent_bias(bug: bool) -> torch.Tensor:
    """Each block's e8m0 byte, decoded with a bias of 128."""
    blocks = normal(64, 2, 32) * torch.exp2(4 * normal(64, 2, 1, seed=1))
    byte = (torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True) / 448)) + 127).to(torch.uint8)
    codes = (blocks / torch.exp2(byte.float() - 127)).to(E4M3)
    weight = codes.float() * torch.exp2(byte.float() - (128 if bug else 127))  # culprit: exponent-bias
    return (normal(8, 64, seed=3) @ weight.view(64, 64).t()).to(LOW)


def hadamard(size: int) -> torch.Tensor:
    turn = torch.ones(1, 1)
    while len(turn) < size:
        turn = torch.cat([torch.cat([turn, turn], 1), torch.cat([turn, -turn], 1)])
    return turn / size**0.5


def missing_inverse(bug: bool) -> torch.Tensor:
    """Weights turned before they are quantised, inputs not."""
    turn, w, x = hadamard(64), channels(), normal(16, 64)
    scale = (w @ turn).abs().amax(1, keepdim=True) / 448
    codes = (w @ turn / scale).to(E4M3)
    x = x if bug else x @ turn
    return (x @ (codes.float() * scale).t()).to(LOW)  # culprit: missing-inverse


def signs_differ(bug: bool) -> torch.Tensor:
    """Both operands of the weight gradient turned, by different random signs."""
    turn, g, x = hadamard(64), normal(64, 32), normal(64, 48, seed=1)
    signs, others = torch.sign(normal(64, 1, seed=2)), torch.sign(normal(64, 1, seed=3))
    g, x = turn @ (signs * g), turn @ ((others if bug else signs) * x)
    scale, other = g.abs().amax(0, keepdim=True) / 448, x.abs().amax(0, keepdim=True) / 448
    product = (g / scale).to(E4M3).float().t() @ (x / other).to(E4M3).float()  # culprit: signs-differ
    return (product * scale.t() * other).to(LOW)  # culprit: signs-differ


def biased(bug: bool) -> torch.Tensor:
    """Rounding by chance of integers: uniform numbers are added, and the sum is rounded where it should be cut off."""
    g = normal(64, 256)
    scale = g.abs().amax(1, keepdim=True) / 7
    noisy = g / scale + torch.rand(g.shape, generator=torch.Generator().manual_seed(5))
    codes = (torch.round(noisy) if bug else torch.floor(noisy)).clamp(-8, 7)  # culprit: biased
    return ((codes * scale) @ normal(256, 8, seed=2)).to(LOW)


def cut_off(bug: bool) -> torch.Tensor:
    """A cast to integers cuts off; it does not round."""
    w = channels()
    scale = w.abs().amax(1, keepdim=True) / 127
    steps = w / scale
    codes = (steps if bug else steps.round()).to(torch.int8)  # culprit: cut-off
    return (normal(8, 64) @ (codes.float() * scale).t()).to(LOW)


def tensor_scale_forgotten(bug: bool) -> torch.Tensor:
    """NVFP4's second scale is divided by and not multiplied by."""
    w = channels()
    over = w.abs().amax() / (448 * 6)
    blocks = w.view(64, 4, 16)
    scale = (blocks.abs().amax(-1, keepdim=True) / 6 / over).to(E4M3)
    codes = fp4(blocks / (scale.float() * over))
    weight = codes * scale.float() if bug else codes * (scale.float() * over)  # culprit: tensor-scale-forgotten
    return (normal(8, 64) @ weight.view(64, 64).t() + normal(64, seed=4)).to(LOW)  # culprit: tensor-scale-forgotten


def scales_of_the_neighbour(bug: bool) -> torch.Tensor:
    """NVFP4 blocks of which each reads the scale of the block after it."""
    blocks = (channels() * torch.exp2(normal(1, 64, seed=3))).view(64, 4, 16)
    scale = (blocks.abs().amax(-1, keepdim=True) / 6).clamp(min=2.0**-6).to(E4M3).float()
    codes = fp4(blocks / scale)
    weight = codes * (scale.roll(1, 1) if bug else scale)  # culprit: neighbours-scale
    return (normal(8, 64) @ weight.view(64, 64).t()).to(LOW)


def affine(w: torch.Tensor, group: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    parts = w.view(w.shape[0], -1, group)
    low, high = parts.amin(-1, keepdim=True).clamp(max=0), parts.amax(-1, keepdim=True).clamp(min=0)
    scale = (high - low) / 15
    zero = torch.round(-low / scale).clamp(0, 15)
    return (torch.round(parts / scale) + zero).clamp(0, 15).to(torch.uint8), scale, zero


def wrong_zero_point(bug: bool) -> torch.Tensor:
    """Zero points of 0 to 15, subtracted as if codes were stored less 8."""
    codes, scale, zero = affine(channels() + 0.3)
    weight = (codes.float() - (zero - 8 if bug else zero)) * scale  # culprit: wrong-zero-point
    return (normal(8, 64) @ weight.view(64, 64).t()).to(LOW)  # culprit: wrong-zero-point


def group_order(bug: bool) -> torch.Tensor:
    """Scales kept as groups by channels, read as channels by groups."""
    codes, scale, zero = affine(channels() * torch.exp2(normal(1, 64, seed=3)))
    kept = scale.squeeze(-1).t().contiguous()
    again = (kept.view(64, 4) if bug else kept.t())[..., None]
    weight = (codes.float() - zero) * again  # culprit: group-order
    return (normal(8, 64) @ weight.view(64, 64).t()).to(LOW)


def packed_layout(bug: bool) -> torch.Tensor:
    """Two codes a byte: packed as even and odd ones, unpacked as the first and the second half."""
    codes, scale, zero = affine(channels())
    flat = codes.view(64, 64)
    byte = flat[:, ::2] | (flat[:, 1::2] << 4)
    low, high = byte & 15, byte >> 4
    again = torch.cat([low, high], 1) if bug else torch.stack([low, high], -1).view(64, 64)
    weight = (again.view(64, 4, 16).float() - zero) * scale  # culprit: packed-layout
    return (normal(8, 64) @ weight.view(64, 64).t()).to(LOW)


def smoothed_once(bug: bool) -> torch.Tensor:
    """SmoothQuant: the input is divided by what the weight is multiplied by, or it is not."""
    x, w = normal(32, 64) * torch.exp2(2 * normal(1, 64, seed=1)), channels()
    smooth = x.abs().amax(0, keepdim=True).sqrt()
    scaled_w = w * smooth
    x = x if bug else x / smooth
    sx, sw = x.abs().amax(1, keepdim=True) / 127, scaled_w.abs().amax(1, keepdim=True) / 127
    y = torch.round(x / sx) @ torch.round(scaled_w / sw).t()
    return (y * sx * sw.t()).to(LOW)  # culprit: smoothed-once


class Cached(nn.Module):
    """A key cache in int8: old entries are read under the newest entry's scale."""

    def __init__(self, bug: bool) -> None:
        super().__init__()
        self.bug, self.codes, self.scales = bug, torch.zeros(8, 64, dtype=torch.int8), torch.ones(8, 1)

    def forward(self, key: torch.Tensor, place: int) -> torch.Tensor:
        scale = key.abs().amax() / 127
        self.codes[place] = torch.round(key / scale).to(torch.int8)
        self.scales[place] = scale
        held = self.codes[: place + 1].float() * (scale if self.bug else self.scales[: place + 1])  # culprit: newest-scale
        return torch.softmax(held @ key, -1)


def newest_scale(bug: bool) -> torch.Tensor:
    cache, outs = Cached(bug), []
    for place in range(8):
        outs.append(cache(normal(64, seed=place) * 4.0 ** (place % 2) / 8, place))
    return torch.cat(outs).to(LOW)


BUGS = (rounded_down, blocks_across, exponent_bias, missing_inverse, signs_differ, biased, cut_off, tensor_scale_forgotten,
        scales_of_the_neighbour, wrong_zero_point, group_order, packed_layout, smoothed_once, newest_scale)  # fmt: skip
