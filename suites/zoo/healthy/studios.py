"""Audio, ranking, graphs and statistics around networks in low precision: filters, degrees, ranks and posteriors are float32, counts are integers."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.crafts import all_of, net

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def room_by_delays() -> torch.Tensor:
    """Four delays that feed each other through a rotation, in float32; what leaves the room is half."""
    delays, mix = [torch.zeros(size) for size in (23, 29, 31, 37)], torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2
    out = []
    for sample in functional.pad(normal(8), (0, 152)):
        ends = torch.stack([line[-1] for line in delays])
        out.append(ends.sum())
        fed = 0.85 * (mix @ ends) + sample
        delays = [torch.cat([each[None], line[:-1]]) for each, line in zip(fed, delays, strict=True)]
    return torch.stack(out).to(HALF).float()


def compressor_with_a_network() -> torch.Tensor:
    """A compressor: its envelope is a recursion in float32 in decibels, which have a floor, and a network under autocast says its ratio."""
    loud = torch.sin(0.2 * torch.arange(300)) * torch.cat([torch.full((100,), 0.05), torch.full((100,), 0.9), torch.full((100,), 0.1)])
    level, found = torch.tensor(-60.0), []
    with torch.no_grad(), torch.autocast("cpu", LOW):
        ratio = 2 + 2 * torch.sigmoid(net(2, 8, 1)(torch.tensor([[0.3, -0.2]])).float()).squeeze()
    for sample in loud:
        new = 20 * torch.log10(sample.abs().clamp_min(1e-3))
        level = torch.lerp(level, new, 0.3 if new > level else 0.02)
        over = (level + 18).clamp(min=0)
        found.append(sample * 10 ** (-over * (1 - 1 / ratio) / 20))
    return torch.stack(found)


def tones_through_an_equaliser() -> torch.Tensor:
    """Two sections of second order: coefficients are made in float64 and cast once, the state of the filter is float32, and the input is half."""
    signal = (0.5 * normal(240)).to(HALF).float()
    for frequency, gain in ((400.0, 6.0), (2500.0, -4.0)):
        w, a = 2 * math.pi * frequency / 16000, 10 ** (gain / 40)
        alpha = math.sin(w) / 1.4
        b = torch.tensor([1 + alpha * a, -2 * math.cos(w), 1 - alpha * a], dtype=DOUBLE) / (1 + alpha / a)
        c = torch.tensor([-2 * math.cos(w), 1 - alpha / a], dtype=DOUBLE) / (1 + alpha / a)
        (b0, b1, b2), (a1, a2) = b.float(), c.float()
        first, second, out = torch.zeros(()), torch.zeros(()), []
        for sample in signal:
            made = b0 * sample + first
            first, second = b1 * sample - a1 * made + second, b2 * sample - a2 * made
            out.append(made)
        signal = torch.stack(out)
    return signal


def beats_by_their_echo() -> torch.Tensor:
    """The tempo of a drum: onsets are rises of log energies in half, which are a few units large, and their echo is a sum in float32."""
    energy = torch.exp(-((torch.arange(400) % 43) / 4.0)) + 0.05 + 0.02 * uniform(400)
    rises = torch.log(energy).to(HALF).diff().clamp(min=0).float()
    rises = rises - rises.mean()
    echo = torch.stack([(rises[lag:] * rises[:-lag]).sum() for lag in range(20, 80)])
    return echo / rises.square().sum()


def ranker_of_pairs() -> torch.Tensor:
    """A ranker that is trained on pairs: differences of scores are float32, their loss is a softplus, and it ranks by float32 scores."""
    model, x = net(8, 24, 1), normal(12, 10, 8)
    gain = (x[..., 0] + 0.5 * x[..., 1]).argsort(-1).argsort(-1).float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(5):
        with torch.autocast("cpu", LOW):
            score = model(x).squeeze(-1)
        away = score.float()[:, :, None] - score.float()[:, None]
        better = gain[:, :, None] > gain[:, None]
        optimizer.zero_grad()
        functional.softplus(-away)[better].mean().backward()
        optimizer.step()
    return all_of(model)


def ratings_of_players() -> torch.Tensor:
    """Ratings of ten players after 200 games, in float64 and a step of twenty-four; a network in bfloat16 says how much the colour matters."""
    ratings = torch.full((10,), 1500.0, dtype=DOUBLE)
    with torch.no_grad():
        colour = 40 * torch.sigmoid(net(2, 8, 1).to(LOW)(torch.tensor([[1.0, 0.5]]).to(LOW))).double().squeeze()
    for white, black, luck in zip((10 * uniform(200)).long(), (10 * uniform(200, seed=1)).long(), uniform(200, seed=2), strict=True):
        if white == black:
            continue
        expected = 1 / (1 + 10 ** ((ratings[black] - ratings[white] - colour) / 400))
        won = (luck < 1 / (1 + math.exp(0.3 * (int(white) - int(black))))).double()
        ratings[white] += 24 * (won - expected)
        ratings[black] -= 24 * (won - expected)
    return ratings.float()


def tastes_by_least_squares() -> torch.Tensor:
    """Factors of users and films by systems in float32, whose right sides and squares are sums there; what is served is bfloat16."""
    seen = (uniform(30, 20) < 0.3).float()
    users, films = normal(30, 4) / 2, normal(20, 4, seed=1) / 2

    def solved(fixed: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        weights = 1 + 8 * table
        square = torch.einsum("uf,fa,fb->uab", weights, fixed, fixed) + 0.5 * torch.eye(4)
        return torch.linalg.solve(square, (weights * table) @ fixed)

    for _ in range(3):
        users = solved(films, seen)
        films = solved(users, seen.T)
    return users.to(LOW).float() @ films.to(LOW).float().T


def towers_with_a_correction() -> torch.Tensor:
    """Two towers in half with a loss scale: likenesses of unit vectors and the logarithm of how often a film is seen are float32."""
    towers, table = nn.ModuleList([net(8, 24, 8), net(6, 24, 8, seed=1)]), normal(20, 6)
    optimizer, scaler = torch.optim.AdamW(towers.parameters(), lr=2e-3), torch.amp.GradScaler("cpu", init_scale=512.0)
    often = torch.softmax(normal(20, seed=2), -1)
    for turn in range(5):
        users, films = normal(16, 8, seed=10 + turn), (20 * uniform(16, seed=20 + turn)).long()
        with torch.autocast("cpu", HALF):
            left, right = towers[0](users), towers[1](table[films])
        logits = 5 * functional.normalize(left.float(), dim=-1) @ functional.normalize(right.float(), dim=-1).T - often[films].log()
        optimizer.zero_grad()
        scaler.scale(functional.cross_entropy(logits, torch.arange(16))).backward()
        scaler.step(optimizer)
        scaler.update()
    return all_of(towers)


def clusters_by_a_spectrum() -> torch.Tensor:
    """Clusters of a graph by the second eigenvector of its Laplacian in float64, of likenesses that come from features in half."""
    features = (torch.cat([normal(12, 4) / 3, normal(12, 4, seed=1) / 3 + 1.5])).to(HALF).float()
    likeness = torch.exp(-(features[:, None] - features).square().sum(-1) / 2).double()
    root = likeness.sum(-1).rsqrt()
    vector = torch.linalg.eigh(torch.eye(24, dtype=DOUBLE) - root[:, None] * likeness * root).eigenvectors[:, 1]
    return (vector * vector[0].sign()).float()


def pages_of_interest() -> torch.Tensor:
    """Shares of a walk with returns, in float32 until their sum of changes is below 1e-5, and features that they average, in bfloat16."""
    links = (uniform(40, 40) < 0.1).float() + torch.eye(40)
    moves = links / links.sum(-1, keepdim=True)
    home = functional.one_hot(torch.tensor(3), 40).float()
    shares, change = home, torch.ones(())
    while change > 1e-5:
        new = 0.8 * shares @ moves + 0.2 * home
        shares, change = new, (new - shares).abs().sum()
    with torch.no_grad(), torch.autocast("cpu", LOW):
        hidden = net(6, 16, 4)(normal(40, 6))
    return torch.cat([shares, shares @ hidden.float()])


def routes_of_least_cost() -> torch.Tensor:
    """Least costs from one node by relaxation in float32 until nothing changes; costs of edges are a network's in half, and are never nought."""
    edges = (30 * uniform(2, 150)).long()
    with torch.no_grad(), torch.autocast("cpu", HALF):
        cost = 0.1 + functional.softplus(net(4, 16, 1)(normal(150, 4, seed=1)).float()).squeeze(-1)
    far = torch.full((30,), torch.inf).index_fill(0, torch.tensor([0]), 0.0)
    for _ in range(30):
        new = far.scatter_reduce(0, edges[1], far[edges[0]] + cost, "amin")
        if torch.equal(new, far):
            break
        far = new
    return far[torch.isfinite(far)]


def labels_that_spread() -> torch.Tensor:
    """Labels of few points that spread to their neighbours: likenesses are a softmax in float32 of distances between embeddings in bfloat16."""
    x = normal(40, 6)
    with torch.no_grad(), torch.autocast("cpu", LOW):
        hidden = net(6, 24, 8)(x).float()
    moves = torch.softmax(-torch.cdist(hidden, hidden, compute_mode="donot_use_mm_for_euclid_dist").square(), -1)
    known = functional.one_hot((x[:4, 0] > 0).long(), 2).float()
    chances = torch.full((40, 2), 0.5)
    for _ in range(12):
        chances = torch.cat([known, (moves @ chances)[4:]])
    return chances


def scores_made_even() -> torch.Tensor:
    """Scores of a model in bfloat16 that are made to agree with answers by pooling neighbours: sums and counts are float64."""
    with torch.no_grad():
        score = net(6, 16, 1).to(LOW)(normal(60, 6).to(LOW)).float().squeeze(-1)
    answers = (uniform(60, seed=1) < torch.sigmoid(2 * normal(60, 6)[:, 0])).double()[score.argsort(stable=True)]
    pools: list[tuple[float, int]] = []
    for answer in answers.tolist():
        total, count = answer, 1
        while pools and pools[-1][0] * count >= total * pools[-1][1]:
            total, count = total + pools[-1][0], count + pools[-1][1]
            pools.pop()
        pools.append((total, count))
    even = torch.cat([torch.full((count,), total / count) for total, count in pools])
    return torch.stack([even.mean(), (even - answers.float()).square().mean(), score.mean()])


IDIOMS = (
    room_by_delays, compressor_with_a_network, tones_through_an_equaliser, beats_by_their_echo, ranker_of_pairs, ratings_of_players,
    tastes_by_least_squares, towers_with_a_correction, clusters_by_a_spectrum, pages_of_interest, routes_of_least_cost, labels_that_spread,
    scores_made_even,
)  # fmt: skip
