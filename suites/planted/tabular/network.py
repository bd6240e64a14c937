"""A transformer of table columns: numbers in bins and waves, hours, hashed names, some heads that disagree, and an optimizer with master weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

STEPS = 20
ROWS, WIDTH, HEADS, BINS, WAVES, BUCKETS, VOTES = 128, 48, 4, 24, 8, 211, 4
FACTOR, OFFSET = 4_001, 60.0


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def piecewise(x: torch.Tensor, edges: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How full each bin is: one below the number, zero above it."""
    x, edges = x.float(), edges.float()
    return ((x.unsqueeze(-1) - edges[:-1]) / (edges[1:] - edges[:-1])).clamp(0, 1)


def hours(seconds: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The hour of the day and the day of the week, of seconds since 1970."""
    day, week = (seconds % 86_400).float() / 86_400, (seconds % 604_800).float() / 604_800
    angles = 2 * math.pi * torch.stack([day, week], -1)
    return torch.cat([angles.sin(), angles.cos()], -1)


def waves(days: torch.Tensor, speeds: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Of days since the account was opened, at some speeds."""
    angles = 2 * math.pi * speeds.float() * days.float().unsqueeze(-1)
    return torch.cat([angles.sin(), angles.cos()], -1)


def hashed(names: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Names, which are large whole numbers, into a few buckets."""
    return (names * FACTOR) % BUCKETS


def amounts(cents: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return torch.log1p(cents.float()) / 10


def standardised(prices: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Prices with mean zero and variance one."""
    prices = prices.float()
    mean = prices.mean()
    variance = (prices - mean).square().mean()
    return (prices - mean) / torch.sqrt(variance + 1e-6)


def disagreement(votes: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The variance of the heads' answers, in years."""
    return votes.var(-1, correction=0)


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.income, self.time, self.age = nn.Linear(BINS, WIDTH), nn.Linear(4, WIDTH), nn.Linear(2 * WAVES, WIDTH)
        self.spent, self.names = nn.Linear(1, WIDTH), nn.Embedding(BUCKETS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.first = nn.Parameter(torch.randn(WIDTH) * 0.1)
        self.price, self.years = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, VOTES)

    def forward(
        self, income: torch.Tensor, seconds: torch.Tensor, days: torch.Tensor, cents: torch.Tensor, names: torch.Tensor, prices: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        weight = self.price.weight
        low = low_dtype(weight)
        with torch.autocast(income.device.type, enabled=False):
            filled = piecewise(income, 40_000 + 1_000 * torch.arange(BINS + 1), low)
            clock = hours(seconds, low)
            since = waves(days, 2.0 ** -torch.arange(1, WAVES + 1), low)
            spent = amounts(cents, low).unsqueeze(-1)
            wanted = standardised(prices, low)
            bucket = hashed(names, low)
        columns = [self.income(filled.to(weight.dtype)), self.time(clock.to(weight.dtype)), self.age(since.to(weight.dtype))]
        columns += [self.spent(spent.to(weight.dtype)), self.names(bucket)]
        x = torch.stack([self.first.to(columns[0].dtype).expand(ROWS, -1), *(each.to(columns[0].dtype) for each in columns)], 1)
        for block in self.blocks:
            x = block(x)
        price, votes = self.price(x[:, 0]).squeeze(-1), self.years(x[:, 0])
        with torch.autocast(income.device.type, enabled=False):
            apart = disagreement(OFFSET + votes.float(), low)
            cost = (price.float() - wanted).square().mean() + 0.1 * apart.mean()
        return {"loss": cost, "price": price, "apart": apart, "bucket": bucket}


class MasterAdam(torch.optim.Optimizer):
    """Adam on float32 masters of the weights, with a slow average of them."""

    def __init__(self, params: Any, lr: float = 2e-4, betas: tuple[float, float] = (0.9, 0.999), average: float = 0.998) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "average": average})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.update(group, weight, self.state[weight])

    def update(self, group: dict[str, Any], weight: torch.Tensor, state: dict[str, Any]) -> None:
        if not state:
            state["turn"] = 0
            state["master"] = weight.detach().clone().float()
            state["average"] = weight.detach().clone().float()
            state["first"] = torch.zeros_like(weight, dtype=torch.float32)
            state["second"] = torch.zeros_like(weight, dtype=torch.float32)
        first, second = group["betas"]
        gradient = weight.grad.float()
        state["turn"] += 1
        state["first"].lerp_(gradient.to(state["first"].dtype), 1 - first)
        state["second"].mul_(second).add_((gradient.square() * (1 - second)).to(state["second"].dtype))
        size = (state["second"].float() / (1 - second ** state["turn"])).sqrt() + 1e-8
        change = group["lr"] * (state["first"].float() / (1 - first ** state["turn"])) / size
        state["master"].sub_(change)
        weight.copy_(state["master"])
        state["average"].lerp_(state["master"].to(state["average"].dtype), 1 - group["average"])


def make() -> nn.Module:
    torch.manual_seed(0)
    return Table()


def batch() -> dict[str, torch.Tensor]:
    """Customers: income, the time of a purchase, days since the account was opened, cents, a name, the price of a house."""
    generator = torch.Generator().manual_seed(10)

    def whole(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, (ROWS,), generator=generator)

    return {
        "income": whole(40_000, 64_000), "seconds": whole(1_700_000_000, 1_730_000_000), "days": whole(0, 5_000),
        "cents": whole(100, 900_000), "names": whole(100_000, 3_000_000), "prices": whole(230_000, 260_000),
    }  # fmt: skip


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


def optimizer(params: Any) -> torch.optim.Optimizer:
    return MasterAdam(params)
