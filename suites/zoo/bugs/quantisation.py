"""Scales, codes and zero points: quantisation in the format of what is quantised."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def grouped(floor: float | None) -> torch.Tensor:
    """Four-bit weights in groups of 32, their scales kept from zero by the format's eps, which in bfloat16 is 0.0078."""
    weight = (0.02 * normal(64, 32)).to(LOW)
    scale = (weight.amax(-1, keepdim=True) - weight.amin(-1, keepdim=True)) / 15
    scale = scale.clamp(min=torch.finfo(weight.dtype).eps if floor is None else floor)  # culprit: quantiser-eps
    return torch.round(weight / scale).clamp(-8, 7) * scale


class Hoisted(nn.Module):
    """(q - zero) scale as q scale + (-zero scale), which is one fused op and 75000."""

    def __init__(self, hoisted: bool) -> None:
        super().__init__()
        self.hoisted = hoisted
        self.register_buffer("q", torch.floor(4 + 12 * uniform(8, 16)))
        self.register_buffer("zero", torch.full((8, 1), 15.0))
        self.register_buffer("scale", torch.full((8, 1), 5000.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.hoisted:
            return x @ ((self.q - self.zero) * self.scale).T
        offset = -self.zero * self.scale  # culprit: hoisted-zero
        return x @ torch.addcmul(offset, self.q, self.scale).T


def hoisted(fixed: bool) -> dict[str, Any]:
    return {"model": Hoisted(not fixed), "inputs": (0.01 * normal(4, 16)).half().float(), "precision": "16-true"}


class Straight(nn.Module):
    """Fake quantisation of weights near 1e-6: their largest over 127 is zero."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide, self.weight = wide, nn.Parameter(1e-6 * normal(8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.float() if self.wide else self.weight
        step = weight.abs().max() / 127  # culprit: vanished-step
        return x @ (torch.round(weight / step).clamp(-127, 127) * step).to(x.dtype).T


class Digits(nn.Module):
    """Eight ternary digits make a token's id below 6561, by powers of three in the dtype of the features."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide, self.down = wide, nn.Linear(8, 8, bias=False)
        with torch.no_grad():
            self.down.weight.copy_(torch.eye(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        digits = self.down(x)
        digits = torch.round(torch.tanh(digits.float() if self.wide else digits)) + 1
        powers = 3 ** torch.arange(8).to(digits.dtype)  # culprit: ternary-ids
        return (digits * powers).sum(-1).int() % 27  # culprit: ternary-ids


def digits(wide: bool) -> torch.Tensor:
    return Digits(wide).to(LOW)(4 * torch.round(2 * uniform(256, 8) - 1).to(LOW))


def bin_edges(dtype: torch.dtype) -> torch.Tensor:
    """64 bins for a calibration between 12.0 and 12.2, where float16 has 26 numbers: most have no width. The share that has one."""
    x = (12.0 + torch.floor(26 * uniform(4096)) / 128).to(dtype)  # float16 holds them
    low, high = x.min(), x.max()
    edges = low + (high - low) * torch.arange(65).to(dtype) / 64  # culprit: bins-without-width
    return (edges[1:] > edges[:-1]).float().mean()


def attended(lift: float) -> torch.Tensor:
    """fp8 attention: 2000 keys at exp(-7.3) are zero in e4m3 where they are multiplied, and not where they are summed."""
    query, keys = torch.zeros(4, 16), (0.5 * normal(2000, 16)).to(LOW)
    query[:, 0], keys[:, 0] = 4.0, 0.0
    keys[7, 0] = 7.3125
    values = (1 + normal(2000, 16, seed=1) / 8).to(LOW)
    scores = query @ keys.float().T / 4
    p = torch.exp(scores - scores.amax(-1, keepdim=True)) * lift
    coarse = p.to(torch.float8_e4m3fn)  # culprit: fp8-probabilities
    return (coarse.float() @ values.float() / p.sum(-1, keepdim=True)).to(LOW)


def orthogonalised(first: bool) -> torch.Tensor:
    """Muon's Newton-Schulz in half, of a gradient that still carries its loss scale: cast first, normalised then."""
    gradient = 65536 * normal(8, 16)
    x = gradient.half() if first else (gradient / gradient.norm()).half()  # culprit: scaled-muon
    x = x / (x.float().norm() + 1e-7).half()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.float()


BUGS = (
    Bug("quantiser-eps", "pytorch/ao#4534", ("dtype-leak",), "aten.clamp.default", lambda: grouped(None), lambda: grouped(1e-30)),
    Bug("hoisted-zero", "vllm-project/vllm#55532", ("overflow",), "aten.mul.Tensor", lambda: Hoisted(True).half()(hoisted(True)["inputs"].half()),
        lambda: Hoisted(False).half()(hoisted(True)["inputs"].half()), module="Hoisted", measured=hoisted),
    Bug("vanished-step", "PaddlePaddle/Paddle#43088", ("underflow",), "aten.div.Tensor",
        lambda: Straight(False).half()(1000 * normal(4, 16, seed=1).half()), lambda: Straight(True).half()(1000 * normal(4, 16, seed=1).half()),
        module="Straight"),
    Bug("ternary-ids", "xingchensong/S3Tokenizer#28", ("integer-rounding",), "aten.pow.Scalar", lambda: digits(False), lambda: digits(True)),
    Bug("bins-without-width", "NVIDIA/Model-Optimizer#2412", ("absorption", "decision-flip"), "aten.add.Tensor", lambda: bin_edges(HALF),
        lambda: bin_edges(WIDE), expected_miss="each edge is right to a rounding; that neighbours became equal is seen by comparing them only"),
    Bug("fp8-probabilities", "ROCm/FlyDSL#1020", ("underflow",), "aten._to_copy.default", lambda: attended(1.0), lambda: attended(256.0)),
    Bug("scaled-muon", "deepspeedai/DeepSpeed#8533", ("overflow",), "aten._to_copy.default", lambda: orthogonalised(True),
        lambda: orthogonalised(False)),
)  # fmt: skip
