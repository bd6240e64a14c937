"""Recommenders, rankers and generators: what is made of scores and times."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def listwise(upcast: bool) -> torch.Tensor:
    """ListMLE: the likelihood of an order, by exponentials of the scores that are added up from the end, without a shift."""
    scores = (6 + 3 * normal(4, 8)).to(HALF)
    if upcast:
        scores = scores.float()
    exponentials = scores.exp()  # culprit: list-mle
    remaining = exponentials.flip(1).cumsum(1).flip(1)
    return (remaining.log() - scores).sum(1).mean()


class Clock(nn.Module):
    """The hour of the day of each event, as an angle, from its time in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Parameter(normal(2, 4, seed=4))

    def forward(self, seconds: torch.Tensor) -> torch.Tensor:
        hours = seconds % 86400 / 86400  # culprit: time-features
        angle = 2 * torch.pi * hours
        return torch.stack([angle.sin(), angle.cos()], -1).float() @ self.out


def events(dtype: torch.dtype) -> torch.Tensor:
    seconds = 1.7e6 + 3600 * 48 * uniform(32)
    return Clock()(seconds.round().to(dtype))  # culprit: time-features


def sampled(upcast: bool) -> torch.Tensor:
    """Codes of speech, drawn by a head whose logits pass 65504 where activations are large."""
    hidden, head = (60 * normal(4, 64)).to(HALF), (40 * normal(64, 32, seed=1)).to(HALF)
    logits = hidden.float() @ head.float() if upcast else hidden @ head  # culprit: sampled-codes
    shares = torch.softmax(logits / 0.9, -1)  # culprit: sampled-codes
    return torch.multinomial(shares.float(), 1, generator=torch.Generator().manual_seed(0)).float() + 1


def divergence(dtype: torch.dtype) -> torch.Tensor:
    """KL of two normal distributions, as torch.distributions has it: a narrow prior, and a posterior that lies aside."""
    mean, scale = (2 + normal(16)).to(dtype), (0.5 + uniform(16)).to(dtype)
    prior_mean, prior_scale = torch.zeros(16, dtype=dtype), torch.full((16,), 0.004, dtype=dtype)
    ratio = (scale / prior_scale).pow(2)  # culprit: kl-of-normals
    apart = ((mean - prior_mean) / prior_scale).pow(2)  # culprit: kl-of-normals
    return (0.5 * (ratio + apart - 1 - ratio.log())).float().mean()


BUGS = (
    Bug("list-mle", "huggingface/sentence-transformers#3793", ("overflow",), "aten.exp.default", lambda: listwise(False), lambda: listwise(True)),
    Bug("time-features", "meta-recsys/generative-recommenders#466", ("integer-rounding", "amplified-rounding"), "aten._to_copy.default",
        lambda: events(LOW), lambda: events(WIDE), note="the pull request names the fault in its title alone"),
    Bug("sampled-codes", "QwenLM/Qwen3-TTS#355", ("overflow",), "aten.div.Tensor", lambda: sampled(False), lambda: sampled(True),
        raises=RuntimeError),
    Bug("kl-of-normals", "NVIDIA/apex#812", ("overflow",), "aten.pow.Tensor_Scalar", lambda: divergence(HALF), lambda: divergence(WIDE)),
)  # fmt: skip
