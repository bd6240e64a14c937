"""The Trainer of transformers with bf16=True, on a GPT-2 from its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from course import accused, line, watched

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -c constraints.txt -e '.[huggingface]'")
pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate: pip install -c constraints.txt -e '.[huggingface]'")



def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=96, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2, loss_type="ForCausalLM", resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def texts() -> list[dict[str, torch.Tensor]]:
    """Tokens that count upwards, each text from a place of its own."""
    return [{"input_ids": ids, "labels": ids} for start in range(32) if (ids := (start + torch.arange(32)) % 96) is not None]


class Sharpened(transformers.Trainer):  # type: ignore[misc,name-defined]
    """A loss of the user's own, by hand; without the largest logit taken off first, and in float16, its exponentials overflow."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        logits = model(input_ids=inputs["input_ids"]).logits[:, :-1]
        scores = (20 * logits).half()
        chances = scores.exp()  # exponentials
        losses = chances.sum(-1).log() - scores.gather(-1, inputs["labels"][:, 1:, None])[..., 0]
        return losses.float().mean()


def trained(folder: Path, *, model: Any = None, trainer: Any = transformers.Trainer, **options: Any) -> Any:
    options = {"learning_rate": 5e-4, "max_steps": 4, "bf16": True, **options}
    arguments = transformers.TrainingArguments(
        str(folder), use_cpu=True, per_device_train_batch_size=8, report_to="none", save_strategy="no", disable_tqdm=True, logging_strategy="no",
        seed=0, **options,
    )  # fmt: skip
    own = trainer(model or gpt2(), arguments, train_dataset=texts())
    own.train()  # train
    return own.model


@pytest.mark.parametrize(
    "options",
    [{}, {"bf16": False}, {"gradient_accumulation_steps": 2}, {"activation_checkpointing": True}, {"optim": "adafactor"}],
    ids=["bf16", "float32", "accumulated", "checkpointed", "adafactor"],
)
def test_a_healthy_training_is_left_in_peace(tmp_path: Path, options: dict[str, Any]) -> None:
    report = watched(lambda: trained(tmp_path, **options))
    assert accused(report) == []
    assert (report.facts["shadowed"] > 100) == options.get("bf16", True)
    assert report.facts["covered"] == 1


def test_exponentials_of_a_users_own_loss(tmp_path: Path) -> None:
    report = watched(lambda: trained(tmp_path, trainer=Sharpened, max_steps=1))
    assert accused(report)[0] == ("overflow", line(Sharpened, "exponentials")), report.summary()


def test_updates_that_bfloat16_weights_do_not_see(tmp_path: Path) -> None:
    """A model that was loaded in bfloat16, at the Trainer's own learning rate, 5e-5."""
    report = watched(lambda: trained(tmp_path, model=gpt2().bfloat16(), learning_rate=5e-5))
    assert accused(report) == [("lost-update", line(trained, "train"))], report.summary()
    assert report.errors[0].module.startswith("transformer.")
