"""A recommender of news that explores: LinUCB on learnt features, discounted counts, and a policy learnt from its own log (doubly robust)."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS, ARTICLES, RAW, DIM, HIDDEN, ROUNDS, STEPS = 64, 18, 20, 8, 32, 40, 2
HALF_LIFE, FLOOR, CUT, KEPT, GENTLE = 5_400.0, 2e-5, 30_000.0, 0.998, 0.2


def freshness(published, now):
    """How new an article is. Both are seconds since 1970."""
    age = (now - published).float()
    return torch.exp2(-age / HALF_LIFE)


def learnt(features, inverse):
    """The inverse covariance after these rounds, one by one (Sherman and Morrison)."""
    for row in features:
        along = (inverse * row).sum(1)
        inverse = inverse - along[:, None] * along[None, :] / (1 + (row * along).sum())
    return inverse


def width(features, inverse):
    """How little is known of each article."""
    squared = (features[..., None, :] * inverse).sum(-1)
    return (squared * features).sum(-1).clamp_min(1e-12).sqrt()


def discounted(clicks, shown):
    """Clicks and shows of each article, of which old ones count less. By round."""
    hits, seen = torch.zeros(ARTICLES), torch.full((ARTICLES,), 300.0)
    for click, show in zip(clicks, shown, strict=True):
        hits = KEPT * hits + click
        seen = KEPT * seen + show
    return hits / seen, seen


def bonus(seen, rounds):
    """What is added to the rate of an article that was seldom shown."""
    return (2 * rounds.float().log() / seen).sqrt()


def bound(rate, seen, rounds):
    """The highest rate that the clicks do not rule out, after KL-UCB, by halving."""
    low, high = rate, torch.full_like(rate, 0.999)
    most = rounds.float().log() / seen
    for _ in range(12):
        middle = (low + high) / 2
        apart = rate * (rate / middle).log() + (1 - rate) * ((1 - rate) / (1 - middle)).log()
        low, high = torch.where(apart < most, middle, low), torch.where(apart < most, high, middle)
    return (low + high) / 2


def certainty(clicks, passes):
    """The spread of each article's rate, by a Beta distribution."""
    total = clicks.float() + passes.float()
    return (clicks.float() * passes.float() / (total.square() * (total + 1))).sqrt()


def chances(scores):
    """With which each article is shown. None is never shown."""
    return (1 - ARTICLES * FLOOR) * (scores / GENTLE).softmax(-1) + FLOOR


def weights(chance, logged):
    """How much more often the new policy shows what the old one did. `logged`: the old chance's logarithm, in thousandths."""
    return (chance.log() - logged.float() / 1000).exp().clamp_max(CUT)


def sample_size(weight):
    """How many rows a weighted mean has in effect."""
    return weight.sum().square() / weight.square().sum()


def doubly_robust(model, chance, weight, chosen, reward):
    """What the policy would have earned in each row."""
    expected = (chance * model).sum(-1)
    residual = reward - model.gather(-1, chosen[:, None]).squeeze(-1)
    return expected + weight * residual


def regret(model, chosen):
    """What the choice has cost beside the best article."""
    return model.amax(-1) - model.gather(-1, chosen[:, None]).squeeze(-1)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2 * RAW + 1, HIDDEN), nn.GELU(), nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, DIM))

    def forward(self, user, article, fresh):
        both = torch.cat((user[:, None].expand(-1, ARTICLES, -1), article.expand(len(user), -1, -1), fresh[..., None]), -1)
        return self.layers(both.to(self.layers[0].weight.dtype)).float()


class Bandit(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower, self.rate = Tower(), nn.Linear(DIM, 1)
        nn.init.constant_(self.rate.bias, 3.4)

    def forward(self, user, article, published, now, chosen, logged, reward, past, clicks, shown, counted, rounds):
        features = self.tower(user.float() / 64, article.float() / 64, freshness(published, now[:, None]))
        model = torch.sigmoid(self.rate(features.to(self.rate.weight.dtype)).float().squeeze(-1))
        with torch.no_grad():
            inverse = learnt(past.float() / 16, torch.eye(DIM))
            unsure = width(features, inverse)
            rate, seen = discounted(clicks, shown)
        chance = chances(0.2 * model + 0.02 * unsure + 0.02 * rate)
        weight = weights(chance.gather(-1, chosen[:, None]).squeeze(-1), logged)
        return {
            "model": model,
            "value": doubly_robust(model.detach(), chance, weight, chosen, reward.float()),
            "size": sample_size(weight),
            "regret": regret(model, chosen),
            "bonus": bonus(seen, rounds),
            "bound": bound(rate, seen, rounds),
            "spread": certainty(*counted),
        }


def loss(output):
    return -1e-4 * output["value"].mean() + F.mse_loss(output["model"], torch.full_like(output["model"], 0.96)) + 0.1 * output["regret"].mean()


def make():
    torch.manual_seed(0)
    return Bandit()


def batch():
    generator = torch.Generator().manual_seed(31)
    now = 1_764_360_000 + torch.randint(0, 40_000, (ROWS,), generator=generator)
    logged = -torch.randint(500, 5_000, (ROWS,), generator=generator)
    logged[:4] = -torch.tensor([12_400, 11_800, 13_100, 12_600])
    reward = torch.randint(0, 2, (ROWS,), generator=generator)
    reward[:4] = 1
    return {
        "user": torch.randint(-64, 65, (ROWS, RAW), generator=generator),
        "article": torch.randint(-64, 65, (ARTICLES, RAW), generator=generator),
        "published": 1_764_360_000 - torch.randint(200, 30_000, (ROWS, ARTICLES), generator=generator),
        "now": now,
        "chosen": torch.randint(0, ARTICLES, (ROWS,), generator=generator),
        "logged": logged,
        "reward": reward,
        "past": torch.randint(-64, 65, (ROUNDS, DIM), generator=generator),
        "clicks": torch.randint(0, 2, (ROUNDS, ARTICLES), generator=generator),
        "shown": torch.ones(ROUNDS, ARTICLES, dtype=torch.long),
        "counted": torch.stack(
            (torch.randint(300, 9_000, (ARTICLES,), generator=generator), torch.randint(3_000, 60_000, (ARTICLES,), generator=generator))
        ),
        "rounds": torch.tensor(1_031_000),
    }


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
