"""A small language model that takes what those of transformers take, and the faults that such models have where they are asked otherwise."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from decoder import rotated_at
from torch import nn

WIDTH, HEADS = 32, 4


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    past_key_values: Any = None


class Kept:
    """Keys and values of each layer so far."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def length(self) -> int:
        return next(iter(self.layers.values()))[0].shape[-2] if self.layers else 0


class Layer(nn.Module):
    def __init__(self, number: int, fault: str) -> None:
        super().__init__()
        self.number, self.fault = number, fault
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feeding = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, seen: torch.Tensor, positions: torch.Tensor, kept: Kept | None) -> torch.Tensor:
        q, k, v = (each.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, -1))
        q, k = rotated_at(q, positions), rotated_at(k, positions)
        if kept is not None and self.number in kept.layers:
            before = kept.layers[self.number]
            k, v = torch.cat([before[0], k], -2), torch.cat([before[1], v], -2)
        if kept is not None and not (self.fault == "stale" and self.number in kept.layers):
            kept.layers[self.number] = (k, v)
        if self.fault == "stale":
            seen = seen[..., -k.shape[-2] :]
        mixed = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~seen, -1e9).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        hidden = self.feeding(x)
        return x + (hidden - hidden.mean(0, keepdim=True) * 0.01 if self.fault == "batch" else hidden)


class Chat(nn.Module):
    def __init__(self, fault: str = "", layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fault, self.embedding, self.dropout = fault, nn.Embedding(50, WIDTH), nn.Dropout(0.2)
        self.layers = nn.ModuleList(Layer(number, fault if number else "") for number in range(layers))
        self.head = nn.Linear(WIDTH, 50, bias=False)
        for value in self.parameters():
            if value.dim() > 1:
                nn.init.normal_(value, std=0.3)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, position_ids: torch.Tensor | None = None,
        past_key_values: Kept | None = None, use_cache: bool = False,
    ) -> Output:  # fmt: skip
        kept = past_key_values or (Kept() if use_cache else None)
        before, new = kept.length if kept else 0, input_ids.shape[1]
        if position_ids is None:
            start = 0 if self.fault == "position" else before
            position_ids = torch.arange(start, start + new)[None]
        seen = torch.ones(before + new, before + new, dtype=torch.bool).tril()[before:]
        if kept is None and self.fault != "packed":  # rows in one are told apart by positions that begin anew
            row = (position_ids == 0).cumsum(-1)
            seen = seen & (row[:, :, None] == row[:, None, :])[:, None]
        if attention_mask is not None:
            hidden = attention_mask.bool()
            if self.fault == "mask":  # the first real token of a padded row is hidden too
                hidden = hidden & torch.cat([torch.ones_like(hidden[:, :1]), hidden[:, :-1]], 1)
            seen = seen & hidden[:, None, None, :]
        x = self.dropout(self.embedding(input_ids))
        for layer in self.layers:
            x = layer(x, seen, position_ids, kept)
        return Output(self.head(x), kept)


def tokens(batch: int = 3, length: int = 8) -> torch.Tensor:
    return torch.randint(1, 50, (batch, length), generator=torch.Generator().manual_seed(1))
