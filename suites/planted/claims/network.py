"""Insurance: how often and how much, from days of cover and cents paid, with a Tweedie loss, and what is still to be paid for old years."""

import math

import torch
from torch import nn

POLICIES, REGIONS, YEARS, DIM = 600, 12, 10, 32
STEPS = 1


def cover(began, ended, low):
    """Years of cover."""
    return (ended - began).float() / 365.25


def season(began, low):
    """Where in the year a policy began, as an angle."""
    angle = (began % 365).float() * (2 * math.pi / 365)
    return torch.stack([angle.sin(), angle.cos()], -1)


def size(cents, low):
    """Of a claim, on a logarithmic scale."""
    return torch.log1p(cents.float())


def deviance(count, rate, low):
    """Of counts from a rate, after Poisson."""
    count, rate = count.float(), rate.float()
    return 2 * (torch.xlogy(count, count.clamp_min(1) / rate) - (count - rate))


def tweedie(cents, rate, low):
    """For amounts that are mostly zero, in thousands, with a power of 1.5."""
    amount = cents.float() / 100_000
    return 2 * amount / rate.sqrt() + 2 * rate.sqrt()


def kept(years, low):
    """The bonus after years without a claim: one less 0.995 to their power."""
    return -torch.expm1(years.float() * math.log(0.995))


def beyond(log_cents, limit, low):
    """The chance that a claim is beyond a limit, for a lognormal."""
    return 0.5 * torch.erfc((limit - log_cents) / math.sqrt(2))


def growth(paid, low):
    """By what all payments grew from one year of development to the next, less one: [D - 1]."""
    total = paid.cumsum(1)
    here = torch.stack([total[: YEARS - 1 - turn, turn].sum() for turn in range(YEARS - 1)])
    after = torch.stack([paid[: YEARS - 1 - turn, turn + 1].sum() for turn in range(YEARS - 1)])
    return after.float() / here.float()


def reserve(paid, growth_, low):
    """What is still to be paid for each year, as a share of what has been."""
    tail = torch.log1p(growth_).flip(0).cumsum(0)
    return torch.expm1(tail)


def lift(rate, count, low):
    """The area between the curve of claims, by falling rates, and the diagonal."""
    order = rate.argsort(descending=True, stable=True)
    curve = count[order].float().cumsum(0) / count.sum()
    return curve.mean() - 0.5


class Claims(nn.Module):
    def __init__(self):
        super().__init__()
        self.region, self.enter = nn.Embedding(REGIONS, DIM), nn.Linear(5, DIM)
        self.body = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
        self.out = nn.Linear(DIM, 2)

    def forward(self, began, ended, count, cents, quiet, region, paid):
        weight = self.enter.weight.dtype
        low = self.enter(torch.zeros(1, 5, dtype=weight)).dtype
        with torch.autocast("cpu", enabled=False):
            years = cover(began, ended, low)
            bonus = kept(quiet, low)
            facts = torch.cat([season(began, low), torch.stack([years, 10 * bonus, quiet.float() / 20], -1)], -1)
            before = growth(paid, low)
            due = reserve(paid, before, low)
        hidden = self.region(region) + self.enter(facts.to(weight))
        hidden = hidden + self.body(hidden)
        often, much = self.out(hidden).float().unbind(-1)
        with torch.autocast("cpu", enabled=False):
            rate = (often - 2).exp() * years
            missed = deviance(count, rate, low)
            spread = tweedie(cents, (much.exp() + 0.1) * years, low)
            claimed = cents > 0
            tail = beyond(size(cents, low)[claimed], math.log(3e8), low)
            told = missed.mean() + 0.2 * spread.mean()
            area = lift(rate.detach(), count, low)
        return {"rate": rate, "due": due, "tail": tail, "lift": area, "loss": told}


def make():
    torch.manual_seed(0)
    return Claims()


def batch():
    generator = torch.Generator().manual_seed(43)

    def uniform(*shape):
        return torch.rand(shape, generator=generator)

    began = 738_000 + (uniform(POLICIES) * 1000).long()
    count = (uniform(POLICIES).log() / math.log(0.35)).long()
    paid = 4e6 * uniform(YEARS, YEARS).add(0.5) * torch.exp(-1.1 * torch.arange(YEARS))
    paid[:, 0] *= 8
    return {
        "began": began,
        "ended": began + 30 + (uniform(POLICIES) * 336).long(),
        "count": count,
        "cents": ((uniform(POLICIES) * 7 + 10).exp() * (count > 0)).long(),
        "quiet": (uniform(POLICIES) * 20).long(),
        "region": (uniform(POLICIES) * REGIONS).long(),
        "paid": paid.long(),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-2)
