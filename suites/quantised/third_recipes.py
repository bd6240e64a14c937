"""A third batch of recipes written by hand, frozen before precheck was run on them. Each takes `bug`; a line at fault ends in `# culprit: name`."""

from __future__ import annotations

from typing import Any

import torch
from blocks_by_hand import fp4, hadamard
from float8_by_hand import E4M3, LOW, channels, normal, rows
from torch import nn


def signed_turn(size: int, seed: int = 8) -> torch.Tensor:
    """A random Hadamard matrix, which is not its own inverse."""
    return torch.sign(normal(size, 1, seed=seed)) * hadamard(size)


def turned_on(bug: bool) -> torch.Tensor:
    """A weight is rotated before it is quantised, and afterwards rotated by the same matrix again, where the transpose would undo the rotation."""
    turn, w = signed_turn(64), channels()
    codes, scale = rows(w @ turn)
    again = codes.float() * scale
    weight = again @ (turn if bug else turn.t())  # culprit: turned-on
    return torch.softmax(normal(8, 64) @ weight.t() / 8, -1).to(LOW)  # culprit: turned-on


class Down(nn.Module):
    """The last layer of an MLP, in int4 by tokens and channels. Its input is turned online; its weight should be turned when it is packed."""

    def __init__(self, bug: bool) -> None:
        super().__init__()
        self.up, self.down, self.bug = nn.Parameter(normal(128, 32) / 6), nn.Parameter(normal(32, 128, seed=1) / 11), bug
        self.turn = signed_turn(128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = nn.functional.silu(x @ self.up.t()) @ self.turn
        weight = self.down if self.bug else self.down @ self.turn
        sx, sw = held.detach().abs().amax(1, keepdim=True) / 7, weight.detach().abs().amax(1, keepdim=True) / 7
        y = torch.round(held / sx) @ torch.round(weight / sw).t()  # culprit: weight-not-turned
        return (y * sx * sw.t()).to(LOW)  # culprit: weight-not-turned


def weight_not_turned(bug: bool) -> torch.Tensor:
    return Down(bug)(normal(16, 32, seed=2)).detach()


class TurnedGradient(torch.autograd.Function):
    """The weight gradient's operands are turned along the batch: by blocks of 16, one of them by blocks of 32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, bug: bool) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.bug = bug
        return x @ w.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x, w), g = ctx.saved_tensors, gradients[0]
        other = signed_turn(32 if ctx.bug else 16)
        held, given = turned(g.t(), signed_turn(16)), turned(x.t(), other)
        (qg, sg), (qx, sx) = rows(held), rows(given)
        product = qg.float() @ qx.float().t()  # culprit: sizes-differ
        return g @ w, product * sg * sx.t(), None  # culprit: sizes-differ


def turned(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    return (x.reshape(-1, len(turn)) @ turn).view(x.shape)


def sizes_differ(bug: bool) -> torch.Tensor:
    x, w = normal(64, 32), (normal(48, 32, seed=1) / 6).requires_grad_()
    y = TurnedGradient.apply(x, w, bug)
    (y * normal(64, 48, seed=2)).sum().backward()
    assert w.grad is not None
    return w.grad.to(LOW)


def largest_of_the_other(bug: bool) -> torch.Tensor:
    """The scale is made for e5m2's largest number, and the cast is to e4m3."""
    g = normal(64, 64) * 1e-3
    by = (57344 if bug else 448) / g.abs().amax()
    codes = (g * by).clamp(-448, 448).to(E4M3)  # culprit: other-largest
    return ((codes.float() / by) @ normal(64, 16, seed=1) * 100).to(LOW)


def first_microbatch(bug: bool) -> torch.Tensor:
    """Inputs are kept in float8 for the backward pass, each under its scale. One buffer of scales is there for all microbatches."""
    kept, scale, total = [], torch.zeros(32, 1), torch.zeros(16, 64)
    for place in range(4):
        x = normal(32, 64, seed=place) * torch.exp2(normal(32, 1, seed=place + 10))
        codes, each = rows(x)
        scale.copy_(each)
        kept.append((codes, scale if bug else scale.clone()))
    for place, (codes, each) in enumerate(kept):
        given = codes.float() * each  # culprit: first-microbatch
        total = total + normal(32, 16, seed=place + 20).t() @ given
    return total.to(LOW)


def bias_before_scale(bug: bool) -> torch.Tensor:
    """The bias is added to the sums of codes, before these are multiplied by their scales."""
    x, w, bias = normal(32, 64), channels(), normal(64, seed=5) * 3
    (qx, sx), (qw, sw) = rows(x), rows(w)
    sums = qx.float() @ qw.float().t()
    y = (sums + bias) * sx * sw.t() if bug else sums * sx * sw.t() + bias  # culprit: bias-before-scale
    return y.to(LOW)


def scales_flushed(bug: bool) -> torch.Tensor:
    """NVFP4 without its second scale: e4m3 holds no scale of small weights, and such blocks become zero."""
    blocks = (channels() * 0.004).view(64, 4, 16)
    over = torch.tensor(1.0) if bug else blocks.abs().amax() / (448 * 6)
    scale = (blocks.abs().amax(-1, keepdim=True) / 6 / over).to(E4M3).float()  # culprit: scales-flushed
    codes = fp4(torch.where(scale > 0, blocks / (scale * over).clamp(min=1e-30), torch.zeros(())))
    weight = codes * (scale * over)
    return (normal(8, 64) @ weight.view(64, 64).t() * 100).to(LOW)


def centred_then_cut(bug: bool) -> torch.Tensor:
    """Noise of -0.5 to 0.5 belongs before rounding to nearest. Here the sum is cut off."""
    g = normal(64, 256)
    scale = g.abs().amax(1, keepdim=True) / 7
    noisy = g / scale + (torch.rand(g.shape, generator=torch.Generator().manual_seed(77)) - 0.5)
    codes = (torch.floor(noisy) if bug else torch.round(noisy)).clamp(-8, 7)  # culprit: centred-then-cut
    return ((codes * scale) @ normal(256, 8, seed=2)).to(LOW)


def sums_in_half(bug: bool) -> torch.Tensor:
    """int8 codes are multiplied in float16, whose largest number is 65504."""
    x, w = normal(16, 256), normal(32, 256, seed=1)
    sx, sw = x.abs().amax(1, keepdim=True) / 127, w.abs().amax(1, keepdim=True) / 127
    qx, qw = torch.round(x / sx), torch.round(w / sw)
    y = qx.half() @ qw.half().t() if bug else qx @ qw.t()  # culprit: sums-in-half
    return (y.float() * sx * sw.t()).to(LOW)


def tail_block(bug: bool) -> torch.Tensor:
    """72 columns in blocks of 32: the last 8 have a scale of their own, and are read under that of the block before."""
    w = normal(64, 72, seed=1) * torch.where(torch.arange(72) < 64, 1.0, 0.05)
    place = torch.arange(72) // 32
    scale = torch.stack([part.abs().amax(1) for part in w.split(32, 1)], 1) / 448
    codes = (w / scale[:, place]).to(E4M3)
    weight = codes.float() * scale[:, place.clamp(max=1) if bug else place]  # culprit: tail-block
    return (normal(8, 72, seed=3) @ weight.t()).to(LOW)


BUGS = (turned_on, weight_not_turned, sizes_differ, largest_of_the_other, first_microbatch, bias_before_scale, scales_flushed, centred_then_cut,
        sums_in_half, tail_block)  # fmt: skip
