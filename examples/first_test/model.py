"""A small classifier with attention over its input tokens."""

import torch


class Classifier(torch.nn.Module):
    """Token ids (batch, length) to class scores (batch, classes)."""

    def __init__(self, vocabulary: int = 100, width: int = 32, classes: int = 4) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.encoder = torch.nn.TransformerEncoderLayer(width, 4, 64, batch_first=True)
        self.head = torch.nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))
