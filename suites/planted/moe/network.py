"""A language model with mixtures of experts: a top-2 router with a capacity, a load-balancing loss, a z-loss and an importance loss."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, EXPERTS, LAYERS, LENGTH, ROWS = 256, 32, 4, 2, 400, 2
CAPACITY = 320  # tokens an expert takes, of 2 x 800 / 4 = 400 that it would be given on average


class Routes(NamedTuple):
    experts: Tensor  # of each token, its first and second expert
    gates: Tensor  # and the weights of the two; 0 where a token was dropped
    slots: Tensor  # and its places in their queues
    losses: Tensor


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def slots_of(experts: Tensor, dtype: torch.dtype) -> Tensor:
    """The place of each choice in its expert's queue: how many before it chose the same. First choices go first."""
    chosen = F.one_hot(experts.T.reshape(-1), EXPERTS)
    before = chosen.cumsum(0) - chosen
    return (before * chosen).sum(-1).view(2, -1).T.long()


def renormalised(gates: Tensor) -> Tensor:
    """Gates of the choices that were kept, so that they sum to one; of a token that was dropped by both its experts they are zero."""
    total = gates[:, :1] + gates[:, 1:]
    return gates / total.clamp(min=torch.finfo(gates.dtype).tiny)


def tokens_per_expert(experts: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.bincount(experts.reshape(-1), minlength=EXPERTS).float()


def balance_loss(probabilities: Tensor, counts: Tensor) -> Tensor:
    """Switch Transformer's: the share of choices times the mean probability of each expert."""
    return EXPERTS * (counts / counts.sum() * probabilities.mean(0)).sum()


def importance_loss(probabilities: Tensor) -> Tensor:
    """The squared coefficient of variation of what each expert is given in all."""
    importance = probabilities.sum(0)
    return importance.var(unbiased=False) / importance.mean().square()


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(EXPERTS, WIDTH))

    def forward(self, x: Tensor) -> Routes:
        with torch.autocast("cpu", enabled=False):
            logits = F.linear(x.float(), self.weight.float())
        probabilities = logits.softmax(-1)
        gates, experts = probabilities.topk(2, dim=-1)
        slots = slots_of(experts, x.dtype)
        gates = renormalised(gates * (slots < CAPACITY))
        counts = tokens_per_expert(experts, x.dtype)
        z_loss = torch.logsumexp(logits, dim=-1).square().mean()
        losses = torch.stack([balance_loss(probabilities, counts), importance_loss(probabilities), z_loss])
        return Routes(experts, gates, slots, losses)


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


class Mixture(nn.Module):
    """Sends tokens to their experts' queues, and adds what comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = Router(), nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = x.reshape(-1, WIDTH)
        routes = self.router(tokens)
        kept = routes.slots < CAPACITY
        place = torch.where(kept, routes.experts * CAPACITY + routes.slots, EXPERTS * CAPACITY)
        queues = tokens.new_zeros(EXPERTS * CAPACITY + 1, WIDTH)
        for choice in range(2):
            queues = queues.index_copy(0, place[:, choice], tokens)
        done = [expert(queue) for expert, queue in zip(self.experts, queues[:-1].view(EXPERTS, CAPACITY, WIDTH), strict=True)]
        back = torch.cat([*done, done[0].new_zeros(1, WIDTH)])
        gates = routes.gates.to(back.dtype)
        mixed = back[place[:, 0]] * gates[:, :1] + back[place[:, 1]] * gates[:, 1:]
        return mixed.view_as(x), routes.losses


class Mixer(nn.Module):
    """A causal average of the past in place of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.ones(LENGTH, LENGTH).tril()
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        return self.project(weights @ x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixer_norm, self.mixer, self.norm, self.mixture = RMSNorm(), Mixer(), RMSNorm(), Mixture()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.mixer(self.mixer_norm(x))
        mixed, losses = self.mixture(self.norm(x))
        return x + mixed, losses


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = RMSNorm(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The negative log-likelihood of each next token, and the losses of the routers, one row a layer."""
        x, losses = self.embed(tokens[:, :-1]), []
        for block in self.blocks:
            x, each = block(x)
            losses.append(each)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none"), torch.stack(losses)


def loss(output: tuple[Tensor, Tensor]) -> Tensor:
    likelihoods, routing = output
    return likelihoods.mean() + (routing.sum(0) * routing.new_tensor([1e-2, 1e-2, 1e-3])).sum()


def make() -> nn.Module:
    model = Model()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=1.0 if "embed" in name else 0.1 if "router" in name else 1 / math.sqrt(parameter.shape[1]))
    with torch.no_grad():
        model.embed.weight.add_(torch.randn(WIDTH))  # what tokens have in common makes one expert a favourite, as at the start of training
    return model


def batch() -> Tensor:
    return torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(3))


optimizer = None
STEPS = 1
