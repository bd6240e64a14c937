"""A Swin transformer that segments images: windows of 12 by 12 patches, shifted in every second block, cosine attention with learned
temperatures and a table of relative positions; the classes of patches are drawn up to pixels, and trained with a Dice loss.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
WIDTH, HEADS, SIDE, WINDOW, PATCH, CLASSES = 32, 2, 24, 12, 12, 3
DEEP = WIDTH // HEADS


def bias_index(window: int, like: torch.Tensor) -> torch.Tensor:
    """For each pair of patches in a window, the row of the table that holds their relative position."""
    place = torch.arange(window, device=like.device)
    down, along = place.repeat_interleave(window), place.repeat(window)
    rows = (down[:, None] - down[None]) + window - 1
    columns = (along[:, None] - along[None]) + window - 1
    return rows * (2 * window - 1) + columns


def attention_weights(q: torch.Tensor, k: torch.Tensor, temperature: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Cosines over a temperature, and what is learned of relative positions."""
    cosines = functional.normalize(q.float(), dim=-1) @ functional.normalize(k.float(), dim=-1).transpose(-1, -2)
    scale = temperature.float().clamp(max=math.log(100)).exp()
    scores = cosines * scale + bias.float()
    return torch.softmax(scores.float() + mask, -1)


def split(x: torch.Tensor) -> torch.Tensor:
    """(batch, side, side, width) to (batch, windows, patches of a window, width)."""
    b, n = x.shape[0], SIDE // WINDOW
    return x.view(b, n, WINDOW, n, WINDOW, -1).transpose(2, 3).reshape(b, n * n, WINDOW * WINDOW, -1)


def joined(x: torch.Tensor) -> torch.Tensor:
    b, n = x.shape[0], SIDE // WINDOW
    return x.view(b, n, n, WINDOW, WINDOW, -1).transpose(2, 3).reshape(b, SIDE, SIDE, -1)


def window_mask(shift: int, device: torch.device) -> torch.Tensor:
    """Patches that only the shift has brought together don't see each other."""
    region = torch.zeros(SIDE, device=device, dtype=torch.long)
    if shift:
        region[-WINDOW:-shift], region[-shift:] = 1, 2
    of = split((3 * region[:, None] + region[None]).view(1, SIDE, SIDE, 1)).squeeze(-1)
    return torch.where(of.unsqueeze(-1) == of.unsqueeze(-2), 0.0, -100.0).unsqueeze(2)


def drawn_up(scores: torch.Tensor, pixels: int) -> torch.Tensor:
    """The scores of patches at each pixel, between patches linearly."""
    centres = (2 * torch.arange(pixels, device=scores.device).float() + 1) / pixels - 1
    grid = torch.stack(torch.meshgrid(centres, centres, indexing="xy"), -1).expand(len(scores), -1, -1, -1)
    return functional.grid_sample(scores.float(), grid.float(), mode="bilinear", padding_mode="border", align_corners=False)


def class_shares(label: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """How much of all images each class covers."""
    counts = torch.zeros(CLASSES, device=like.device)
    counts = counts.index_add(0, label.flatten(), torch.ones(label.numel(), dtype=counts.dtype, device=like.device))
    return (counts / counts.sum()).float()


def dice(chances: torch.Tensor, truth: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """One less the share of each class's area that is right."""
    chances = chances.float()
    both = (chances * truth).sum((-1, -2))
    area = chances.sum((-1, -2)) + truth.to(chances.dtype).sum((-1, -2))
    return 1 - (2 * both + 1) / (area + 1)


class Block(nn.Module):
    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift = shift
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.temperature = nn.Parameter(torch.full((HEADS, 1, 1), math.log(60.0)))
        self.table = nn.Parameter(torch.randn((2 * WINDOW - 1) ** 2, HEADS))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near = split(self.norm1(x).roll((-self.shift, -self.shift), (1, 2)))
        b, windows, patches, _ = near.shape
        q, k, v = self.qkv(near).view(b, windows, patches, 3, HEADS, DEEP).permute(3, 0, 1, 4, 2, 5)
        bias = self.table[bias_index(WINDOW, x).flatten()].view(patches, patches, HEADS).permute(2, 0, 1)
        with torch.autocast(x.device.type, enabled=False):
            weights = attention_weights(q, k, self.temperature, bias, window_mask(self.shift, x.device))
        mixed = (weights.to(v.dtype) @ v).transpose(2, 3).reshape(b, windows, patches, WIDTH)
        x = x + joined(self.out(mixed)).roll((self.shift, self.shift), (1, 2))
        return x + self.mlp(self.norm2(x))


class Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.blocks = nn.Sequential(Block(0), Block(WINDOW // 2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, images: torch.Tensor, truth: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.patches(images).permute(0, 2, 3, 1)
        scores = self.head(self.norm(self.blocks(x)))
        with torch.autocast(x.device.type, enabled=False):
            pixels = drawn_up(scores.permute(0, 3, 1, 2), images.shape[-1])
            lost = dice(pixels.softmax(1), truth, scores)
            weights = 1 / (class_shares(truth.float().argmax(1), scores) + 0.01)
        return {"pixels": pixels, "loss": (lost * weights / weights.sum()).sum(-1).mean()}


def make() -> nn.Module:
    """Most of an image is background, as the head has come to know."""
    torch.manual_seed(0)
    model = Swin()
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([2.0, -2.0, -2.0]))
    return model


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2, 3, SIDE * PATCH, SIDE * PATCH, generator=generator)
    label = torch.zeros(2, SIDE * PATCH, SIDE * PATCH, dtype=torch.long)
    label[0, 20:90, 30:60], label[1, 100:180, 200:260] = 1, 2
    return {"images": images, "truth": functional.one_hot(label, CLASSES).permute(0, 3, 1, 2).bool()}


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
