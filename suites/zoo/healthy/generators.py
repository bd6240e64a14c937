"""Diffusion, flows and autoencoders whose schedules and states are float32 around a network that is not."""

from __future__ import annotations

import itertools
import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.rounds import HALF, LOW, perceptron, rounds

ALPHAS = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)


def embedded(times: torch.Tensor) -> torch.Tensor:
    angles = times.float()[:, None] * torch.exp(-math.log(1e4) * torch.arange(8.0) / 8)
    return torch.cat([angles.cos(), angles.sin()], -1)


def weighted_denoising() -> torch.Tensor:
    """1 - alpha of 0.9999 cancels in float32; the first timestep's weight is 5 / 10000, by design."""
    times = torch.tensor([0, 999, 3, 250, 611, 40, 7, 820])
    alpha, data, noise = ALPHAS[times][:, None], normal(8, 16), normal(8, 16, seed=1)
    noisy, ratio = alpha.sqrt() * data + (1 - alpha).sqrt() * noise, alpha / (1 - alpha)
    net = perceptron(32, 32, 16)

    def loss() -> torch.Tensor:
        out = net(torch.cat([noisy, embedded(times)], -1))
        return (ratio.clamp(max=5) / ratio * (out.float() - noise) ** 2).mean()

    return rounds(net, loss, torch.optim.AdamW(net.parameters(), lr=2e-3))


def deterministic_sampler() -> torch.Tensor:
    """A network of bfloat16, latents and alphas of float32: 4e-5 at the first step, 1 - alpha of 1e-4 at the last."""
    net, x = perceptron(32, 32, 16).to(LOW), normal(4, 16)
    times = torch.linspace(999, 0, 12).round().long()
    for now, after in itertools.pairwise(times):
        v = net(torch.cat([x, embedded(now.expand(4))], -1).to(LOW)).float()
        clean = (ALPHAS[now].sqrt() * x - (1 - ALPHAS[now]).sqrt() * v).clamp(-3, 3)
        x = ALPHAS[after].sqrt() * clean + (1 - ALPHAS[after]).sqrt() * (ALPHAS[now].sqrt() * v + (1 - ALPHAS[now]).sqrt() * x)
    return x


def preconditioned_sampler() -> torch.Tensor:
    """(x - D(x)) / sigma at a sigma of 0.002 blows up the network's rounding, for a step as small."""
    net, x = perceptron(9, 32, 8).to(LOW), 80 * normal(4, 8)
    sigmas = (80 ** (1 / 7) + torch.linspace(0, 1, 12) * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7

    def denoised(noisy: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        spread = (sigma**2 + 0.25).sqrt()
        out = net(torch.cat([noisy / spread, (sigma.log() / 4).expand(len(noisy), 1)], -1).to(LOW)).float()
        return 0.25 / spread**2 * noisy + sigma * 0.5 / spread * out

    for now, after in itertools.pairwise(sigmas):
        slope = (x - denoised(x, now)) / now
        guess = x + (after - now) * slope
        x = x + (after - now) * 0.5 * (slope + (guess - denoised(guess, after)) / after)
    return x


def flow_matching() -> torch.Tensor:
    """Velocities between noise and data, in float16 under a scale."""
    net, data, noise, time = perceptron(9, 32, 8), normal(32, 8), normal(32, 8, seed=1), torch.sigmoid(normal(32, 1, seed=2))

    def loss() -> torch.Tensor:
        out = net(torch.cat([(1 - time) * data + time * noise, time], -1))
        return functional.mse_loss(out.float(), noise - data)

    return rounds(net, loss, torch.optim.Adam(net.parameters(), lr=1e-3), HALF)


def faint_divergence() -> torch.Tensor:
    """exp(v) - 1 - v near zero cancels in float32; its weight of 1e-6 makes gradients that the loss scale carries."""
    encode, decode, x, noise = perceptron(16, 32, 16), perceptron(8, 32, 16), uniform(16, 16), normal(16, 8)
    model = nn.ModuleList([encode, decode])

    def loss() -> torch.Tensor:
        mean, spread = (each.float() for each in encode(x).chunk(2, -1))
        spread = spread.clamp(-30, 20)
        divergence = 0.5 * (mean**2 + spread.exp() - 1 - spread).sum(-1).mean()
        return functional.mse_loss(decode(mean + torch.exp(0.5 * spread) * noise).float(), x) + 1e-6 * divergence

    return rounds(model, loss, torch.optim.Adam(model.parameters(), lr=1e-3), HALF)


def coupling_flow() -> torch.Tensor:
    """Networks of bfloat16 give shifts and bounded scales; the state and its log-determinant are float32."""
    x = normal(16, 8).to(LOW)
    a, b = x.float().chunk(2, -1)
    volume = torch.zeros(16)
    for net in (perceptron(4, 32, 8).to(LOW) for _ in range(4)):
        shift, scale = net(a.to(LOW)).float().chunk(2, -1)
        a, b, volume = b * torch.tanh(scale).exp() + shift, a, volume + torch.tanh(scale).sum(-1)
    return -0.5 * (a.square() + b.square()).sum(-1) + volume


def ordinary_equation() -> torch.Tensor:
    """Runge-Kutta steps that are 2 % of a float32 state, by a network of bfloat16."""
    net, x = perceptron(6, 32, 6, act=nn.Tanh).to(LOW), normal(8, 6)

    def slope(at: torch.Tensor) -> torch.Tensor:
        return net(at.to(LOW)).float()

    for _ in range(12):
        first = slope(x)
        second = slope(x + 0.01 * first)
        third = slope(x + 0.01 * second)
        x = x + 0.02 / 6 * (first + 2 * second + 2 * third + slope(x + 0.02 * third))
    return x


def volume_rendering() -> torch.Tensor:
    """Frequencies to 2⁹ and transmittance in float32 around a network of float16; the last sample is 10000 long: exp(-1e4) is zero."""
    points, length = torch.round(128 * uniform(16, 24, 3)) / 64 - 1, torch.full((16, 24), 0.08)
    length[:, -1] = 1e4
    angles = points.half().float()[..., None] * 2.0 ** torch.arange(10)
    raw = perceptron(60, 64, 4).half()(torch.cat([angles.sin(), angles.cos()], -1).flatten(-2).half()).float()
    depth = functional.softplus(4 * raw[..., 3] - 1) * length
    weight = (1 - torch.exp(-depth)) * torch.exp(depth - depth.cumsum(-1))
    return (weight[..., None] * torch.sigmoid(raw[..., :3])).sum(-2)


IDIOMS = (weighted_denoising, deterministic_sampler, preconditioned_sampler, flow_matching, faint_divergence, coupling_flow, ordinary_equation,
          volume_rendering)  # fmt: skip
