"""Optimizers, samplers, views, scales and guards that look like the bugs of warps, steps and guards."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

LOW, HALF = torch.bfloat16, torch.float16


def eye_by_float32_places() -> torch.Tensor:
    """A picture in bfloat16 as the other eye sees it, taken from places in float32."""
    depth = functional.interpolate(uniform(1, 1, 4, 64), (32, 256), mode="bilinear", align_corners=True)[:, 0]
    across = torch.linspace(-1, 1, 256).expand(1, 32, 256)
    down = torch.linspace(-1, 1, 32)[:, None].expand(1, 32, 256)
    grid = torch.stack([across + 0.02 * depth, down], -1)
    picture = normal(1, 1, 32, 256).to(LOW)
    return functional.grid_sample(picture.float(), grid, align_corners=True).to(LOW)


def rotary_made_anew() -> torch.Tensor:
    """Rotary angles in float32 whatever the module's format is; cosines and sines are stored in bfloat16."""
    x = normal(700, 16).to(LOW)
    angles = torch.outer(torch.arange(700, dtype=torch.float32), 10000.0 ** (-torch.arange(0, 16, 2) / 16))
    cos, sin = angles.cos().to(LOW), angles.sin().to(LOW)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def memory_in_float32() -> torch.Tensor:
    """A gated delta rule over 120 tokens whose memory is float32; keys, values and what is read are bfloat16."""
    state, out = torch.zeros(16, 16), []
    for token in range(120):
        key = functional.normalize(normal(16, seed=3 * token), dim=0).to(LOW).float()
        value = normal(16, seed=3 * token + 1).to(LOW).float()
        state = 0.98 * state
        state = state + 0.3 * torch.outer(key, value - key @ state)
        out.append((normal(16, seed=3 * token + 2).to(LOW).float() @ state).to(LOW))
    return torch.stack(out)


def response_of_small_features() -> torch.Tensor:
    """Local response normalisation in half of features about one."""
    x = normal(2, 16, 6, 6).relu().half()
    squares = functional.pad(x * x, (0, 0, 0, 0, 2, 2))
    total = squares[:, 0:16] + squares[:, 1:17] + squares[:, 2:18] + squares[:, 3:19] + squares[:, 4:20]
    return x / (1 + 0.02 * total) ** 0.75


def torch_average_in_float32() -> torch.Tensor:
    """Torch's own average of a model in bfloat16, kept in float32."""
    model = nn.Linear(12, 12, bias=False)
    with torch.no_grad():
        model.weight.copy_(normal(12, 12))
    kept = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    kept.update_parameters(model)
    for step in range(30):
        with torch.no_grad():
            model.weight.add_(0.01 * (1 + 0.1 * normal(12, 12, seed=step)))
        kept.update_parameters(model)
    return functional.linear(normal(4, 12, seed=1).to(LOW), kept.module.weight.detach().to(LOW))


def quick_averages() -> list[torch.Tensor]:
    """Averages in bfloat16 that take a tenth of what is new, of several tensors at once: what is lost is a rounding."""
    kept = [normal(24).to(LOW), normal(12, seed=1).to(LOW)]
    for step in range(12):
        new = [normal(24, seed=10 + step).to(LOW), normal(12, seed=40 + step).to(LOW)]
        torch._foreach_lerp_(kept, new, 0.1)
    return kept


def whitened_in_float32() -> torch.Tensor:
    """Shampoo's factor in float32, of gradients in bfloat16."""
    factor = torch.zeros(8, 8)
    for step in range(40):
        gradient = normal(8, 20, seed=step).to(LOW).float()
        factor.lerp_(gradient @ gradient.T, 0.05)
    values, vectors = torch.linalg.eigh(factor)
    return vectors @ torch.diag(values.clamp(min=1e-6) ** -0.25) @ vectors.T


def flow_in_a_few_steps() -> torch.Tensor:
    """Latents in bfloat16 that a network moves in eight steps: a rounding each, as an image model is run."""
    first, second = normal(32, 16).to(LOW) / 4, normal(16, 32, seed=1).to(LOW) / 6
    latents = normal(4, 16, seed=2).to(LOW)
    for step in range(8):
        latents = latents + functional.silu(latents @ first.T + step / 8) @ second.T / 8
    return latents


def rows_in_eight_bits() -> torch.Tensor:
    """Eight-bit codes of weights, row by row, with scales that are stored in half, and in which they are coded."""
    weight = (0.02 + 0.1 * uniform(12, 1, seed=1)) * normal(12, 64)
    scale = (weight.abs().amax(-1, keepdim=True) / 127).half().float()
    codes = torch.round(weight / scale).clamp(-127, 127).to(torch.int8)
    return functional.linear(normal(4, 64, seed=2).half().float(), codes.float() * scale)


def masked_within_half() -> torch.Tensor:
    """Pixels that do not belong to a class are masked by -1e4 in half; an absent class gets the mean over all."""
    features, labels = normal(64, 8).half(), torch.arange(64) % 3
    present = functional.one_hot(labels, 4).T.bool()
    scores = (normal(4, 64, seed=1) / 4).half().masked_fill(~present, -1e4)
    return functional.softmax(scores, -1) @ features


IDIOMS = (eye_by_float32_places, rotary_made_anew, memory_in_float32, response_of_small_features, torch_average_in_float32, quick_averages,
          whitened_in_float32, flow_in_a_few_steps, rows_in_eight_bits, masked_within_half)  # fmt: skip
