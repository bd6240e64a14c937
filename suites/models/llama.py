"""Llama from transformers, two layers: grouped queries, rotary positions up to 640, RMS norms, a gated MLP."""

from __future__ import annotations

from case import Case, built, tokens
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = LlamaConfig(
    num_hidden_layers=2, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, vocab_size=256,
    max_position_embeddings=1024, initializer_range=0.1,
)  # fmt: skip
LENGTH = 640


def build(seed: int = 0) -> Case:
    ids = tokens(seed, 1, LENGTH, vocabulary=256)
    return Case(built(seed, lambda: LlamaForCausalLM(CONFIG)), {"input_ids": ids, "labels": ids}, lambda out: out.loss)
