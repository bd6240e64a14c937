"""A small GPT, trained in 16-mixed under a GradScaler as people do it, with a place in its second layer for a fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch
from room import sixteen
from torch import nn
from torch.nn import functional

import precheck
from precheck.findings import Report

WORDS, SIZE, LENGTH = 24, 16, 8


class Place(nn.Module):
    """Where a test plants something; the identity as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.slope, self.factor = 1.0, 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.slope != 1:
            steep = x.float() * self.slope  # too steep
            x = x + (steep - steep.detach()).to(x.dtype)  # of the same value
        if self.factor != 1:
            x = x * self.factor  # too large
        return x


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between, self.place = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE), Place()
        self.mix, self.out = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)
        self.up, self.down = nn.Linear(SIZE, 4 * SIZE), nn.Linear(4 * SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(self.before(x)).unflatten(-1, (3, 2, SIZE // 2)).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(self.place(functional.gelu(self.up(self.between(x)))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.words, self.places = nn.Embedding(WORDS, SIZE), nn.Embedding(LENGTH, SIZE)
            self.layers, self.norm, self.head = nn.Sequential(Layer(), Layer()), nn.LayerNorm(SIZE), nn.Linear(SIZE, WORDS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.words(ids) + self.places(torch.arange(ids.shape[1])))))


def at(*steps: int, **facts: float) -> Callable[[int, Place], None]:
    """A plant with these attributes at those steps only."""

    def plant(step: int, place: Place) -> None:
        place.slope = place.factor = 1.0
        if step in steps:
            vars(place).update(facts)

    return plant


def line_with(mark: str) -> str:
    """How a report tells the line of this file that ends in that comment."""
    lines = Path(__file__).read_text(encoding="utf8").splitlines()
    return f"counting.py:{next(number for number, line in enumerate(lines, 1) if line.endswith(f'# {mark}'))}"


@dataclasses.dataclass
class Training:
    """Predicts the next of words that count up. `plant(step, place)` is called before each step, from the first, which is 0."""

    steps: int
    plant: Callable[[int, Place], None] = lambda step, place: None
    scale: float = 2.0**16
    growth: int = 2000

    def __post_init__(self) -> None:
        self.model, self.losses = Gpt(), [0.0]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.scale, growth_interval=self.growth)

    def run(self) -> Report:
        """The report on all steps."""
        optimizer, drawn = torch.optim.AdamW(self.model.parameters(), lr=3e-3, fused=True), torch.Generator().manual_seed(0)
        self.losses.clear()
        with precheck.watch(self.model) as report:
            for step in range(self.steps):
                self.plant(step, self.model.layers[1].place)
                ids = (torch.randint(WORDS, (4, 1), generator=drawn) + torch.arange(LENGTH + 1)) % WORDS
                optimizer.zero_grad()
                with sixteen():
                    loss = functional.cross_entropy(self.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
                self.scaler.scale(loss).backward()
                self.scaler.step(optimizer)
                self.scaler.update()
                self.losses.append(loss.detach().item())
        return report
