"""The Trainer of transformers with settings that few use, on models from their configurations."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from training import Left, Low, training

TWO = ("bf16-mixed", "bf16-true")
"""The Trainer refuses fp16 on a CPU."""


def gpt2() -> Any:
    import transformers

    sizes = {"vocab_size": 96, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}
    config = transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, loss_type="ForCausalLM")
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    import transformers

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, **heads)
    )


def mixtral() -> Any:
    import transformers

    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            num_local_experts=4, output_router_logits=True, router_jitter_noise=0.01,
        )
    )  # fmt: skip


def t5() -> Any:
    import transformers

    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=96, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0, pad_token_id=0)
    )


def texts() -> list[dict[str, torch.Tensor]]:
    """Tokens that count upwards, each text from a place of its own, some of them shorter."""
    lengths = [32, 32, 16, 8]
    made = [(start + torch.arange(lengths[start % 4])) % 95 + 1 for start in range(16)]
    return [{"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)} for ids in made]


def padded(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    fill = {"input_ids": 0, "labels": -100, "attention_mask": 0}
    return {
        name: torch.nn.utils.rnn.pad_sequence([torch.as_tensor(row[name]) for row in rows], batch_first=True, padding_value=value)
        for name, value in fill.items()
    }


def trained(low: Low, make: Any = gpt2, **options: Any) -> Left:
    import transformers

    model = low.cast(make())
    options = {"learning_rate": 5e-3, "max_steps": 3, "bf16": low.precision == "bf16-mixed", **options}
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, use_cpu=True, per_device_train_batch_size=4, report_to="none", save_strategy="no", disable_tqdm=True, logging_strategy="no",
            seed=0, **options,
        )  # fmt: skip
        own = transformers.Trainer(model, arguments, train_dataset=texts(), eval_dataset=texts()[:4], data_collator=padded)
        own.train()
    inputs = padded(texts()[:4])
    own.model.train(False)
    return Left(own.model, {}, (own.model, inputs), {"loss": lambda out: out.loss})


def added(name: str, make: Any = gpt2, package: str = "transformers", **options: Any) -> None:
    training(package, TWO, name)(lambda low: trained(low, make, **options))


added("gradient checkpointing", activation_checkpointing=True)
added("gradient checkpointing, reentrant", make=llama, activation_checkpointing=True, activation_checkpointing_kwargs={"use_reentrant": True})
added("label smoothing", label_smoothing_factor=0.1)
added("neftune", make=llama, neftune_noise_alpha=5.0)
added("adafactor", optim="adafactor", learning_rate=1e-2)
added("group by length, accumulated", gradient_accumulation_steps=2, train_sampling_strategy="group_by_length")
GALORE = {"optim": "galore_adamw", "optim_target_modules": ["q_proj", "v_proj"], "optim_args": "rank=4,update_proj_gap=2"}
added("galore", package="galore-torch", make=llama, **GALORE)
added("fused AdamW, cosine restarts, clipped", optim="adamw_torch_fused", lr_scheduler_type="cosine_with_restarts", max_grad_norm=0.1)
added("SGD, full evaluation in bfloat16", optim="sgd", learning_rate=0.1, eval_strategy="steps", eval_steps=2, bf16_full_eval=True)
added("schedule-free", package="schedulefree", optim="schedule_free_adamw", lr_scheduler_type="constant")
added("mixture of experts", make=mixtral)
added("encoder and decoder", make=t5)
added("compiled Llama", make=llama, torch_compile=True, torch_compile_backend="eager")
added("rmsprop, tokens counted", optim="rmsprop", include_num_input_tokens_seen="all")
