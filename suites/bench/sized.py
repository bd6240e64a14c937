"""A GPT whose size is a parameter, with its training step; what the budgets are measured on."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable

import torch
from torch import nn

SHAPES = {1: (96, 2), 4: (192, 5), 17: (512, 4), 124: (1024, 9)}
"""Millions of parameters: (width, layers), on a vocabulary of 4096 and 256 positions."""
VOCABULARY, LENGTH, BATCH = 4096, 256, 4


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = self.qkv(self.first(x)).view(batch, length, 3, 8, width // 8).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def made(millions: int, device: str = "cpu") -> tuple[GPT, torch.Tensor]:
    """The model of that size and a batch of ids, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT(*SHAPES[millions]).to(device), torch.randint(0, VOCABULARY, (BATCH, LENGTH)).to(device)


def loss_of(ids: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda logits: nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """At a rate at which bfloat16 weights move, so that nothing is amiss that would be looked into."""
    return torch.optim.AdamW(parameters, lr=1e-2)


@dataclasses.dataclass
class Trained:
    """A model in a dtype, or under autocast, with its AdamW; `step()` is one training step."""

    millions: int
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        self.model, self.ids = made(self.millions, self.device)
        self.model.to(self.dtype)
        self.loss, self.optimizer = loss_of(self.ids), torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast(self.device, self.autocast) if self.autocast else contextlib.nullcontext():
            logits = self.model(self.ids)
        self.loss(logits).backward()
        self.optimizer.step()

    @property
    def held(self) -> int:
        """Bytes of weights and optimizer state, which stay from step to step."""
        state = [value for each in self.optimizer.state.values() for value in each.values() if isinstance(value, torch.Tensor)]
        return sum(tensor.nbytes for tensor in (*self.model.parameters(), *state))

    def training(self, steps: int) -> None:
        """As many steps as a test takes, with an optimizer of its own."""
        self.optimizer.state.clear()
        for _ in range(steps):
            self.step()
