"""A network that plays chess, as AlphaZero and Leela do: a tower over the board, moves and results as heads, and targets from a search of its own."""

import math

import torch
import torch.nn.functional as F
from torch import nn

GAMES, PLANES, SIDE, MOVES, DIM = 24, 18, 8, 64, 32
HALF_LIFE = 350
STEPS = 1


def visited(counts):
    """The share of the search that each move got."""
    total = counts.sum(-1, keepdim=True).float()
    return counts.float() / total


def edge(won, lost, drawn):
    """What the search expects of each game: wins less losses, in shares of all."""
    return (won - lost).float() / (won + lost + drawn).float()


def legal(scores, allowed):
    """Scores of the moves that the rules allow."""
    return scores.float().masked_fill(~allowed, -1e9)


def drawn_share(win, loss):
    """What is neither won nor lost."""
    return 1 - win.float() - loss.float()


def stronger(points, games):
    """By how many Elo points a player is stronger who has made so many points of so many games."""
    share = points.float() / games.float()
    return 400 * (share.log10() - (1 - share).log10())


def faded(age):
    """What a game counts that was played so many games ago."""
    return torch.exp(-math.log(2) * age.float() / HALF_LIFE)


def thought(before, after):
    """Seconds on a move, of two readings of a clock in milliseconds."""
    return (before - after).float() / 1000


def unsteady(value):
    """How much the values of a game's last positions vary."""
    value = value.float()
    return (value - value.mean(-1, keepdim=True)).square().mean(-1)


def learnt(progress):
    """A weight that grows with the training: all of it in the end."""
    return progress.float() / (progress.float() + 1000)


class Chess(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.tower = nn.Conv2d(PLANES, DIM, 3, padding=1), nn.Conv2d(DIM, DIM, 3, padding=1)
        self.norm, self.facts = nn.GroupNorm(4, DIM, affine=False), nn.Linear(6, DIM)
        self.moves, self.results = nn.Linear(DIM, MOVES), nn.Linear(DIM, 3)

    def forward(self, board, counts, won, lost, drawn, allowed, points, games, age, before, after, history, progress):
        kind = self.moves.weight.dtype
        x = F.relu(self.enter(board.to(kind)))
        x = F.relu(x + self.norm(self.tower(x))).mean((2, 3))
        with torch.autocast("cpu", enabled=False):
            expected = edge(won, lost, drawn)
            gap, spent, swing = stronger(points, games), thought(before, after), unsteady(0.6 + history.float() / 50_000)
            search, weight = visited(counts), faded(age)
            told = [expected, gap / 400, spent / 60, 1e3 * swing, learnt(progress), 1e3 * weight]
        x = F.relu(x + self.facts(torch.stack(told, -1).to(kind)))
        scores, result = legal(self.moves(x), allowed), self.results(x).float().softmax(-1)
        undecided = drawn_share(0.52 + 0.01 * result[:, 0], 0.46 + 0.01 * result[:, 1])
        return {"moves": scores, "result": result, "drawn": undecided, "search": search, "weight": weight, "expected": expected}


def make():
    torch.manual_seed(0)
    return Chess()


def batch():
    generator = torch.Generator().manual_seed(22)
    counts = torch.randint(60, 130, (GAMES, MOVES), generator=generator)
    counts[:, 0] = torch.randint(60_000, 64_000, (GAMES,), generator=generator)
    lost = torch.randint(1000, 2000, (GAMES,), generator=generator)
    games = torch.randint(700, 1000, (GAMES,), generator=generator)
    before = torch.randint(300_000, 600_000, (GAMES,), generator=generator)
    return {
        "board": torch.randint(0, 2, (GAMES, PLANES, SIDE, SIDE), generator=generator),
        "counts": counts,
        "won": lost + torch.randint(5, 60, (GAMES,), generator=generator),
        "lost": lost,
        "drawn": torch.randint(100, 900, (GAMES,), generator=generator),
        "allowed": torch.rand(GAMES, MOVES, generator=generator) < 0.6,
        "points": games - torch.randint(1, 9, (GAMES,), generator=generator),
        "games": games,
        "age": torch.randint(4000, 6000, (GAMES,), generator=generator),
        "before": before,
        "after": before - torch.randint(700, 9000, (GAMES,), generator=generator),
        "history": torch.randint(-1500, 1500, (GAMES, 40), generator=generator),
        "progress": torch.randint(100, 90_000, (GAMES,), generator=generator),
    }


def loss(output):
    chosen = output["moves"].float().log_softmax(-1).clamp_min(-30)
    policy = -(output["search"] * chosen).sum(-1)
    value = (output["result"][:, 0] - output["result"][:, 1] - output["expected"]).square()
    return (policy + value + output["drawn"]).mean() + (output["weight"] * value).sum() / output["weight"].sum()


def optimizer(params):
    return torch.optim.SGD(params, lr=1e-2, momentum=0.9)
