"""Beside turrets and bellows: boxes, gates, clips, twins, voices, recordings, streams, clouds, colours, poses that hold."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


def boxes_of_a_small_picture() -> torch.Tensor:
    """How well anchors fit ten people in half; no box has more than forty thousand pixels."""
    best = []
    for picture in range(3):
        corner, size = 150 * uniform(10, 2, seed=9701 + picture), 40 + 120 * uniform(10, 2, seed=9711 + picture)
        people = torch.cat([corner, corner + size], 1)
        first, second = (people.repeat(6, 1) + 8 * normal(60, 4, seed=9721 + picture)).to(HALF), people.to(HALF)
        areas = [(each[:, 2] - each[:, 0]) * (each[:, 3] - each[:, 1]) for each in (first, second)]
        corner = torch.max(first[:, None, :2], second[None, :, :2])
        shared = (torch.min(first[:, None, 2:], second[None, :, 2:]) - corner).clamp(min=0)
        overlap = shared[..., 0] * shared[..., 1]
        best.append((overlap / (areas[0][:, None] + areas[1] - overlap)).max(0)[0].float())
    return torch.cat(best)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9731)
        self.norm, self.w1, self.w3, self.w2 = nn.RMSNorm(16), nn.Linear(16, 48), nn.Linear(16, 48), nn.Linear(48, 16)
        with torch.no_grad():
            self.w1.weight[:4] *= 60
            self.w3.weight[:4] *= 60

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.w2(functional.silu(self.w1(self.norm(x))) * self.w3(self.norm(x)))


def gate_of_a_painter_that_fits() -> torch.Tensor:
    """Four steps of a painter in half, some products of which are thousands."""
    painter, x = Gated().to(HALF), normal(2, 20, 16, seed=9732)
    with torch.no_grad():
        for _ in range(4):
            x = x - 0.25 * 0.01 * painter(x.to(HALF)).float()
    return x


def clips_that_are_learned_fast() -> torch.Tensor:
    """A generator in bfloat16 throughout, by steps of a hundredth, of which most of each weight's arrives."""
    torch.manual_seed(9741)
    generator = nn.Sequential(nn.Linear(12, 48), nn.SiLU(), nn.Linear(48, 12)).to(LOW)
    optimizer = torch.optim.AdamW(generator.parameters(), lr=1e-2, betas=(0.0, 0.9), weight_decay=0.0)
    for step in range(12):
        noise = normal(16, 12, seed=9742 + step)
        loss = functional.mse_loss(generator(noise.to(LOW)).float(), noise.roll(1, 1).tanh())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(generator.parameters()).detach().float()


def twins_of_few_features() -> torch.Tensor:
    """The losses of 64 features that say nearly the same, under autocast in half, in three batches."""
    torch.manual_seed(9761)
    projector, losses = nn.Linear(16, 64), []
    for batch in range(3):
        pictures = normal(64, 1, seed=9762 + batch) * torch.ones(16) + 0.05 * normal(64, 16, seed=9772 + batch)
        others = pictures + 0.05 * normal(64, 16, seed=9782 + batch)
        with torch.autocast("cpu", HALF):
            first, second = (functional.batch_norm(projector(each).float(), None, None, training=True) for each in (pictures, others))
            correlation = (first.T @ second).div_(64)
            off_diagonal = correlation.flatten()[:-1].view(63, -1)[:, 1:].pow(2).sum()
        losses.append((torch.diagonal(correlation).add(-1).pow(2).sum() + 0.005 * off_diagonal).detach().float())
    return torch.stack(losses)


def voice_that_is_trusted_a_little() -> torch.Tensor:
    """Frames pooled by their precisions in half; the greatest precision is about ten."""
    torch.manual_seed(9791)
    encoder = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.LayerNorm(32)).to(HALF)
    frames, trust = nn.Linear(32, 32).to(HALF), nn.Linear(32, 32).to(HALF)
    with torch.no_grad():
        x = encoder((normal(3, 1, 20, seed=9792) + normal(3, 80, 20, seed=9793)).to(HALF))
        precision = torch.exp(trust(x))
        return functional.normalize((precision * frames(x)).sum(1) / (precision.sum(1) + 1), dim=-1).float()


def recording_that_is_loud() -> torch.Tensor:
    """The logarithm of magnitudes in half of noise that is loud at every frequency, at two resolutions."""
    target = normal(2048, seed=9801)
    guess, losses = 0.9 * target + 0.3 * normal(2048, seed=9802), []
    for size in (128, 256):
        logs = []
        for sound in (guess, target):
            spectrum = torch.stft(sound[None], size, size // 4, window=torch.hann_window(size), return_complex=True)
            power = spectrum.real.to(HALF) ** 2 + spectrum.imag.to(HALF) ** 2
            logs.append(torch.log(torch.sqrt(torch.clamp(power, min=1e-3))))
        losses.append((logs[0] - logs[1]).abs().float().mean())
    return torch.stack(losses)


def features_about_nought() -> torch.Tensor:
    """Sixty readings scaled by the mean square less the square of the mean, for gauges that read about one."""
    mean, square, given = normal(6, seed=9811), normal(6, seed=9811) ** 2, []
    for turn in range(60):
        reading = 0.5 + normal(6, seed=9812 + turn)
        mean, square = mean + 0.1 * (reading - mean), square + 0.1 * (reading**2 - square)
        if turn >= 20:
            given.append((reading - mean) / (square - mean**2).sqrt())
    return torch.stack(given)


def points_of_two_clouds() -> torch.Tensor:
    """How far the five nearest points of another cloud are, by the expanded square; both are about the origin, and none meet."""
    first, second = normal(80, 3, seed=9871), normal(80, 3, seed=9872)
    dists = -2 * (first @ second.T)
    dists += (first**2).sum(1)[:, None]
    dists += (second**2).sum(1)
    return torch.sqrt(dists.clamp_min(0)).topk(5, dim=1, largest=False)[0]


def colours_that_differ() -> torch.Tensor:
    """The mean angle by the cosine, between fields that are some twenty degrees apart."""
    losses = []
    for picture in range(3):
        target = 0.05 + 0.6 * uniform(100, 12, seed=9881 + picture)
        guess = target + 0.15 * normal(100, 12, seed=9891 + picture)
        cosine = (guess * target).sum(1) / (torch.sqrt((guess**2).sum(1)) * torch.sqrt((target**2).sum(1)))
        losses.append((torch.acos(cosine) * 180 / torch.pi).mean())
    return torch.stack(losses)


def poses_that_are_apart() -> torch.Tensor:
    """The mean of directions on a sphere by the inverse cosine, three steps from ones that are a fifth of the way round."""
    goals = functional.normalize(normal(16, 3, seed=9901), dim=-1)
    x = functional.normalize(goals + 0.8 * normal(16, 3, seed=9902), dim=-1)
    for _ in range(3):
        x.requires_grad_()
        loss = torch.acos((x * goals).sum(-1).clamp(-1 + 1e-6, 1 - 1e-6)).pow(2).sum()
        slope = torch.autograd.grad(loss, x)[0]
        x = x.detach()
        x = functional.normalize(x - 0.1 * (slope - (slope * x).sum(-1, keepdim=True) * x), dim=-1)
    return x


IDIOMS = (
    boxes_of_a_small_picture,
    gate_of_a_painter_that_fits,
    clips_that_are_learned_fast,
    twins_of_few_features,
    voice_that_is_trusted_a_little,
    recording_that_is_loud,
    features_about_nought,
    points_of_two_clouds,
    colours_that_differ,
    poses_that_are_apart,
)
EXACT = ("features_about_nought", "points_of_two_clouds", "colours_that_differ", "poses_that_are_apart")
