"""A mixture of experts as autocast training loops write it: main loss plus an auxiliary one that balances the load, under AdamW.

Dispatch follows Switch and GShard: top-1 routing, and a capacity that a running count of each expert's tokens fills.
"""

from __future__ import annotations

import torch
from case import Case, built, draws
from torch import nn
from torch.nn import functional


class Router(nn.Module):
    """Logits in float32 whatever the model's precision, as Switch Transformers (arXiv 2101.03961, section 2.4) found necessary."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with torch.autocast(tokens.device.type, enabled=False):
            logits = functional.linear(tokens.float(), self.gate.weight.float(), self.gate.bias.float())
            probabilities = logits.softmax(-1)
        weight, choice = probabilities.max(-1)
        return weight, choice, probabilities

    def places(self, choice: torch.Tensor, experts: int) -> torch.Tensor:
        """Each token's place in its expert's queue, counted in whole numbers."""
        chosen = functional.one_hot(choice, experts)
        return (chosen.cumsum(0) * chosen).sum(-1) - 1


class Experts(nn.Module):
    """Top-1 mixture; tokens beyond an expert's capacity pass it by."""

    def __init__(self, width: int, experts: int, capacity: int, router: Router) -> None:
        super().__init__()
        self.router, self.capacity = router, capacity
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(experts))
        self.aux_loss = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weight, choice, probabilities = self.router(tokens)
        kept = self.router.places(choice, len(self.experts)) < self.capacity
        share = functional.one_hot(choice, len(self.experts)).float().mean(0)
        self.aux_loss = len(self.experts) * (share * probabilities.float().mean(0)).sum()
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            index = torch.nonzero((choice == number) & kept).squeeze(-1)
            result = result.index_add(0, index, (expert(tokens[index]) * weight[index, None].to(tokens.dtype)).to(tokens.dtype))
        return result.reshape(x.shape)


class Model(nn.Module):
    """An embedding, one mixture in a residual branch, a head."""

    def __init__(self, router: type[Router] = Router, *, width: int = 32, experts: int = 2, capacity: int = 480) -> None:
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.norm = nn.LayerNorm(width)
        self.mixture = Experts(width, experts, capacity, router(width, experts))
        self.head = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(x)
        return self.head(hidden + self.mixture(self.norm(hidden)))


def build(seed: int = 0, router: type[Router] = Router) -> Case:
    model = built(seed, lambda: Model(router))
    x = torch.randn(2, 512, 16, generator=draws(seed))
    labels = torch.randint(8, (2, 512), generator=draws(seed))
    return Case(model, x, lambda out: functional.cross_entropy(out.flatten(0, 1).float(), labels.flatten()) + 0.01 * model.mixture.aux_loss)
