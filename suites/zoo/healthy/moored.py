"""Beside the moorings: turns, distances, parts of numbers, decompositions, sums and lengths that their formats hold."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def picture_turned_in_float32() -> torch.Tensor:
    """A picture in bfloat16, turned by ten degrees, by pixels whose places were told in float32."""
    picture, angle = torch.sin(torch.arange(60.0) / 7)[:, None] * torch.cos(torch.arange(60.0) / 5), torch.tensor(10 * 3.14159 / 180)
    turn = torch.stack([torch.stack([angle.cos(), angle.sin()]), torch.stack([-angle.sin(), angle.cos()])])
    line = torch.linspace(-29.5, 29.5, 60)
    places = torch.stack([line.expand(60, 60), line[:, None].expand(60, 60)], -1).reshape(-1, 2) @ turn
    places = torch.round(places + 29.5).long().clamp(0, 59)
    return picture.to(LOW)[places[:, 1], places[:, 0]].reshape(60, 60).float()


def strangers_by_many_features() -> torch.Tensor:
    """How far pictures are from four hundred that were learned, by features that do not go together, in float32."""
    torch.manual_seed(5801)
    model = nn.Sequential(nn.Linear(24, 32), nn.Tanh())
    with torch.no_grad():
        known, new = model(3 * normal(400, 24, seed=5802)), model(4 * normal(40, 24, seed=5803))
        centred = known - known.mean(0)
        precision = torch.linalg.inv(centred.T @ centred / 399 + 1e-3 * torch.eye(32))
        return (((new - known.mean(0)) @ precision) * (new - known.mean(0))).sum(-1)


def halves_by_a_cast() -> torch.Tensor:
    """Activations as they are sent to the next machine: as the bits of half numbers, and back."""
    torch.manual_seed(5811)
    with torch.no_grad():
        states = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))(normal(60, 64, seed=5812))
    sent = states.to(HALF).view(torch.int16)
    return sent.view(HALF).float()


def score_of_few_features() -> torch.Tensor:
    """How far two sets of pictures are from each other, by eight features of like spread, in float32."""
    spreads, means = [], []
    for index in range(2):
        seen = (1 + 0.2 * index) * normal(300, 8, seed=5821 + index)
        centred = seen - seen.mean(0)
        means.append(seen.mean(0))
        spreads.append(centred.T @ centred / 299)
    roots = torch.linalg.eigvals(spreads[0] @ spreads[1]).real.clamp_min(0).sqrt()
    return (means[0] - means[1]).square().sum() + spreads[0].trace() + spreads[1].trace() - 2 * roots.sum()


def faces_in_float32() -> torch.Tensor:
    """Five points of each face, stored in half and turned onto those of a mean face in float32."""
    points, mean = normal(4, 5, 2, seed=5831).to(HALF).float(), normal(5, 2, seed=5832)
    centred, goal = points - points.mean(1, keepdim=True), mean - mean.mean(0)
    left, _, right = torch.linalg.svd(centred.transpose(1, 2) @ goal)
    return centred @ left @ right


def sixteen_at_a_time_and_few() -> torch.Tensor:
    """A layer of 64 inputs in half, whose kernel adds up sixteen products at a time."""
    inputs, weight, total = normal(4, 64, seed=5841).to(HALF), (0.1 * normal(12, 64, seed=5842)).to(HALF), torch.zeros(4, 12, dtype=HALF)
    for start in range(0, 64, 16):
        total = total + (inputs[:, None, start : start + 16] * weight[:, start : start + 16]).sum(-1)
    return functional.gelu(total.float())


def layers_by_bounded_scales() -> torch.Tensor:
    """Gradients in eight bits, by a scale of what was largest in the step before; one layer has none."""
    gradients = normal(4, 64, seed=5851) * torch.tensor([1.0, 1e-3, 0.0, 10.0])[:, None]
    scale = 57344 / torch.tensor([4.0, 5e-3, 0.0, 40.0]).clamp_min(1e-12)
    return (gradients * scale[:, None]).clamp(-57344, 57344).to(torch.float8_e5m2).float() / scale[:, None]


def frames_of_short_sounds() -> torch.Tensor:
    """The mean of the frames of four sounds, whose lengths are whole numbers of frames below 256, in bfloat16."""
    torch.manual_seed(5861)
    layer, lengths = nn.Linear(160, 12).to(LOW), torch.tensor([20, 7, 13, 18])
    with torch.no_grad():
        frames = layer((0.1 * normal(4, 20, 160, seed=5862)).to(LOW))
        kept = torch.arange(20)[None] < lengths.to(LOW)[:, None]
        return (frames * kept[..., None]).sum(1).float() / kept.sum(1, keepdim=True)


def series_that_change() -> torch.Tensor:
    """What a forecaster gets of eight series in bfloat16, each less its mean and by its spread, which is as large as its level."""
    series = 2 + 3 * normal(8, 60, seed=5871)
    middle, spread = series.mean(1, keepdim=True), series.std(1, keepdim=True)
    return ((series - middle) / (spread + 1e-5)).to(LOW).float() + uniform(8, 1, seed=5872)


IDIOMS = (
    picture_turned_in_float32,
    strangers_by_many_features,
    halves_by_a_cast,
    score_of_few_features,
    faces_in_float32,
    sixteen_at_a_time_and_few,
    layers_by_bounded_scales,
    frames_of_short_sounds,
    series_that_change,
)
EXACT = ("strangers_by_many_features", "score_of_few_features")
