"""A variational autoencoder of images: discretised logistic pixels, a mixture of prior components, free bits and importance weights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

SIDE, LATENT, COMPONENTS, SAMPLES = 16, 32, 16, 8
PIXELS = SIDE * SIDE
STEPS = 1
optimizer = None


def sampled(mean: torch.Tensor, log_variance: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Samples of the posterior, by the reparametrisation trick."""
    return mean.float() + torch.exp(0.5 * log_variance.float()) * noise.float()


def divergence(mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
    """The KL divergence of every latent from the standard normal distribution."""
    mean, log_variance = mean.float(), log_variance.float()
    return 0.5 * (mean.square() + torch.expm1(log_variance) - log_variance)


def with_free_bits(kl: torch.Tensor, free: float = 1e-3) -> torch.Tensor:
    return kl.mean(0).clamp(min=free).sum()


def pixel_log_likelihood(image: torch.Tensor, mean: torch.Tensor, log_scale: torch.Tensor) -> torch.Tensor:
    """The logarithm of the probability of each 8-bit pixel under a logistic distribution, the integral over its bin."""
    image, mean, log_scale = image.float() / 127.5 - 1, mean.float(), log_scale.float()
    inverse = torch.exp(-log_scale)
    upper, lower = (image - mean + 1 / 255) * inverse, (image - mean - 1 / 255) * inverse
    inside = torch.log((torch.sigmoid(upper) - torch.sigmoid(lower)).clamp(min=1e-12))
    return torch.where(image < -0.999, F.logsigmoid(upper), torch.where(image > 0.999, F.logsigmoid(-lower), inside))


def image_log_likelihood(pixels: torch.Tensor) -> torch.Tensor:
    """The sum over an image's pixels."""
    return pixels.sum(-1)


def mixture_log_density(z: torch.Tensor, centers: torch.Tensor) -> torch.Tensor:
    """The logarithm of the density of the prior, an even mixture of unit normal distributions."""
    squares = (z[..., None, :].float() - centers.float()).square().sum(-1)
    terms = -0.5 * squares - 0.5 * LATENT * math.log(2 * math.pi)
    return torch.logsumexp(terms, dim=-1) - math.log(COMPONENTS)


def importance_weights(log_weights: torch.Tensor) -> torch.Tensor:
    """The share of each sample in the bound of the importance-weighted autoencoder."""
    return F.softmax(log_weights.float(), dim=0)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.SiLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.SiLU(), nn.Flatten())
        self.out = nn.Linear(32 * PIXELS // 16, 2 * LATENT)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        image = (image.float() / 127.5 - 1).to(self.out.weight.dtype)
        mean, log_variance = self.out(self.body(image)).chunk(2, dim=-1)
        return mean, log_variance


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(LATENT, 32 * PIXELS // 16)
        self.body = nn.Sequential(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(16, 2, 4, 2, 1))
        nn.init.constant_(self.body[2].bias[1:], -2.0)  # the pixels' log scale

    def forward(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.silu(self.enter(z.to(self.enter.weight.dtype))).view(len(z), 32, SIDE // 4, SIDE // 4)
        mean, log_scale = self.body(x).flatten(2).unbind(1)
        return mean, log_scale


class VAE(nn.Module):
    """Returns the importance-weighted bound of every image, and the divergence with free bits."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()
        self.centers = nn.Parameter(1.5 * torch.randn(COMPONENTS, LATENT))

    def forward(self, image: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_variance = self.encoder(image)
        z = sampled(mean, log_variance, noise)
        pixel_mean, log_scale = self.decoder(z.flatten(0, 1))
        pixels = pixel_log_likelihood(image.flatten(1).repeat(SAMPLES, 1), pixel_mean, log_scale)
        likelihood = image_log_likelihood(pixels).view(SAMPLES, -1)
        posterior = -0.5 * (noise.float().square() + log_variance.float() + math.log(2 * math.pi)).sum(-1)
        log_weights = likelihood + mixture_log_density(z, self.centers) - posterior
        bound = (importance_weights(log_weights).detach() * log_weights).sum(0)
        return bound, with_free_bits(divergence(mean, log_variance))


def make() -> nn.Module:
    """The posterior stays close to the prior, as at the start of training and wherever a latent is not used."""
    torch.manual_seed(0)
    model = VAE()
    with torch.no_grad():
        model.encoder.out.weight.mul_(0.3)
        model.encoder.out.bias.mul_(0.3)
    return model


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    wave = torch.linspace(0, 3, SIDE)
    image = 127 + 100 * torch.sin(wave[:, None] + wave) * torch.linspace(0.2, 1.3, 8).view(-1, 1, 1, 1)
    image = (image + 8 * torch.randn(8, 1, SIDE, SIDE, generator=g)).round().clamp(0, 255)
    return image.long(), torch.randn(SAMPLES, 8, LATENT, generator=g)


def loss(output: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    bound, kl = output
    return kl - bound.mean() / PIXELS
