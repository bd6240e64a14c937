"""Beside the stalls and barns: states, frames, places, bins, groups, rates, pictures and moments that their formats hold."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, SINGLE, FLOAT8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn


def values_that_cancel() -> torch.Tensor:
    """What is read of sums of keys and values, kept in half; values are of either sign, and few."""
    key, value = functional.normalize(normal(200, 12, seed=6701), dim=-1).to(HALF), normal(200, 12, seed=6702).to(HALF)
    pairs, read = torch.zeros(12, 12, dtype=HALF), []
    for chunk in range(4):
        part = slice(50 * chunk, 50 * chunk + 50)
        pairs = (pairs.float() + key[part].float().T @ value[part].float()).to(HALF)
        read.append(key[part].float() @ pairs.float())
    return torch.cat(read)


def first_frame_by_places() -> torch.Tensor:
    """The first frame of each of ten episodes, found by times in float32 that are half a frame early."""
    times, ends = torch.arange(600, dtype=SINGLE) / 30, torch.arange(0, 600, 60) / 30
    frames = torch.sin(torch.arange(600) * 1.7)
    return torch.stack([frames[times >= end - 1 / 60][0] for end in ends])


def window_at_a_small_place() -> torch.Tensor:
    """Waves for forty words from the 101st on, whose places bfloat16 holds."""
    angles = torch.arange(101, 141, dtype=LOW)[:, None] * 10000 ** (-torch.arange(0, 16, 2) / 16)
    return torch.cat([angles.sin(), angles.cos()], -1)


def bins_of_usual_activations() -> torch.Tensor:
    """The share of each of sixteen bins, for activations in half up to four."""
    activations = (4 * uniform(5000, seed=6711)).to(HALF)
    edges = torch.linspace(0, 1, 17, dtype=HALF) * activations.max()
    places = torch.bucketize(activations, edges[1:-1])
    return torch.bincount(places, minlength=16).float() / 5000


def group_with_an_epsilon_that_half_holds() -> torch.Tensor:
    """A norm over groups of channels in half, one of which is nought; its epsilon is a thousandth."""
    x = normal(2, 8, 6, 6, seed=6721).to(HALF)
    x[:, 2:4] = 0
    groups = x.unflatten(1, (4, 2))
    variance, mean = torch.var_mean(groups, (2, 3, 4), correction=0, keepdim=True)
    return ((groups - mean) * torch.rsqrt(variance + 1e-3)).float()


def rate_of_a_cycle() -> torch.Tensor:
    """Weights in half after twenty steps, by a rate in half that grows from two thousandths and falls again."""
    torch.manual_seed(6731)
    model, largest, first = nn.Linear(12, 4).to(HALF), torch.tensor(0.05, dtype=HALF), torch.tensor(0.002, dtype=HALF)
    for step in range(20):
        x = normal(16, 12, seed=6732 + step)
        (model(x.to(HALF)).float() - x[:, :4]).square().mean().backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= first * (largest / first) ** (1 - abs(step / 10 - 1)) * weight.grad
                weight.grad = None
    return model.weight.detach().float()


def pictures_of_bytes() -> torch.Tensor:
    """A picture of bytes, brought to the usual mean and spread in float32 and then to bfloat16."""
    picture = (256 * uniform(3, 12, 12, seed=6741)).to(torch.uint8).to(SINGLE) / 255
    mean, spread = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return ((picture - mean[:, None, None]) / spread[:, None, None]).to(LOW).float()


def blocks_of_weights() -> torch.Tensor:
    """A layer in bfloat16 whose weights are numbers of eight bits, in blocks with a scale each; some weights are nought."""
    torch.manual_seed(6751)
    layer = nn.Linear(64, 24, bias=False)
    with torch.no_grad():
        blocks = layer.weight.where(normal(24, 64, seed=6752) > 0, 0.0).unflatten(1, (8, 8))
        scale = blocks.abs().amax(-1, keepdim=True) / 448
        codes = (blocks / scale.clamp_min(1e-12)).to(FLOAT8)
        return functional.linear(normal(6, 64, seed=6753).to(LOW), (codes.to(LOW) * scale.to(LOW)).flatten(1)).float()


def brightness_by_a_mean() -> torch.Tensor:
    """Pictures in half, made equally bright by a mean that torch computes wide."""
    pictures = (255 * uniform(3, 64, 64, seed=6761)).to(HALF)
    return torch.stack([(picture * (100.0 / picture.mean())).float() for picture in pictures])


def softplus_of_small_numbers() -> torch.Tensor:
    """A scan in half whose steps are a softplus by hand, of numbers below five."""
    steps, state = torch.log(1 + torch.exp(normal(20, 8, seed=6771).to(HALF))), torch.zeros(8, dtype=HALF)
    x, out = normal(20, 8, seed=6772).to(HALF), []
    for word in range(20):
        state = torch.exp(-steps[word] * 0.1) * state + x[word]
        out.append(state)
    return torch.stack(out).float()


def texture_by_wide_moments() -> torch.Tensor:
    """A texture in half after fifteen steps of Adam by hand, whose moments are float32 and whose gradients are a few ten-thousandths."""
    texture, goal = (0.5 + 0.1 * normal(16, 16, seed=6781)).to(HALF), uniform(16, 16, seed=6782)
    mean, square = torch.zeros(16, 16), torch.zeros(16, 16)
    for step in range(1, 16):
        gradient = ((texture.float() - goal) * (0.4 / 256)).to(HALF).float()
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient * gradient
        texture = (texture.float() - 1e-2 * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)).to(HALF)
    return texture.float()


def batch_with_short_texts() -> torch.Tensor:
    """Attention in half over texts of up to ten words, whose padding is masked by minus infinity for keys alone."""
    torch.manual_seed(6791)
    mix, lengths = nn.Linear(24, 72).to(HALF), torch.tensor([10, 6, 1, 3])
    with torch.no_grad():
        query, key, value = mix(normal(4, 10, 24, seed=6792).to(HALF)).chunk(3, -1)
        there = torch.arange(10) < lengths[:, None]
        scores = query @ key.transpose(1, 2) * 24**-0.5 + torch.where(there, 0.0, -3e38).to(HALF)[:, None]
        return ((scores.softmax(-1) @ value) * there[..., None]).sum(1).float()


IDIOMS = (
    values_that_cancel,
    first_frame_by_places,
    window_at_a_small_place,
    bins_of_usual_activations,
    group_with_an_epsilon_that_half_holds,
    rate_of_a_cycle,
    pictures_of_bytes,
    blocks_of_weights,
    brightness_by_a_mean,
    softplus_of_small_numbers,
    texture_by_wide_moments,
    batch_with_short_texts,
)
EXACT = ("first_frame_by_places",)
