"""A knowledge graph with times: relations rotate entities as RotatE has them, wrong facts weigh by their scores, frequent entities weigh less."""

import math

import torch
import torch.nn.functional as F
from torch import nn

ENTITIES, RELATIONS, SIZE, FACTS, WRONG = 160, 9, 24, 48, 16
GAMMA, TEMPERATURE = 12.4, 0.5
STEPS = 2


class Rotations(nn.Module):
    """What a relation turns each number of an entity by, at a time."""

    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.rand(RELATIONS, SIZE) * 2 * math.pi - math.pi)

    def forward(self, relation, days):
        with torch.autocast("cpu", enabled=False):
            return self.phase[relation].float() + self.clock(days)

    def clock(self, days):
        """Phases of the calendar: waves of a week to several years. days: whole, since 1970."""
        periods = 7 * torch.linspace(0, 5.3, SIZE).exp()
        return 2 * math.pi * (days[:, None].float() / periods)


class KnowledgeGraph(nn.Module):
    def __init__(self):
        super().__init__()
        self.real, self.imaginary = nn.Embedding(ENTITIES, SIZE), nn.Embedding(ENTITIES, SIZE)
        for table in (self.real, self.imaginary):
            nn.init.uniform_(table.weight, -0.5, 0.5)
        self.rotations = Rotations()
        self.context = nn.Sequential(nn.Linear(2 * SIZE, 2 * SIZE), nn.Tanh(), nn.Linear(2 * SIZE, 2 * SIZE))

    def rotated(self, head, phase):
        """The head entities after their relations: [B, 2, SIZE]."""
        real, imaginary = self.real(head).float(), self.imaginary(head).float()
        cosine, sine = phase.cos(), phase.sin()
        return torch.stack([real * cosine - imaginary * sine, real * sine + imaginary * cosine], 1)

    def distances(self, turned, tails):
        """Sums of moduli of what is left: [B, N]. tails: [B, N]."""
        there = torch.stack([self.real(tails), self.imaginary(tails)], 2).float()
        return (turned[:, None] - there).square().sum(2).add(1e-9).sqrt().sum(-1)

    def margins(self, distance, low):
        """Scores: above nought for facts that are believed."""
        return GAMMA - distance

    def belief(self, score, low):
        """The logarithm of the probability of a fact."""
        return F.logsigmoid(score)

    def weights_of_wrong(self, score, low):
        """Wrong facts that the model believes weigh more."""
        return (TEMPERATURE * score).softmax(-1).detach()

    def penalty(self, turned, low):
        """The mean cube of the moduli of a share of the entities."""
        modulus = turned.square().sum(1).add(1e-12).sqrt()
        return (0.01 * modulus).pow(3).mean()

    def ages(self, days, today, low):
        """Years since a fact was noted."""
        return (today - days).float() / 365.25

    def rarity(self, head, counts, low):
        """Weights of facts: one over the root of how often their heads occur."""
        return counts[head].float().add(4).rsqrt()

    def forward(self, head, relation, tail, wrong, days, counts, today):
        low = self.context(torch.ones(1, 2 * SIZE).to(self.context[0].weight.dtype)).dtype
        phase = self.rotations(relation, days)
        turned = self.rotated(head, phase)
        turned = turned + 0.1 * self.context(turned.flatten(1).to(self.context[0].weight.dtype)).float().unflatten(1, (2, SIZE))
        with torch.autocast("cpu", enabled=False):
            right = self.margins(self.distances(turned, tail[:, None]), low).float()
            others = self.margins(self.distances(turned, wrong), low).float()
            weight = self.rarity(head, counts, low).float() * (-self.ages(days, today, low).float()).exp()
            weight = weight / weight.sum()
            lost = -(weight * self.belief(right, low)[:, 0]).sum()
            lost = lost - (weight * (self.weights_of_wrong(others, low) * self.belief(-others, low)).sum(-1)).sum()
            cubes = self.penalty(turned, low)
        return {"right": right, "cubes": 1e4 * cubes.float(), "loss": lost + 100 * cubes.float()}


def make():
    torch.manual_seed(0)
    return KnowledgeGraph()


def batch():
    generator = torch.Generator().manual_seed(19)
    return {
        "head": torch.randint(ENTITIES, (FACTS,), generator=generator),
        "relation": torch.randint(RELATIONS, (FACTS,), generator=generator),
        "tail": torch.randint(ENTITIES, (FACTS,), generator=generator),
        "wrong": torch.randint(ENTITIES, (FACTS, WRONG), generator=generator),
        "days": torch.randint(19_500, 20_200, (FACTS,), generator=generator),
        "counts": torch.randint(2, 900, (ENTITIES,), generator=generator),
        "today": torch.tensor(20_230),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.Adagrad(params, lr=0.01)
