"""Recommendation and click prediction: embeddings of categories, and products of them."""

from __future__ import annotations

from typing import Any

import torch
from fieldcase import Made, case


def _clicked(model: torch.nn.Module, *inputs: torch.Tensor) -> Made:
    """A model whose output is a probability, against clicks."""
    clicks = (torch.rand(32) > 0.5).float()
    return Made(model, inputs, lambda out: torch.nn.functional.binary_cross_entropy(out.float().flatten(), clicks))


def _columns() -> tuple[list[Any], torch.Tensor]:
    """Four categories and two numbers, as deepctr takes them: in one tensor."""
    from deepctr_torch.inputs import DenseFeat, SparseFeat

    features = [*(SparseFeat(f"kind {place}", 50, embedding_dim=4) for place in range(4)), DenseFeat("price", 1), DenseFeat("age", 1)]
    return features, torch.cat([torch.randint(0, 50, (32, 4)).float(), torch.rand(32, 2)], 1)


@case("deepctr-torch")
def deepctr_factors() -> Made:
    from deepctr_torch.models import DeepFM

    features, seen = _columns()
    return _clicked(DeepFM(features, features, task="binary", dnn_hidden_units=(16, 16)), seen)


@case("deepctr-torch")
def deepctr_cross() -> Made:
    from deepctr_torch.models import DCNMix

    features, seen = _columns()
    return _clicked(DCNMix(features, features, task="binary", dnn_hidden_units=(16, 16)), seen)


@case("torchfm")
def torchfm_extreme() -> Made:
    from torchfm.model.xdfm import ExtremeDeepFactorizationMachineModel

    model = ExtremeDeepFactorizationMachineModel([20, 30, 10], embed_dim=8, mlp_dims=(16,), dropout=0.0, cross_layer_sizes=(8, 8))
    return _clicked(model, torch.randint(0, 10, (32, 3)))


@case("torchfm")
def torchfm_attention() -> Made:
    from torchfm.model.afm import AttentionalFactorizationMachineModel

    return _clicked(AttentionalFactorizationMachineModel([20, 30, 10], embed_dim=8, attn_size=8, dropouts=(0.0, 0.0)), torch.randint(0, 10, (32, 3)))
