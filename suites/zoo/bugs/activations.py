"""Layers whose output, or whose own sum, is beyond float16 for inputs that trained networks have."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal

MECHANISM = "overflow"


def weigh(layer: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Module:
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


class FeedForward(nn.Module):
    """Each hidden unit is near 1000, each weight on the way down near one: 64 of them make 67 000, and a norm would have tamed it."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        self.up = weigh(nn.Linear(16, 64, bias=False), 62 + 0.5 * normal(64, 16))
        self.down = weigh(nn.Linear(64, 8, bias=False), 1.08 + 0.05 * normal(8, 64, seed=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.up(x))
        if self.wide:
            out = functional.linear(hidden.float(), self.down.weight.float())
        else:
            out = self.down(hidden)  # culprit: feed-forward-out
        return functional.rms_norm(out.float(), (8,)).to(x.dtype)


class Residual(nn.Module):
    """A clamp against overflow, on the branch instead of on the sum."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.late, self.norm = late, nn.LayerNorm(48, elementwise_affine=False)

    def forward(self, stream: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        bound = torch.finfo(stream.dtype).max - 500
        if self.late:
            return self.norm((stream + branch).clamp(-bound, bound))
        return self.norm(stream + branch.clamp(-bound, bound))  # culprit: early-clamp


def streams() -> tuple[torch.Tensor, torch.Tensor]:
    """One channel of the stream is close to the end, as the massive activations of trained models are."""
    stream, branch = 90 * normal(3, 48), 90 * normal(3, 48, seed=1)
    stream[:, 7], branch[:, 7] = 59_000.0, 9_000.0
    return stream, branch


class Decoder(nn.Module):
    """Two convolutions and a norm that takes their size out again; `shrink` divides the weights, which the norm does not notice."""

    def __init__(self, shrink: float = 1.0) -> None:
        super().__init__()
        first, second = 120 * normal(6, 4, 3, 3), 120 * normal(6, 6, 3, 3, seed=1)
        self.first = weigh(nn.Conv2d(4, 6, 3, padding=1), first / shrink, normal(6, seed=2) / shrink)
        self.second = weigh(nn.Conv2d(6, 6, 3, padding=1), second / shrink, normal(6, seed=3) / shrink**2)
        self.norm = nn.GroupNorm(2, 6, eps=1e-5 / shrink**4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = self.second(x)  # culprit: image-decoder
        return self.norm(x)


def latents() -> torch.Tensor:
    return 3 * normal(1, 4, 8, 8, seed=4)


class Standardise(nn.Module):
    """Batch norm whose squares are added up in the dtype of its input: 14 400 of them pass 65 504, and the root of Inf turns all to zero."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        held = maps.float() if self.wide else maps
        off = held - held.mean((0, 2, 3), keepdim=True)
        squares = off.square().sum((0, 2, 3), keepdim=True)  # culprit: batch-variance
        return (off * torch.rsqrt(squares / (maps.numel() // maps.shape[1]) + 1e-5)).to(maps.dtype)


def maps() -> torch.Tensor:
    return 2 + 3 * normal(4, 3, 60, 60)


def half(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    return model.half()(*(each.half() for each in inputs)).detach()


def measured(model: nn.Module, *inputs: torch.Tensor) -> dict[str, Any]:
    return {"model": model, "inputs": inputs, "precision": "16-true"}


BUGS = (
    Bug("feed-forward-out", "huggingface/transformers#5651", ("overflow",), "aten.mm.default", lambda: half(FeedForward(False), torch.ones(2, 16)),
        lambda: half(FeedForward(True), torch.ones(2, 16)), module="down", measured=lambda fixed: measured(FeedForward(fixed), torch.ones(2, 16))),
    Bug("early-clamp", "huggingface/transformers#19229", ("overflow",), "aten.add.Tensor", lambda: half(Residual(False), *streams()),
        lambda: half(Residual(True), *streams()), measured=lambda fixed: measured(Residual(fixed), *streams()),
        note="the twin makes an Inf in the sum as well, and cuts it off at once: to accuse it could be defended"),
    Bug("image-decoder", "huggingface/diffusers#7188", ("overflow",), "aten.convolution.default", lambda: half(Decoder(), latents()),
        lambda: half(Decoder(256.0), latents()), module="second", measured=lambda fixed: measured(Decoder(256.0 if fixed else 1.0), latents()),
        note="the twin's norm has an eps of 2e-15, which its kernel adds in float32: not a constant that has vanished"),
    Bug("batch-variance", "pytorch/pytorch#126525", ("overflow",), "aten.sum.dim_IntList", lambda: half(Standardise(False), maps()),
        lambda: half(Standardise(True), maps()), module="Standardise", measured=lambda fixed: measured(Standardise(fixed), maps())),
)  # fmt: skip
