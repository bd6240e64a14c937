"""Differences of near-equals, stored low: what is left is the rounding of the terms."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform


class Distance(nn.Module):
    """To the nearest codes, by the binomial formula: for a point near its code the result is negative, its root NaN."""

    def __init__(self, direct: bool) -> None:
        super().__init__()
        self.direct = direct

    def forward(self, x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        if self.direct:
            return (x[:, None].float() - codes[None].float()).square().sum(-1).sqrt()
        square = x.square().sum(-1)[:, None] + codes.square().sum(-1) - 2 * x @ codes.T  # culprit: expanded-distance
        return square.sqrt()


def near_codes() -> tuple[torch.Tensor, torch.Tensor]:
    """Points and codes that float16 holds."""
    codes = (3 * normal(40, 16)).half().float()
    return (codes + 0.02 * normal(40, 16, seed=1)).half().float(), codes


def distances(direct: bool) -> torch.Tensor:
    x, codes = near_codes()
    return Distance(direct)(x.half(), codes.half())


class OnePass(nn.Module):
    """Variance as E[x²] - E[x]², in the activations' dtype."""

    def __init__(self, direct: bool) -> None:
        super().__init__()
        self.direct = direct

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.direct:
            return functional.batch_norm(x.float(), None, None, training=True).to(x.dtype)
        mean = x.mean((0, 2), keepdim=True)
        variance = x.square().mean((0, 2), keepdim=True) - mean.square()  # culprit: one-pass-variance
        return (x - mean) * torch.rsqrt(variance.abs() + 1e-5)


def standardised(direct: bool) -> torch.Tensor:
    """A small signal on a large offset, given in bfloat16 exactly."""
    maps = torch.round(4 * normal(2, 4, 128)) / 32 + torch.tensor([4.0, -4.0, 5.0, -6.0])[:, None]
    return OnePass(direct)(maps.to(torch.bfloat16).float().to(torch.bfloat16))


def exponentials(direct: bool) -> torch.Tensor:
    """Exponential samples as -log(1 - u): every u above 0.998 is 1 in bfloat16."""
    u = uniform(20_000)
    if direct:
        return -torch.log1p(-u)
    return -torch.log(1 - u.to(torch.bfloat16))  # culprit: log-of-one-less


def gumbel(direct: bool) -> torch.Tensor:
    """Samples by the largest of logits plus noise -log(-log u): a u that float16 rounds to 1 is noise of Inf, and its row NaN."""
    logits, noise = normal(40, 2000).half(), uniform(40, 2000, seed=1)
    if direct:
        return torch.softmax(logits.float() - (-torch.log1p(-noise)).clamp_min(1e-30).log(), -1)
    exponential = -torch.log(1 - noise.half())  # culprit: gumbel-noise
    return torch.softmax(logits - exponential.log(), -1)  # culprit: gumbel-noise


def unmerged(kept: bool) -> torch.Tensor:
    """An adapter merged into its weight and taken out again: the weight does not come back."""
    base, delta = (0.05 * normal(64, 64)).half(), (3 * normal(64, 4, seed=1) @ normal(4, 64, seed=2)).half()
    merged = (base.float() + delta.float()).half()  # culprit: unmerged-adapter
    return base if kept else merged - delta  # culprit: unmerged-adapter


def divergence(direct: bool) -> torch.Tensor:
    """exp(d) - d - 1 of log-probabilities that hardly differ."""
    reference = -torch.arange(64, 128) / 64
    policy = reference + torch.tensor([-2, -1, 0, 1]).repeat(16) / 64
    d = reference.to(torch.bfloat16) - policy.to(torch.bfloat16)
    if direct:
        return torch.expm1(d.float()) - d.float()
    return torch.exp(d) - d - 1  # culprit: kl-estimate


BUGS = (
    Bug("expanded-distance", "lucidrains/vector-quantize-pytorch#106", ("cancellation",), "aten.sub.Tensor", lambda: distances(False),
        lambda: distances(True), module="Distance",
        measured=lambda fixed: {"model": Distance(fixed), "inputs": near_codes(), "precision": "16-true"}),
    Bug("one-pass-variance", "tenstorrent/tt-metal#45968", ("cancellation",), "aten.sub.Tensor", lambda: standardised(False),
        lambda: standardised(True), module="OnePass"),
    Bug("log-of-one-less", "pytorch/pytorch#96947", ("cancellation", "amplified-rounding"), "aten.rsub.Scalar", lambda: exponentials(False),
        lambda: exponentials(True)),
    Bug("gumbel-noise", "pytorch/pytorch#41663", ("cancellation", "amplified-rounding"), "aten.rsub.Scalar", lambda: gumbel(False),
        lambda: gumbel(True)),
    Bug("unmerged-adapter", "huggingface/diffusers#4473", ("amplified-rounding", "absorption", "cancellation"), "aten._to_copy.default",
        lambda: unmerged(False), lambda: unmerged(True)),
    Bug("kl-estimate", "unslothai/unsloth-zoo#1240", ("cancellation",), "aten.sub.Tensor", lambda: divergence(False), lambda: divergence(True)),
)  # fmt: skip
