"""Meshes, tables, statistics, optimizers and layers in half whose places are near their origin, and whose sums are float32 or scaled first."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform

HALF, EIGHT = torch.float16, torch.float8_e4m3fn


def keys_about_a_mean() -> torch.Tensor:
    """Speeds of a machine far from the origin, whose keys are half about their own mean."""
    keys = torch.tensor([1000.0, 240, -730]) + (0.05 * normal(40, 3)).cumsum(0)
    origin = keys.mean(0)
    small, time = (keys - origin).to(HALF), torch.linspace(0, 38.9, 60)
    low = time.floor().long()
    return (torch.lerp(small[low].float(), small[low + 1].float(), (time - low)[:, None]) + origin).diff(dim=0)


def bones_about_the_camera() -> torch.Tensor:
    """Vertices that bones move, in half, all of it about the camera."""
    angles = 0.4 * normal(5)
    turns = torch.stack([torch.stack([a.cos(), -a.sin(), a.sin(), a.cos()]).view(2, 2) for a in angles]).to(HALF)
    shifts, weights = (0.8 * normal(5, 2, seed=1)).to(HALF), torch.softmax(2 * normal(60, 5, seed=3), -1).to(HALF)
    moved = torch.bmm((0.3 * normal(60, 2, seed=2)).to(HALF).expand(5, -1, -1), turns.mT) + shifts[:, None]
    return (weights.mT[..., None] * moved).sum(0).float()


def texels_of_a_small_atlas() -> torch.Tensor:
    """A row of 64 texels that is read between them, by coordinates in half: a step of theirs is a hundredth of a texel."""
    texels = torch.sin(0.2 * torch.arange(64))
    place = torch.linspace(0.1, 0.9, 150).to(HALF) * 64 - 0.5
    low = place.floor()
    return torch.lerp(texels[low.long()], texels[low.long() + 1], (place - low).float())


def corner_of_an_icon() -> torch.Tensor:
    """A rounded corner of an icon of 48 pixels, in half, which has all halves of pixels there."""
    row, column = torch.meshgrid(torch.arange(48) + 0.5, torch.arange(48) + 0.5, indexing="ij")
    places = torch.stack([column, row], -1).to(HALF)
    away = (places - 24).abs() - 20 + 8
    return (0.5 - (away.clamp(min=0).square().sum(-1).sqrt() - 8)).clamp(0, 1).float()


def slope_of_a_steep_roof() -> torch.Tensor:
    """Normals of a roof that falls by a fifth of a metre from pixel to pixel, from distances in half."""
    row, column = torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij")
    depth = (2 + 0.2 * column + 0.14 * row).to(HALF).float()
    normals = torch.stack([depth[:-1, :-1] - depth[:-1, 1:], depth[:-1, :-1] - depth[1:, :-1], torch.full((19, 19), 0.1)], -1)
    return normals / normals.norm(dim=-1, keepdim=True)


def water_with_a_wrapped_clock() -> torch.Tensor:
    """Waves of scrolling water in half, whose clock is wrapped in float32 before it is half."""
    places, found = torch.linspace(0, 0.98, 50).to(HALF), []
    for frame in range(8):
        shift = torch.remainder(torch.tensor(3605.3 + 0.27 * frame) * 0.11, 1).to(HALF)
        place = places + shift
        found.append(torch.sin(6.2832 * (place - place.floor())))
    return torch.stack(found).float()


def statistics_beside_half_images() -> torch.Tensor:
    """Mean and variance of images in half, whose counts and sums are float32."""
    mean, var, count = torch.tensor(0.42), torch.tensor(0.08), torch.tensor(2048.0)
    for seed in range(60):
        images = (0.9 * uniform(8, 8, seed=seed)).to(HALF).float()
        new, total = images.mean(), count + 1
        var = (var * count + images.var() + (new - mean).square() * count / total) / total
        mean, count = (mean * count + new) / total, total
    return torch.stack([mean, var])


def layers_by_their_norms() -> torch.Tensor:
    """Gradients in half by running norms of their layer in float32, and a step into float32 weights."""
    layer, squares, momentum = 0.1 * normal(16, 16), torch.zeros(()), torch.zeros(16, 16)
    for seed in range(1, 6):
        gradient = (4e-5 * normal(16, 16, seed=seed)).to(HALF).float()
        squares = 0.98 * squares + 0.02 * gradient.square().sum()
        momentum = 0.9 * momentum + gradient / (squares.sqrt() + 1e-8)
        layer -= 1e-2 * momentum
    return layer


def actions_by_their_largest() -> torch.Tensor:
    """Log chances of actions that lead to one state, added up about their largest, in half."""
    logits = 4 * normal(12, 2, 30).to(HALF)
    logits[:, 0, 0] = 15
    chances = torch.log_softmax(logits.float().flatten(1), -1).to(HALF).view(12, 2, 30)
    most = chances.amax(1)
    return (most + (chances - most[:, None]).exp().sum(1).log()).float()


def tables_with_wide_sums() -> torch.Tensor:
    """The nearest of a thousand vectors by tables of distances in half, which are added in float32."""
    query, books = 15 * normal(64, 4), 15 * normal(64, 16, 4, seed=1)
    tables = (query[:, None] - books).square().sum(-1).to(HALF)
    codes, total = (16 * uniform(1000, 64)).long(), torch.zeros(1000)
    for part, table in enumerate(tables):
        total = total + table[codes[:, part]]
    return total.topk(10, largest=False).values


def attention_scaled_first() -> torch.Tensor:
    """Scores of contents and of distances in half, whose queries are scaled before the products."""
    q, k, places = ((22 * normal(2, 12, 64, seed=seed)).to(HALF) for seed in range(3))
    q = q * (1 / 64)
    return (torch.softmax(q @ k.mT + q @ places.mT, -1) @ normal(2, 12, 64, seed=3).to(HALF)).float()


def experts_over_their_factor() -> torch.Tensor:
    """Routed experts in half and a shared one that is divided by their factor, before a norm in float32 that no factor moves."""
    routed, shared = ((normal(48, 48, seed=seed) / 48**0.5).to(HALF) for seed in range(2))
    x = (1800 * normal(10, 48, seed=2)).to(HALF)
    wide = (x @ routed + (x @ shared) * (1 / 16)).float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(HALF).float()


def echo_with_shares() -> torch.Tensor:
    """A convolution by spectra in half whose signal is divided by its length first, so that products of spectra are in range."""
    angles = 2 * math.pi * torch.outer(torch.arange(128), torch.arange(128)).remainder(128) / 128
    cos, sin = angles.cos().to(HALF), angles.sin().to(HALF)
    time = torch.arange(128)
    signal = ((3 * torch.sin(2 * math.pi * 9 * time / 128) + 0.2 * normal(128)) / 128).to(HALF)
    kernel = (torch.exp(-time / 40) * (1 + 0.3 * normal(128, seed=1))).to(HALF)
    a, b, c, d = signal @ cos, -(signal @ sin), kernel @ cos, -(kernel @ sin)
    return ((a * c - b * d) @ cos - (a * d + b * c) @ sin).float()


def adapter_beside_eight_bits() -> torch.Tensor:
    """A weight of eight bits with an adapter that is not fused: its product is added to that of the weight."""
    plain = 0.02 * normal(48, 96)
    scale = plain.abs().amax() / 448
    prompt = torch.sign(normal(96, seed=1))
    prompts = prompt + 0.05 * normal(8, 96, seed=3)
    return prompts @ ((plain / scale).to(EIGHT).float() * scale).T + (prompts @ prompt[:, None]) @ (2.5e-4 * torch.sign(normal(1, 48, seed=2)))


IDIOMS = (
    keys_about_a_mean, bones_about_the_camera, texels_of_a_small_atlas, corner_of_an_icon, slope_of_a_steep_roof, water_with_a_wrapped_clock,
    statistics_beside_half_images, layers_by_their_norms, actions_by_their_largest, tables_with_wide_sums, attention_scaled_first,
    experts_over_their_factor, echo_with_shares, adapter_beside_eight_bits,
)  # fmt: skip
