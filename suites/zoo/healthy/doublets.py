"""Regions, meters, renderers and records that look like the bugs of routes, meters, renders and records."""

from __future__ import annotations

import math

import numpy as np
import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def labels_of_a_small_picture() -> torch.Tensor:
    """Regions of a picture in half of 40 by 40, whose 1600 numbers that format has exactly."""
    image = (uniform(40, 40) < 0.35).to(HALF)
    labels = torch.arange(1, 1601, dtype=HALF).view(40, 40) * image
    for _ in range(4):
        labels = functional.max_pool2d(labels[None, None], 3, 1, 1)[0, 0] * image
    found = labels[image > 0]
    return (found[:, None] == found).sum(-1).float()


def ways_of_a_small_town() -> torch.Tensor:
    """Numbers of shortest ways by sums in half that stay below two kilometres, and are whole metres."""
    east, north = (100 + 60 * uniform(2, 6)).long().to(HALF)
    far, ways = [torch.zeros((), dtype=HALF)], [torch.ones((), dtype=torch.int64)]
    for block in east:
        far.append(far[-1] + block)
        ways.append(ways[-1])
    for street in north:
        far[0] = far[0] + street
        for place, block in enumerate(east, 1):
            left, below = far[place - 1] + block, far[place] + street
            far[place] = torch.minimum(left, below)
            by_left = torch.where(left == far[place], ways[place - 1], 0)
            ways[place] = by_left + torch.where(below == far[place], ways[place], 0)
    return torch.stack(ways).float()


def hull_of_scattered_points() -> torch.Tensor:
    """Corners of the lower side of a hull in float32, of points that are scattered over a square, so that no three are nearly in line."""
    points, kept = uniform(40, 2)[uniform(40, 2)[:, 0].argsort()], []
    for new, third in enumerate(points):
        while len(kept) > 1:
            (x, y), (u, v) = points[kept[-1]] - points[kept[-2]], third - points[kept[-2]]
            if x * v - y * u > 0:
                break
            kept.pop()
        kept.append(new)
    return torch.zeros(40).index_fill(0, torch.tensor(kept), 1.0)


def volume_about_the_middle() -> torch.Tensor:
    """Volumes in float32 of boxes by pyramids to the origin, which is a box's length away from each."""
    corner = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]])
    around = torch.tensor([[0, 2, 1], [4, 5, 6], [0, 1, 5], [1, 2, 6], [2, 3, 7], [3, 0, 4]])
    across = torch.tensor([[0, 3, 2], [4, 6, 7], [0, 5, 4], [1, 6, 5], [2, 7, 6], [3, 4, 7]])
    faces = torch.cat([around, across])
    boxes = (corner * (0.5 + uniform(6, 1, 3)) + normal(6, 1, 3, seed=1))[:, faces]
    first, second, third = boxes.unbind(2)
    return (first * torch.linalg.cross(second, third)).sum((1, 2)) / 6


def quantile_of_few() -> torch.Tensor:
    """Quantiles of two hundred numbers by places in half, where a place is right to an eighth, and neighbours are near each other."""
    data = normal(200).to(HALF).sort().values
    place = torch.tensor([0.25, 0.5, 0.75]).to(HALF) * 199
    below = place.floor()
    return torch.lerp(data[below.long()], data[below.long() + 1], place - below).float()


def visits_of_a_short_search() -> torch.Tensor:
    """Counts of visits in bfloat16 of a search of 200, which are all whole numbers that it has."""
    visits, total, values = torch.zeros(4, dtype=LOW), torch.zeros(4), torch.tensor([0.5, 0.2, 0.35, 0.1])
    for each in 0.1 * normal(200, seed=1):
        seen = visits.float()
        move = (total / seen.clamp(min=1) + 0.3 * seen.sum().sqrt() / (1 + seen)).argmax()
        total[move] += values[move] + each
        visits[move] += 1
    return visits.float() / visits.float().sum()


def meter_since_midnight() -> torch.Tensor:
    """Watt hours in float32 that are counted from nought, so that each second is felt."""
    used = torch.zeros(6)
    for power in torch.tensor([1.2, 4, 12, 20, 90, 1500]) * (1 + 0.02 * normal(400, 6)):
        used = used + power / 3600
    return used


def line_through_small_counts() -> torch.Tensor:
    """Lines by normal equations in float32, through points that are spread about nought."""
    x = torch.arange(-6.0, 8)
    y = 1.04 * x[:, None] - 21 + normal(14, 8)
    determinant = 14 * (x * x).sum() - x.sum() * x.sum()
    return (14 * (x[:, None] * y).sum(0) - x.sum() * y.sum(0)) / determinant


def shift_of_a_rough_picture() -> torch.Tensor:
    """A shift by phase correlation in float32, divided by the bare length of each bin: a picture of noise has no bin near nought."""
    first = normal(32, 32)
    product = torch.fft.fft2(first.roll((7, 3), (0, 1))) * torch.fft.fft2(first).conj()
    place = torch.fft.ifft2(product / product.abs()).real.flatten().argmax()
    return torch.stack([place // 32, place % 32]).float()


def steps_from_nought() -> torch.Tensor:
    """Adaptive steps in float32 whose length is read off a clock that starts at nought, with a least size that the clock has exactly."""
    t, step, y = torch.zeros(()), torch.tensor(1 / 64), torch.tensor([0.1, 0.0])
    while t < 0.5:
        new = t + step
        first = torch.stack([y[1], 4 * torch.sin(6 * t) - 6 * y[0]])
        ahead = y + step * first
        second = torch.stack([ahead[1], 4 * torch.sin(6 * new) - 6 * ahead[0]])
        error = (step * (second - first) / 2).abs().max() / 1e-2
        if error <= 1 or new - t <= 1 / 256:
            t, y = new, y + step * (first + second) / 2
        step = torch.where(error <= 1, step, (step / 2).clamp(min=1 / 256))
    return y


def solver_of_a_kind_system() -> torch.Tensor:
    """Four turns of conjugate gradients in half with the residual that is carried along, on a system whose rows are led by their diagonal."""
    beside, b = torch.ones(23), uniform(24).to(HALF)
    matrix = (6 * torch.eye(24) - torch.diag(beside, 1) - torch.diag(beside, -1)).to(HALF)
    x, residual = torch.zeros_like(b), b
    way, size = residual, residual @ residual
    for _ in range(4):
        image = matrix @ way
        rate = size / (way @ image)
        x, residual = x + rate * way, residual - rate * image
        new = residual @ residual
        way, size = residual + new / size * way, new
    return x.float()


def drawn_by_even_weights() -> torch.Tensor:
    """Draws without replacement by powers in float32, of weights between a half and two."""
    keys = uniform(4000, 6).clamp_min(1e-7) ** (1 / (0.5 + 1.5 * uniform(6, seed=1)))
    return torch.bincount(keys.topk(3, -1).indices.flatten(), minlength=6) / 4000


def letters_by_wide_chances() -> torch.Tensor:
    """Letters that numpy draws, by a softmax in float64 of logits in bfloat16."""
    head = nn.Linear(16, 65)
    with torch.no_grad():
        head.weight.copy_(normal(65, 16) / 4)
        head.bias.zero_()
        chances = torch.softmax(head.to(LOW)(normal(10, 16, seed=1).to(LOW)).double(), -1).numpy()
    return torch.tensor([int(np.random.default_rng(seed + 10).choice(65, p=each)) for seed, each in enumerate(chances)]).float()


def shadow_by_a_mild_power() -> torch.Tensor:
    """Soft shadows in half by a power of e whose exponent is six at most."""
    depth = torch.full((16, 16), 0.75, dtype=HALF)
    depth[4:12, 6:10] = 0.375
    blurred = functional.avg_pool2d(torch.exp(8 * depth)[None, None], 5, 1, 2, count_include_pad=False)[0, 0]
    return (blurred * torch.exp(torch.tensor(-6.0, dtype=HALF))).clamp(max=1).float()


def light_on_a_near_ball() -> torch.Tensor:
    """Rays to a lamp from a ball of a metre in float32, by an offset of a thousandth, which is large beside the rounding of a place."""
    centre = torch.tensor([0.5, -0.3, 3])
    normals = functional.normalize(normal(120, 3), dim=-1)
    lamp = functional.normalize(torch.tensor([0.3, 0.5, -0.8]), dim=0)
    to = centre + normals + 1e-3 * normals - centre
    along = (to * lamp).sum(-1)
    root = 1 - (to - along[:, None] * lamp).square().sum(-1)
    met = (root > 0) & (-along + root.clamp(min=0).sqrt() > 1e-3)
    return (normals @ lamp).clamp(min=0) * ~met


def shallow_zoom() -> torch.Tensor:
    """Turns in float32 until numbers run away, for a view that is three wide, whose pixels are far apart."""
    b, a = torch.meshgrid(torch.linspace(-1.2, 1.2, 24), torch.linspace(-2.1, 0.6, 24), indexing="ij")
    x, y, count = torch.zeros_like(a), torch.zeros_like(a), torch.zeros_like(a)
    for _ in range(10):
        x, y = (x * x - y * y + a).clamp(-1e3, 1e3), (2 * x * y + b).clamp(-1e3, 1e3)
        count = count + (x * x + y * y < 4)
    return count


def place_from_an_even_depth() -> torch.Tensor:
    """Places out of a depth buffer in float32 whose planes are at one and a hundred metres: what is taken off is small beside what is left."""
    distance = torch.logspace(0.1, 1.9, 60)
    depth = 100 / 99 - 100 / (99 * distance)
    return 100 / (100 - depth * 99)


def turn_between_unlike_poses() -> torch.Tensor:
    """Turns between turns in half by an arc cosine, of poses that are far from each other."""
    first, other = functional.normalize(normal(24, 4), dim=-1), functional.normalize(normal(24, 4, seed=1), dim=-1)
    across = functional.normalize(other - (other * first).sum(-1, keepdim=True) * first, dim=-1)
    second = (0.5 * first + 0.75**0.5 * across).to(HALF)
    angle = torch.acos((first.to(HALF) * second).sum(-1, keepdim=True))
    return ((torch.sin(0.25 * angle) * first.to(HALF) + torch.sin(0.75 * angle) * second) / torch.sin(angle)).float()


def photons_of_a_lit_pixel() -> torch.Tensor:
    """Counts of photons by Knuth's way in float32, which has e to the minus sixty."""
    rate = torch.linspace(3, 60, 64)
    least, product, count = torch.exp(-rate), torch.ones(64), -torch.ones(64)
    for chance in uniform(110, 64).clamp_min(1e-3):
        count = count + (product > least)
        product = product * chance
    return count


def weights_between_near_bounds() -> torch.Tensor:
    """Normal weights in half by the inverse of the cumulative chance, between bounds that are one spread away."""
    low = (1 + math.erf(-1 / math.sqrt(2))) / 2
    chances = low + (1 - 2 * low) * uniform(48, 64)
    weight = (torch.erfinv((2 * chances - 1).to(HALF)) * (0.125 * math.sqrt(2))).clamp(-0.125, 0.125)
    return functional.linear(normal(24, 64, seed=1).to(HALF), weight).float()


def layer_run_back_once() -> torch.Tensor:
    """A coupling in half that is undone at once: what was added is of the size of what it was added to."""
    x, y = normal(32, 12).to(HALF), normal(32, 12, seed=1).to(HALF)
    weight = (normal(12, 12, seed=2) / 4).to(HALF)
    ahead = x + torch.tanh(y @ weight)
    return (ahead - torch.tanh(y @ weight)).float()


def states_of_a_short_record() -> torch.Tensor:
    """States of a machine over ten steps by products of chances in float32, the smallest of which is 1e-25."""
    moves, means = 0.85 * torch.eye(4) + 0.05, 1.5 * normal(4, 4)
    seen, chance, found = means[[0, 0, 0, 0, 0, 2, 2, 2, 2, 2]] + normal(10, 4, seed=2), torch.full((4,), 0.25), []
    for each in seen:
        chance = (chance @ moves) * torch.exp(-(each - means).square().sum(-1) / 2) / (2 * math.pi) ** 2
        found.append(chance / chance.sum())
    return torch.stack(found)


def tails_of_scaled_returns() -> torch.Tensor:
    """Kurtosis in half of columns of spread one with heavy tails, whose fourth powers are below two thousand."""
    data = normal(400, 6) * (0.3 + 2 * uniform(400, 6, seed=1).square())
    away = (data / data.std(0)).clamp(-6, 6).to(HALF)
    away = away - away.mean(0)
    return (away.square().square().mean(0) / away.square().mean(0).square() - 3).float()


def taper_of_a_mild_force() -> torch.Tensor:
    """Forces with a taper in float32 whose power of e is a thousand at most."""
    distance = torch.linspace(2.2, 8, 50)
    power = torch.exp(-20 * (distance / 3.4 - 1))
    taper = 1 / (1 + power)
    return (6 * distance**-7 * taper - distance**-6 * taper * taper * power * 20 / 3.4) * 3.4**6


IDIOMS = (
    labels_of_a_small_picture, ways_of_a_small_town, hull_of_scattered_points, volume_about_the_middle, quantile_of_few, visits_of_a_short_search,
    meter_since_midnight, line_through_small_counts, shift_of_a_rough_picture, steps_from_nought, solver_of_a_kind_system, drawn_by_even_weights,
    letters_by_wide_chances, shadow_by_a_mild_power, light_on_a_near_ball, shallow_zoom, place_from_an_even_depth, turn_between_unlike_poses,
    photons_of_a_lit_pixel, weights_between_near_bounds, layer_run_back_once, states_of_a_short_record, tails_of_scaled_returns,
    taper_of_a_mild_force,
)  # fmt: skip
EXACT = (
    "hull_of_scattered_points", "volume_about_the_middle", "meter_since_midnight", "line_through_small_counts", "shift_of_a_rough_picture",
    "steps_from_nought", "drawn_by_even_weights", "light_on_a_near_ball", "shallow_zoom", "place_from_an_even_depth", "photons_of_a_lit_pixel",
    "states_of_a_short_record", "taper_of_a_mild_force",
)  # fmt: skip
