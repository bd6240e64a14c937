"""The sixth batch, last part: masks of dropout, and a model through the tracer of gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from torch import nn

W = 24


class Dropping(nn.Module):
    """Two branches, each with its own mask."""

    def __init__(self, form: str = "", reused: bool = False, undivided: bool = False) -> None:
        super().__init__()
        self.form, self.reused, self.undivided = form, reused, undivided
        self.a, self.b, self.head = nn.Linear(W, W), nn.Linear(W, W), nn.Linear(W, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.a(x), self.b(x)
        if not self.form:
            return self.head(F.dropout(torch.tanh(a), 0.25) + F.dropout(torch.relu(b), 0.25))
        first = torch.empty_like(a).bernoulli_(0.75)
        second = first if self.reused else torch.empty_like(b).bernoulli_(0.75)
        share = 1.0 if self.undivided else 0.75
        return self.head(torch.tanh(a) * (first / share) + torch.relu(b) * (second / share))


def dropping(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Dropping()), Dropping("other", **ways)
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(6, W), MEAN


def traced() -> Made:
    """What torch.compile traces, forward and backward, run op by op."""
    torch.manual_seed(0)
    model = spread(nn.Sequential(nn.Linear(6, W), nn.LayerNorm(W), nn.GELU(), nn.Linear(W, W), nn.Softplus(), nn.Linear(W, 3)))
    return model, torch.compile(model, backend="aot_eager"), torch.randn(5, 6), MEAN


healthy("two masks", "masks drawn by hand", dropping)
broken("two masks", "one mask for both", lambda: dropping(reused=True), "")
broken("two masks", "kept numbers not divided", lambda: dropping(undivided=True), "")
healthy("traced", "op by op", traced)
