"""Training in low precision: a head's gradient in chunks, states of optimizers, features of a hub's neighbours, a model of rewards."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class FusedCrossEntropy(torch.autograd.Function):
    """The loss of a language model's head, which never makes all of its logits: gradients are made on the way, a chunk at a time."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, chunks, dtype):
        loss, hidden_gradient = torch.zeros(()), torch.empty_like(hidden)
        weight_gradient = torch.zeros_like(weight, dtype=dtype)
        for part in torch.arange(len(hidden)).chunk(chunks):
            logits = (hidden[part] @ weight.T).float()
            loss += functional.cross_entropy(logits, targets[part], reduction="sum")
            slopes = torch.softmax(logits, -1)
            slopes[torch.arange(len(part)), targets[part]] -= 1
            slopes = slopes.to(hidden.dtype)
            hidden_gradient[part] = slopes @ weight / len(hidden)
            weight_gradient += slopes.T @ hidden[part] / len(hidden)  # culprit: head-in-chunks
        ctx.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype))
        return loss / len(hidden)

    @staticmethod
    def backward(ctx, slope):
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return slope * hidden_gradient, slope * weight_gradient, None, None, None


def head_gradient(dtype: torch.dtype) -> torch.Tensor:
    """The gradient of a head of 96 words after 2048 tokens, in 256 chunks; hidden states have a mean."""
    hidden, weight = (0.7 + 0.5 * normal(2048, 24)).to(LOW), nn.Parameter((0.2 * normal(96, 24, seed=1)).to(LOW))
    targets = (torch.arange(2048) * 37 % 96) ** 2 % 96
    FusedCrossEntropy.apply(hidden, weight, targets, 256, dtype).backward()
    assert weight.grad is not None
    return weight.grad.float()


def fused_adam(weight: torch.Tensor, gradient: torch.Tensor, states: dict[str, torch.Tensor], step: int, stored: torch.dtype) -> None:
    """A step of Adam as a kernel takes it: everything is computed in float32, then all is stored."""
    mean = 0.9 * states["mean"] + 0.1 * gradient.float()
    square = 0.999 * states["square"] + 0.001 * gradient.float() ** 2
    move = mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
    states["master"] -= 1e-3 * move
    weight.copy_(states["master"].to(weight.dtype))
    states["mean"].copy_(mean.to(stored))
    states["square"].copy_(square.to(stored))  # culprit: stored-by-kernel


def optimised(stored: torch.dtype) -> torch.Tensor:
    """The second moments, as they go into a checkpoint, after 240 steps whose gradients have grown and faded."""
    weight, states = normal(12, 12).to(LOW), {"mean": torch.zeros(12, 12), "square": torch.zeros(12, 12), "master": normal(12, 12)}
    for step in range(1, 241):
        strength = 1.0 if step < 60 else 0.4
        fused_adam(weight, (strength * normal(12, 12, seed=step)).to(LOW), states, step, stored)
    return states["square"].clone()


def mean_of_neighbours(features: torch.Tensor, table: torch.Tensor, degree: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A sparse matrix's product that takes means, a neighbour at a time; a row of the table that has no more of them points to a zero."""
    rows = torch.cat([features, features.new_zeros(1, features.shape[1])]).to(dtype)
    sums = torch.zeros(len(table), features.shape[1], dtype=dtype)
    for place in range(table.shape[1]):
        sums += rows[table[:, place]]  # culprit: institutions
    return (sums / degree[:, None].to(dtype)).to(features.dtype)


def institutions(dtype: torch.dtype) -> torch.Tensor:
    """Features of three institutions, as the means of their papers' features in half; one has 1800 papers."""
    papers, degree = (1.6 + 0.6 * normal(2000, 12)).half(), torch.tensor([1800, 150, 50])
    table = torch.full((3, 1800), 2000)
    for row, start in enumerate((0, 1800, 1950)):
        table[row, : degree[row]] = start + torch.arange(int(degree[row]))
    return mean_of_neighbours(papers, table, degree, dtype).float()


class RewardModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.score = nn.Embedding(60, 16), nn.Linear(16, 1, bias=False)
        with torch.no_grad():
            self.words.weight.copy_(0.5 * normal(60, 16))
            self.score.weight.copy_(0.5 * normal(1, 16, seed=1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.score(self.words(tokens).mean(1)).squeeze(-1)


def rewarded(eps: float) -> torch.Tensor:
    """Three steps on pairs of answers that have forty of sixty words: the scores of some answers afterwards."""
    model = RewardModel().half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=eps)  # culprit: unused-words
    for step in range(3):
        chosen, rejected = torch.arange(20).roll(step).view(5, 4), 20 + torch.arange(20).roll(2 * step).view(5, 4)
        optimizer.zero_grad()
        loss = -8 * functional.logsigmoid(model(chosen) - model(rejected)).sum()
        loss.backward()
        optimizer.step()  # culprit: unused-words
    return model(torch.arange(60).view(20, 3)).detach().float()


BUGS = (
    Bug("head-in-chunks", "axolotl-ai-cloud/axolotl#1601", ("accumulated-drift", "absorption"), "aten.add_.Tensor", lambda: head_gradient(LOW),
        lambda: head_gradient(WIDE)),
    Bug("stored-by-kernel", "databricks/flashoptim#2", ("accumulated-drift", "absorption"), "aten._to_copy.default", lambda: optimised(LOW),
        lambda: optimised(WIDE)),
    Bug("institutions", "rusty1s/pytorch_sparse#128", ("accumulated-drift", "absorption"), "aten.add_.Tensor", lambda: institutions(HALF),
        lambda: institutions(WIDE)),
    Bug("unused-words", "CambioML/pykoi#69", ("vanished-constant", "nan", "overflow"), "aten.add_.Tensor", lambda: rewarded(1e-8),
        lambda: rewarded(1e-4), phase="optimizer"),
)  # fmt: skip
