"""A small residual network with BatchNorm in training mode, so that running statistics move."""

from __future__ import annotations

import torch
from case import Case, built, draws
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Two convolutions and a shortcut, which is projected where the shape changes (arXiv 1512.03385, figure 2)."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or into != out:
            self.shortcut = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        return functional.relu(self.bn2(self.conv2(hidden)) + self.shortcut(x))


def make() -> nn.Module:
    stem = (nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    return nn.Sequential(*stem, Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def build(seed: int = 0) -> Case:
    images = torch.randn(8, 3, 32, 32, generator=draws(seed))
    labels = torch.randint(10, (8,), generator=draws(seed))
    return Case(built(seed, make), images, lambda out: functional.cross_entropy(out.float(), labels))
