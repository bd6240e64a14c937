"""LoRA by peft on a GPT-2 from its configuration."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from course import accused, line, watched
from torch import nn

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -c constraints.txt -e '.[peft]'")
peft = pytest.importorskip("peft", reason="needs peft: pip install -c constraints.txt -e '.[peft]'")


def adapted(dtype: torch.dtype, *, wide: bool = True, size: float = 0.0) -> Any:
    """GPT-2 stored in `dtype`, with adapters in float32 if `wide`, and with their B of that size, in place of zeros."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=96, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2, loss_type="ForCausalLM"
    )
    base = transformers.GPT2LMHeadModel(config).to(dtype)
    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, lora, autocast_adapter_dtype=wide)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=size)
    return model


def trained(model: Any, rate: float = 1e-3) -> Any:
    """Four steps under autocast to bfloat16."""
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=rate)
    ids = (torch.arange(8)[:, None] + torch.arange(32)) % 96
    torch.manual_seed(1)  # dropout
    for _ in range(4):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()  # step
        optimizer.zero_grad()
    return model


def merged(model: Any) -> Any:
    """The adapters added to the weights, as for serving."""
    model.merge_adapter()  # merge
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_adapters_in_float32_are_left_in_peace(dtype: torch.dtype) -> None:
    report = watched(lambda: trained(adapted(dtype)))
    assert accused(report) == []
    assert report.facts["shadowed"] > 100
    assert report.facts["covered"] == 1


def test_updates_that_adapters_in_bfloat16_do_not_see() -> None:
    """A's weights are up to 1/8, where bfloat16 rounds away less than 2^-12 = 2.4e-4: most of AdamW's steps at 2e-5."""
    report = watched(lambda: trained(adapted(torch.bfloat16, wide=False), rate=2e-5))
    assert accused(report) == [("lost-update", line(trained, "step"))], report.summary()
    assert "lora_A" in report.errors[0].message


def test_a_merge_into_float32_is_left_in_peace() -> None:
    assert accused(watched(lambda: merged(adapted(torch.float32, size=1e-3)))) == []


def test_a_merge_that_bfloat16_weights_do_not_see() -> None:
    """Weights of about 0.02 see what is beyond 2^-14 = 6e-5; what is to be added is of size 2 · 4^1/2 · 0.07 · 1e-4 = 3e-5."""
    report = watched(lambda: merged(adapted(torch.bfloat16, size=1e-4)))
    assert accused(report)[:1] == [("absorption", line(merged, "merge"))], report.summary()
