"""Optical flow: all pairs of places of two frames are correlated, and a recurrent cell moves each place to where it is found again."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed")  # the true flow is an input, which a conversion of everything would round
STEPS = 1
WIDTH, HIDDEN, RADIUS, LEVELS, TURNS, STRIDE = 32, 32, 2, 2, 6, 4


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def grid_of(height: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """The place of each pixel, x first."""
    y, x = torch.meshgrid(torch.arange(height, device=like.device).float(), torch.arange(width, device=like.device).float(), indexing="ij")
    return torch.stack([x, y], -1)


def correlation(one: torch.Tensor, two: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How alike each place of one frame is to each of the other."""
    b, c, h, w = one.shape
    one = one / c**0.5
    alike = one.flatten(2).transpose(1, 2).to(low) @ two.flatten(2).to(low)
    return alike.float().view(b * h * w, 1, h, w)


def looked_up(pyramid: list[torch.Tensor], centres: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The correlations around where each place is now thought to be, at each level."""
    b, h, w, _ = centres.shape
    around = torch.arange(-RADIUS, RADIUS + 1, device=centres.device).float()
    offsets = torch.stack(torch.meshgrid(around, around, indexing="ij"), -1)
    found = []
    for level, alike in enumerate(pyramid):
        at = centres.reshape(-1, 1, 1, 2) / 2**level + offsets
        size = torch.tensor([alike.shape[-1], alike.shape[-2]], device=centres.device).float()
        grid = 2 * at / (size - 1) - 1
        sampled = functional.grid_sample(alike, grid.float(), align_corners=True)
        found.append(sampled.view(b, h, w, -1))
    return torch.cat(found, -1)


def moved(places: torch.Tensor, by: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Where each place goes."""
    return places + by.float()


def robust(error: torch.Tensor, valid: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Nearly the distance, but smooth where it is nothing."""
    square = (error * valid.unsqueeze(-1)).square().sum(-1)
    return (square + 1e-8).sqrt().float()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 24, 5, stride=2, padding=2), nn.Conv2d(24, 48, 3, stride=2, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(4, 24), nn.GroupNorm(4, 48)
        self.out = nn.Conv2d(48, WIDTH, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm1(self.first(image)))
        return self.out(torch.relu(self.norm2(self.second(x))))


class Cell(nn.Module):
    """A gated recurrent cell of convolutions."""

    def __init__(self, given: int) -> None:
        super().__init__()
        self.gates, self.new = nn.Conv2d(HIDDEN + given, 2 * HIDDEN, 3, padding=1), nn.Conv2d(HIDDEN + given, HIDDEN, 3, padding=1)

    def forward(self, hidden: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        keep, reset = torch.sigmoid(self.gates(torch.cat([hidden, x], 1))).chunk(2, 1)
        new = torch.tanh(self.new(torch.cat([reset * hidden, x], 1)))
        return (1 - keep) * hidden + keep * new


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.context = Encoder(), Encoder()
        self.motion = nn.Conv2d(LEVELS * (2 * RADIUS + 1) ** 2 + 2, WIDTH, 1)
        self.cell = Cell(2 * WIDTH)
        self.head = nn.Sequential(nn.Conv2d(HIDDEN, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 2, 3, padding=1))

    def way(self, one: torch.Tensor, two: torch.Tensor) -> list[torch.Tensor]:
        """The flow from one frame to the other, after each turn."""
        low = low_dtype(self.head[0].weight)
        f1, f2, context = self.features(one), self.features(two), torch.relu(self.context(one))
        with torch.autocast(one.device.type, enabled=False):
            alike = correlation(f1, f2, low)
            pyramid = [alike] + [functional.avg_pool2d(alike, 2**level) for level in range(1, LEVELS)]
            begin = grid_of(*f1.shape[-2:], f1).expand(len(one), -1, -1, -1)
        places, hidden, flows = begin, torch.tanh(context), []
        for _ in range(TURNS):
            with torch.autocast(one.device.type, enabled=False):
                near = looked_up(pyramid, places.detach(), low)
                flow = places - begin
            seen = torch.relu(self.motion(torch.cat([near * 0.02, flow / 4], -1).permute(0, 3, 1, 2)))
            hidden = self.cell(hidden, torch.cat([seen, context], 1))
            step = self.head(hidden).permute(0, 2, 3, 1)
            with torch.autocast(one.device.type, enabled=False):
                places = moved(places, step, low)
                flows.append((places - begin).float())
        return flows

    def forward(self, one: torch.Tensor, two: torch.Tensor, flow: torch.Tensor, valid: torch.Tensor) -> dict[str, torch.Tensor]:
        low = low_dtype(self.head[0].weight)
        there = self.way(one, two)
        with torch.autocast(one.device.type, enabled=False):
            off = torch.stack([robust(each - flow, valid, low).mean() for each in there])
        weights = 0.8 ** torch.arange(TURNS - 1, -1, -1, device=off.device).float()
        return {"flow": there[-1] * STRIDE, "loss": (weights * off.float()).sum()}


def make() -> nn.Module:
    torch.manual_seed(0)
    model = Flow()
    with torch.no_grad():
        model.features.out.weight.mul_(90)
        model.head[2].bias.copy_(torch.tensor([0.7, -0.2]))
    return model


def batch() -> dict[str, torch.Tensor]:
    """A frame, and the same frame moved by some pixels; a corner has no true flow."""
    generator = torch.Generator().manual_seed(1)
    coarse = torch.randn(1, 3, 9, 102, generator=generator)
    whole = functional.interpolate(coarse, size=(36, 408), mode="bilinear", align_corners=False)
    one, two = whole[..., 4:32, 8:392], whole[..., 3:31, 12:396]
    flow = torch.tensor([-1.0, 0.25]).expand(1, 7, 96, 2) + 0.05 * torch.randn(1, 7, 96, 2, generator=generator)
    valid = torch.ones(1, 7, 96)
    valid[:, :3, :6] = 0
    return {"one": one, "two": two, "flow": flow, "valid": valid}


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
