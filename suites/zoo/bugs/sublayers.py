"""Parts of a network: a balance of experts, pooled statistics, a softplus, a residual stream."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Balance(nn.Module):
    """How evenly tokens go to experts: mean shares, as a sum over 70000 tokens divided by their number, which half precision calls Inf."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shares = torch.softmax(logits, -1, dtype=WIDE if self.wide else None)
        chosen = functional.one_hot(shares.topk(2, -1).indices, logits.shape[-1])
        sent = (chosen.float() * mask[:, None, None]).sum(0) / mask.sum()
        mean = torch.sum(shares * mask[:, None], 0) / torch.sum(mask[:, None].expand(-1, logits.shape[-1]), 0)  # culprit: expert-balance
        return torch.sum(sent * mean) * logits.shape[-1]


def routed(wide: bool) -> dict[str, Any]:
    return {"model": Balance(wide), "inputs": (normal(70_000, 4), torch.ones(70_000).long()), "precision": "16-true"}


def balance(wide: bool) -> torch.Tensor:
    logits, mask = routed(wide)["inputs"]
    return Balance(wide)(logits.half(), mask)


class Pooling(nn.Module):
    """Attention over frames by their features and global statistics, which come out in float32 and make the whole input so."""

    def __init__(self, cast: bool) -> None:
        super().__init__()
        self.cast, self.score = cast, nn.Parameter(0.2 * normal(8, 24, 1))

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = (torch.arange(x.shape[2]) < lengths[:, None])[:, None]
        total = mask.sum(2, keepdim=True).float()
        mean = (mask / total * x).sum(2, keepdim=True)
        deviation = (mask / total * (x - mean) ** 2).sum(2, keepdim=True).clamp(1e-12).sqrt()
        given = torch.cat((x, mean.expand_as(x), deviation.expand_as(x)), 1)  # culprit: pooled-statistics
        given = given.to(x.dtype) if self.cast else given
        return (x * torch.softmax(functional.conv1d(given, self.score).masked_fill(~mask, float("-inf")), 2)).sum(2)  # culprit: pooled-statistics


def pooled(cast: bool) -> torch.Tensor:
    return Pooling(cast).to(LOW)(normal(3, 8, 20).to(LOW), torch.tensor([20, 11, 7]))


class Sentences(nn.Module):
    """Means over tokens of sentences: their numbers, kept above 1e-9, are float32, and so is what a bfloat16 layer gets."""

    def __init__(self, cast: bool) -> None:
        super().__init__()
        self.cast, self.dense = cast, nn.Parameter(0.3 * normal(16, 1))

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        which = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        sums = torch.zeros(len(lengths), tokens.shape[1], dtype=tokens.dtype).index_add(0, which, tokens)
        many = torch.clamp(lengths[:, None], min=1e-9)
        mean = sums / (many.to(sums.dtype) if self.cast else many)  # culprit: mean-divisor
        return mean @ self.dense  # culprit: mean-divisor


def sentences(cast: bool) -> torch.Tensor:
    return Sentences(cast).to(LOW)(normal(20, 16).to(LOW), torch.tensor([8, 7, 5]))


class SmallSteps(nn.Module):
    """Steps of a state space as log(1 + exp(x)) for x between -9 and -3: one and a small number, rounded to bfloat16."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused, self.rates = fused, nn.Parameter(torch.log(torch.arange(1.0, 5.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = functional.softplus(x) if self.fused else torch.log(1 + torch.exp(x))  # culprit: small-softplus
        state = torch.zeros(x.shape[1], 4)
        for step in steps.float():
            state = torch.exp(-step[:, None] * self.rates.float().exp()) * state + step[:, None]
        return state


def small(fused: bool) -> dict[str, Any]:
    return {"model": SmallSteps(fused), "inputs": (-6 + 1.2 * normal(24, 8),), "precision": "bf16-true"}


def states(fused: bool) -> torch.Tensor:
    arguments = small(fused)
    return arguments["model"].to(LOW)(arguments["inputs"][0].to(LOW))


def cut_off(x: torch.Tensor) -> torch.Tensor:
    """The upper sixteen bits of float32: rounded towards zero."""
    return (x.contiguous().view(torch.int32) >> 16).to(torch.int16).view(LOW)  # culprit: cut-residual


def residual_stream(cut: bool, layers: int = 72) -> torch.Tensor:
    """A residual stream that a fused norm adds up in float32, and stores by cutting bits off: each layer takes a little off its norm."""
    stream, weight = 4 * normal(8, 32).to(LOW), (0.1 * normal(32, 32, seed=1)).to(LOW)
    for _ in range(layers):
        total = stream.float() + (functional.rms_norm(stream.float(), (32,)).to(LOW) @ weight).float()
        stream = cut_off(total) if cut else total.to(LOW)  # culprit: cut-residual
    return stream.float().norm(dim=1)


BUGS = (
    Bug("expert-balance", "huggingface/transformers#43543", ("local-drift", "overflow", "underflow"), "aten.div.Tensor",
        lambda: balance(False), lambda: balance(True), module="Balance", measured=routed),
    Bug("pooled-statistics", "speechbrain/speechbrain#3081", ("dtype-leak",), "aten.cat.default", lambda: pooled(False), lambda: pooled(True),
        module="Pooling", raises=RuntimeError),
    Bug("mean-divisor", "huggingface/sentence-transformers#3751", ("dtype-leak",), "aten.div.Tensor", lambda: sentences(False),
        lambda: sentences(True), module="Sentences", raises=RuntimeError),
    Bug("small-softplus", "tenstorrent/tt-metal#9910", ("cancellation", "absorption", "amplified-rounding"), "aten.add.Tensor",
        lambda: states(False), lambda: states(True), module="SmallSteps", measured=small),
    Bug("cut-residual", "ROCm/aiter#5151", ("accumulated-drift", "local-drift"), "aten.view.dtype", lambda: residual_stream(True),
        lambda: residual_stream(False), expected_miss="bits are cut off integers, where the shadow starts afresh in each layer"),
)  # fmt: skip
