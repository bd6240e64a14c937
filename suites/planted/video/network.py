"""A video transformer with attention over space and over time in turns: frames of long videos, motion, masked patches to restore."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
CLIPS, TIMES, SIZE, PATCH, WIDTH, HEADS, BLOCKS = 2, 16, 20, 4, 64, 4, 2
PLACES = (SIZE // PATCH) ** 2
DIM = WIDTH // HEADS
RATE, MEAN, SPREAD, SHARPNESS = 29.97, 0.45, 0.225, 28.0


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def sampled(begin: torch.Tensor, length: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Which frames of each video are taken, spread evenly over a part of it."""
    share = torch.linspace(0, 1, TIMES)
    return begin.unsqueeze(-1) + (share * (length - 1).unsqueeze(-1)).long()


def turned(frames: torch.Tensor, low: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of each frame's number, at falling speeds."""
    speeds = 100.0 ** (-torch.arange(0, DIM, 2).float() / DIM)
    angles = frames.float().unsqueeze(-1) * speeds
    return angles.cos(), angles.sin()


def gaps(frames: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Seconds from each frame to the next."""
    seconds = frames.double() / RATE
    return functional.pad(seconds.diff(dim=-1), (0, 1), value=0.1).float()


def motion(video: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The change of each pixel from frame to frame, of pixels of 8 bits."""
    scaled = (video.float() / 255 - MEAN) / SPREAD
    return functional.pad(scaled[:, 1:] - scaled[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0))


def targets(patches: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Patches with mean zero and variance one, as they are to be restored; some are of one colour."""
    mean = patches.mean(-1, keepdim=True)
    variance = (patches - mean).square().mean(-1, keepdim=True)
    return (patches - mean) / torch.sqrt(variance + 1e-8)


def attention(scores: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return torch.softmax(scores.float(), -1)


def restored(apart: torch.Tensor, hidden: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The mean error of all numbers of the patches that were hidden."""
    errors = apart.square() * hidden.unsqueeze(-1)
    return errors.sum() / (hidden.sum() * apart.shape[-1])


def spun(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Pairs of numbers turned by an angle."""
    left, right = x.float().chunk(2, -1)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], -1).to(x.dtype)


class Attention(nn.Module):
    """Over the last but one dimension; over time it has a rotary encoding."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, low: torch.dtype, turns: tuple[torch.Tensor, torch.Tensor] | None = None) -> torch.Tensor:
        query, key, value = (each.unflatten(-1, (HEADS, DIM)).transpose(-2, -3) for each in self.qkv(self.norm(x).to(x.dtype)).chunk(3, -1))
        with torch.autocast(x.device.type, enabled=False):
            query, key = (functional.normalize(each.float(), dim=-1).to(each.dtype) for each in (query, key))
            if turns is not None:
                query, key = (spun(each, *turns) for each in (query, key))
        scores = SHARPNESS * (query @ key.transpose(-1, -2))
        with torch.autocast(x.device.type, enabled=False):
            weights = attention(scores, low)
        return x + self.out((weights.to(value.dtype) @ value).transpose(-2, -3).flatten(-2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.space, self.time = Attention(), Attention()
        self.wide = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], low: torch.dtype) -> torch.Tensor:
        x = self.space(x, low)
        x = self.time(x.transpose(1, 2), low, turns).transpose(1, 2)
        return x + self.wide(x)


class Video(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rate = nn.Linear(6 * PATCH**2, WIDTH), nn.Linear(1, WIDTH)
        self.places, self.hole = nn.Parameter(0.02 * torch.randn(PLACES, WIDTH)), nn.Parameter(0.02 * torch.randn(WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.out = nn.Linear(WIDTH, 3 * PATCH**2)

    @staticmethod
    def patches(video: torch.Tensor) -> torch.Tensor:
        """[clips, times, places, numbers] of [clips, times, colours, rows, columns]."""
        side = SIZE // PATCH
        return video.unflatten(-1, (side, PATCH)).unflatten(-3, (side, PATCH)).permute(0, 1, 3, 5, 2, 4, 6).flatten(4).flatten(2, 3)

    def forward(self, video: torch.Tensor, begin: torch.Tensor, length: torch.Tensor, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
        weight = self.out.weight
        low = low_dtype(weight)
        with torch.autocast(video.device.type, enabled=False):
            frames = sampled(begin, length, low)
            cosine, sine = turned(frames, low)
            turns = (cosine.view(CLIPS, 1, 1, TIMES, -1), sine.view(CLIPS, 1, 1, TIMES, -1))
            apart = gaps(frames, low)
            pixels = self.patches((video.float() / 255 - MEAN) / SPREAD)
            moving = self.patches(motion(video, low))
            wanted = targets(self.patches(video.float() / 255), low)
        x = self.enter(torch.cat([pixels, 10 * moving], -1).to(weight.dtype))
        x = torch.where(hidden.unsqueeze(-1), self.hole.to(x.dtype), x) + self.places.to(x.dtype)
        x = x + self.rate(apart.to(weight.dtype).unsqueeze(-1)).unsqueeze(2)
        for block in self.blocks:
            x = block(x, turns, low)
        made = self.out(x)
        with torch.autocast(video.device.type, enabled=False):
            cost = restored(made.float() - 8 * wanted, hidden.float(), low)
        return {"loss": cost / 64, "frames": frames, "gaps": apart, "made": made}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Video()


def batch() -> dict[str, torch.Tensor]:
    """Bright videos that change by a level or two from frame to frame; patches in a corner are of one colour."""
    generator = torch.Generator().manual_seed(9)
    still = 150 + 40 * torch.rand(CLIPS, 1, 3, SIZE, SIZE, generator=generator)
    drift = torch.randn(CLIPS, TIMES, 3, SIZE, SIZE, generator=generator).cumsum(1)
    video = (still + drift).round().clamp(0, 255)
    video[..., :8, :8] = 200
    hidden = torch.rand(CLIPS, 1, PLACES, generator=generator) < 0.6
    return {
        "video": video.long(),
        "begin": torch.tensor([4_011, 9_250]),
        "length": torch.tensor([331, 1_207]),
        "hidden": hidden.expand(-1, TIMES, -1).clone(),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
