"""Healthy code that looks like the third batch's faults, frozen before precheck was run on it."""

from __future__ import annotations

import torch
from blocks_by_hand import hadamard
from float8_by_hand import E4M3, LOW, channels, normal, rows
from third_recipes import signed_turn
from torch import nn


def queries_and_keys_turned() -> torch.Tensor:
    """QuaRot: queries and keys are turned by one matrix, and keys alone are quantised, as a cache."""
    q, k, turn = normal(2, 8, 32), normal(2, 24, 32, seed=1), signed_turn(32)
    codes, scale = rows(k @ turn)
    return torch.softmax((q @ turn) @ (codes.float() * scale).transpose(1, 2) / 32**0.5, -1).to(LOW)


class Packed(nn.Module):
    """Its weight was turned when it was packed, in another program; the input is turned online."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turn", signed_turn(64))
        codes, scale = rows(channels() @ self.turn)
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given, each = rows(x @ self.turn)
        return (given.float() @ self.codes.float().t() * each * self.scale.t()).to(LOW)


def weight_turned_elsewhere() -> torch.Tensor:
    return PACKED(normal(16, 64))


PACKED = Packed()
"""Made before the block that is watched."""


def walsh_mixing() -> torch.Tensor:
    """A model that mixes its channels by a Hadamard matrix, since that costs no weights; the layer after it is in float8."""
    x, w = normal(16, 64), channels()
    (qx, sx), (qw, sw) = rows(nn.functional.gelu(x @ hadamard(64))), rows(w)
    return torch.softmax((qx.float() @ qw.float().t()) * sx * sw.t() / 8, -1).to(LOW)


def walsh_mixing_without_more() -> torch.Tensor:
    """The same with nothing between the mixing and the layer."""
    x, w = normal(16, 64), channels()
    (qx, sx), (qw, sw) = rows(x @ hadamard(64)), rows(w)
    return torch.softmax((qx.float() @ qw.float().t()) * sx * sw.t() / 8, -1).to(LOW)


def projected_at_random() -> torch.Tensor:
    """A random orthogonal projection makes 16 features of 64, which are quantised."""
    x, w = normal(32, 64), normal(8, 16, seed=1)
    projection = torch.linalg.qr(normal(64, 64, seed=4)).Q[:, :16]
    (qx, sx), (qw, sw) = rows(x @ projection), rows(w)
    return ((qx.float() @ qw.float().t()) * sx * sw.t()).to(LOW)


def codes_of_the_rest() -> torch.Tensor:
    """Two codes of four bits: of the weight, and of what the first left."""
    w = channels()
    scale = w.abs().amax(1, keepdim=True) / 7
    first = torch.round(w / scale) * scale
    rest = w - first
    other = rest.abs().amax(1, keepdim=True) / 7
    return (normal(8, 64) @ (first + torch.round(rest / other) * other).t()).to(LOW)


def percentile() -> torch.Tensor:
    """int8 whose range ends at 99.9 % of the magnitudes; a few in a thousand end at its border."""
    x = normal(64, 256)
    scale = torch.quantile(x.abs(), 0.999) / 127
    codes = torch.round(x / scale).clamp(-127, 127)
    return (codes * scale @ normal(256, 16, seed=1)).to(LOW)


def padded_to_blocks() -> torch.Tensor:
    """72 columns, filled up with zeros to whole blocks of 32."""
    w = nn.functional.pad(normal(64, 72, seed=1), (0, 24)).view(64, 3, 32)
    scale = torch.exp2(torch.ceil(torch.log2(w.abs().amax(-1, keepdim=True) / 448)))
    weight = ((w / scale).to(E4M3).float() * scale).view(64, 96)[:, :72]
    return (normal(8, 72, seed=2) @ weight.t()).to(LOW)


def antithetic_noise() -> torch.Tensor:
    """Rounding by chance twice, with u and 1 - u: the errors of the two partly cancel in their mean."""
    g, made = normal(64, 256), []
    scale = g.abs().amax(1, keepdim=True) / 7
    u = torch.rand(g.shape, generator=torch.Generator().manual_seed(78))
    for drawn in (u, 1 - u):
        made.append(torch.floor(g / scale + drawn) * scale)
    return (sum(made) / 2 @ normal(256, 8, seed=1)).to(LOW)


def learned_step() -> torch.Tensor:
    """LSQ: the step is a parameter, and gradients pass the rounding as if it were not there."""
    w, x = channels().requires_grad_(), normal(16, 64)
    step = (2 * w.detach().abs().mean(1, keepdim=True) / 7**0.5).requires_grad_()
    for _ in range(3):
        steps = (w / step).clamp(-8, 7)
        weight = (steps + (torch.round(steps) - steps).detach()) * step
        loss = (x @ weight.t()).square().mean()
        found = torch.autograd.grad(loss, [w, step])
        with torch.no_grad():
            w -= 1e-3 * found[0]
            step -= 1e-4 * found[1]
    return (x @ weight.detach().t()).to(LOW)


HEALTHY = (queries_and_keys_turned, weight_turned_elsewhere, walsh_mixing, walsh_mixing_without_more, projected_at_random, codes_of_the_rest,
           percentile, padded_to_blocks, antithetic_noise, learned_step)  # fmt: skip
