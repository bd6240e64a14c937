"""What students know, from their answers: ratings as in chess, times since the last exercise, shares of right answers, and a recurrent network."""

import math

import torch
import torch.nn.functional as F
from torch import nn

STUDENTS, ANSWERS, SKILLS, DIM = 6, 300, 20, 32
K = 6.0
STEPS = 1


def rated(ability, difficulty, right, dtype):
    """Ratings of the students after each answer, and how far each exercise was beyond them: [B, T] both."""
    rating, ratings, beyond = ability.float(), [], []
    for turn in range(right.shape[1]):
        gap = rating - difficulty[:, turn].float()
        rating = rating + K * (right[:, turn].float() - torch.sigmoid(gap * (math.log(10) / 400)))
        ratings.append(rating)
        beyond.append(gap)
    return torch.stack(ratings, 1), torch.stack(beyond, 1)


def surprise(gap, right, dtype):
    """How unlikely each answer was, by the ratings."""
    sign = 2 * right.float() - 1
    return -F.logsigmoid(sign * gap * (math.log(10) / 400))


def pause(seconds, dtype):
    """The logarithm of the seconds since the answer before."""
    gap = F.pad(seconds[:, 1:] - seconds[:, :-1], (1, 0), value=1)
    return torch.log1p(gap.float())


def tried(skill, dtype):
    """How often each skill has been tried so far, this time among them: [B, T]."""
    once = F.one_hot(skill, SKILLS)
    return (once.cumsum(1) * once).sum(-1)


def done(right, dtype):
    """How many answers have been right so far, in all."""
    return right.long().cumsum(1)


def kept(gap, dtype):
    """What is left in memory, by a half-life of a day."""
    return torch.exp2(-gap.expm1() / 86_400)


def pairs(chances, right, dtype):
    """The share of pairs, one right and one wrong, that are in order: the area under the curve."""
    above = chances[:, :, None] > chances[:, None]
    wanted = right[:, :, None] & ~right[:, None]
    return (above & wanted).sum((1, 2)).float() / wanted.sum((1, 2)).float()


class Exams(nn.Module):
    def __init__(self):
        super().__init__()
        self.skill, self.enter = nn.Embedding(SKILLS, DIM), nn.Linear(6, DIM)
        self.body = nn.GRU(DIM, DIM, batch_first=True)
        self.out = nn.Linear(2 * DIM, 1)

    def forward(self, ability, difficulty, skill, right, seconds):
        weight = self.enter.weight.dtype
        dtype = self.enter(torch.zeros(1, 6, dtype=weight)).dtype
        with torch.autocast("cpu", enabled=False):
            rating, gap = rated(ability, difficulty, right, dtype)
            hard = surprise(gap, right, dtype)
            between = pause(seconds, dtype)
            often = torch.log1p(tried(skill, dtype).float())
            share = done(right, dtype).float() / torch.arange(1, ANSWERS + 1)
            facts = torch.stack([(rating - 1500) / 400, gap / 400, between / 8, often, share, kept(between, dtype)], -1)
        asked = self.skill(skill)
        hidden, _ = self.body(asked + self.enter(facts.to(weight)))
        before = F.pad(hidden[:, :-1], (0, 0, 1, 0))
        logits = self.out(torch.cat([before, asked], -1)).float()[..., 0]
        with torch.autocast("cpu", enabled=False):
            area = pairs(logits.detach(), right, dtype)
            told = F.binary_cross_entropy_with_logits(logits, right.float(), weight=1 + hard.clamp(max=8))
        return {"logits": logits, "rating": rating[:, -1], "area": area, "loss": told}


def make():
    torch.manual_seed(0)
    return Exams()


def batch():
    generator = torch.Generator().manual_seed(29)
    ability = torch.randint(1100, 2100, (STUDENTS,), generator=generator)
    difficulty = torch.randint(900, 2300, (STUDENTS, ANSWERS), generator=generator)
    difficulty[:, ::50] = 4100
    chance = torch.sigmoid((ability[:, None] - difficulty) / 200)
    right = torch.rand(STUDENTS, ANSWERS, generator=generator) < chance
    right[::2, 50] = True  # a lucky guess
    gaps = (torch.rand(STUDENTS, ANSWERS, generator=generator).mul(11).exp() + 4).long()
    return {
        "ability": ability,
        "difficulty": difficulty,
        "skill": (torch.rand(STUDENTS, ANSWERS, generator=generator) ** 2 * SKILLS).long(),
        "right": right,
        "seconds": 1_700_000_000 + gaps.cumsum(-1),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-2)
