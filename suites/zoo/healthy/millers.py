"""Beside the wells and terraces: norms, caches, sums, turns, heights, filters, actions, places, bytes, spreads, angles and ways that hold."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def channel_that_hardly_alternates() -> torch.Tensor:
    """An instance norm by hand in half, on a scan whose numbers are about one."""
    torch.manual_seed(7401)
    first = nn.Conv3d(1, 6, 3, padding=1, bias=False).to(HALF)
    with torch.no_grad():
        x = first(normal(1, 1, 6, 8, 8, seed=7402).to(HALF))
        around = x - x.mean((2, 3, 4), keepdim=True)
        return (around * (around.square().mean((2, 3, 4), keepdim=True) + 1e-5).rsqrt()).float()


def scores_of_a_small_cache() -> torch.Tensor:
    """Scores in half of keys that are bytes with scales, whose sums are float32 and small."""
    torch.manual_seed(7411)
    query, key = (nn.Linear(64, 64, bias=False).to(HALF) for _ in range(2))
    words = normal(12, 64, seed=7412).to(HALF)
    with torch.no_grad():
        keys = key(words).float()
        scale = keys.abs().amax(-1, keepdim=True) / 127
        codes = (keys / scale).round().to(torch.int8)
        scores = (query(words).float() @ (codes.float() * scale).T / 8).to(HALF)
        return (scores - scores.amax(-1, keepdim=True)).exp().float()


def gradients_of_few_batches() -> torch.Tensor:
    """Gradients of a layer in bfloat16, added up in bfloat16 over four batches of one size."""
    torch.manual_seed(7421)
    model = nn.Linear(6, 3).to(LOW)
    for batch in range(4):
        x = (1 + 0.3 * normal(2, 6, seed=7422 + batch)).to(LOW)
        (model(x) + 4).float().sum().backward()
    return model.weight.grad.float()


def small_picture_turned() -> torch.Tensor:
    """A picture in bfloat16, turned by places that are computed in float32."""
    x = torch.linspace(-15.5, 15.5, 32)
    places = torch.stack([x.expand(32, 32), x[:, None].expand(32, 32)], -1)
    turn = torch.tensor([[math.cos(0.1), math.sin(0.1)], [-math.sin(0.1), math.cos(0.1)]]).T / 16
    picture = uniform(1, 3, 32, 32, seed=7431).to(LOW)
    return functional.grid_sample(picture.float(), (places @ turn)[None], align_corners=False).to(LOW).float()


def heights_near_a_corner() -> torch.Tensor:
    """Heights by the nearest points, of a terrain whose places are metres from a corner of it."""
    ground, places = 30 * uniform(900, 2, seed=7441), 3 + 24 * uniform(30, 2, seed=7442)
    heights = 20 + 0.4 * ground[:, 0] + 0.9 * ground[:, 1]
    apart, who = (places[:, None] - ground).square().sum(-1).topk(4, largest=False)
    weights = 1 / (apart + 1e-4)
    return (weights * heights[who]).sum(1) / weights.sum(1)


def track_of_a_modest_filter() -> torch.Tensor:
    """A Kalman filter by the short formula; what it knows at first is about as much as what it sees."""
    move, sees, covariance, sure = torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0]]), 4 * torch.eye(2), []
    for _ in range(5):
        covariance = move @ covariance @ move.T + 0.1 * torch.eye(2)
        gain = covariance @ sees.T / (sees @ covariance @ sees.T + 1)
        covariance = covariance - gain @ sees @ covariance
        sure.append(covariance.diagonal())
    return torch.stack(sure)


def sums_from_an_even_end() -> torch.Tensor:
    """Sums from each word to the end of a chunk as the total without those before; all words weigh the same."""
    x = 1 + 0.1 * normal(2, 64, seed=7451)
    reached = x.cumsum(-1)
    return (reached[..., -1:] - reached + x)[..., :60]


def actions_of_a_wide_policy() -> torch.Tensor:
    """Ratios of likelihoods of actions that were kept in bfloat16, under a policy as wide as they are large."""
    torch.manual_seed(7461)
    net, seen = nn.Linear(8, 4), normal(40, 8, seed=7462)
    kept = torch.zeros(40, 4, dtype=LOW)
    with torch.no_grad():
        kept.copy_(net(seen) + normal(40, 4, seed=7463))
        likely = -0.5 * (kept.float() - net(seen)).square().sum(-1)
        return (likely - likely.mean()).exp()


def places_of_a_prompt_alone() -> torch.Tensor:
    """Places of words by a sum in bfloat16, over prompts of a hundred words."""
    total, sums = torch.zeros(3, dtype=LOW), []
    for word in (torch.arange(100)[:, None] >= torch.tensor([0, 12, 40])).to(LOW):
        total = total + word
        sums.append(total)
    return torch.stack(sums).float().mul(0.01).cos()


def keys_in_bytes_with_large_scales() -> torch.Tensor:
    """Keys as bytes, whose scales are one at least; the keys reach some thousands."""
    keys = (900 * normal(10, 32, seed=7471)).to(HALF).float()
    scale = (keys.abs().amax(-1, keepdim=True) / 127).clamp_min(1.0)
    return (keys / scale).round().clamp(-127, 127).to(torch.int8).float() * scale


def perplexity_of_a_taught_model() -> torch.Tensor:
    """A perplexity in half, of a model that has not learned much and says so quietly."""
    torch.manual_seed(7481)
    head, words = nn.Linear(24, 90).to(HALF), normal(40, 24, seed=7482).to(HALF)
    with torch.no_grad():
        return functional.cross_entropy(head(words), torch.arange(40)).exp().float()


def packets_of_many_sizes() -> torch.Tensor:
    """The spread of sixty packets by the sums of sizes and of their squares; sizes differ as much as they are large."""
    total = squares = torch.tensor(0.0)
    for size in 800 + 400 * normal(60, seed=7491):
        total, squares = total + size, squares + size * size
    return ((squares - total * total / 60) / 60).sqrt()


def faces_of_different_people() -> torch.Tensor:
    """Angles between what a network makes of pictures of different people, by the arccosine."""
    torch.manual_seed(7501)
    net = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 128))
    with torch.no_grad():
        one, other = (functional.normalize(net(normal(60, 48, seed=7502 + each)), dim=1) for each in range(2))
        return (one * other).sum(1).clamp(-1, 1).acos() / math.pi


def ways_to_a_near_source() -> torch.Tensor:
    """Ways by the gradient of a field of heat, which reaches all of a small grid."""
    places = torch.arange(12, dtype=SINGLE)
    field = torch.exp(-((places - 3).square()[:, None] + (places - 5).square() + 0.1).sqrt())
    slopes = torch.stack([field[1:, :-1] - field[:-1, :-1], field[:-1, 1:] - field[:-1, :-1]], -1)
    return slopes / (slopes.square().sum(-1, keepdim=True).sqrt() + 1e-30)


IDIOMS = (
    channel_that_hardly_alternates,
    scores_of_a_small_cache,
    gradients_of_few_batches,
    small_picture_turned,
    heights_near_a_corner,
    track_of_a_modest_filter,
    sums_from_an_even_end,
    actions_of_a_wide_policy,
    places_of_a_prompt_alone,
    keys_in_bytes_with_large_scales,
    perplexity_of_a_taught_model,
    packets_of_many_sizes,
    faces_of_different_people,
    ways_to_a_near_source,
)
EXACT = ("heights_near_a_corner", "track_of_a_modest_filter", "sums_from_an_even_end", "packets_of_many_sizes", "faces_of_different_people",
         "ways_to_a_near_source")  # fmt: skip
ACCUSED = {
    "perplexity_of_a_taught_model": "the loss is one number, which half puts 0.3 % off as an exponent; in float32 it would cost nothing",
}
