"""Kinds of adapters of peft, on a Llama and a GPT-2 from their configurations."""

from __future__ import annotations

from typing import Any

import torch
from huggingface_trainers import gpt2, llama
from training import Left, Low, training

LLAMA = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "DoRA": ("LoraConfig", {"r": 4, "use_dora": True, **LLAMA}),
    "rsLoRA": ("LoraConfig", {"r": 4, "use_rslora": True, "lora_dropout": 0.1, **LLAMA}),
    "PiSSA": ("LoraConfig", {"r": 4, "init_lora_weights": "pissa", **LLAMA}),
    "OLoRA": ("LoraConfig", {"r": 4, "init_lora_weights": "olora", **LLAMA}),
    "IA3": ("IA3Config", {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"], "task_type": "CAUSAL_LM"}),
    "prompt tuning": ("PromptTuningConfig", {"num_virtual_tokens": 4, "task_type": "CAUSAL_LM"}),
    "p-tuning": ("PromptEncoderConfig", {"num_virtual_tokens": 4, "task_type": "CAUSAL_LM"}),
    "prefix tuning": ("PrefixTuningConfig", {"num_virtual_tokens": 4, "task_type": "CAUSAL_LM"}),
    "AdaLoRA": ("AdaLoraConfig", {"init_r": 6, "target_r": 4, "total_step": 4, **LLAMA}),
    "LoHa": ("LoHaConfig", {"r": 4, **LLAMA}),
    "LoKr": ("LoKrConfig", {"r": 4, **LLAMA}),
    "OFT": ("OFTConfig", {"oft_block_size": 8, "use_cayley_neumann": False, **LLAMA}),
    "OFT, Cayley-Neumann": ("OFTConfig", {"oft_block_size": 8, "use_cayley_neumann": True, **LLAMA}),
    "BOFT": ("BOFTConfig", {"boft_block_size": 8, **LLAMA}),
    "VeRA": ("VeraConfig", {"r": 16, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}),
    "HRA": ("HRAConfig", {"r": 4, **LLAMA}),
    "FourierFT": ("FourierFTConfig", {"n_frequency": 50, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}),
    "LN tuning": ("LNTuningConfig", {"target_modules": ["input_layernorm", "norm"], "task_type": "CAUSAL_LM"}),
    "trainable tokens": ("TrainableTokensConfig", {"token_indices": [1, 2, 3], "target_modules": ["embed_tokens"], "task_type": "CAUSAL_LM"}),
    "LoRA of an embedding": ("LoraConfig", {"r": 4, "target_modules": ["wte", "c_attn"], "task_type": "CAUSAL_LM", "fan_in_fan_out": True}),
}


def added(name: str, kind: str, options: dict[str, Any]) -> None:
    def run(low: Low) -> Left:
        import peft

        base = low.cast(gpt2() if "wte" in options.get("target_modules", ()) else llama())
        model = peft.get_peft_model(base, getattr(peft, kind)(**options))
        optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
        ids, left = (torch.arange(4)[:, None] + torch.arange(16)) % 95 + 1, {}
        model.train()
        for step in range(3):
            with low.autocast():
                loss = model(input_ids=ids, labels=ids).loss
            low.step(loss, optimizer)
            if name == "AdaLoRA":
                model.base_model.update_and_allocate(step)
            left[f"loss {step}"] = loss
        return Left(model, left, (model, {"input_ids": ids, "labels": ids}), {"loss": lambda out: out.loss})

    training("peft", name=name)(run)


for called, (config, given) in CONFIGS.items():
    added(called, config, given)
