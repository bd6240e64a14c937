"""What a treatment does: outcomes with and without it, the chance to get it, weights by its inverse, and a balance of who gets it, from tables."""

import torch
from torch import nn

ROWS, CENTRES, SIZE, BANDS, KNOTS = 640, 5, 24, 8, (30.0, 45.0, 60.0, 75.0)
YEAR = 365.25
STEPS = 1


def ages(born, seen, low):
    """Years. born, seen: whole days since the year nought."""
    return (seen - born).float() / YEAR


def bent(age, low):
    """Natural splines of an age, each nought before its knot: differences of cubes, over a decade's cube."""
    cubes = torch.stack([(age - knot).clamp_min(0) ** 3 for knot in KNOTS], -1)
    return (cubes[:, :-1] - cubes[:, -1:]) / 1e4


def scaled(table, low):
    """Columns less their means, over their spreads. table: whole, [ROWS, columns]."""
    x = table.double()
    return ((x - x.mean(0)) / x.std(0)).float()


def outcome_scaled(grams, low):
    """Weights at birth as deviations from the mean of all. grams: whole, [ROWS]."""
    return (grams.float() - grams.float().mean()) / 500


def chances(logits, low):
    """The chance to be treated, kept from both ends."""
    return logits.float().sigmoid().clamp(0.002, 0.998)


def inverse_weights(chance, treated, low):
    """One over the chance of what happened."""
    happened = torch.where(treated, chance, 1 - chance)
    return 1 / happened


def log_odds(chance, low):
    """The logit of a chance, as matching compares it."""
    return chance.log() - torch.log1p(-chance)


def effects(grams_with, grams_without, low):
    """How much more the treated would weigh. In grams, whole numbers apart from what the network adds."""
    return grams_with - grams_without


def doubly_robust(outcome, guess, weights, low):
    """What the guess lacks, weighted: the correction of the estimate. outcome: whole grams, guess: grams."""
    return weights * (outcome.float() - guess)


def ranks(score, low):
    """The rank of each row by its score, from one."""
    order = score.argsort()
    return torch.empty(len(score)).scatter_(0, order, torch.arange(1.0, len(score) + 1))


def bands(rank, low):
    """Which of BANDS equal parts a rank belongs to."""
    return ((rank.long() - 1) * BANDS // ROWS).clamp_max(BANDS - 1)


def imbalance(x, treated, low):
    """The difference of means between the treated and the others, for each column."""
    share = treated.float()[:, None]
    return (x * share).sum(0) / share.sum() - (x * (1 - share)).sum(0) / (1 - share).sum()


def closeness(a, b, width=4.0):
    """A Gaussian of the distances between rows."""
    gaps = a[:, None] - b[None]
    return (-gaps.square().sum(-1) / width).exp()


def discrepancy(a, b, low):
    """How different two samples are, by a kernel."""
    return closeness(a, a).mean() + closeness(b, b).mean() - 2 * closeness(a, b).mean()


def gain_curve(effect, rank, low):
    """What is gained in all by treating the first so many, in kilograms: [ROWS]."""
    order = rank.long() - 1
    ordered = torch.zeros(ROWS).scatter_(0, order, effect.float())
    return ordered.cumsum(0) / 1000


def by_centre(values, centre, low):
    """The mean of each centre, at its rows."""
    count = torch.zeros(CENTRES).index_add_(0, centre, torch.ones(ROWS))
    total = torch.zeros(CENTRES).index_add_(0, centre, values.float())
    return (total / count)[centre]


def spread_of_weights(weights, low):
    """The share of rows that count, when rows have weights."""
    return weights.sum().square() / weights.square().sum() / len(weights)


class Uplift(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4 + len(KNOTS) - 1 + 1, SIZE), nn.ELU(), nn.Linear(SIZE, SIZE), nn.ELU())
        self.treated = nn.Linear(SIZE, 1)
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(SIZE, SIZE), nn.ELU(), nn.Linear(SIZE, 1)) for _ in range(2))

    def forward(self, born, seen, table, centre, treated, grams):
        low = self.treated(torch.zeros(1, SIZE, dtype=self.treated.weight.dtype)).dtype
        with torch.autocast("cpu", enabled=False):
            age = ages(born, seen, low).float()
            columns = scaled(table, low).float()
            facts = torch.cat([columns, bent(age, low).float(), age[:, None] / 50], -1)
        h = self.body(facts.to(self.treated.weight.dtype))
        logit = 8 * self.treated(h).squeeze(-1) + 3.5
        guesses = [head(h).squeeze(-1) for head in self.heads]
        with torch.autocast("cpu", enabled=False):
            chance = chances(logit, low).float()
            weights = inverse_weights(chance, treated, low).float()
            usual = by_centre(grams.float(), centre, low).float()
            without, given = (usual + 100 * each.float() for each in guesses)
            effect = effects(given, without, low).float()
            better = doubly_robust(grams, torch.where(treated, given, without), weights, low).float()
            rank = ranks(log_odds(chance.detach(), low).float(), low)
            stratum = bands(rank, low)
            curve = gain_curve(effect.detach(), rank, low).float()
            wanted, own = outcome_scaled(grams, low).float(), (torch.where(treated, given, without) - 3400) / 500
            apart = imbalance(h.float(), treated, low).float().square().sum()
            unlike = discrepancy(h.float()[treated][:80], h.float()[~treated][:80], low).float()
            terms = [
                (own - wanted).square().mean(),
                -torch.where(treated, chance, 1 - chance).log().mean(),
                0.1 * (better / 1000).square().mean(),
                0.1 * apart,
                unlike,
                0.01 / spread_of_weights(weights, low).float(),
            ]
        return {"effect": effect, "stratum": stratum, "curve": curve, "loss": torch.stack(terms).sum()}


def make():
    torch.manual_seed(0)
    return Uplift()


def batch():
    generator = torch.Generator().manual_seed(19)
    seen = 738_000 + torch.randint(900, (ROWS,), generator=generator)
    born = seen - (18 * YEAR + 60 * YEAR * torch.rand(ROWS, generator=generator)).long()
    return {
        "born": born,
        "seen": seen,
        "table": torch.stack([
            2015 + torch.randint(9, (ROWS,), generator=generator),  # the year
            52_000 + torch.randint(900, (ROWS,), generator=generator),  # a code of the town
            torch.randint(150, 200, (ROWS,), generator=generator),
            40_000 + torch.randint(9000, (ROWS,), generator=generator),
        ], -1),
        "centre": torch.randint(CENTRES, (ROWS,), generator=generator).clamp_max(3),
        "treated": torch.rand(ROWS, generator=generator) > 0.4,
        "grams": 3400 + torch.randint(-200, 200, (ROWS,), generator=generator),
    }


def loss(output):
    return output["loss"]


optimizer = None
