"""A transformer that acts so as to get a return it is told: it reads returns to go, states and actions, and the state's statistics are
kept as it trains."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
STATES, ACTIONS, WIDTH, HEADS, LENGTH, LONGEST, BATCH = 11, 3, 48, 4, 96, 1000, 4


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def to_go(rewards: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The sum of all rewards that are to come, at each step."""
    total, found = torch.zeros_like(rewards[:, 0]).float(), []
    for reward in reversed(rewards.float().unbind(1)):
        total = total + reward
        found.append(total)
    return torch.stack(found[::-1], 1).float()


def clock(start: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The step in the episode."""
    return (start.unsqueeze(1) + torch.arange(LENGTH)).clamp(max=LONGEST - 1).long()


def deviations(states: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The sum of squares of how far states are from their mean."""
    return (states - states.mean(0)).square().sum(0).float()


def noticed(count: torch.Tensor, mean: torch.Tensor, square: torch.Tensor, states: torch.Tensor, low: torch.dtype) -> None:
    """Counts states, and moves their mean and their sum of squared deviations."""
    new = states.float().reshape(-1, STATES)
    before = count.clone()
    count += len(new)
    off = new.mean(0) - mean
    mean += off * (len(new) / count)
    square += deviations(new, low) + off.square() * before * len(new) / count


def faded(when: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """What is added to scores: less for what is longer ago, and nothing before its time."""
    ago = (when.unsqueeze(-1) - when.unsqueeze(-2)).float()
    return torch.where(ago < 0, -1e4, -torch.log1p(ago.clamp_min(0))).float()


def preferred(advantage: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much each action counts, on average once: more if it was better than expected."""
    weight = torch.exp(advantage.float() - advantage.float().max())
    return (weight / weight.mean()).float()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)).float() / (WIDTH // HEADS) ** 0.5 + bias.unsqueeze(1)
        x = x + self.out((scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).reshape(b, n, WIDTH))
        return x + self.mlp(self.second(x))


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time, self.returned = nn.Embedding(LONGEST, WIDTH), nn.Linear(1, WIDTH)
        self.state, self.action = nn.Linear(STATES, WIDTH), nn.Linear(ACTIONS, WIDTH)
        self.norm, self.blocks = nn.LayerNorm(WIDTH), nn.ModuleList(Block() for _ in range(2))
        self.last, self.act, self.worth = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, ACTIONS), nn.Linear(WIDTH, 1)
        self.register_buffer("count", torch.tensor(0))
        self.mean, self.square = torch.zeros(STATES), torch.zeros(STATES)

    def forward(self, states: torch.Tensor, actions: torch.Tensor, rewards: torch.Tensor, start: torch.Tensor) -> dict[str, torch.Tensor]:
        low = low_dtype(self.act.weight)
        with torch.autocast(states.device.type, enabled=False):
            noticed(self.count, self.mean, self.square, states, low)
            spread = (self.square / self.count).sqrt().clamp_min(1e-3)
            seen = ((states.float() - self.mean) / spread).to(states.dtype)
            due = to_go(rewards, low)
            when = clock(start, low)
            bias = faded(when.repeat_interleave(3, 1), low)
        time = self.time(when)
        told = self.returned((due / 30).unsqueeze(-1).to(self.returned.weight.dtype))
        x = torch.stack([told + time, self.state(seen) + time, self.action(actions) + time], 2).flatten(1, 2)
        x = self.norm(x)
        for block in self.blocks:
            x = block(x, bias)
        x = self.last(x).view(BATCH, LENGTH, 3, WIDTH)[:, :, 1]
        act, worth = torch.tanh(self.act(x)), self.worth(x).squeeze(-1)
        with torch.autocast(states.device.type, enabled=False):
            off = due / 30 - worth.float()
            weight = preferred(14 * off.detach(), low)
            loss = (weight.unsqueeze(-1) * (act.float() - actions.float()).square()).mean() + functional.huber_loss(worth.float(), due / 30)
        return {"loss": loss, "act": act, "worth": worth}


def make() -> nn.Module:
    """It has seen states before."""
    torch.manual_seed(0)
    model = Actor()
    model.count.fill_(500)
    model.mean = torch.linspace(-2, 30, STATES)
    model.square = 500 * torch.linspace(0.2, 2, STATES)
    return model


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "states": torch.randn(BATCH, LENGTH, STATES, generator=generator) + torch.linspace(-2, 30, STATES),
        "actions": torch.tanh(torch.randn(BATCH, LENGTH, ACTIONS, generator=generator)),
        "rewards": 0.3 + 0.005 * torch.randn(BATCH, LENGTH, generator=generator),
        "start": torch.tensor([0, 301, 577, 850]),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
