"""Networks that are deep, or whose branches are small, before they are trained: correct rounding alone costs what they lose."""

from __future__ import annotations

import torch
from bugs.bug import normal
from torch import nn
from torch.nn import functional

from healthy.trainings import seeded

LOW = torch.bfloat16


class ClassAttention(nn.Module):
    """A class token that attends to patches, through a branch that starts at 1e-5 of itself, as CaiT's."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.token, self.scale = nn.Parameter(0.02 * torch.randn(1, 1, width)), nn.Parameter(torch.full((width,), 1e-5))
        self.attention, self.norm, self.head = nn.MultiheadAttention(width, 4, batch_first=True), nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        token = self.token.expand(len(patches), -1, -1)
        both = self.norm(torch.cat([token, patches], 1))
        token = token + self.scale * self.attention(both[:, :1], both, both)[0]
        result: torch.Tensor = self.head(self.norm(token)[:, 0])
        return result


STORED, PATCHES = seeded(ClassAttention).to(LOW), normal(4, 16, 64).to(LOW)
"""Made before anybody watches, as models are: weights and inputs are given."""


class KeysAndValues(nn.Module):
    """Keys and values of one projection, as Twins has them: a softmax does not see the bias of all keys, whose gradient is rounding."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.query, self.pair, self.head = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, 10)
        nn.init.zeros_(self.pair.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.query(x).view(len(x), -1, 4, 16).transpose(1, 2)
        key, value = self.pair(x).view(len(x), -1, 2, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        result: torch.Tensor = self.head(mixed.transpose(1, 2).flatten(2).mean(1))
        return result


def convolutions() -> nn.Module:
    blocks = [(nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()) for _ in range(30)]
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *(layer for block in blocks for layer in block), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def scaled_branch() -> tuple[torch.Tensor, ...]:
    """All of what the branch adds is less than half a spacing of the token, and rounded away."""
    return tuple(STORED(PATCHES[:batch]).float() for batch in (1, 4))


def noise_on_a_mean() -> torch.Tensor:
    """Statistics pooled over time, with noise of 1e-5 against a division by zero."""
    layer = seeded(lambda: nn.Linear(16, 96))
    with torch.autocast("cpu", LOW):
        mean = layer(normal(4, 50, 16)).mean(1, keepdim=True)
        mean += 1e-5 * (1 + 8 * normal(*mean.shape).sigmoid().to(mean.dtype))
        return mean.float()


def gates_at_zero() -> torch.Tensor:
    """Thirty convolutions with batch norm and ReLU: rounding moves values across zero, and none of them was near the format's end."""
    network = seeded(convolutions)
    with torch.autocast("cpu", LOW):
        result: torch.Tensor = network(normal(16, 3, 8, 8))
    result.float().square().mean().backward()
    return result


def key_bias() -> torch.Tensor:
    """Adam takes a gradient that is rounding for one of any size: half of the bias goes anywhere."""
    model = seeded(KeysAndValues)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        with torch.autocast("cpu", LOW):
            loss = functional.cross_entropy(model(normal(8, 16, 64)).float(), torch.arange(8) % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.detach()


def spectral_training() -> torch.Tensor:
    """A loss scale goes through an FFT and back, as through any linear op."""
    first, second = seeded(lambda: nn.Linear(8, 8)), seeded(lambda: nn.Linear(8, 8))
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(2):
        with torch.autocast("cpu", torch.float16):
            spectrum = torch.fft.rfft(first(normal(4, 16, 8)).float(), dim=1) * torch.fft.rfft(normal(16, 8, seed=1), dim=0)
            loss = second(torch.fft.irfft(spectrum, 16, dim=1)).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss.detach()


IDIOMS = (scaled_branch, noise_on_a_mean, gates_at_zero, key_bias, spectral_training)
