"""Steps of an optimizer that do not arrive in weights of 8 bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bugs.bug import Bug, normal

STEPS, RATE = 6, 1e-4


def layer() -> nn.Linear:
    """Weights between a half and one, where bfloat16 is spaced 2^-8 = 0.0039: a step of 1e-4 is a twentieth of the half that rounds away."""
    made = nn.Linear(48, 48, bias=False)
    with torch.no_grad():
        made.weight.copy_((0.75 + 0.2 * normal(48, 48).clamp(-1, 1)) * normal(48, 48, seed=1).sign())
    return made


def objective(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)


def batch() -> torch.Tensor:
    return normal(24, 48, seed=2)


def tuned(low: bool) -> torch.Tensor:
    """What the weights have moved after some steps, all of it stored in bfloat16 or under autocast."""
    model = layer().to(torch.bfloat16) if low else layer()
    start, stepper = model.weight.detach().clone(), optimizer(model.parameters())
    for _ in range(STEPS):
        stepper.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not low):
            out = model(batch().to(model.weight.dtype))
        objective(out).backward()
        stepper.step()  # culprit: stored-in-bfloat16
    return (model.weight.detach() - start).float()


def measured(fixed: bool) -> dict[str, Any]:
    return {"model": layer(), "inputs": (batch(),), "precision": "bf16-master" if fixed else "bf16-true", "loss": objective, "optimizer": optimizer,
            "steps": STEPS}  # fmt: skip


BUGS = (
    Bug("stored-in-bfloat16", "meta-pytorch/torchtune#2254", ("lost-update",), "", lambda: tuned(True), lambda: tuned(False),
        phase="optimizer", module="Linear", measured=measured),
)  # fmt: skip
