"""A neural radiance field: rays of a camera, Fourier features of places, coarse and fine samples along each ray, volume rendering.

Places and distances are float32 whatever the network computes in, as renderers have them, so this model is trained in mixed precision
only.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed")
STEPS = 1
NEAR, FAR, COARSE, FINE, OCTAVES, WIDTH = 2.0, 6.0, 48, 48, 8, 48


def encoded(places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Sine and cosine of each coordinate at each octave."""
    octaves = torch.pi * 2.0 ** torch.arange(OCTAVES, device=places.device)
    angles = places.float().unsqueeze(-1) * octaves
    return torch.cat([torch.sin(angles), torch.cos(angles)], -1).flatten(-2).float()


def depths(jitter: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Where each ray is sampled at first: one place in each of equal parts, by chance."""
    edges = torch.linspace(NEAR, FAR, COARSE + 1, device=jitter.device)
    return edges[:-1] + (edges[1:] - edges[:-1]) * jitter


def lengths(along: torch.Tensor) -> torch.Tensor:
    """How long each sample is: to the next one; the last is as long as the one before."""
    apart = along[:, 1:] - along[:, :-1]
    return torch.cat([apart, apart[:, -1:]], -1).float()


def weights(density: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
    """What of a ray's light comes from each sample: what the sample stops of what comes so far."""
    thickness = torch.exp(density.float() - 1) * apart
    reached = torch.exp(-(thickness.cumsum(-1) - thickness))
    return -torch.expm1(-thickness) * reached


def resampled(along: torch.Tensor, shares: torch.Tensor, uniform: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Finer samples where the coarse ones saw something, by inverting the cumulative distribution."""
    shares = shares.detach().float()[:, 1:-1] + 1e-5
    cumulative = (shares / shares.sum(-1, keepdim=True)).cumsum(-1)
    cumulative = torch.cat([torch.zeros_like(cumulative[:, :1]), cumulative], -1).contiguous()
    above = torch.searchsorted(cumulative, uniform.to(cumulative.dtype).contiguous(), right=True).clamp(1, cumulative.shape[-1] - 1)
    middles = 0.5 * (along[:, 1:] + along[:, :-1])
    left, right = cumulative.gather(1, above - 1), cumulative.gather(1, above)
    place = (uniform - left) / (right - left).clamp_min(1e-5)
    begin, end = middles.gather(1, above - 1), middles.gather(1, above)
    return (begin + place * (end - begin)).float()


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6 * OCTAVES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.density = nn.Linear(WIDTH, 1)
        self.colour = nn.Sequential(nn.Linear(WIDTH + 3, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))

    def forward(self, places: torch.Tensor, directions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low = self.density.weight.dtype if not torch.is_autocast_enabled("cpu") else torch.get_autocast_dtype("cpu")
        features = self.body(encoded(places, low))
        colours = torch.sigmoid(self.colour(torch.cat([features, directions.to(features.dtype)], -1)).float())
        return self.density(features).squeeze(-1), colours


class Renderer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.coarse = Field()
        self.fine = Field()

    def render(self, field: Field, origin: torch.Tensor, direction: torch.Tensor, along: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = origin.unsqueeze(1) + along.unsqueeze(-1) * direction.unsqueeze(1)
        density, colours = field(places / FAR, direction.unsqueeze(1).expand_as(places))
        with torch.autocast(density.device.type, enabled=False):
            shares = weights(density, lengths(along))
        return (shares.unsqueeze(-1) * colours).sum(1), shares

    def forward(
        self, origin: torch.Tensor, direction: torch.Tensor, jitter: torch.Tensor, uniform: torch.Tensor, seen: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else origin.dtype
        along = depths(jitter, low)
        rough, shares = self.render(self.coarse, origin, direction, along)
        with torch.autocast(origin.device.type, enabled=False):
            finer = resampled(along, shares, uniform, low)
        every = torch.sort(torch.cat([along, finer], -1), -1).values
        sharp, shares = self.render(self.fine, origin, direction, every)
        return {"loss": functional.mse_loss(rough, seen) + functional.mse_loss(sharp, seen), "depth": (shares * every).sum(-1)}


def make() -> nn.Module:
    torch.manual_seed(0)
    model = Renderer()
    with torch.no_grad():  # there is something in the scene, as after training
        for field in (model.coarse, model.fine):
            field.density.weight.mul_(60.0)
    return model


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    rays = 32
    direction = functional.normalize(torch.randn(rays, 3, generator=generator) + torch.tensor([0.0, 0.0, -3.0]), dim=-1)
    return {
        "origin": torch.tensor([0.3, -0.2, 4.0]).expand(rays, 3).contiguous(),
        "direction": direction,
        "jitter": torch.rand(rays, COARSE, generator=generator),
        "uniform": torch.rand(rays, FINE, generator=generator),
        "seen": torch.rand(rays, 3, generator=generator),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
