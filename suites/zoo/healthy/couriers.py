"""Beside the parcels and lanes: divergences, energies, numbers, norms, neighbours, scores, penalties and places that their formats hold."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


def teacher_that_allows_all_words() -> torch.Tensor:
    """How far a student in half is from its teacher, by the logs of chances in float32, and the gradient of it."""
    torch.manual_seed(6401)
    student, teacher = nn.Linear(24, 50).to(HALF), nn.Linear(24, 50).to(HALF)
    x = normal(30, 24, seed=6402).to(HALF)
    ours, theirs = student(x).float().log_softmax(-1), teacher(x).detach().float().log_softmax(-1)
    loss = (ours.exp() * (ours - theirs)).sum(-1).mean()
    loss.backward()
    return torch.cat([loss.detach()[None], student.bias.grad.float()])


def barrier_of_a_small_molecule() -> torch.Tensor:
    """How much higher states of nine atoms are than the first one, by energies that are as large as their differences."""
    torch.manual_seed(6411)
    net, start = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1)), normal(9, 8, seed=6412)
    states = start + torch.linspace(0, 1, 7)[:, None, None] * normal(9, 8, seed=6413)
    with torch.no_grad():
        energies = (0.4 * net(states).squeeze(-1)).sum(-1)
        return energies - energies[0]


def users_below_a_million() -> torch.Tensor:
    """Scores of pairs by rows of a table; numbers of users come as floats, and are below a million."""
    torch.manual_seed(6421)
    users, items = nn.Embedding(512, 8), nn.Embedding(512, 8)
    numbers = (900_000 + 37 * torch.arange(100)).to(SINGLE)
    with torch.no_grad():
        return (users((numbers % 512).long()) * items(torch.arange(100))).sum(-1)


def stream_of_a_small_coder() -> torch.Tensor:
    """Words after six layers in half, whose norms are computed in half; the largest number is eight."""
    torch.manual_seed(6431)
    layers, x = [nn.Linear(48, 48).to(HALF) for _ in range(6)], normal(10, 48, seed=6432).to(HALF)
    x[:, 5] = 8
    with torch.no_grad():
        for layer in layers:
            x = x + layer(x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt())
        return x.float()


def neighbours_that_are_far() -> torch.Tensor:
    """Distances of points to others by norms and by products in half; points are as far from each other as from the middle."""
    points = normal(60, 16, seed=6441)
    products = points.half() @ points.half().T
    norms = points.square().sum(-1)
    apart = (norms[:, None] + norms - 2 * products.float()).clamp_min(0).sqrt()
    return apart.masked_fill(torch.eye(60, dtype=torch.bool), torch.inf).topk(3, largest=False)[0]


def spreads_that_half_holds() -> torch.Tensor:
    """A network in half whose batch norm computes in float32; what it learned of pictures has been through half."""
    torch.manual_seed(6451)
    first, norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
    pictures = normal(16, 3, 8, 8, seed=6452)
    with torch.no_grad():
        for _ in range(20):
            norm(first(pictures))
        first, norm = first.half(), norm.half().float().eval()
        return functional.relu(norm(first(pictures.half()).float()).half()).mean((-1, -2)).float()


def pictures_with_short_numbers() -> torch.Tensor:
    """Which detections belong to which picture; rows are float32, and numbers of pictures have six digits."""
    numbers = 139_000 + torch.arange(40) % 8
    rows = torch.cat([numbers.to(SINGLE)[:, None], 60 * uniform(40, 4, seed=6461)], 1)
    return torch.stack([rows[rows[:, 0].long() == 139_000 + each, 1:].mean(0) for each in range(8)])


def beams_without_an_end() -> torch.Tensor:
    """Scores of six beams in half; places that hold no sentence have minus infinity."""
    torch.manual_seed(6471)
    head, scores = nn.Linear(16, 30).to(HALF), torch.full((6,), -torch.inf, dtype=HALF)
    scores[0] = 0
    with torch.no_grad():
        for step in range(5):
            likely = head(normal(6, 16, seed=6472 + step).to(HALF)).log_softmax(-1)
            scores, places = (scores[:, None] + likely).flatten().topk(6)
            scores = torch.where(places % 30 == 0, -torch.inf, scores)
    return scores.float()


def penalty_of_weights() -> torch.Tensor:
    """The penalty of a network in half, whose weights are about a tenth, by squares in half."""
    torch.manual_seed(6481)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(HALF)
    return 2e-4 * sum(each.detach().square().sum() / 2 for each in net.parameters()).float()


def semitone_of_a_short_line() -> torch.Tensor:
    """Samples of a tone, a semitone higher, read at a place that goes round a line of sixty-four."""
    line, read, out = torch.sin(2 * torch.pi * torch.arange(64) / 16), torch.tensor(0.0), []
    for _ in range(200):
        read = (read + 2 ** (1 / 12)) % 64
        left = read.floor()
        out.append(torch.lerp(line[int(left)], line[int(left + 1) % 64], read - left))
    return torch.stack(out)


IDIOMS = (
    teacher_that_allows_all_words,
    barrier_of_a_small_molecule,
    users_below_a_million,
    stream_of_a_small_coder,
    neighbours_that_are_far,
    spreads_that_half_holds,
    pictures_with_short_numbers,
    beams_without_an_end,
    penalty_of_weights,
    semitone_of_a_short_line,
)
EXACT = ("barrier_of_a_small_molecule", "users_below_a_million", "pictures_with_short_numbers", "semitone_of_a_short_line")
