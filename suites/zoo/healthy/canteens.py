"""Models in half and bfloat16 that look like those which find numbers beyond a format, or none between two, and do not."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
CODES, SHORT = torch.float8_e4m3fn, torch.float8_e5m2


def letters_by_small_spreads() -> torch.Tensor:
    """A half model of letters whose spreads are as large as half holds."""
    torch.manual_seed(4301)
    first, norm, last = nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 1, 1)
    with torch.no_grad():
        first.weight.mul_(200)
        norm.running_var.copy_(1e4 * (1 + uniform(8, seed=1)))
        model = nn.Sequential(first, norm, nn.ReLU(), last, nn.Sigmoid()).eval().half()
        return model((0.5 * normal(2, 4, 12, 12, seed=2)).half()).float()


def scores_of_many_scenes() -> torch.Tensor:
    """How many pictures of thirty scenes each is better than, under autocast. They are far from each other."""
    torch.manual_seed(4302)
    body, words = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 48)), nn.Linear(24, 48)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        seen = functional.normalize(body(torch.linspace(-3, 3, 12)[:, None] * normal(1, 32, seed=3)), dim=-1)
        scores = (seen @ functional.normalize(words(normal(1, 24, seed=4)), dim=-1).T)[:, 0]
    return (scores[:, None] > scores + 0.05).sum(1).float()


def weights_of_quiet_channels() -> torch.Tensor:
    """Channels of speech weighed by what all of its time has in them, under autocast. They are quiet."""
    torch.manual_seed(4303)
    layers = nn.Sequential(nn.Linear(64, 8, bias=False), nn.ReLU(), nn.Linear(8, 64, bias=False))
    features = (2 * uniform(2, 64, 50, seed=5)).to(HALF)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        return (features * torch.sigmoid(layers(features.mean(-1)))[..., None]).float()


def quiet_frames_of_an_encoder() -> torch.Tensor:
    """Frames in half normed by hand, whose sums of squares are what half holds."""
    frames = (normal(12, 1280, seed=6) * (0.5 + 0.3 * torch.arange(12.0))[:, None]).to(HALF)
    apart = frames - frames.mean(-1, keepdim=True)
    return (apart * torch.rsqrt(apart.square().sum(-1, keepdim=True) / 1280 + 1e-5)).float()


def depths_that_are_fitted() -> torch.Tensor:
    """Depths of parts of a film under autocast, each fitted to the one before."""
    torch.manual_seed(4304)
    first, last, parts = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 1, 1), []
    with torch.no_grad():
        for part in range(4):
            with torch.autocast("cpu", HALF):
                depths = last(torch.relu(first(uniform(3, 8, 6, 6, seed=7 + part).to(HALF)))).float()[:, 0]
            if parts:
                over, before = depths[0].flatten(), parts[-1][-1].flatten()
                slope = 0.5 + ((over - over.mean()) * (before - before.mean())).mean().abs() / over.var()
                depths = slope * (depths - over.mean()) + before.mean()
            parts.append(depths)
    return torch.cat(parts)


def places_by_means() -> torch.Tensor:
    """What places of a protein have in common under autocast in half, of rows divided by their number first."""
    torch.manual_seed(4305)
    left, right, last, norm = nn.Linear(16, 6), nn.Linear(16, 6), nn.Linear(36, 8), nn.LayerNorm(8)
    rows = 3 * normal(400, 1, 16, seed=11) + normal(400, 9, 16, seed=12)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        both = torch.einsum("sic,sje->ijce", left(rows) / 20, right(rows) / 20)
        return norm(last(both.flatten(-2))).float()


def lanes_about_a_crossing() -> torch.Tensor:
    """Lanes hear of those that they meet under autocast, by places about the crossing."""
    torch.manual_seed(4306)
    own, other, norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.GroupNorm(1, 8)
    places, pairs = normal(60, 8, seed=13), torch.stack([torch.arange(60) // 6, torch.arange(60)])
    with torch.no_grad(), torch.autocast("cpu", HALF):
        told = own(places)
        told.index_add_(0, pairs[0], other(places[pairs[1]]))
        return torch.relu(norm(told.float()))


def weights_of_a_whole_layer() -> torch.Tensor:
    """Weights of a layer in eight bits, by scales in half of rows that are like each other."""
    weights = (0.2 * normal(16, 32, seed=14)).to(HALF)
    scales = weights.abs().amax(1, keepdim=True) / 448
    return (weights / scales).to(CODES).float() * scales.float() * 5


def products_by_scales_above() -> torch.Tensor:
    """Products in eight bits, by blocks, whose scales are powers of two above what they should be."""
    products = (normal(16, 48, seed=15) @ normal(48, 64, seed=16)).view(-1, 32)
    scales = torch.exp2((products.abs().amax(1, keepdim=True) / 57344).log2().ceil())
    return (products / scales).to(SHORT).float() * scales


def numbers_up_to_two_thousand() -> torch.Tensor:
    """A matrix of numbers one after the other in half, which holds them all."""
    numbers, following = [], torch.zeros((), dtype=HALF)
    for _ in range(44 * 44):
        numbers.append(following)
        following = following + 1
    return torch.stack(numbers).view(44, 44).float()


def words_under_a_mask_of_half() -> torch.Tensor:
    """What words in half see of those before them; the others are sixty thousand off."""
    query, key, value = (normal(2, 8, 16, seed=17 + each).to(HALF) for each in range(3))
    seen = torch.ones(8, 8).tril().to(HALF)
    scores = (query @ key.transpose(1, 2) / 4) * seen - torch.tensor(6e4).to(HALF) * (1 - seen)
    return (torch.softmax(scores, -1) @ value).float()


def words_that_fade_in_half() -> torch.Tensor:
    """Attention in half with a table of distances in half."""
    torch.manual_seed(4307)
    layer = nn.Linear(16, 48).to(HALF)
    distance = torch.arange(10)[:, None] - torch.arange(10)
    table = torch.where(distance < 0, float("-inf"), -0.5 * distance.float()).to(HALF)
    with torch.no_grad():
        query, key, value = layer(normal(10, 16, seed=20).to(HALF)).chunk(3, -1)
        return (torch.softmax(query @ key.T / 4 + table, -1) @ value).float()


def lines_in_one_format() -> torch.Tensor:
    """Ends of lines hear of the lines that end there, all in half."""
    torch.manual_seed(4308)
    layer, ends, lines = nn.Linear(16, 8), normal(12, 8, seed=21), (12 * uniform(30, 2, seed=22)).long()
    with torch.no_grad(), torch.autocast("cpu", HALF):
        told = layer(torch.cat([ends[lines[:, 0]], ends[lines[:, 1]]], -1))
        gathered = torch.zeros_like(told[:12])
        return ends + gathered.scatter_reduce_(0, lines[:, :1].expand(-1, 8), told, "mean", include_self=False).float()


def parts_of_a_step_together() -> torch.Tensor:
    """Two steps of three parts each, whose gradients are unscaled once a step."""
    torch.manual_seed(4309)
    model = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.amp.GradScaler("cpu", init_scale=512.0)
    for turn in range(6):
        patches = normal(8, 16, seed=23 + turn)
        with torch.autocast("cpu", HALF):
            loss = functional.mse_loss(model(patches).float(), patches) / 3
        scaler.scale(loss).backward()
        if turn % 3 == 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def adapter_that_is_large() -> torch.Tensor:
    """What a bfloat16 model decides with an adapter merged into it that is as large as the model's own weights."""
    base, delta = 0.06 * normal(6, 512, seed=30), 0.01 * normal(6, 2, seed=31) @ normal(2, 512, seed=32)
    merged = base.to(LOW) + delta.to(LOW)
    return normal(40, 512, seed=33) @ merged.float().T


def atoms_in_float32() -> torch.Tensor:
    """Lengths of bonds along a protein that is turned in float32, whose model alone runs in bfloat16."""
    torch.manual_seed(4310)
    first, last = nn.Linear(3, 24), nn.Linear(24, 3)
    places = (1.5 * functional.normalize(torch.tensor([1.0, 0.2, 0.0]) + 0.4 * normal(300, 3, seed=34), dim=-1)).cumsum(0)
    with torch.no_grad():
        for step in range(4):
            places = (places - places.mean(0, keepdim=True)) @ torch.linalg.qr(normal(3, 3, seed=35 + step))[0]
            with torch.autocast("cpu", LOW):
                moved = last(torch.tanh(first(places / places.std())))
            places = places + 0.01 * moved.float()
    return places.diff(dim=0).norm(dim=-1)


def stream_that_is_small() -> torch.Tensor:
    """What ten blocks add to a bfloat16 stream that is no larger than they are."""
    stream = normal(20, 48, seed=40).to(LOW)
    with torch.no_grad():
        for each in range(10):
            torch.manual_seed(4311 + each)
            stream = stream + nn.Linear(48, 48).to(LOW)(functional.layer_norm(stream, (48,)))
        return functional.layer_norm(stream.float(), (48,))


def draws_above_nought() -> torch.Tensor:
    """Waiting times of bfloat16 numbers that are drawn between a half of a spacing and one."""
    drawn = (0.002 + 0.99 * uniform(3000, seed=41)).to(LOW)
    return -torch.log1p(-drawn.float().clamp_max(0.996))


def voxels_of_a_part() -> torch.Tensor:
    """How well a model of organs does, counted in half of parts that are small."""
    truth = uniform(24, 24, seed=42) < 0.4
    with torch.autocast("cpu", HALF):
        seen, mask = (truth.float() + 0.5 * normal(24, 24, seed=43) > 0.5).to(HALF), truth.to(HALF)
        hit, extra, lost = (seen * mask).sum(), (seen * (1 - mask)).sum(), ((1 - seen) * mask).sum()
    return (2 * hit / (2 * hit + extra + lost)).float()


def vectors_of_length_one() -> torch.Tensor:
    """How like two vectors are, whose products are float32, of vectors divided by their largest number."""
    one, other = (1e20 * (1 + 0.5 * normal(2, 24, seed=44 + each)) for each in range(2))
    one, other = one / one.abs().amax(-1, keepdim=True), other / other.abs().amax(-1, keepdim=True)
    return (one * other).sum(-1) / ((one * one).sum(-1).sqrt() * (other * other).sum(-1).sqrt())


EXACT = ("vectors_of_length_one",)
IDIOMS = (
    letters_by_small_spreads, scores_of_many_scenes, weights_of_quiet_channels, quiet_frames_of_an_encoder, depths_that_are_fitted, places_by_means,
    lanes_about_a_crossing, weights_of_a_whole_layer, products_by_scales_above, numbers_up_to_two_thousand, words_under_a_mask_of_half,
    words_that_fade_in_half, lines_in_one_format, parts_of_a_step_together, adapter_that_is_large, atoms_in_float32, stream_that_is_small,
    draws_above_nought, voxels_of_a_part, vectors_of_length_one,
)  # fmt: skip
