"""A bidder for advertisements: hashed features that cross, a chance that somebody clicks, and what to bid while a budget is spent over a day."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS, FIELDS, BUCKETS, DIM, RIVALS, CAMPAIGNS = 96, 6, 500, 16, 8, 4
STEPS = 1


def hashed(ids):
    """The row of the table for each feature."""
    return ids % BUCKETS


def hour(seconds):
    """The time of day, as a share of one, of seconds since 1970."""
    return (seconds % 86_400).float() / 86_400


def smoothed(clicks, views):
    """How often an advertisement was clicked, beside what is usual: one clicked as often as others has nought."""
    return (clicks + 20).float() / (views + 1000).float() * 50 - 1


def lead(bids):
    """By how much the highest bid is above the second, in cents. bids: whole hundredths of a cent."""
    best = bids.topk(2, -1).values
    return (best[:, 0] - best[:, 1]).float() / 100


def unclicked(chance, shown):
    """The chance that none of so many showings is clicked."""
    return (shown.float() * torch.log1p(-chance.float())).exp()


def corrected(chance):
    """The chance when nine in ten of what was not clicked were left out of the training."""
    return chance.float() / (chance.float() + (1 - chance.float()) / 0.1)


def spent(prices):
    """What each campaign has spent after each auction, in cents. prices: whole cents, [CAMPAIGNS, N]"""
    return prices.cumsum(-1).float()


def remaining(paid, budget):
    """The share of the budget that is left."""
    return (budget - paid).float() / budget.float()


def standardised(amount):
    """Prices beside their own mean, in units of their spread; a campaign with one price has none."""
    amount = amount.float()
    centred = amount - amount.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True).sqrt() + 1e-8)


def logged(counts):
    """Counts of large and small things side by side."""
    return counts.float().log1p()


class Auctions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(BUCKETS, DIM)
        self.facts, self.cross, self.deep = nn.Linear(6, DIM), nn.Linear(FIELDS * (FIELDS - 1) // 2 + DIM, 64), nn.Linear(64, 32)
        self.click, self.price = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, ids, seconds, clicks, views, bids, shown, prices, paid, budget, campaign, fixed):
        kind = self.facts.weight.dtype
        with torch.autocast("cpu", enabled=False):
            left, even = remaining(paid, budget), standardised(fixed)
            told = [hour(seconds), smoothed(clicks, views), lead(bids) / 4, logged(views) / 10, 50 * left[campaign], even[campaign, 0]]
        x = self.facts(torch.stack(told, -1).to(kind))
        rows = self.table(hashed(ids))
        pairs = rows @ rows.mT
        first, second = torch.triu_indices(FIELDS, FIELDS, 1)
        x = F.relu(self.cross(torch.cat([pairs[:, first, second].to(x.dtype), x], -1)))
        x = F.relu(self.deep(x))
        with torch.autocast("cpu", enabled=False):
            score = self.click(x.to(kind)).squeeze(-1).float() - 3
            chance = corrected(score.sigmoid())
            none = unclicked(chance, shown)
            bid = F.softplus(self.price(x.to(kind)).squeeze(-1).float())
            total = spent(prices)
        return {"score": score, "none": none, "bid": bid, "spent": total, "lead": lead(bids)}


def make():
    torch.manual_seed(0)
    return Auctions()


def batch():
    generator = torch.Generator().manual_seed(2200)
    views = torch.randint(60_000, 90_000, (ROWS,), generator=generator)
    budget = torch.randint(40_000, 60_000, (CAMPAIGNS,), generator=generator)
    fixed = torch.randint(20, 90, (CAMPAIGNS, 9), generator=generator)
    fixed[0] = 45
    return {
        "ids": torch.randint(0, 100_000, (ROWS, FIELDS), generator=generator),
        "seconds": torch.randint(1_700_000_000, 1_700_600_000, (ROWS,), generator=generator),
        "clicks": views // 50 + torch.randint(-60, 60, (ROWS,), generator=generator),
        "views": views,
        "bids": 30_000 + torch.randint(0, 2500, (ROWS, RIVALS), generator=generator),
        "shown": torch.randint(20, 90, (ROWS,), generator=generator),
        "prices": torch.randint(20, 90, (CAMPAIGNS, 1800), generator=generator),
        "paid": budget - torch.randint(200, 900, (CAMPAIGNS,), generator=generator),
        "budget": budget,
        "campaign": torch.randint(0, CAMPAIGNS, (ROWS,), generator=generator),
        "fixed": fixed,
    }


def loss(output):
    clicked = (torch.arange(ROWS) % 7 == 0).float()
    fit = F.binary_cross_entropy_with_logits(output["score"], clicked)
    price = (output["bid"] - output["lead"] / 10).square().mean()
    return fit + 0.1 * price + output["none"].mean() + 1e-6 * output["spent"][:, -1].mean() * output["bid"].mean()


def optimizer(params):
    return torch.optim.Adagrad(params, lr=1e-2)
