"""Quantised linear layers as inference libraries write them: weights are packed once, dequantised at each call. Each takes the name of a fault."""

from __future__ import annotations

import torch
from float8_by_hand import normal
from torch import nn

GROUP = 32
FAULTS = ("zero point", "groups transposed", "nibbles", "halves", "scale axis", "scale of neighbour", "double", "bias scaled")
INT8_FAULTS = ("scale axis", "scale stale", "tokens", "not scaled")


class Int4(nn.Module):
    """Weights in groups of 32 with zero points, two codes a byte."""

    def __init__(self, linear: nn.Linear, fault: str = "") -> None:
        super().__init__()
        self.fault, weight = fault, linear.weight.detach().float()
        self.rows, self.columns = weight.shape
        parts = weight.view(self.rows, -1, GROUP)
        low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
        scale = (high - low) / 15
        zero = torch.round(-low / scale).clamp(0, 15)
        codes = (torch.round(parts / scale[..., None]) + zero[..., None]).clamp(0, 15).to(torch.uint8).view(self.rows, self.columns)
        self.register_buffer("packed", codes[:, ::2] | (codes[:, 1::2] << 4))
        self.register_buffer("scale", scale.t().contiguous())  # groups by rows, as kernels read them
        self.register_buffer("zero", zero)
        self.bias = linear.bias

    def weight(self) -> torch.Tensor:
        low, high = (self.packed & 15).float(), (self.packed >> 4).float()
        if self.fault == "nibbles":
            low, high = high, low
        codes = torch.cat([low, high], 1) if self.fault == "halves" else torch.stack([low, high], -1).view(self.rows, self.columns)
        zero = self.zero + 1 if self.fault == "zero point" else self.zero
        scale = self.scale.reshape(self.zero.shape) if self.fault == "groups transposed" else self.scale.t()
        scale = scale.roll(1, 1) if self.fault == "scale of neighbour" else scale
        scale = scale.flip(0) if self.fault == "scale axis" else scale
        scale = scale**2 / scale.mean() if self.fault == "double" else scale
        return ((codes.view(self.rows, -1, GROUP) - zero[..., None]) * scale[..., None]).view(self.rows, self.columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.bias * 3 if self.fault == "bias scaled" else self.bias
        return nn.functional.linear(x, self.weight().to(x.dtype), bias.to(x.dtype))


class Int8(nn.Module):
    """Weights by channels, inputs by tokens, both in int8."""

    def __init__(self, linear: nn.Linear, fault: str = "") -> None:
        super().__init__()
        self.fault, weight = fault, linear.weight.detach().float()
        scale = weight.abs().amax(0 if fault == "scale axis" else 1, keepdim=True) / 127
        codes = torch.round(weight / weight.abs().amax(1, keepdim=True) * 127).to(torch.int8)
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        given = wide.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
        codes = torch.round(wide / (given * 0.25 if self.fault == "tokens" else given)).clamp(-128, 127)
        out = codes @ self.codes.t().float() * (given.amax() if self.fault == "scale stale" else given)
        if self.fault == "scale axis":
            out = codes @ (self.codes.float() * self.scale).t() * given
        elif self.fault != "not scaled":
            out = out * self.scale.t()
        return (out + self.bias).to(x.dtype)


def model(seed: int = 0) -> nn.Sequential:
    """Two layers whose channels and groups differ in size, as trained ones do."""
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 64))
    with torch.no_grad():
        for layer in (made[0], made[2]):
            columns = layer.weight.shape[1] // GROUP
            size = torch.exp2(0.7 * normal(layer.weight.shape[0], columns, seed=seed + columns))
            layer.weight.mul_(size.repeat_interleave(GROUP, 1))
    return made


def converted(kind: type[nn.Module], fault: str = "") -> nn.Sequential:
    """`model` with both layers quantised, the second with the fault."""
    whole = model()
    return nn.Sequential(kind(whole[0]), whole[1], kind(whole[2], fault))
