"""A language model on a two-layer LSTM."""

from __future__ import annotations

import torch
from case import Case, built, tokens
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    """Embedding, LSTM, head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 48)
        self.lstm = nn.LSTM(48, 48, num_layers=2, batch_first=True)
        self.head = nn.Linear(48, 128)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(ids))
        return self.head(hidden)


def build(seed: int = 0) -> Case:
    ids = tokens(seed, 4, 33, vocabulary=128)
    return Case(built(seed, Model), ids[:, :-1], lambda out: functional.cross_entropy(out.flatten(0, 1).float(), ids[:, 1:].flatten()))
