"""A GPT of two layers and 0.1 M parameters, and a language that it can learn in 150 steps."""

from __future__ import annotations

import torch
from torch import nn

VOCABULARY, LENGTH, BATCH, WIDTH, HEADS = 64, 32, 8, 64, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = self.qkv(self.first(x)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    @classmethod
    def seeded(cls) -> GPT:
        """The same initial weights every time, whatever the global generator's state, which is left alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return cls()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class Batches:
    """Sentences in which 5 of 6 words follow from the one before, the same for everyone who asks."""

    def __init__(self) -> None:
        self.drawn = torch.Generator().manual_seed(1)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        words = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=self.drawn)
        surprising = torch.rand(BATCH, LENGTH + 1, generator=self.drawn) < 1 / 6
        for place in range(1, LENGTH + 1):
            follows = (5 * words[:, place - 1] + 7) % VOCABULARY
            words[:, place] = torch.where(surprising[:, place], words[:, place], follows)
        return words[:, :-1], words[:, 1:]
