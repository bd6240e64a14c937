"""Finance, games and searches around networks in low precision: money is whole cents or float64, visits are integers, costs are float32."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch.nn import functional

from healthy.crafts import all_of, net

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def shares_of_equal_risk() -> torch.Tensor:
    """A portfolio whose parts have equal risk. Steps in float64 find it from a covariance of returns that a bfloat16 network has shifted a little."""
    with torch.no_grad(), torch.autocast("cpu", LOW):
        lean = 1e-3 * torch.tanh(net(3, 16, 6)(normal(120, 3)).float())
    returns = (0.01 * normal(120, 6, seed=1) * torch.linspace(0.5, 2, 6) + lean).double()
    away = returns - returns.mean(0)
    covariance = 1e4 * away.T @ away / 119
    shares = torch.full((6,), 1 / 6, dtype=DOUBLE)
    for _ in range(60):
        risk = shares * (covariance @ shares)
        shares = shares * (risk.mean() / risk).sqrt()
        shares = shares / shares.sum()
    return shares.float()


def option_that_may_be_used_early() -> torch.Tensor:
    """An option by regression on paths: paths are sums of logarithms in float32, and what waiting is worth is a fit in float64."""
    steps = -0.5 * 0.2**2 / 10 + 0.2 / 10**0.5 * normal(10, 400)
    prices = 100 * torch.exp(steps.cumsum(0))
    value = (105 - prices[-1]).clamp(min=0)
    for price in prices[:-1].flip(0):
        value = 0.995 * value
        x = ((price - 100) / 20).double()
        powers = torch.stack([torch.ones_like(x), x, x * x], -1)
        waiting = (powers @ torch.linalg.lstsq(powers, value.double()[:, None]).solution).squeeze(-1).float()
        now = 105 - price
        value = torch.where((now > 0) & (now > waiting), now, value)
    return (0.995 * value.mean() / 10)[None].to(HALF).float()


def ledger_in_cents() -> torch.Tensor:
    """Wealth over sixty days: what is held follows a network in half, and money is whole cents in int64, so that no cent is lost."""
    model, cash, held, found = net(4, 16, 1).to(HALF), torch.tensor(1_000_000_00), torch.tensor(0), []
    prices = (10000 * torch.exp(0.01 * normal(64).cumsum(0))).round().long()
    for day in range(4, 64):
        signs = (prices[day - 4 : day].float() / prices[day - 4] - 1) * 50
        with torch.no_grad():
            wish = (50 * (2 * model(signs[None].to(HALF)).float()).sign()).long().squeeze()
        cash, held = cash - (wish - held) * prices[day], wish
        found.append(cash + held * prices[day])
    return torch.stack(found).double().sub(1_000_000_00).div(100).float()


def curve_of_rates() -> torch.Tensor:
    """A curve of yields by level, slope and bend, by a fit in float64; quotes are half, as they came, and are widened first."""
    years = torch.tensor([0.25, 0.5, 1, 2, 3, 5, 7, 10, 20, 30], dtype=DOUBLE)
    quotes = (4 - 1.5 * torch.exp(-years / 2) + 0.05 * normal(10).double()).to(HALF).double()
    decay = years / 1.8
    slope = -torch.expm1(-decay) / decay
    factors = torch.stack([torch.ones_like(years), slope, slope - torch.exp(-decay)], -1)
    return (factors @ torch.linalg.lstsq(factors, quotes[:, None]).solution).squeeze(-1).float()


def hedge_that_is_learnt() -> torch.Tensor:
    """A hedge by a network under autocast: gains add up in float32 along the path, and the loss is an entropy by logsumexp."""
    model, losses = net(2, 16, 1), []
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for turn in range(4):
        price, gain = torch.ones(64), torch.zeros(64)
        for step in range(8):
            with torch.autocast("cpu", LOW):
                held = torch.sigmoid(model(torch.stack([5 * (price - 1), torch.full((64,), step / 8)], -1)).float()).squeeze(-1)
            new = price * torch.exp(0.1 * normal(64, seed=100 * turn + step))
            price, gain = new, gain + held * (new - price)
        missing = (price - 1).clamp(min=0) - gain
        loss = torch.logsumexp(4 * missing, 0) - math.log(64)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.cat([torch.stack(losses), all_of(model)])


def moves_by_visits() -> torch.Tensor:
    """A search in a tree of two levels: visits are int64, values are sums in float64, and priors are a softmax in float32 of logits in half."""
    with torch.no_grad():
        priors = torch.softmax(net(4, 24, 12).to(HALF)(normal(1, 4).to(HALF)).float().view(4, 3), -1)
    visits, total, values = torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4, 3, dtype=DOUBLE), torch.tanh(normal(4, 3, seed=1)).double()
    first = priors.sum(-1) / priors.sum()
    for luck in 0.1 * normal(200, seed=2).double():
        seen = visits.sum(-1)
        upper = total.sum(-1) / seen.clamp(min=1) + 1.5 * first * float(seen.sum() + 1) ** 0.5 / (1 + seen)
        move = int(upper.argmax())
        lower = total[move] / visits[move].clamp(min=1) + 1.5 * priors[move] * float(seen[move] + 1) ** 0.5 / (1 + visits[move])
        reply = int(lower.argmax())
        total[move, reply] += values[move, reply] + luck
        visits[move, reply] += 1
    return torch.cat([visits.sum(-1).float() / 200, (total.sum() / 200).float()[None]])


def cells_that_live() -> torch.Tensor:
    """Conway's game by a convolution in bfloat16: a cell has eight neighbours at most, which are whole numbers that it has."""
    cells, around = (uniform(24, 24) < 0.35).to(LOW), torch.ones(1, 1, 3, 3, dtype=LOW)
    around[0, 0, 1, 1] = 0
    ages = torch.zeros(24, 24)
    for _ in range(20):
        near = functional.conv2d(functional.pad(cells[None, None], (1, 1, 1, 1), mode="circular"), around)[0, 0]
        cells = ((near == 3) | ((near == 2) & (cells == 1))).to(LOW)
        ages = (ages + 1) * cells.float()
    return ages


def bluffs_by_regret() -> torch.Tensor:
    """A game of bluff by regrets that add up in float64 over 150 rounds; shares are even where there is no regret, and hands are integers."""
    regrets, sums = torch.zeros(2, 3, 2, dtype=DOUBLE), torch.zeros(2, 3, 2, dtype=DOUBLE)
    wins = (torch.arange(3)[:, None] > torch.arange(3)).double() * 2 - 1
    deals = (1 - torch.eye(3, dtype=DOUBLE)) / 6
    for _ in range(150):
        good = regrets.clamp(min=0)
        total = good.sum(-1, keepdim=True)
        shares = torch.where(total > 0, good / total.clamp_min(1e-30), 0.5)
        sums = sums + shares
        bet, call = shares[0, :, 1], shares[1, :, 1]
        passing, betting = (deals * wins).sum(1), (deals * (call * 2 * wins + (1 - call))).sum(1)
        folding, calling = -(deals * bet[:, None]).sum(0), -(deals * bet[:, None] * 2 * wins).sum(0)
        regrets[0] += torch.stack([passing, betting], -1) - (shares[0] * torch.stack([passing, betting], -1)).sum(-1, keepdim=True)
        regrets[1] += torch.stack([folding, calling], -1) - (shares[1] * torch.stack([folding, calling], -1)).sum(-1, keepdim=True)
    return (sums / sums.sum(-1, keepdim=True)).to(HALF).float()


def tour_by_exchanges() -> torch.Tensor:
    """A tour of twelve towns that is improved as long as an exchange saves a thousandth: lengths are float32, of places that are half."""
    towns = uniform(12, 2).to(HALF).float()
    far = (towns[:, None] - towns).norm(dim=-1)
    tour, better = list(range(12)), True
    while better:
        better = False
        for start in range(1, 10):
            for end in range(start + 1, 12):
                a, b, c, d = tour[start - 1], tour[start], tour[end], tour[(end + 1) % 12]
                if far[a, c] + far[b, d] < far[a, b] + far[c, d] - 1e-3:
                    tour[start : end + 1] = tour[start : end + 1][::-1]
                    better = True
    return far[tour, tour[1:] + tour[:1]].sum()[None]


def sparse_weights_by_proximal_steps() -> torch.Tensor:
    """Lasso on data in bfloat16 by steps with momentum in float32: the data is widened once, and what is below the threshold is nought."""
    data = normal(80, 20).to(LOW).float()
    goal = data @ (torch.arange(20) % 5 == 0).float() + 0.1 * normal(80, seed=1)
    rate = 1 / torch.linalg.matrix_norm(data, 2).square()
    weight, ahead, speed = torch.zeros(20), torch.zeros(20), 1.0
    for _ in range(40):
        new = functional.softshrink(ahead - rate * (data.T @ (data @ ahead - goal)), float(4 * rate))
        faster = (1 + math.sqrt(1 + 4 * speed * speed)) / 2
        weight, ahead, speed = new, new + (speed - 1) / faster * (new - weight), faster
    return weight


def strategies_by_ranks() -> torch.Tensor:
    """Evolution of a network in half. Noise, ranks and the step are float32, so only the value of a candidate comes from low outputs."""
    model, x = net(4, 8, 1), normal(32, 4)
    base, goal = all_of(model), torch.sin(x[:, 0]) + 0.5 * x[:, 1]
    for turn in range(4):
        noise, worth = normal(16, len(base), seed=turn), []
        for each in noise:
            at = base + 0.1 * each
            first, second = at[:32].view(8, 4), at[40:48].view(1, 8)
            hidden = torch.tanh(functional.linear(x.to(HALF), first.to(HALF), at[32:40].to(HALF)))
            worth.append(-(functional.linear(hidden, second.to(HALF), at[48:].to(HALF)).float().squeeze(-1) - goal).square().mean())
        scaled = torch.stack(worth)
        scaled = (scaled - scaled.mean()) / scaled.std()
        base = base + 0.05 * (scaled[:, None] * noise).mean(0)
    return base


IDIOMS = (
    shares_of_equal_risk, option_that_may_be_used_early, ledger_in_cents, curve_of_rates, hedge_that_is_learnt, moves_by_visits, cells_that_live,
    bluffs_by_regret, tour_by_exchanges, sparse_weights_by_proximal_steps, strategies_by_ranks,
)  # fmt: skip
