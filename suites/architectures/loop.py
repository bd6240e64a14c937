"""A training loop as people write it: groups of weights, a warm-up, dropout, clipping, an average of the weights, a scaler, and a validation."""

from __future__ import annotations

import torch
from tiny import losses
from torch import nn

DROPOUT, RATE, CLIP = 0.1, 3e-4, 1.0
DECAY = 0.99
"""Of the average of the weights, a step."""


def prepared(model: nn.Module, precision: str) -> nn.Module:
    """The model with dropout, in the format that its weights have under this precision."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = DROPOUT
    return model.to(torch.bfloat16) if precision == "bf16-true" else model


def loop(model: nn.Module, inputs: dict[str, torch.Tensor], precision: str, steps: int) -> float:
    """Trains the model. Returns its loss on the same batch afterwards."""
    mixed, low = precision.endswith("-mixed"), torch.float16 if precision.startswith("16") else torch.bfloat16
    optimizer = torch.optim.AdamW(_groups(model), lr=RATE, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=precision == "16-mixed")
    average = {name: weight.detach().clone().float() for name, weight in model.named_parameters()}
    model.train()
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", low, enabled=mixed):
            loss = losses(model(**inputs))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= before:  # a skipped step is none of the warm-up's
            schedule.step()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                average[name].lerp_(weight.float(), 1 - DECAY)
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", low, enabled=mixed):
        return losses(model(**inputs)).item()


def _groups(model: nn.Module) -> list[dict[str, object]]:
    """Weights of norms and biases are not decayed."""
    weights = list(model.parameters())
    return [{"params": [each for each in weights if each.dim() > 1], "weight_decay": 0.1},
            {"params": [each for each in weights if each.dim() <= 1], "weight_decay": 0.0}]  # fmt: skip
