"""A picture is turned into a cloud of soft ellipsoids, which are drawn from another camera, the nearest first."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed")  # cameras are on a map, in metres
STEPS = 1
SIDE, DRAWN, WIDTH, FOCAL, NEAR, FAR = 12, 14, 24, 14.0, 2.0, 60.0


def low_dtype() -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.get_default_dtype()


def depths(raw: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Between the nearest and the farthest, evenly in one over the depth."""
    share = torch.sigmoid(raw.float() + 3)
    return 1 / (1 / NEAR + share * (1 / FAR - 1 / NEAR))


def rotations(turn: torch.Tensor) -> torch.Tensor:
    w, x, y, z = functional.normalize(turn.float(), dim=-1).unbind(-1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def spreads(turn: torch.Tensor, size: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The covariance of each ellipsoid."""
    axes = rotations(turn) * size.float().unsqueeze(-2)
    return axes @ axes.transpose(-1, -2)


def seen_from(places: torch.Tensor, camera: torch.Tensor, turned: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Places on the map, as the camera has them."""
    return (places - camera) @ turned.T


def flattened(spread: torch.Tensor, at: torch.Tensor, turned: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """What is left of each covariance on the picture, in pixels, with a little blur."""
    x, y, z = at.unbind(-1)
    none = torch.zeros_like(z)
    slope = torch.stack([torch.stack([FOCAL / z, none, -FOCAL * x / z**2], -1), torch.stack([none, FOCAL / z, -FOCAL * y / z**2], -1)], -2)
    across = slope @ turned
    return across @ spread @ across.transpose(-1, -2) + 2e-4 * torch.eye(2)


def inverted(flat: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The inverse of each two by two matrix: its a, b and c."""
    a, b, c = flat[..., 0, 0], flat[..., 0, 1], flat[..., 1, 1]
    determinant = a * c - b * b
    return (torch.stack([c, -b, a], -1) / determinant.clamp_min(1e-9).unsqueeze(-1)).float()


def drawn(at: torch.Tensor, cone: torch.Tensor, opacity: torch.Tensor, colour: torch.Tensor, low: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Blends colours from the nearest to the farthest. Returns the picture, and how much of the light is taken."""
    order = at[:, 2].argsort()
    at, cone, opacity, colour = at[order], cone[order], opacity[order], colour[order]
    on = FOCAL * at[:, :2] / at[:, 2:] + DRAWN / 2
    pixels = torch.stack(torch.meshgrid(torch.arange(DRAWN).float() + 0.5, torch.arange(DRAWN).float() + 0.5, indexing="xy"), -1).reshape(-1, 1, 2)
    x, y = (pixels - on).unbind(-1)
    a, b, c = cone.unbind(-1)
    shown = opacity.float() * torch.exp(-0.5 * (a * x * x + 2 * b * x * y + c * y * y).clamp_min(0))
    through = torch.cumprod(1 - shown, -1)
    before = functional.pad(through[:, :-1], (1, 0), value=1.0)
    return ((shown * before) @ colour.float()).float(), (1 - through[:, -1]).float()


class Splats(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, padding=1), nn.GELU(), nn.GroupNorm(4, WIDTH), nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.GELU()
        )
        self.head = nn.Conv2d(WIDTH, 1 + 3 + 4 + 1 + 3, 1)

    def forward(
        self, picture: torch.Tensor, camera: torch.Tensor, other: torch.Tensor, turned: torch.Tensor, wanted: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        low = low_dtype()
        found = self.head(self.body(picture))[0].flatten(1).T
        raw, size, turn, opaque, colour = found.split((1, 3, 4, 1, 3), -1)
        with torch.autocast(picture.device.type, enabled=False):
            depth = depths(raw.squeeze(-1), low)
            pixel = torch.stack(torch.meshgrid(torch.arange(SIDE).float(), torch.arange(SIDE).float(), indexing="xy"), -1).reshape(-1, 2)
            ray = torch.cat([(pixel + 0.5 - SIDE / 2) / FOCAL, torch.ones(SIDE * SIDE, 1)], -1)
            places = camera + ray * depth.unsqueeze(-1)
            longest = torch.tensor([0.4, 0.4, 0.003]) * depth.unsqueeze(-1) / 4
            spread = spreads(turn, torch.exp(0.3 * size.float().tanh()) * longest, low)
            at = seen_from(places, other, turned, low)
            cone = inverted(flattened(spread, at, turned, low), low)
            light, taken = drawn(at, cone, 0.05 * torch.sigmoid(opaque.float().squeeze(-1)), torch.sigmoid(colour.float()), low)
        loss = (light - wanted).abs().mean() + 0.1 * taken.square().mean()
        return {"loss": loss, "light": light, "taken": taken}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Splats()


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    angle = torch.tensor(0.1)
    c, s = angle.cos(), angle.sin()
    camera = torch.tensor([812.25, 1403.5, 95.75])
    return {
        "picture": torch.rand(1, 3, SIDE, SIDE, generator=generator),
        "camera": camera,
        "other": camera + torch.tensor([0.6, -0.2, -0.9]),
        "turned": torch.stack([torch.stack([c, torch.tensor(0.0), s]), torch.tensor([0.0, 1.0, 0.0]), torch.stack([-s, torch.tensor(0.0), c])]),
        "wanted": torch.rand(DRAWN * DRAWN, 3, generator=generator),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
