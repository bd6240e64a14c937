"""Gradings, fields and phases that look like the bugs of these."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def answers_by_wide_sums() -> torch.Tensor:
    """Probabilities of four answers from bfloat16 logits: logarithms and sums are float32."""
    embedding, head, scores = (0.5 * normal(400, 32)).to(LOW), (0.1 * normal(400, 32, seed=1)).to(LOW), []
    for answer in range(4):
        tokens = (torch.arange(13) * 37 + 13 * answer) % 400
        log_probs = functional.log_softmax((embedding[tokens[:-1]] @ head.T).float(), -1)
        scores.append(log_probs.gather(-1, tokens[1:, None]).sum())
    return torch.stack(scores).softmax(0)


def undecided_members() -> torch.Tensor:
    """Eight members of an ensemble under autocast that are not sure of anything: the mean of their probabilities, in bfloat16."""
    x, outputs = normal(40, 12), []
    with torch.no_grad(), torch.autocast("cpu", dtype=LOW):
        for seed in range(8):
            layer = nn.Linear(12, 3)
            layer.weight.copy_(0.2 * normal(3, 12, seed=seed))
            layer.bias.zero_()
            outputs.append(torch.softmax(layer(x), -1).to(LOW))
    return torch.stack(outputs).mean(0).float()


def pairs_by_logsigmoid() -> list[torch.Tensor]:
    """A pairwise ranking by log-sigmoid, in float32: margins of two hundred, and a gradient that is a share."""
    users, items = nn.Embedding(20, 16), nn.Embedding(30, 16)
    with torch.no_grad():
        users.weight.copy_(4 * normal(20, 16))
        items.weight.copy_(4 * normal(30, 16, seed=1))
    who, liked, other = torch.arange(20), torch.arange(20) % 30, (torch.arange(20) * 7 + 11) % 30
    margin = (users(who) * (items(liked) - items(other))).sum(-1)
    (-functional.logsigmoid(margin)).mean().backward()
    return [users.weight.grad, items.weight.grad]


def style_of_scaled_features() -> torch.Tensor:
    """A Gram matrix in half of features about two hundred, each divided by the root of their number and by a hundred before the product."""
    features = (200 * uniform(12, 900)).half()
    scaled = features * (0.01 / 30)
    return (scaled @ scaled.T).float()


def rows_of_a_hub() -> torch.Tensor:
    """Rows of half features are added to a node by index: torch adds up rows in float32 and rounds once."""
    x, total = uniform(4000, 16).half(), torch.zeros(8, 16, dtype=HALF)
    total.index_add_(0, torch.arange(4000) % 2, x)
    return (total[:2] / 2000).float()


def lists_of_whole_numbers() -> torch.Tensor:
    """Neighbours of 480 atoms, listed as integers; distances are float32 and features bfloat16."""
    walk, order = normal(480, 3).cumsum(0), torch.arange(480)
    beside = (order[:, None] - order).abs() <= 2
    near = torch.cdist(walk, walk).masked_fill(beside, float("inf")).topk(8, largest=False).indices
    listed = torch.where(beside.scatter(1, near, True), order, 480).sort(-1).values[:, :12].clamp(max=479)
    x = (normal(480, 16, seed=1)).to(LOW)
    score = torch.einsum("id,ijd->ij", x, x[listed]).float() / 4
    return torch.einsum("ij,ijd->id", score.softmax(-1).to(LOW), x[listed]).float()


def energies_less_atoms() -> torch.Tensor:
    """Energies of molecules less those of their atoms in float64; what is left is stored and standardised in float32."""
    reference = torch.tensor([-13.6, -1029.5, -1485.0, -2042.0], dtype=DOUBLE)
    counts = torch.stack([20 + torch.arange(24) % 7, 30 + torch.arange(24) % 5, torch.arange(24) % 4, torch.arange(24) % 6], -1)
    energy = (counts * reference).sum(-1) - 4.3 + 0.1 * normal(24).double()
    targets = (energy - (counts * reference).sum(-1)).float()
    return (targets - targets.mean()) / targets.std()


def features_cast_at_last() -> torch.Tensor:
    """Features of eight time steps, in float32 to the end, and a half network that reads them."""
    exponent = torch.exp(-math.log(10000) * torch.arange(32) / 32)
    angles = torch.linspace(981, 1, 8)[:, None] * exponent
    time = torch.cat([angles.cos(), angles.sin()], -1).half()
    first, second = (normal(32, 64) / 8).half(), (normal(16, 32, seed=1) / 32**0.5).half()
    return functional.linear(functional.silu(functional.linear(time, first)), second).float()


def frames_over_the_window() -> torch.Tensor:
    """Spectra of a loud tone by products in half, with a window that sums to one; squares and logarithms are float32."""
    window = torch.hann_window(512)
    wave = (1.6 * torch.sin(2 * math.pi * 440 * torch.arange(2048) / 22050)).clamp(-1, 1).half()
    frames = wave.unfold(0, 512, 256) * (window / window.sum()).half()
    turns = 2 * math.pi * torch.arange(512)[:, None] * torch.arange(4, 16) / 512
    real, imaginary = ((frames @ basis.half()).float() for basis in (turns.cos(), turns.sin()))
    return torch.sqrt(real.square() + imaginary.square() + 1e-6)


def phases_that_wrap() -> torch.Tensor:
    """Bands of a pitch shifter whose phases are kept below one turn, in float32."""
    step = torch.tensor([2 * math.pi * 256 * (110.0 * band + 3.7) * 1.12 / 44100 for band in range(1, 13)])
    phase, out = torch.zeros(12), []
    for _ in range(200):
        phase = (phase + step) % (2 * math.pi)
        out.append((phase.cos() / torch.arange(1, 13)).sum())
    return torch.stack(out)


def factors_of_mild_decays() -> torch.Tensor:
    """Linear attention in chunks whose decay is split into a factor of the query and one of the key, up to the twelfth power of e, in float32."""
    q, k, v = (normal(96, 8, seed=seed) for seed in range(3))
    gate, state, out = -0.4 * uniform(96, 8, seed=3), torch.zeros(8, 8), []
    for start in range(0, 96, 32):
        rows = slice(start, start + 32)
        faded = gate[rows].cumsum(0)
        scores = ((q[rows] * faded.exp()) @ (k[rows] * (-faded).exp()).T).tril()
        out.append(scores @ v[rows] + (q[rows] * faded.exp()) @ state)
        state = state * faded[-1].exp()[:, None] + (k[rows] * (faded[-1] - faded).exp()).T @ v[rows]
    return torch.cat(out)


IDIOMS = (answers_by_wide_sums, undecided_members, pairs_by_logsigmoid, style_of_scaled_features, rows_of_a_hub, lists_of_whole_numbers,
          energies_less_atoms, features_cast_at_last, frames_over_the_window, phases_that_wrap, factors_of_mild_decays)  # fmt: skip
EXACT = ("pairs_by_logsigmoid", "energies_less_atoms", "phases_that_wrap", "factors_of_mild_decays")
