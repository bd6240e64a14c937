"""Choices among scores that the format cannot tell apart."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal


class Router(nn.Module):
    """Top 4 of 48 experts by logits; a bias per expert, large beside their spread, may be added first."""

    def __init__(self, bias: torch.Tensor | None = None, *, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        self.weight = nn.Parameter((0.05 * normal(48, 96)).to(torch.bfloat16).float())
        if bias is not None:
            self.bias = nn.Parameter(bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x.float() @ self.weight.float().T if self.wide else x @ self.weight.T
        scores = torch.softmax(scores, -1)
        return scores.topk(4, -1).indices  # culprit: router


class Mixture(Router):
    """What a user gets of the routing: the chosen experts' answers, one number each here."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return normal(48, seed=3)[super().forward(x)].sum(-1)


class Balanced(nn.Module):
    """Sigmoid scores, with a correction per expert that balances their load."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter((0.02 * normal(96, 64)).to(torch.bfloat16).float())
        self.correction = nn.Parameter(6.8 + 0.25 * normal(96, seed=1).sigmoid())

    def forward(self, x: torch.Tensor, correction: torch.Tensor) -> torch.Tensor:
        scores = torch.sigmoid(x.float() @ self.weight.float().T)
        return (scores + correction.float()).topk(6, -1).indices


def tokens() -> torch.Tensor:
    """As bfloat16 holds them, and the weights too: the wide router is the reference exactly."""
    return normal(1500, 96, seed=1).to(torch.bfloat16).float()


def routed(wide: bool) -> torch.Tensor:
    return Router(wide=wide).to(torch.bfloat16)(tokens().to(torch.bfloat16)).sort(-1).values


def balanced(low: bool) -> torch.Tensor:
    model, x = Balanced(), normal(200, 64, seed=2).to(torch.bfloat16)
    kept = model.correction.detach().clone()
    model = model.to(torch.bfloat16)  # culprit: correction-bias
    return model(x, model.correction if low else kept).sort(-1).values


def nearest(offset: float) -> torch.Tensor:
    """The best of 200 documents for each query, scores on an offset that all of them share: only differences matter."""
    scores = normal(400, 200)
    return (scores + offset).to(torch.bfloat16).argmax(-1)  # culprit: shared-offset


BUGS = (
    Bug("router", "vllm-project/vllm#14027", ("decision-flip",), "aten.topk.default", lambda: routed(False), lambda: routed(True), module="Router",
        measured=lambda fixed: {"model": Mixture(wide=fixed), "inputs": (tokens(),), "precision": "bf16-true"},
        measure_misses="154 of 6000 choices flip; 53 do where tokens and weights are a rounding off, and three times as many are allowed"),
    Bug("correction-bias", "sgl-project/sglang#31213", ("decision-flip", "amplified-rounding"), "aten._to_copy.default", lambda: balanced(True),
        lambda: balanced(False)),
    Bug("shared-offset", "", ("decision-flip",), "aten._to_copy.default", lambda: nearest(60.0), lambda: nearest(0.0),
        severity="warning"),
)  # fmt: skip
