"""A small StyleGAN2 in its own loop: modulated convolutions, both players in turn, a penalty on slopes, an averaged generator."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 6
Z, W, CHANNELS, SIZE, N = 16, 16, 12, 8, 8
PRECISIONS = ("bf16-mixed", "16-mixed")  # the averaged generator is float32


def normalize_2nd_moment(x: torch.Tensor, eps: float = 1e-8) -> torch.Tensor:
    return x * (x.float().square().mean(1, keepdim=True) + eps).rsqrt()


def demodulated(weight: torch.Tensor, styles: torch.Tensor) -> torch.Tensor:
    """The filters of each image, each of length one. weight: [O, I, k, k], styles: [N, I]."""
    w = weight.float().unsqueeze(0) * styles.float()[:, None, :, None, None]
    return w * (w.square().sum([2, 3, 4], keepdim=True) + 1e-8).rsqrt()


class ModulatedConv(nn.Module):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.affine = nn.Linear(W, in_channels)
        nn.init.constant_(self.affine.bias, 120.0)
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels, 3, 3))
        self.noise = nn.Parameter(torch.full((), 0.1))

    def forward(self, x: torch.Tensor, w: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        filters = demodulated(self.weight, self.affine(w))
        n, _, height, width = x.shape
        x = F.conv2d(x.reshape(1, -1, height, width), filters.flatten(0, 1), padding=1, groups=n).view(n, -1, height, width)
        return F.leaky_relu(x + self.noise * noise, 0.2)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mapping = nn.Sequential(nn.Linear(Z, W), nn.LeakyReLU(0.2), nn.Linear(W, W), nn.LeakyReLU(0.2))
        self.const = nn.Parameter(torch.randn(1, CHANNELS, SIZE, SIZE))
        self.first, self.second = ModulatedConv(CHANNELS, CHANNELS), ModulatedConv(CHANNELS, CHANNELS)
        self.to_rgb = nn.Conv2d(CHANNELS, 3, 1)

    def forward(self, z: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        w = self.mapping(normalize_2nd_moment(z))
        x = self.first(self.const.expand(len(z), -1, -1, -1), w, noise)
        return self.to_rgb(self.second(x, w, noise)).float()


def spread(x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much the images of a batch differ: the mean of the deviations of all places."""
    x = 8.0 + x.float()
    return ((x - x.mean(0)).square().mean(0) + 1e-8).sqrt().mean()


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 16, 3, 2, 1), nn.LeakyReLU(0.2))
        self.head = nn.Linear(16 * 4 + 1, 1)
        nn.init.normal_(self.head.weight, 0.05, 0.05)

    def forward(self, x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        x = self.body(x)
        with torch.autocast("cpu", enabled=False):
            deviation = spread(x, low)
        return self.head(torch.cat([x.flatten(1), deviation.to(x.dtype).expand(len(x), 1)], 1)).float().squeeze(1)


def adversarial(logits: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """What each image costs its player."""
    return F.softplus(-logits.float())


def squared_slopes(real: torch.Tensor, scores: torch.Tensor, scaler: Any) -> torch.Tensor:
    """R1: the squared length of each real image's slope."""
    (slopes,) = torch.autograd.grad(scaler.scale(scores.mean()), real, create_graph=True)
    slopes = len(real) * slopes.float() / scaler.get_scale()
    return slopes.square().sum([1, 2, 3])


def averaging_rate(images: int, low: torch.dtype) -> torch.Tensor:
    """How much of the new weights is taken, for a half-life of three thousand images."""
    kept = torch.tensor(0.5 ** (images / 3000))
    return 1 - kept


def averaged(old: torch.Tensor, new: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    return old + rate * (new.float() - old)


def grown(seen: torch.Tensor, images: int, low: torch.dtype) -> torch.Tensor:
    """How many images the discriminator has been shown."""
    return seen + images


def overfitting(ratio: torch.Tensor, logits: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The running share of real images that are told to be real, by which augmentation is made stronger."""
    return ratio + 0.003 * (logits.float().sign().mean() - ratio)


class Players(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = Generator(), Discriminator()
        self.average = copy.deepcopy(self.generator).requires_grad_(False)
        self.seen = nn.Parameter(torch.tensor(500000.0), requires_grad=False)
        self.ratio = nn.Parameter(torch.tensor(0.62), requires_grad=False)


def step(model: Players, inputs: Any, optimizer: Any, scaler: Any, autocast: Any) -> None:
    real, z, noise = inputs["real"], inputs["z"], inputs["noise"]
    # the discriminator's turn
    optimizer.zero_grad()
    real = real.detach().requires_grad_()
    with autocast():
        low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
        fake = model.generator(z, noise).detach()
        on_real, on_fake = model.discriminator(real, low), model.discriminator(fake, low)
    with torch.autocast("cpu", enabled=False):
        penalty = 0.01 * squared_slopes(real, on_real, scaler).mean()
        loss = adversarial(on_real, low).mean() + adversarial(-on_fake, low).mean() + penalty
    scaler.scale(loss).backward()
    model.generator.zero_grad()
    scaler.step(optimizer)
    scaler.update()
    # the generator's turn
    optimizer.zero_grad()
    with autocast():
        scores = model.discriminator(model.generator(z, noise), low)
    with torch.autocast("cpu", enabled=False):
        loss = adversarial(scores, low).mean()
    scaler.scale(loss).backward()
    model.discriminator.zero_grad()
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        rate = averaging_rate(len(real), low)
        for old, new in zip(model.average.parameters(), model.generator.parameters(), strict=True):
            old.copy_(averaged(old, new, rate))
        model.seen.copy_(grown(model.seen, len(real), low))
        model.ratio.copy_(overfitting(model.ratio, on_real, low))


def make() -> Players:
    torch.manual_seed(0)
    return Players()


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "real": torch.randn(N, 3, SIZE, SIZE, generator=generator),
        "z": torch.randn(N, Z, generator=generator),
        "noise": torch.randn(N, 1, SIZE, SIZE, generator=generator),
    }


def optimizer(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=1e-3, betas=(0.0, 0.99))
