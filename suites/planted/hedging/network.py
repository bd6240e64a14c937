"""Deep hedging: a network trades an asset along simulated paths of a year, so that what an option costs is known as well as can be."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

STEPS = 1
PATHS, DAYS, SPOT, STRIKE, RATE, COST = 96, 120, 100.0, 101.0, 0.08, 0.002
STEP = 1 / 252


def lowered(model: nn.Module) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else next(model.parameters()).dtype


def simulated(noise: Tensor, low: torch.dtype) -> Tensor:
    """Prices from day 0 to the last. noise: [P, DAYS]."""
    volatility = 0.2
    drift = (RATE - volatility**2 / 2) * STEP
    moves = drift + volatility * math.sqrt(STEP) * noise.float()
    logs = torch.cat([torch.zeros(len(noise), 1), moves.cumsum(1)], 1)
    return SPOT * logs.exp()


def log_returns(prices: Tensor, low: torch.dtype) -> Tensor:
    return prices[:, 1:].log() - prices[:, :-1].log()


def realised(returns: Tensor, low: torch.dtype) -> Tensor:
    """The volatility of each path so far, for a year."""
    days = torch.arange(1, returns.shape[1] + 1)
    return (returns.square().cumsum(1) / days / STEP).sqrt()


def remaining(days: Tensor, low: torch.dtype) -> Tensor:
    """The share of the time that is left at each trade."""
    return 1 - days.float() / (DAYS + 0.25)


def log_moneyness(prices: Tensor, low: torch.dtype) -> Tensor:
    """How far the option is in the money."""
    return (prices / STRIKE).log()


def black_scholes_delta(apart: Tensor, left: Tensor) -> Tensor:
    """What a trader without costs would hold."""
    deviation = 0.2 * (left * DAYS * STEP).sqrt()
    return 0.5 * (1 + torch.erf((apart / deviation + deviation / 2) / math.sqrt(2)))


def discounts(count: int, low: torch.dtype) -> Tensor:
    """What a payment on each day is worth today."""
    factor = torch.tensor(math.exp(-RATE * STEP))
    return torch.cumprod(factor.expand(count), 0)


def gains(prices: Tensor, held: Tensor, low: torch.dtype) -> Tensor:
    """What the position earns from each day to the next."""
    return held * (prices[:, 1:] - prices[:, :-1])


def costs(held: Tensor, prices: Tensor) -> Tensor:
    before = torch.cat([torch.zeros_like(held[:, :1]), held[:, :-1]], 1)
    return COST * (held - before).abs() * prices[:, :-1]


def settled(start: float, flows: Tensor, low: torch.dtype) -> Tensor:
    """How the account has grown at the end. flows: [P, DAYS]."""
    account = torch.full((len(flows),), start)
    for day in range(flows.shape[1]):
        account = account + flows[:, day]
    return account - start


def entropic_risk(outcome: Tensor, low: torch.dtype, aversion: float = 4.0) -> Tensor:
    """The sure loss that is as bad as these outcomes."""
    return (torch.logsumexp(-aversion * outcome, 0) - math.log(len(outcome))) / aversion


class Trader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, noise: Tensor) -> dict[str, Tensor]:
        low = lowered(self)
        with torch.autocast("cpu", enabled=False):
            prices = simulated(noise, low)
            returns = log_returns(prices, low)
            volatility = realised(returns, low)
            left = remaining(torch.arange(DAYS), low)
            apart = log_moneyness(prices[:, :-1], low)
            plain = black_scholes_delta(apart, left)
            seen = torch.cat([torch.full((len(noise), 1), 0.2), volatility[:, :-1]], 1)
            state = torch.stack([apart, left.expand(len(noise), -1), seen, plain], -1)
        own = self.layers(state.to(low)).float().squeeze(-1)
        with torch.autocast("cpu", enabled=False):
            held = (plain + 0.05 * torch.tanh(own)).clamp(0, 1)
            flows = (gains(prices, held, low) - costs(held, prices)) * discounts(DAYS, low)
            account = settled(5000.0, flows, low)
            payoff = (prices[:, -1] - STRIKE).clamp_min(0) * discounts(DAYS, low)[-1]
            outcome = account - payoff
            loss = entropic_risk(outcome, low)
        return {"loss": loss, "outcome": outcome, "held": held}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Trader()


def batch() -> Tensor:
    return torch.randn(PATHS, DAYS, generator=torch.Generator().manual_seed(2))


def loss(output: dict[str, Tensor]) -> Tensor:
    return output["loss"]


optimizer = None
