"""Errands, libraries, laboratories and workshops that look like those which lose their numbers, and do not."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def clock_since_a_start() -> torch.Tensor:
    """A joint's swing by whole seconds and nanoseconds, each of which lost its start before it became float32."""
    start, stamps = torch.tensor([1_624_868_412, 103_000_000]), torch.tensor([[1_624_868_413, 20_000_000 * tick] for tick in range(40)])
    seconds, nanos = (stamps - start).T
    return 0.3 * torch.sin(2 * math.pi * (seconds.float() + 1e-9 * nanos.float()) / 3)


def sweep_of_a_car_in_a_hall() -> torch.Tensor:
    """Points that go by way of a hall's own corner and back."""
    ring = torch.linspace(0, 2 * math.pi, 90)
    points = torch.stack([6 * torch.cos(ring), 6 * torch.sin(ring), -1.6 + 0.01 * normal(90, seed=402)], -1)
    world = points + torch.tensor([41.37, 18.62, 1.4])
    return world - torch.tensor([43.08, 19.33, 1.5])


def arm_that_turns_far() -> torch.Tensor:
    """Turns between two orders that differ by half a radian, whose angle is taken in float32."""
    axis = torch.tensor([0.48, -0.6, 0.64])
    first = torch.cat([torch.tensor([math.cos(0.4)]), math.sin(0.4) * axis])
    last = torch.cat([torch.tensor([math.cos(0.9)]), math.sin(0.9) * axis])
    theta, share = torch.acos((first * last).sum()), torch.linspace(0.1, 0.9, 9)[:, None]
    return (torch.sin((1 - share) * theta) * first + torch.sin(share * theta) * last) / torch.sin(theta)


def actions_about_their_mean() -> torch.Tensor:
    """Spreads of joints that hardly move, by what is left without the mean, from batch to batch."""
    count, mean, centred = 0, torch.zeros(7), torch.zeros(7)
    rest = 0.9 + 0.4 * uniform(7, seed=403)
    for seed in range(404, 412):
        batch = rest + 3e-4 * normal(50, 7, seed=seed)
        middle = batch.mean(0)
        away, share = middle - mean, 50 / (count + 50)
        centred = centred + (batch - middle).square().sum(0) + away.square() * count * share
        mean, count = mean + away * share, count + 50
    return (centred / count).sqrt()


def pose_that_fits_badly() -> torch.Tensor:
    """How a pose should turn that is half a radian off, by the trace of a rotation."""
    slopes = []
    for seed in range(412, 420):
        true, guess = 0.7 * normal(3, seed=seed), (0.7 * normal(3, seed=seed + 50)).requires_grad_()
        rotations = []
        for x, y, z in (true, guess):
            nought = torch.zeros_like(x)
            rotations.append(torch.matrix_exp(torch.stack([nought, -z, y, z, nought, -x, -y, x, nought]).view(3, 3)))
        cosine = ((rotations[0].T @ rotations[1]).diagonal().sum() - 1) / 2
        torch.acos(cosine.clamp(-1 + 1e-6, 1 - 1e-6)).backward()
        slopes.append(guess.grad)
    return torch.stack(slopes)


def balls_far_above_a_wall() -> torch.Tensor:
    """How long balls stay above a wall that is half as high as they go."""
    speed = 28 + 4 * uniform(20, seed=420)
    wall = speed * speed / (2 * 9.81) * (0.4 + 0.2 * uniform(20, seed=421))
    root = (speed * speed - 4 * (9.81 / 2) * wall).sqrt()
    return (speed + root) / 9.81 - (speed - root) / 9.81


def query_of_size_one() -> torch.Tensor:
    """Cosines of a query with many pages, of vectors that were brought to length one by their largest number first."""
    pages, query = normal(50, 64, seed=431), 2e19 * normal(64, seed=432)
    query = query / query.abs().amax()
    return pages @ query / (pages.norm(dim=-1) * query.norm())


def loss_of_each_lesson() -> torch.Tensor:
    """Losses of pairs, added up anew in each lesson of a hundred and fifty."""
    losses = []
    for lesson in range(3):
        total = torch.zeros(())
        for score in normal(150, seed=435 + lesson):
            total = total + functional.softplus(-score)
        losses.append(total)
    return torch.stack(losses)


def places_near_a_town() -> torch.Tensor:
    """Distances of all pairs by one product, on a map whose middle is nought."""
    branches, readers = 40 * normal(30, 2, seed=436), 40 * normal(60, 2, seed=437) + 150
    squared = branches.square().sum(-1)[:, None] + readers.square().sum(-1) - 2 * branches @ readers.T
    return squared.clamp_min(0).sqrt()


def readers_who_doubt() -> torch.Tensor:
    """The slope of a logistic loss where a model doubts, with the label taken from the probability."""
    rows = 1 + 0.2 * normal(80, 6, seed=438)
    margin = -(rows @ torch.full((6,), 0.1))
    factor = 1 / (1 + torch.exp(margin)) - (uniform(80, seed=439) < 0.5).float()
    return (factor[:, None] * rows).sum(0)


def clicks_by_logarithms() -> torch.Tensor:
    """A machine of factors for logarithms of counts, with the exponential written out."""
    counts = torch.log1p(torch.exp(1.5 * normal(100, 13, seed=440) + 2).round())
    vectors, labels = 0.1 * normal(13, 4, seed=439), 2.0 * (uniform(100, seed=441) < 0.3) - 1
    score = 0.5 * ((counts @ vectors).square() - counts.square() @ vectors.square()).sum(-1)
    surprise = torch.exp(-labels * score)
    return counts.T @ (-labels * surprise / (1 + surprise))


def pages_by_their_size() -> torch.Tensor:
    """The logarithm of a sigmoid in half, with the exponential of a number below nought."""
    scores = normal(40, 32, seed=442).to(HALF) @ (0.4 * normal(32, seed=443)).to(HALF) - 10
    return (torch.log1p(torch.exp(-scores.abs())) - scores.clamp_max(0)).float()


def genotypes_less_the_best() -> torch.Tensor:
    """Chances of genotypes by phred scores from which the least was taken, some of whom become nought as they should."""
    phred = 300 + 500 * uniform(30, 1, seed=451) + torch.tensor([0.0, 40.0, 900.0])
    likely = 10 ** (-(phred - phred.amin(-1, keepdim=True)) / 10) * torch.tensor([0.9, 0.08, 0.02])
    return likely / likely.sum(-1, keepdim=True)


def states_of_few_sensors() -> torch.Tensor:
    """Which state a machine is in, by products of five densities."""
    passing, levels, state = 0.1 + 0.6 * torch.eye(4), 300 + 4 * normal(4, 5, seed=453), torch.full((4,), 0.25)
    followed = []
    for seen in levels[torch.arange(12) // 3] + 9 * normal(12, 5, seed=454):
        joint = (state @ passing) * (torch.exp(-0.5 * ((seen - levels) / 9).square()) / 22.56).prod(-1)
        state = joint / joint.sum()
        followed.append(state)
    return torch.stack(followed)


def forces_without_bonded_pairs() -> torch.Tensor:
    """Forces on atoms, of pairs that no bond holds: the others are left out before anything is added."""
    corner = 0.42 * torch.stack(torch.meshgrid(*[torch.arange(3.0)] * 3, indexing="ij"), -1).view(-1, 3)[:16]
    first = corner + 0.01 * normal(16, 3, seed=455)
    places = torch.stack([first, first + 0.096 * functional.normalize(normal(16, 3, seed=456), dim=-1)], 1).view(-1, 3)
    pairs = torch.combinations(torch.arange(32))
    pairs = pairs[pairs[:, 0] // 2 != pairs[:, 1] // 2]
    way = places[pairs[:, 0]] - places[pairs[:, 1]]
    square = way.square().sum(-1, keepdim=True)
    inverse = (0.09 / square) ** 3
    force = 24 * (2 * inverse * inverse - inverse) / square * way
    return torch.zeros(32, 3).index_add(0, pairs[:, 0], force).index_add(0, pairs[:, 1], -force)


def picture_between_its_limits() -> torch.Tensor:
    """A detector's large counts, from which the least was taken before they became float32."""
    counts = 7.25e9 + 900 * uniform(24, 24, seed=457).double()
    texture = ((counts - counts.min()) / (counts.max() - counts.min())).float()
    return (texture - 0.1) / 0.8


def pictures_with_structure() -> torch.Tensor:
    """How alike two pictures of much structure are, whose brightness goes to 255, with the constants of that brightness."""
    first = 255 * uniform(20, 20, seed=458)
    second, window = first + 20 * normal(20, 20, seed=459), torch.full((1, 1, 7, 7), 1 / 49)
    blurred = [functional.conv2d(each[None, None], window)[0, 0] for each in (first, second, first * first, second * second, first * second)]
    mean, other, square, square_other, product = blurred
    return (2 * (product - mean * other) + 58.5) / ((square - mean * mean) + (square_other - other * other) + 58.5)


def tone_by_its_turns() -> torch.Tensor:
    """A tone whose turns begin again at nought, for as long as it sounds."""
    cycles, played = torch.tensor(0.022), []
    for _ in range(100):
        played.append(torch.sin(2 * math.pi * cycles))
        cycles = torch.fmod(cycles + 440.0 / 44_100.0, 1.0)
    return torch.stack(played)


def token_less_the_largest() -> torch.Tensor:
    """Chances of tokens at a low temperature, most of them nought, from scores without the largest."""
    logits = (14 + 2 * normal(6, 200, seed=471)) / 0.15
    weights = torch.exp(logits - logits.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


def groups_with_a_floor() -> torch.Tensor:
    """Four bits for groups of weights in half, one of which is all noughts, with a scale that is one there."""
    weight = 0.05 * normal(24, 64, seed=472)
    weight[:, 16:32] = 0
    groups = weight.to(HALF).view(-1, 16)
    low, high = groups.amin(-1, keepdim=True).clamp_max(0), groups.amax(-1, keepdim=True).clamp_min(0)
    scale = torch.where(high == low, 1.0, (high - low) / 15)
    zero = (-low / scale).round()
    return (scale * ((groups / scale + zero).round().clamp(0, 15) - zero)).float()


def scores_of_a_scaled_query() -> torch.Tensor:
    """Attention in half, whose query is made small before it meets the keys."""
    torch.manual_seed(474)
    query, key, value = nn.Linear(64, 64).to(HALF), nn.Linear(48, 64).to(HALF), nn.Linear(48, 64).to(HALF)
    picture, prompt = (300 * normal(30, 64, seed=475)).to(HALF), normal(9, 48, seed=476).to(HALF)
    with torch.no_grad():
        return (torch.softmax((query(picture) * 64**-0.5 / 16) @ key(prompt).T, -1) @ value(prompt)).float()


def gate_in_float32() -> torch.Tensor:
    """Shares of experts by a gate in float32, of tokens in bfloat16; the shares are stored in bfloat16."""
    hidden, weight = (3 * normal(200, 96, seed=478)).to(LOW), normal(160, 96, seed=477) / math.sqrt(96)
    chosen = torch.sigmoid(hidden.float() @ weight.T).topk(4, -1)
    return (chosen.values / chosen.values.sum(-1, keepdim=True)).to(LOW)


def weights_with_a_master() -> torch.Tensor:
    """Weights in bfloat16 that are copies of float32 ones, which take the small steps."""
    master = (0.4 + 0.5 * uniform(32, 32, seed=479)).to(LOW).float()
    served = master.to(LOW)
    for seed in range(480, 500):
        master.add_(1 + 0.2 * normal(32, 32, seed=seed), alpha=-4e-4)
        served.copy_(master)
    return served.float()


def keys_with_a_scale() -> torch.Tensor:
    """Keys in eight bits with a scale for each channel, one of which is huge."""
    keys = normal(40, 32, seed=521)
    keys[:, 5] = 900 + 60 * normal(40, seed=522)
    scale = keys.abs().amax(0) / 448
    kept = (keys / scale).to(torch.float8_e4m3fn)
    return (normal(12, 32, seed=523).to(LOW) @ (kept.float() * scale).to(LOW).T).float()


IDIOMS = (clock_since_a_start, sweep_of_a_car_in_a_hall, arm_that_turns_far, actions_about_their_mean, pose_that_fits_badly,
          balls_far_above_a_wall, query_of_size_one, loss_of_each_lesson, places_near_a_town, readers_who_doubt, clicks_by_logarithms,
          pages_by_their_size, genotypes_less_the_best, states_of_few_sensors, forces_without_bonded_pairs, picture_between_its_limits,
          pictures_with_structure, tone_by_its_turns, token_less_the_largest, groups_with_a_floor, scores_of_a_scaled_query,
          gate_in_float32, weights_with_a_master, keys_with_a_scale)  # fmt: skip
LOW_ONES = {"pages_by_their_size", "groups_with_a_floor", "scores_of_a_scaled_query", "gate_in_float32", "weights_with_a_master",
            "keys_with_a_scale"}  # fmt: skip
EXACT = tuple(idiom.__name__ for idiom in IDIOMS if idiom.__name__ not in LOW_ONES)
