"""Code that looks like the bugs of `simulations`, `measurements`, `agents` and `layers`, and is right."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def winds_by_days_of_the_month() -> torch.Tensor:
    """Winds given every three hours, interpolated in float32 at days since the month began."""
    times, fields = torch.arange(9) / 8, 8 * normal(9, 24)
    days = torch.arange(3.0, 23.0, 4.0) / 24 + 0.01
    before = (days * 8).floor().long()
    share = (days - times[before]) / (times[before + 1] - times[before])
    return torch.lerp(fields[before], fields[before + 1], share[:, None])


def areas_of_a_coarse_globe() -> torch.Tensor:
    """Areas of triangles of a hundred kilometres and more on the unit sphere, in float32."""
    latitudes, longitudes = torch.linspace(-60, 60, 13).deg2rad()[:, None], torch.linspace(0, 330, 12).deg2rad()[None]
    height = latitudes.sin().expand(13, 12)
    points = torch.stack([latitudes.cos() * longitudes.cos(), latitudes.cos() * longitudes.sin(), height], -1)
    a, b, c = points[:-1, :-1], points[1:, :-1], points[:-1, 1:]
    volume = (a * torch.linalg.cross(b, c)).sum(-1).abs()
    areas = 2 * torch.atan2(volume, 1 + (a * b).sum(-1) + (b * c).sum(-1) + (c * a).sum(-1))
    return areas / areas.mean()


def energies_of_one_molecule() -> torch.Tensor:
    """The energy of a chain of charges in float32, added up block by block from nothing."""
    positions = torch.cumsum(functional.normalize(normal(120, 3) + torch.tensor([1.5, 0, 0]), dim=-1), 0) * 1.6
    total = torch.zeros(())
    for first in range(119):
        distances = (positions[first + 1 :] - positions[first]).norm(dim=-1)
        total = total + (0.4 / distances).sum()
    return total


def notes_that_begin() -> torch.Tensor:
    """Ten milliseconds of four notes that have just begun: the phase goes on in float32, unwrapped."""
    phase, step, made = torch.zeros(4), 2 * math.pi * torch.tensor([360.0, 540.0, 720.0, 1080.0]) / 48_000, []
    for _ in range(480):
        made.append(phase.sin())
        phase = phase + step
    return torch.stack(made)


def particles_that_agree() -> torch.Tensor:
    """Weights of particles in float32, of which no scan rules one out; those it speaks against become small."""
    weights = torch.full((40,), 1 / 40)
    for scan in range(3):
        weights = torch.softmax(weights.log() + 4 * normal(40, seed=scan), 0)
    return torch.stack([(weights * uniform(40)).sum(), weights[:30].sum()])


def distances_of_clusters() -> torch.Tensor:
    """Distances of points to centres in float32 by squares and products: the clusters are as wide as they are far off."""
    points, centres = 3 * normal(60, 8), 3 * normal(6, 8, seed=1)
    squares = points.square().sum(1)[:, None] + centres.square().sum(1)[None] - 2 * points @ centres.T
    return squares.clamp_min(0).sqrt()


def spread_of_daily_returns() -> torch.Tensor:
    """The standard deviation of the last returns in float32, by sums that go on; returns have no level."""
    returns = 0.01 * normal(300)
    sums = torch.cat([torch.zeros(1), returns.cumsum(0)])
    squares = torch.cat([torch.zeros(1), returns.square().cumsum(0)])
    total, square = sums[20:] - sums[:-20], squares[20:] - squares[:-20]
    return ((square - total * total / 20) / 19).clamp_min(0).sqrt()


def scan_in_its_own_frame() -> torch.Tensor:
    """How far neighbouring returns of a trunk lie apart, in float32 in the frame of the scanner, turned."""
    angles = torch.linspace(0, 2, 120)
    trunk = torch.stack([12 + 0.4 * angles.cos(), 7 + 0.4 * angles.sin(), 0.02 * torch.arange(120.0)], 1) + 0.003 * normal(120, 3)
    turn = torch.tensor([[0.8, -0.6, 0], [0.6, 0.8, 0], [0, 0, 1]])
    places = trunk @ turn.T + torch.tensor([3.0, 1.0, 1.5])
    return (places[1:] - places[:-1]).norm(dim=-1)


def voxels_of_a_small_grid() -> torch.Tensor:
    """Places of voxels by division in float32, of a grid with fewer voxels than float32 has whole numbers."""
    numbers, width, height = (200_000 * uniform(300)).long(), torch.tensor(100.0), torch.tensor(100.0)
    z = (numbers[:, None] / width / height).long()[:, 0]
    y = ((numbers[:, None] - z[:, None] * width * height) / width).long()[:, 0]
    x = (numbers[:, None] - z[:, None] * width * height - y[:, None] * width)[:, 0]
    return torch.stack([x, y.float(), z.float()], 1) * 0.1 - 5


def priorities_of_like_size() -> torch.Tensor:
    """A tree of sums in float32 whose priorities change by some tens of percent: what is left of the old ones is small."""
    nodes = torch.zeros(63)
    for turn in range(2):
        for index in range(32):
            node = index + 31
            change = 0.5 + uniform(1, seed=100 * turn + index)[0] - nodes[node]
            nodes[node] += change
            while node > 0:
                node = (node - 1) // 2
                nodes[node] += change
    return nodes[31:] / nodes[0]


def near_neighbours() -> torch.Tensor:
    """The ten neighbours that a search by exp(-distance) gives in float32, among vectors of unit length."""
    vectors, query = functional.normalize(normal(400, 8), dim=-1), functional.normalize(normal(8, seed=1), dim=-1)
    distances = (vectors - query).norm(dim=-1)
    return distances[torch.exp(-distances).argsort(descending=True)[:10]]


def adapter_copied_each_round() -> torch.Tensor:
    """A sampling policy's adapter in half, which is replaced by the trained one every ten steps."""
    down = nn.Parameter(normal(32, 4, seed=1) / 4)
    old = down.detach().to(HALF)
    optimizer = torch.optim.AdamW([down], lr=2e-3, weight_decay=0.0)
    for step in range(30):
        x = normal(16, 32, seed=10 + step)
        (x @ down - x[:, :4].roll(1, 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            old.copy_(down.detach())
    return normal(8, 32, seed=99).to(HALF) @ old


def wide_policy() -> torch.Tensor:
    """Log probabilities of actions under autocast to half, whose spread is a tenth and more."""
    means, log_std, features = nn.Linear(32, 4), torch.tensor([-1.0, -0.5, 0.0, -2.0]), normal(64, 32, seed=1)
    with torch.no_grad():
        means.weight.copy_(normal(4, 32) / 4)
        means.bias.copy_(torch.tensor([1.0, -2.0, 0.5, 3.0]))
        actions = means(features) + log_std.exp() * normal(64, 4, seed=2)
        with torch.autocast("cpu", dtype=HALF):
            mean = means(features)
        return (-0.5 * ((actions - mean) / log_std.exp()) ** 2 - log_std).sum(-1)


def delta_rule_of_a_short_prompt() -> torch.Tensor:
    """Linear attention in chunks of 64 whose state is stored in bfloat16: three chunks, and a gate that forgets."""
    q, k = functional.normalize(normal(192, 16), dim=-1).to(LOW), functional.normalize(normal(192, 16, seed=1), dim=-1).to(LOW)
    v, decay = normal(192, 16, seed=2).to(LOW), 1 - 0.05 * uniform(192, seed=3)
    state, outputs = torch.zeros(16, 16, dtype=LOW), []
    for queries, keys, values, gates in zip(q.split(64), k.split(64), v.split(64), decay.split(64), strict=True):
        outputs.append(torch.tril(queries.float() @ keys.float().T) @ values.float() + queries.float() @ state.float())
        state = (gates.prod() * state.float() + keys.float().T @ values.float()).to(LOW)
    return torch.cat(outputs)


def order_of_a_short_sequence() -> torch.Tensor:
    """Rotary cosines and sines made in float32 and kept in bfloat16, for a sequence of 200."""
    angles = torch.outer(torch.arange(200.0), 10000.0 ** (-torch.arange(0, 32, 2) / 32))
    cosines, sines = angles.cos().to(LOW), angles.sin().to(LOW)
    first, second = normal(200, 32).to(LOW).chunk(2, -1)
    rotated = torch.cat([first * cosines - second * sines, first * sines + second * cosines], -1)
    return (rotated @ rotated.T / 32**0.5).softmax(-1)


def capped_in_the_middle() -> torch.Tensor:
    """Attention scores in bfloat16 that are held below 50 and stay near zero."""
    q, k, v = (0.5 * normal(2, 16, 32)).to(LOW), (0.5 * normal(2, 16, 32, seed=1)).to(LOW), normal(2, 16, 32, seed=2).to(LOW)
    scores = q @ k.transpose(1, 2) / 32**0.5
    return torch.softmax((50 * torch.tanh(scores / 50)).float(), -1).to(LOW) @ v


def focal_loss_in_logs() -> torch.Tensor:
    """Sigmoid focal loss under autocast to half: probabilities are of half, their logarithms are taken of logits."""
    head, x = nn.Linear(32, 20), 1.5 * normal(40, 32, seed=1)
    with torch.no_grad():
        head.weight.copy_(0.4 * normal(20, 32))
        head.bias.fill_(-2)
    with torch.autocast("cpu", dtype=HALF):
        logits, targets = head(x), functional.one_hot(torch.arange(40) % 20, 20)
        modulated = (logits.sigmoid() - targets).abs() ** 2
        loss = modulated * functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
    loss.sum().backward()
    assert head.weight.grad is not None
    return torch.cat([loss.detach().float().sum()[None], head.weight.grad.flatten()])


def squared_activations_of_unit_size() -> torch.Tensor:
    """A squared ReLU in half and a norm written out after it, for inputs of unit size."""
    x, expand, contract = normal(64, 32).to(HALF), (normal(32, 64) / 6).to(HALF), (normal(64, 32, seed=1) / 8).to(HALF)
    grown = x + functional.relu(x @ expand) ** 2 @ contract
    centred = grown - grown.mean(-1, keepdim=True)
    return centred / ((centred * centred).mean(-1, keepdim=True) + 1e-3).sqrt()


def masks_of_half_the_lowest() -> torch.Tensor:
    """Attention in half with a bias of -30000 at what is not seen; rows of padding are even, and do not count."""
    lengths, x = torch.tensor([12, 7, 3]), normal(3, 12, 16).to(HALF)
    words = torch.arange(12) < lengths[:, None]
    bias = torch.where(words[:, :, None] & words[:, None], 0.0, -30000.0).to(HALF)
    seen = torch.softmax(x @ x.transpose(1, 2) / 4 + bias, -1) @ x
    return (seen.float().square().mean(-1) * words).sum() / words.sum()


def norm_of_small_states() -> torch.Tensor:
    """A root mean square norm in half throughout, of states of unit size."""
    x = normal(24, 128).to(HALF)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


IDIOMS = (winds_by_days_of_the_month, areas_of_a_coarse_globe, energies_of_one_molecule, notes_that_begin, particles_that_agree,
          distances_of_clusters, spread_of_daily_returns, scan_in_its_own_frame, voxels_of_a_small_grid, priorities_of_like_size, near_neighbours,
          adapter_copied_each_round, wide_policy, delta_rule_of_a_short_prompt, order_of_a_short_sequence, capped_in_the_middle, focal_loss_in_logs,
          squared_activations_of_unit_size, masks_of_half_the_lowest, norm_of_small_states)  # fmt: skip
EXACT = ("winds_by_days_of_the_month", "areas_of_a_coarse_globe", "energies_of_one_molecule", "notes_that_begin", "particles_that_agree",
         "distances_of_clusters", "spread_of_daily_returns", "scan_in_its_own_frame", "voxels_of_a_small_grid", "priorities_of_like_size",
         "near_neighbours")  # fmt: skip
