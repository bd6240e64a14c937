"""Robots, signals, caches, surfaces and training that look like the bugs of robots, voices, caches, surfaces and learners."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def world_of_an_hour() -> torch.Tensor:
    """A world's time in float32 that is the number of its steps times their length, and what a lift makes of it."""
    position, velocity, seen = torch.zeros(3), torch.tensor([0.5, 0.0, 4.0]), []
    for step in range(1200, 1320):
        time = torch.tensor(float(step)) * (1 / 60)
        velocity = velocity + torch.tensor([0.0, 0.0, -9.81]) / 60
        position = position + velocity / 60
        seen.append(torch.cat([(1.5 + 1.5 * torch.sin(2 * math.pi / 8 * time))[None], position]))
    return torch.stack(seen)


def centroids_about_the_robot() -> torch.Tensor:
    """Centroids of voxels in float32, of points in the robot's own frame, twenty to a voxel."""
    points = torch.cat([6 * uniform(700, 2) - 3, 0.02 * normal(700, 1)], 1)
    cell = torch.floor(points[:, :2]).long() + 3
    _, voxel, count = (cell[:, 0] * 8 + cell[:, 1]).unique(return_inverse=True, return_counts=True)
    return torch.zeros(len(count), 3).index_add_(0, voxel, points) / count[:, None]


def pitch_by_both_legs() -> torch.Tensor:
    """A gripper's pitch near the vertical in float32, by the arc tangent of sine and cosine, either of which is its own."""
    pitch, yaw = math.pi / 2 - 0.02 * uniform(200), 2 * math.pi * uniform(200, seed=1)
    forward = torch.stack([pitch.cos() * yaw.cos(), pitch.cos() * yaw.sin(), -pitch.sin()], -1)
    return torch.atan2(-forward[:, 2], forward[:, :2].norm(dim=-1))


def neurons_by_steps() -> torch.Tensor:
    """Neurons that rest by a count of steps, which is an integer, and whose voltages are half."""
    voltage, last, counts = torch.zeros(64, dtype=HALF), torch.full((64,), -100), torch.zeros(64)
    for step in range(54_000_000, 54_000_300):
        voltage = 0.875 * voltage + (0.5 * uniform(64, seed=step - 54_000_000)).to(HALF)
        spikes = (voltage > 2) & (step - last > 13)
        last, counts = torch.where(spikes, step, last), counts + spikes
    return counts


def phase_by_blocks() -> torch.Tensor:
    """A sine source in float32 whose phase is added up over blocks of a hundred samples, and loses its whole turns after each."""
    pitch, start, heard = 1500 * 2 ** (torch.sin(torch.arange(600) * 0.011) / 6), torch.zeros(()), []
    for frame in pitch:
        phase = start + torch.cumsum((frame / 6000).expand(100), 0)
        heard.append(torch.sin(2 * math.pi * phase))
        start = torch.remainder(phase[-1], 1)
    return torch.cat(heard)


def sections_in_series() -> torch.Tensor:
    """Two recursive filters of second order in float32, one after the other, at a fifth of the band."""
    angle, signal = 0.2 * math.pi, 0.3 * torch.sin(torch.arange(300) * 0.2) + 0.1 * normal(300)
    for quality in (0.54, 1.31):
        alpha = math.sin(angle) / (2 * quality)
        ahead = torch.tensor([1 - math.cos(angle), 2 * (1 - math.cos(angle)), 1 - math.cos(angle)]) / 2 / (1 + alpha)
        back = torch.tensor([1 - alpha, -2 * math.cos(angle)]) / (1 + alpha)
        padded, made = torch.cat([signal.new_zeros(2), signal]), [torch.zeros(()), torch.zeros(())]
        for now in range(300):
            made.append((ahead * padded[now : now + 3].flip(0)).sum() - (back * torch.stack(made[-2:])).sum())
        signal = torch.stack(made[2:])
    return signal


def products_by_row() -> torch.Tensor:
    """Products of nine digits are looked up as integers; the table that is cast to bfloat16 has their rows in the catalogue."""
    catalogue = 100_100_037 + torch.arange(12) * 3
    products = catalogue[torch.arange(240) * 7 % 12]
    table = torch.stack([torch.searchsorted(catalogue, products).float(), 3 + 9 * uniform(240)], 1).to(LOW)
    row = table[:, 0].long()
    sales = 20 + 8 * row + normal(240, seed=1)
    return torch.zeros(12).index_add_(0, row, sales) / torch.bincount(row, minlength=12)


def slope_by_wide_steps() -> torch.Tensor:
    """A network's slope in float32 by central differences, half a hundredth to either side."""
    network = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
    with torch.no_grad():
        for layer, seed in ((network[0], 1), (network[2], 2)):
            layer.weight.copy_(0.7 * normal(*layer.weight.shape, seed=seed))
            layer.bias.copy_(0.7 * normal(*layer.bias.shape, seed=seed + 2))
        x = torch.linspace(0.5, 4, 60)[:, None]
        return (network(x + 0.0078125) - network(x - 0.0078125)) / 0.015625


def blocks_after_a_norm() -> torch.Tensor:
    """Eight-bit blocks whose scale and sum are kept in half; what is in them has been normalised."""
    blocks = functional.layer_norm(normal(12, 128), (128,)).unflatten(-1, (-1, 32))
    scale = blocks.abs().amax(-1) / 127
    codes = torch.round(blocks / scale[..., None])
    pairs = torch.stack([scale, scale * codes.sum(-1)], -1).to(HALF).float()
    weight, steps = torch.floor(16 * uniform(24, 4, 32, seed=2)), 0.01 + 0.01 * uniform(24, 4, seed=3)
    dots = torch.einsum("tbi,obi->tob", codes, weight)
    return (dots * pairs[:, None, :, 0] * steps - pairs[:, None, :, 1] * 7.5 * steps).sum(-1)


def attention_in_two_parts() -> torch.Tensor:
    """Two parts of attention in bfloat16, merged in float32 by what their normalisers are beside the larger one."""
    q, k, v = (normal(96, 32, seed=seed).to(LOW) for seed in range(3))
    outputs, logs = [], []
    for start in (0, 48):
        scores = (q[:16] @ k[start : start + 48].T).float() / 32**0.5
        outputs.append(torch.softmax(scores, -1).to(LOW) @ v[start : start + 48])
        logs.append(torch.logsumexp(scores, -1))
    larger = torch.maximum(*logs)
    weights = [torch.exp(log - larger)[:, None] for log in logs]
    return sum(weight * output.float() for weight, output in zip(weights, outputs, strict=True)) / sum(weights)


def short_context_in_half() -> torch.Tensor:
    """Attention over 256 cached tokens, sixty-four at a time, whose output is half until it is divided by the normaliser."""
    q, keys, values = (0.2 * normal(8, 16)).half(), normal(256, 16, seed=1).half(), normal(256, 16, seed=2).half()
    largest, total, out = torch.full((8, 1), -torch.inf), torch.zeros(8, 1), torch.zeros(8, 16, dtype=HALF)
    for start in range(0, 256, 64):
        scores = (q @ keys[start : start + 64].T).float() / 4
        peak = torch.maximum(largest, scores.amax(-1, keepdim=True))
        rescale, shares = torch.exp(largest - peak), torch.exp(scores - peak)
        total = total * rescale + shares.sum(-1, keepdim=True)
        out = out * rescale.to(HALF) + shares.to(HALF) @ values[start : start + 64]
        largest = peak
    return out.float() / total


def streams_of_a_converted_model() -> torch.Tensor:
    """Four residual streams that a doubly stochastic matrix mixes: layers are bfloat16, logits of the mix are float32 as they were trained."""
    streams = normal(10, 1, 16, seed=3).expand(10, 4, 16)
    for layer in range(12):
        weight = (normal(16, 16, seed=layer) / 4).to(LOW)
        mix = torch.softmax(2 * normal(4, 4, seed=100 + layer), -1)
        for _ in range(20):
            mix = mix / (mix.sum(-2, keepdim=True) + 1e-6)
            mix = mix / (mix.sum(-1, keepdim=True) + 1e-6)
        inner = (streams.mean(-2).to(LOW) @ weight.T).float()
        streams = mix @ streams + torch.tanh(inner)[..., None, :]
    return streams.mean(-2)


def normals_of_a_table() -> torch.Tensor:
    """Normals of patches in float32 from means of products, of points that the patch's first point has been taken from."""
    turn = torch.linalg.qr(normal(40, 3, 3)).Q
    flat = torch.stack([0.05 * normal(40, 25, seed=1), 0.02 * normal(40, 25, seed=2), 0.004 * normal(40, 25, seed=3)], -1)
    points = 3 * functional.normalize(normal(40, 1, 3, seed=4), dim=-1) + flat @ turn.transpose(1, 2)
    local = points - points[:, :1]
    mean = local.mean(1, keepdim=True)
    covariance = (local[..., :, None] * local[..., None, :]).mean(1) - mean.transpose(1, 2) * mean
    normals = torch.linalg.eigh(covariance).eigenvectors[..., 0]
    return torch.where((normals * points[:, 0]).sum(-1, keepdim=True) > 0, -normals, normals)


def rays_amid_a_quad() -> torch.Tensor:
    """How far rays in float32 go until they meet one of two triangles; none comes near an edge."""
    corners, along = torch.tensor([[-5.0, -5.0, 0.0], [5.0, -5.0, 0.0], [5.0, 5.0, 0.0]]), uniform(200, 2)
    target = torch.stack([1 + 3 * along[:, 0], -1 - 2.5 * along[:, 1], torch.zeros(200)], -1)
    origin = torch.tensor([0.37, 0.2, 10.0]).expand(200, 3)
    direction = functional.normalize(target - origin, dim=-1)
    edge1, edge2 = corners[1] - corners[0], corners[2] - corners[0]
    across = torch.linalg.cross(direction, edge2.expand_as(direction))
    determinant, offset = across @ edge1, origin - corners[0]
    upright = torch.linalg.cross(offset, edge1.expand_as(offset))
    u, v = (across * offset).sum(-1) / determinant, (direction * upright).sum(-1) / determinant
    return torch.where((u >= 0) & (v >= 0) & (u + v <= 1), upright @ edge2 / determinant, torch.inf)


def strangers_in_the_hyperboloid() -> torch.Tensor:
    """Distances in hyperbolic space in float32, of words that have nothing to do with each other."""
    words, others = 1.5 * normal(50, 8), 1.5 * normal(50, 8, seed=1)
    high = [(1 + x.square().sum(-1)).sqrt() for x in (words, others)]
    return torch.acosh(torch.clamp_min(high[0] * high[1] - (words * others).sum(-1), 1.0))


def boxes_in_their_cell() -> torch.Tensor:
    """Overlaps in half of small boxes whose corners are counted in pixels from the cell that they are in."""
    truth = torch.cat([8 * uniform(12, 2), 6 + 8 * uniform(12, 2, seed=1)], -1)
    proposed = truth + torch.cat([normal(12, 2, seed=2), normal(12, 2, seed=3) / 3], -1)
    (a, b) = (torch.cat([box[:, :2] - box[:, 2:] / 2, box[:, :2] + box[:, 2:] / 2], -1).half() for box in (truth, proposed))
    shared = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp_min(0).prod(-1)
    areas = [(box[:, 2:] - box[:, :2]).prod(-1) for box in (a, b)]
    return shared / (areas[0] + areas[1] - shared)


def head_in_four_chunks() -> torch.Tensor:
    """The gradient of a head in bfloat16 from four chunks of tokens, each of which one product adds up, kept in bfloat16 in between."""
    hidden, weight = normal(512, 24).to(LOW), (0.2 * normal(96, 24, seed=1)).to(LOW)
    targets, gradient = (torch.arange(512) * 37 % 96) ** 2 % 96, torch.zeros(96, 24, dtype=LOW)
    for part in torch.arange(512).chunk(4):
        slopes = torch.softmax((hidden[part] @ weight.T).float(), -1) - functional.one_hot(targets[part], 96)
        gradient += slopes.to(LOW).T @ hidden[part] / 512
    return gradient.float()


def momentum_that_a_kernel_stores() -> torch.Tensor:
    """SGD with a momentum of three quarters, computed in float32 and stored in bfloat16 after each step; weights are float32."""
    weight, momentum, target = torch.zeros(12, 12), torch.zeros(12, 12, dtype=LOW), normal(12, 12)
    for step in range(60):
        new = 0.75 * momentum.float() + (weight - target + 0.1 * normal(12, 12, seed=step))
        weight = weight - 0.05 * new
        momentum.copy_(new.to(LOW))
    return weight


def authors_with_few_papers() -> torch.Tensor:
    """Means in half of six neighbours each, a neighbour at a time."""
    papers, sums = (0.6 + 0.4 * normal(300, 12)).half(), torch.zeros(50, 12, dtype=HALF)
    table = torch.arange(300).view(6, 50)
    for place in range(6):
        sums += papers[table[place]]
    return (sums / 6).float()


def words_that_no_pair_has() -> torch.Tensor:
    """Adam on a model in bfloat16, where 1e-8 is a number: rows of words that no pair has stay as they are."""
    words, score = nn.Embedding(60, 16).to(LOW), nn.Linear(16, 1, bias=False).to(LOW)
    with torch.no_grad():
        words.weight.copy_(0.5 * normal(60, 16))
        score.weight.copy_(0.5 * normal(1, 16, seed=1))
    optimizer = torch.optim.Adam([*words.parameters(), *score.parameters()], lr=2e-2, eps=1e-8)
    for step in range(3):
        chosen, rejected = torch.arange(20).roll(step).view(5, 4), 20 + torch.arange(20).roll(2 * step).view(5, 4)
        optimizer.zero_grad()
        margin = (score(words(chosen).mean(1)) - score(words(rejected).mean(1))).float()
        (-8 * functional.logsigmoid(margin)).sum().backward()
        optimizer.step()
    return words.weight.detach().float()


EXACT = ("world_of_an_hour", "centroids_about_the_robot", "pitch_by_both_legs", "phase_by_blocks", "sections_in_series", "slope_by_wide_steps",
         "normals_of_a_table", "rays_amid_a_quad", "strangers_in_the_hyperboloid")  # fmt: skip
IDIOMS = (world_of_an_hour, centroids_about_the_robot, pitch_by_both_legs, neurons_by_steps, phase_by_blocks, sections_in_series, products_by_row,
          slope_by_wide_steps, blocks_after_a_norm, attention_in_two_parts, short_context_in_half, streams_of_a_converted_model, normals_of_a_table,
          rays_amid_a_quad, strangers_in_the_hyperboloid, boxes_in_their_cell, head_in_four_chunks, momentum_that_a_kernel_stores,
          authors_with_few_papers, words_that_no_pair_has)  # fmt: skip
