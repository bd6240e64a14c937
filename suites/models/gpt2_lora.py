"""GPT-2 from transformers, its weights frozen, with LoRA adapters from peft: only the adapters have gradients."""

from __future__ import annotations

import torch
from case import Case, built, tokens
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

CONFIG = GPT2Config(
    n_layer=2, n_embd=64, n_head=4, vocab_size=256, n_positions=128, bos_token_id=1, eos_token_id=2, resid_pdrop=0.1, embd_pdrop=0.1,
    attn_pdrop=0.1, loss_type="ForCausalLM",
)  # fmt: skip
LORA = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, task_type="CAUSAL_LM")


def build(seed: int = 0) -> Case:
    def make() -> torch.nn.Module:
        model = get_peft_model(GPT2LMHeadModel(CONFIG), LORA)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # zero at the start of a fine-tuning, which would leave A without a gradient
                torch.nn.init.normal_(parameter, std=0.02)
        return model.train()

    ids = tokens(seed, 2, 64, vocabulary=256)
    return Case(built(seed, make), {"input_ids": ids, "labels": ids}, lambda out: out.loss)
