"""A vision transformer from transformers."""

from __future__ import annotations

import torch
from case import Case, built, draws
from torch.nn import functional
from transformers import ViTConfig, ViTForImageClassification

CONFIG = ViTConfig(
    num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8, num_labels=10,
)  # fmt: skip


def _made() -> ViTForImageClassification:
    """With tokens drawn by `normal_`: torch 2.13's `trunc_normal_`, which transformers uses for them, draws other numbers than 2.11's."""
    model = ViTForImageClassification(CONFIG)
    with torch.no_grad():
        for token in (model.vit.embeddings.cls_token, model.vit.embeddings.position_embeddings):
            token.normal_(std=CONFIG.initializer_range)
    return model


def build(seed: int = 0) -> Case:
    images = torch.randn(4, 3, 32, 32, generator=draws(seed))
    labels = torch.randint(10, (4,), generator=draws(seed))
    model = built(seed, _made)
    return Case(model, {"pixel_values": images}, lambda out: functional.cross_entropy(out.logits.float(), labels))
