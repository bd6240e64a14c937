"""Recommendation and click prediction: embeddings of categories, and products of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from fieldcase import Calls, Made, case


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


@case("recbole")
def recbole_attention() -> Made:
    from recbole.model.sequential_recommender.sasrec import SASRec

    names = {"USER_ID_FIELD": "user", "ITEM_ID_FIELD": "item", "LIST_SUFFIX": "_list", "ITEM_LIST_LENGTH_FIELD": "length", "NEG_PREFIX": "no_"}
    shape = {"n_layers": 2, "n_heads": 2, "hidden_size": 32, "inner_size": 64, "hidden_dropout_prob": 0.5, "attn_dropout_prob": 0.5}
    more = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "initializer_range": 0.02, "loss_type": "CE", "MAX_ITEM_LIST_LENGTH": 20, "device": "cpu"}
    model = SASRec(names | shape | more, SimpleNamespace(num=lambda _: 100))
    seen = {"item_list": torch.randint(1, 100, (16, 20)), "length": torch.full((16,), 20), "item": torch.randint(1, 100, (16,))}
    return Made(Calls(lambda net, given: net.calculate_loss(given), model), (seen,), lambda loss: loss)
