"""Mixtral from transformers: four experts, two a token, with the router's auxiliary loss added to the main one."""

from __future__ import annotations

from case import Case, built, tokens
from transformers import MixtralConfig, MixtralForCausalLM

CONFIG = MixtralConfig(
    num_hidden_layers=2, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, vocab_size=256,
    num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=256, output_router_logits=True, router_aux_loss_coef=0.02,
)  # fmt: skip


def build(seed: int = 0) -> Case:
    ids = tokens(seed, 2, 64, vocabulary=256)
    return Case(built(seed, lambda: MixtralForCausalLM(CONFIG)), {"input_ids": ids, "labels": ids}, lambda out: out.loss)
